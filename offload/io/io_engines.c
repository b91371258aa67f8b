#include "offload/io/io_engine.h"

#include <assert.h>
#include <string.h>

static const struct off_io_engine *const engines[] = {
    &off_io_engine_uring,
    &off_io_engine_uring_plain,
    &off_io_engine_threads,
    &off_io_engine_sync,
};

_Static_assert(sizeof engines / sizeof *engines == OFF_IO_ENGINES, "OFF_IO_ENGINES counts them");

// The last one asks the system for nothing but threads.
static const struct off_io_engine *const choices[] = {
    &off_io_engine_uring,
    &off_io_engine_uring_plain,
    &off_io_engine_threads,
    NULL,
};

// What the one that takes most takes: which one it will be shows when a queue is created.
static struct off_io_memory auto_memory(unsigned depth)
{
    struct off_io_memory most = {.bytes = 0};
    for (size_t i = 0; choices[i]; i++) {
        const struct off_io_memory memory = choices[i]->memory(depth);
        most.bytes = memory.bytes > most.bytes ? memory.bytes : most.bytes;
        most.threads = memory.threads > most.threads ? memory.threads : most.threads;
    }
    return most;
}

const struct off_io_engine off_io_engine_auto = {
    .size = sizeof(struct off_io_engine),
    .name = "auto",
    .choices = choices,
    .memory = auto_memory,
};

const struct off_io_engine *off_io_engine_at(size_t index)
{
    return index < OFF_IO_ENGINES ? engines[index] : NULL;
}

const struct off_io_engine *off_io_engine_find(const char *name)
{
    const struct off_io_engine *engine;
    for (size_t i = 0; (engine = off_io_engine_at(i)); i++)
        if (strcmp(engine->name, name) == 0)
            return engine;
    return strcmp(name, off_io_engine_auto.name) == 0 ? &off_io_engine_auto : NULL;
}

static bool may_do_without(zero_result result)
{
    return result == ZERO_E_UNSUPPORTED || result == ZERO_E_LIMIT;
}

// What the configuration names is refused with the way out.
static zero_result create_named(const struct off_io_engine *engine,
                                const struct off_io_engine_config *config, void **state,
                                struct base_error *error)
{
    assert(engine->size == sizeof *engine && !engine->choices);
    struct base_error refusal = {.result = ZERO_OK};
    const zero_result result = engine->create(state, config, &refusal);
    if (!result)
        return ZERO_OK;
    return zero_fail(error, result, "io=%s: %s%s", engine->name, refusal.message,
                     may_do_without(result)
                         ? "; io=auto takes what there is, io=threads needs no io_uring"
                         : "");
}

zero_result off_io_engine_create(const struct off_io_engine *engine,
                                 const struct off_io_engine_config *config, struct off_io_use *use,
                                 void **state, struct base_error *error)
{
    zero_result result = ZERO_E_UNSUPPORTED;
    *use = (struct off_io_use){.engine = engine};
    if (!engine->choices)
        return create_named(engine, config, state, error);
    for (size_t i = 0; engine->choices[i]; i++) {
        struct base_error refusal = {.result = ZERO_OK};
        use->engine = engine->choices[i];
        assert(!use->engine->choices);
        result = use->engine->create(state, config, &refusal);
        if (!result)
            return ZERO_OK;
        use->passed = refusal;
        if (!may_do_without(result))
            break;
    }
    return zero_fail(error, result, "%s", use->passed.message);
}
