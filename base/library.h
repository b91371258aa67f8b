/**
 * base/library.h: shared libraries that are loaded when a caller asks for what they do.
 */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/** A function of a library, and the pointer that becomes its address. */
struct base_symbol {
    const char *name;
    void *place;
};

/** Finds all of them in what dlopen() has returned. NULL, or the name of the first that is not
 * there. *Local*, any thread. */
const char *base_library_find(void *library, const struct base_symbol *symbols, size_t count);

/** Whether some library of this process has the function, also one that was loaded for others than
 * this one to see (RTLD_LOCAL). *Local*, any thread. */
bool base_library_is_there(const char *function);

/** Something that a process loads once; static, BASE_LOAD_ONCE. */
struct base_load {
    pthread_mutex_t mutex;
    _Atomic bool is_loaded;
};
#define BASE_LOAD_ONCE                                                                             \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER                                                         \
    }

/** Calls `load`, unless a call of it has succeeded: after a failure, which is returned, it may be
 * tried again. *Local*, any thread; what `load` has written is there when this returns ZERO_OK. */
zero_result base_load_once(struct base_load *once, zero_result (*load)(struct base_error *error),
                           struct base_error *error);

#endif
