#include "collectives/comm/transport.h"

#include <string.h>

static const struct coll_transport *const transports[] = {
    &coll_transport_self,
    &coll_transport_shm,
    &coll_transport_tcp,
    &coll_transport_threads,
};

const struct coll_transport *coll_transport_find(const char *name)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}
