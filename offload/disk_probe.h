/**
 * offload/disk_probe.h: how fast a disk is for this machine, and what it wants to be given at a
 * time.
 */
#ifndef OFFLOAD_DISK_PROBE_H
#define OFFLOAD_DISK_PROBE_H

#include "offload/io/io.h"
#include "offload/pages.h"

struct off_disk_probe_config {
    const char *directory; /**< on the file system in question */
    const struct off_io_engine *engine;
    double seconds; /**< about so long it takes; 0: 1 */
    size_t bytes;   /**< of the nameless file it uses; 0: 256 MiB */
};

struct off_disk_probe {
    double read_rate, write_rate; /**< bytes a second, each by itself, */
    double mixed_rate;            /**< and both together, with as many of either */
    double latency_s;             /**< of a read of 4 KiB when nothing else is under way */
    size_t transfer_bytes;        /**< with which mixed_rate was reached: for off_io_config, */
    unsigned credits[OFF_DIRECTIONS];
    enum off_page_kind pages; /**< of the memory that was used, */
    size_t direct_unit;       /**< and of the file: off_direct_file's */
    struct off_io_use use;    /**< of the last queue */
};

/**
 * Writes and reads a file that has no name and is gone afterwards. *Local.* ZERO_NOT_FOUND: there
 * is no such directory (error is set too); ZERO_E_LIMIT: no room; ZERO_E_UNSUPPORTED: the file
 * system cannot reserve any; ZERO_E_IO; else as off_io_create(). *probe is all zero then.
 */
zero_result off_disk_probe(struct off_disk_probe *probe, const struct off_disk_probe_config *config,
                           struct base_error *error);

#endif
