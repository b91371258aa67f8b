#include "offload/io/engine.h"

#include <string.h>

static const struct off_engine *const engines[] = {
    &off_engine_uring,
    &off_engine_threads,
    &off_engine_sync,
};

const struct off_engine *off_engine_at(size_t index)
{
    return index < sizeof engines / sizeof engines[0] ? engines[index] : NULL;
}

const struct off_engine *off_engine_find(const char *name)
{
    const struct off_engine *engine;
    for (size_t i = 0; (engine = off_engine_at(i)); i++)
        if (strcmp(engine->name, name) == 0)
            return engine;
    return NULL;
}
