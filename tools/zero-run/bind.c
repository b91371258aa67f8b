#include "tools/zero-run/bind.h"

#include "base/arena.h"

#include <errno.h>
#include <string.h>

// A part of the machine that ranks are dealt to.
struct part {
    hwloc_obj_t object;
    int cores; // that are allowed, at least one
    int ranks;
};

struct dealing {
    hwloc_topology_t topology;
    hwloc_const_bitmap_t allowed;
    int core_depth; // of cores, or of CPUs where the system doesn't tell cores
    struct run_share *shares;
};

static int count_cores(const struct dealing *dealing, hwloc_const_bitmap_t cpus)
{
    int count = 0;
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_covering_cpuset_by_depth(dealing->topology, cpus,
                                                               dealing->core_depth, core)))
        count += hwloc_bitmap_intersects(core->cpuset, dealing->allowed);
    return count;
}

// Adds what is allowed of an object to a share.
static void give(const struct dealing *dealing, struct run_share *share, hwloc_obj_t object)
{
    hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
    if (!cpus)
        return; // an empty share is noticed at the end
    hwloc_bitmap_and(cpus, object->cpuset, dealing->allowed);
    hwloc_bitmap_or(share->cpus, share->cpus, cpus);
    hwloc_bitmap_free(cpus);
}

// Fewer ranks than parts: each gets a run of them, of as nearly the same size as whole parts allow.
static void give_runs(const struct dealing *dealing, const struct part *parts, int count, int first,
                      int ranks)
{
    int total = 0, given = 0, next = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].cores;
    for (int rank = 0; rank < ranks; rank++) {
        const double target = (double)total * (rank + 1) / ranks;
        const int last = count - (ranks - rank - 1); // those behind need one each
        const int begin = next;
        // A part goes where the larger half of it belongs.
        while (next < last && (next == begin || given + parts[next].cores / 2.0 <= target)) {
            give(dealing, &dealing->shares[first + rank], parts[next].object);
            given += parts[next++].cores;
        }
    }
}

// At least as many ranks as parts: each goes where it then has the most, and to itself if possible.
static void spread(struct part *parts, int count, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        int best = 0;
        for (int i = 1; i < count; i++) {
            const int64_t here = (int64_t)parts[i].cores * (parts[best].ranks + 1);
            const int64_t there = (int64_t)parts[best].cores * (parts[i].ranks + 1);
            if (here > there || (here == there && parts[i].ranks < parts[best].ranks))
                best = i;
        }
        parts[best].ranks++;
    }
}

// The children of an object that have something to give.
static int find_parts(const struct dealing *dealing, hwloc_obj_t object, struct part *parts)
{
    int count = 0;
    for (unsigned i = 0; i < object->arity; i++) {
        const int cores = count_cores(dealing, object->children[i]->cpuset);
        if (cores > 0)
            parts[count++] = (struct part){.object = object->children[i], .cores = cores};
    }
    return count;
}

// Deals ranks first .. first + ranks - 1 to an object.
static void deal_cores(const struct dealing *dealing, hwloc_obj_t object, int first, int ranks)
{
    struct part *parts = NULL;
    int count = 0;
    if (ranks > 1 && object->depth < dealing->core_depth) {
        parts = base_calloc(object->arity, sizeof *parts);
        count = parts ? find_parts(dealing, object, parts) : 0;
    }
    if (count == 0) {
        for (int rank = first; rank < first + ranks; rank++)
            give(dealing, &dealing->shares[rank], object);
    } else if (ranks < count) {
        give_runs(dealing, parts, count, first, ranks);
    } else {
        spread(parts, count, ranks);
        for (int i = 0; i < count; first += parts[i++].ranks)
            deal_cores(dealing, parts[i].object, first, parts[i].ranks);
    }
    base_free(parts);
}

// The NUMA nodes that have CPUs to give; of several at the same CPUs (fast and slow memory) the
// first, which is what the kernel takes by default.
static int find_nodes(const struct dealing *dealing, struct part *parts)
{
    hwloc_obj_t node = NULL;
    int count = 0;
    while ((node = hwloc_get_next_obj_by_type(dealing->topology, HWLOC_OBJ_NUMANODE, node))) {
        const int cores = count_cores(dealing, node->cpuset);
        bool known = cores == 0;
        for (int i = 0; i < count && !known; i++)
            known = hwloc_bitmap_intersects(parts[i].object->cpuset, node->cpuset);
        if (!known)
            parts[count++] = (struct part){.object = node, .cores = cores};
    }
    return count;
}

static void deal_nodes(const struct dealing *dealing, int ranks)
{
    const int nodes = hwloc_get_nbobjs_by_type(dealing->topology, HWLOC_OBJ_NUMANODE);
    struct part *parts = base_calloc((size_t)nodes, sizeof *parts);
    const int count = parts ? find_nodes(dealing, parts) : 0;
    if (count > 0 && ranks < count) {
        give_runs(dealing, parts, count, 0, ranks);
    } else if (count > 0) {
        spread(parts, count, ranks);
        for (int i = 0, rank = 0; i < count; i++)
            for (int k = 0; k < parts[i].ranks; k++)
                give(dealing, &dealing->shares[rank++], parts[i].object);
    }
    base_free(parts);
}

void run_bind_deal(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, bool numa, int ranks,
                   struct run_share *shares)
{
    const struct dealing dealing = {.topology = topology,
                                    .allowed = allowed,
                                    .core_depth =
                                        hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE),
                                    .shares = shares};
    if (numa)
        deal_nodes(&dealing, ranks);
    else
        deal_cores(&dealing, hwloc_get_root_obj(topology), 0, ranks);
    for (int i = 0; i < ranks; i++) {
        hwloc_cpuset_to_nodeset(topology, shares[i].cpus, shares[i].nodes);
        shares[i].cores = count_cores(&dealing, shares[i].cpus);
        shares[i].together = 0;
        for (int k = 0; k < ranks; k++)
            shares[i].together += hwloc_bitmap_isequal(shares[i].cpus, shares[k].cpus);
    }
}

static zero_result read_topology(struct run_binding *binding, struct base_error *error)
{
    if (hwloc_topology_init(&binding->topology)) {
        binding->topology = NULL;
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the topology");
    }
    if (hwloc_topology_load(binding->topology))
        return zero_fail_errno(error, ZERO_E_IO, errno, "hwloc cannot read the topology");
    // Those of the control group; then those that zero-run itself may use.
    binding->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(binding->topology));
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    if (binding->allowed && own && hwloc_topology_is_thissystem(binding->topology) &&
        hwloc_get_cpubind(binding->topology, own, HWLOC_CPUBIND_PROCESS) == 0)
        hwloc_bitmap_and(binding->allowed, binding->allowed, own);
    const bool good = binding->allowed && own;
    hwloc_bitmap_free(own);
    if (!good)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the topology");
    if (hwloc_bitmap_iszero(binding->allowed))
        return zero_fail(error, ZERO_E_IO,
                         "none of the CPUs that zero-run may use is in hwloc's topology");
    return ZERO_OK;
}

static zero_result make_shares(struct run_binding *binding, bool numa, struct base_error *error)
{
    binding->shares = base_calloc((size_t)binding->ranks, sizeof *binding->shares);
    bool good = binding->shares != NULL;
    for (int i = 0; good && i < binding->ranks; i++) {
        binding->shares[i].cpus = hwloc_bitmap_alloc();
        binding->shares[i].nodes = hwloc_bitmap_alloc();
        good = binding->shares[i].cpus && binding->shares[i].nodes;
    }
    if (good)
        run_bind_deal(binding->topology, binding->allowed, numa, binding->ranks, binding->shares);
    for (int i = 0; good && i < binding->ranks; i++)
        good = !hwloc_bitmap_iszero(binding->shares[i].cpus);
    return good ? ZERO_OK
                : zero_fail(error, ZERO_E_NOMEM, "no memory for binding %d ranks", binding->ranks);
}

static int allowed_cores(const struct run_binding *binding)
{
    const struct dealing dealing = {
        .topology = binding->topology,
        .allowed = binding->allowed,
        .core_depth = hwloc_get_type_or_below_depth(binding->topology, HWLOC_OBJ_CORE)};
    return count_cores(&dealing, binding->allowed);
}

zero_result run_bind_open(struct run_binding **binding, enum run_bind bind, int ranks,
                          struct base_error *error)
{
    *binding = NULL;
    if (bind == RUN_BIND_NONE)
        return ZERO_OK;
    struct run_binding *made = base_calloc(1, sizeof *made);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the topology");
    made->ranks = ranks;
    zero_result result = read_topology(made, error);
    const bool none = !result && bind == RUN_BIND_AUTO && allowed_cores(made) < ranks;
    if (!result && !none)
        result = make_shares(made, bind == RUN_BIND_NUMA, error);
    if (result || none) {
        run_bind_close(made);
        return result;
    }
    // Where there is one node only there is nothing to prefer.
    made->memory =
        bind == RUN_BIND_NUMA && hwloc_get_nbobjs_by_type(made->topology, HWLOC_OBJ_NUMANODE) > 1;
    *binding = made;
    return ZERO_OK;
}

zero_result run_bind_check(const struct run_binding *binding, struct base_error *error)
{
    if (!binding || hwloc_topology_is_thissystem(binding->topology))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_UNSUPPORTED,
                     "--bind: hwloc's variables (HWLOC_XMLFILE, HWLOC_SYNTHETIC) describe another "
                     "machine; --explain shows what it would be there");
}

int run_bind_cores(const struct run_binding *binding, int rank)
{
    const struct run_share *share = &binding->shares[rank];
    return share->cores > share->together ? share->cores / share->together : 1;
}

bool run_bind_apply(const struct run_binding *binding, int rank)
{
    if (!binding)
        return true;
    const struct run_share *share = &binding->shares[rank];
    if (hwloc_set_cpubind(binding->topology, share->cpus, HWLOC_CPUBIND_THREAD))
        return false;
    // Without HWLOC_MEMBIND_STRICT: a full node is no reason to be killed.
    return !binding->memory ||
           hwloc_set_membind(binding->topology, share->nodes, HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0;
}

void run_bind_explain(const struct run_binding *binding, struct base_text *text)
{
    if (!binding) {
        base_text_add(text, "bind         nothing\n");
        return;
    }
    base_text_add(text, "bind         rank  cores  shared by  NUMA nodes  CPUs\n");
    for (int i = 0; i < binding->ranks; i++) {
        const struct run_share *share = &binding->shares[i];
        char cpus[512], nodes[128];
        hwloc_bitmap_list_snprintf(cpus, sizeof cpus, share->cpus);
        hwloc_bitmap_list_snprintf(nodes, sizeof nodes, share->nodes);
        base_text_add(text, "             %4d  %5d  %9d  %10s  %s\n", i, share->cores,
                      share->together, nodes, cpus);
    }
    if (binding->memory)
        base_text_add(text, "memory       of a rank's own NUMA nodes as long as they have some\n");
}

void run_bind_close(struct run_binding *binding)
{
    if (!binding)
        return;
    for (int i = 0; binding->shares && i < binding->ranks; i++) {
        hwloc_bitmap_free(binding->shares[i].cpus);
        hwloc_bitmap_free(binding->shares[i].nodes);
    }
    base_free(binding->shares);
    hwloc_bitmap_free(binding->allowed);
    if (binding->topology)
        hwloc_topology_destroy(binding->topology);
    base_free(binding);
}
