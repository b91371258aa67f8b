/**
 * base/arena.h: memory. Small structures by base_calloc(), tensors from arenas; both counted.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/error.h"

/**
 * Pieces cut one after the other from one allocation and freed together. All zero is an arena of
 * no bytes. Used by one thread at a time; the pieces belong to whom the owner gives them.
 */
struct base_arena {
    unsigned char *memory;
    size_t size;      /**< usable bytes */
    size_t used;      /**< bytes handed out, gaps for alignment included */
    size_t alignment; /**< of memory; the largest alignment a piece can have */
};

/**
 * Allocates `size` bytes (0 is allowed), aligned to `alignment` (a power of two; at least 64 is
 * used), zeroed. Every page is touched by the calling thread, so that the memory is really there,
 * near this thread, and no later access faults; from 4 MiB on in huge pages where the kernel
 * grants them. *Local.* ZERO_E_INVALID alignment; ZERO_E_NOMEM. After an error the arena is empty.
 */
zero_result base_arena_init(struct base_arena *arena, size_t size, size_t alignment,
                            struct base_error *error);

/**
 * The next `size` bytes at a multiple of `alignment` (a power of two, at most the arena's; 0: the
 * arena's own). NULL, and nothing changed, if they don't fit. Counted as no allocation. *Local.*
 */
void *base_arena_alloc(struct base_arena *arena, size_t size, size_t alignment);

/** Frees the memory and makes the arena empty; accepts NULL and empty arenas. *Local.* */
void base_arena_free(struct base_arena *arena);

/**
 * Zeroed memory for count * size bytes, aligned for any type; never NULL for 0 bytes. NULL if it
 * is not to be had or the product overflows. *Local*, any thread.
 */
void *base_calloc(size_t count, size_t size);

/** Uninitialised memory of `size` bytes (0 is allowed) at a multiple of `alignment` (a power of
 * two); NULL if it is not to be had. *Local*, any thread. */
void *base_aligned_alloc(size_t alignment, size_t size);

/** A copy of a string to be freed with base_free(); NULL if there is no memory. *Local.* */
char *base_strdup(const char *text);

/** Frees memory of the three functions above; accepts NULL. *Local*, any thread. */
void base_free(void *memory);

/**
 * Allocations made in this process through this header so far, failed ones included: the step path
 * must not change it. *Local*, any thread.
 */
uint64_t base_allocation_count(void);

#endif
