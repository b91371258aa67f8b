#include "collectives/comm/transport.h"

#include <string.h>

static const struct {
    const char *name;
    const struct coll_transport *transport;
} transports[] = {
    {"self", &coll_transport_threads}, {"shm", &coll_transport_shm},
    {"tcp", &coll_transport_tcp},      {"threads", &coll_transport_threads},
    {"ucx", &coll_transport_tcp},
};

const struct coll_transport *coll_transport_find(const char *name)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (strcmp(transports[i].name, name) == 0)
            return transports[i].transport;
    return NULL;
}
