/**
 * tools/zero-run/bind.h: how cores are dealt out to ranks, on a topology of hwloc's.
 */
#ifndef TOOLS_ZERO_RUN_BIND_H
#define TOOLS_ZERO_RUN_BIND_H

#include "tools/zero-run/run.h"

#include <hwloc.h>

/** What one rank gets. */
struct run_share {
    hwloc_bitmap_t cpus;
    hwloc_bitmap_t nodes; /**< NUMA nodes of these CPUs */
    int cores;            /**< whole ones, as far as they are allowed */
    int together;         /**< ranks that have exactly this share */
};

struct run_binding {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed; /**< CPUs to deal out */
    bool memory;            /**< memory is bound too */
    int ranks;
    struct run_share *shares;
};

/**
 * Deals the allowed CPUs out. With `numa` a share is the NUMA nodes of a rank; else its cores:
 * those of a rank lie together and are all its own, and no share has parts of two NUMA nodes,
 * packages or caches unless it has them whole, so that ranks share a node only if there are more
 * of them than nodes. The smallest share is as large as that allows. With more ranks than cores
 * several have the same core. shares[] are empty bitmaps. *Local.*
 */
void run_bind_deal(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, bool numa, int ranks,
                   struct run_share *shares);

#endif
