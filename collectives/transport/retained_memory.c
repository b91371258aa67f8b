#include "collectives/transport/retained_memory.h"

enum { PAGE = 4096 };

zero_result coll_retained_create(struct coll_retained **retained, const char *name, size_t bytes,
                                 struct base_error *error)
{
    *retained = NULL;
    struct coll_retained *made = base_calloc(1, sizeof *made);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", name);
    const zero_result result = base_arena_init(&made->arena, bytes, PAGE, error);
    if (result != ZERO_OK) {
        base_free(made);
        return result;
    }
    made->memory = bytes > 0 ? base_arena_alloc(&made->arena, bytes, PAGE) : NULL;
    *retained = made;
    return ZERO_OK;
}

void coll_retained_free(struct coll_retained **list)
{
    while (*list) {
        struct coll_retained *retained = *list;
        *list = retained->next;
        base_arena_free(&retained->arena);
        base_free(retained);
    }
}
