#include "tests/cuda/nccl_theirs.h"

#include "base/library.h"
#include "tests/cuda/nccl_double.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

bool nccl_theirs_find(struct nccl_theirs *nccl)
{
    const struct base_symbol symbols[] = {
        {"ncclGetUniqueId", &nccl->unique_id},   {"ncclCommInitRankConfig", &nccl->init},
        {"ncclCommGetAsyncError", &nccl->state}, {"ncclCommAbort", &nccl->abort},
        {"ncclAllGather", &nccl->all_gather},
    };
    void *const library = dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL);
    const char *const missing =
        library ? base_library_find(library, symbols, sizeof symbols / sizeof *symbols)
                : NCCL_DOUBLE;
    if (missing)
        printf("there is no %s here\n", missing);
    return !missing;
}

ncclResult_t nccl_theirs_make(const struct nccl_theirs *nccl, const ncclUniqueId *id, int rank,
                              int world, ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return nccl->init(comm, world, *id, rank, &config);
}

bool nccl_theirs_settles(const struct nccl_theirs *nccl, ncclComm_t comm, ncclResult_t result)
{
    while (result == ncclInProgress) {
        usleep(200);
        if (nccl->state(comm, &result) != ncclSuccess)
            return false;
    }
    return result == ncclSuccess;
}
