#include "collectives/provider/provider.h"

#include <string.h>

/** Where any will do, the first that all ranks have is taken. */
static const struct coll_provider *const providers[] = {
#ifdef ZERO_WITH_UCX
    &coll_provider_ucx,
#endif
    NULL,
};

const struct coll_provider *coll_provider_at(size_t index)
{
    return index < sizeof providers / sizeof *providers ? providers[index] : NULL;
}

const struct coll_provider *coll_provider_find(const char *name)
{
    for (size_t i = 0; providers[i]; i++)
        if (strcmp(providers[i]->name, name) == 0)
            return providers[i];
    return NULL;
}
