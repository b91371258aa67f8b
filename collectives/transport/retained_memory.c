#include "collectives/transport/retained_memory.h"

enum { PAGE = 4096 };

zero_result coll_kept_create(struct coll_kept **kept, const char *name, size_t bytes,
                             struct base_error *error)
{
    *kept = NULL;
    struct coll_kept *made = base_calloc(1, sizeof *made);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory", name);
    const zero_result result = base_arena_init(&made->arena, bytes, PAGE, error);
    if (result != ZERO_OK) {
        base_free(made);
        return result;
    }
    made->memory = bytes > 0 ? base_arena_alloc(&made->arena, bytes, PAGE) : NULL;
    *kept = made;
    return ZERO_OK;
}

void coll_kept_free(struct coll_kept **list)
{
    while (*list) {
        struct coll_kept *kept = *list;
        *list = kept->next;
        base_arena_free(&kept->arena);
        base_free(kept);
    }
}
