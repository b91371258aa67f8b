#include "base/arena.h"

#include "base/fault.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALLEST_ALIGNMENT = 64 };

static const size_t huge_page = (size_t)2 << 20;
static const size_t huge_arena = (size_t)4 << 20;

static _Atomic uint64_t allocations;

static void count_allocation(void)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

uint64_t base_allocation_count(void)
{
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

static size_t round_up(size_t value, size_t alignment)
{
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    return (value + alignment - 1) & ~(alignment - 1);
}

zero_result base_arena_init(struct base_arena *arena, size_t size, size_t alignment,
                            struct base_error *error)
{
    *arena = (struct base_arena){0};
    if (alignment & (alignment - 1))
        return zero_fail(error, ZERO_E_INVALID, "arena alignment %zu is no power of two",
                         alignment);
    if (alignment < SMALLEST_ALIGNMENT)
        alignment = SMALLEST_ALIGNMENT;
    if (size == 0) {
        arena->alignment = alignment;
        return ZERO_OK;
    }

    const size_t placed = size >= huge_arena && alignment < huge_page ? huge_page : alignment;
    void *memory = base_aligned_alloc(placed, size);
    if (!memory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for an arena of %zu bytes", size);
    // Advice only: without huge pages everything works, more slowly.
    if (size >= huge_arena)
        madvise(memory, size, MADV_HUGEPAGE);
    memset(memory, 0, size);
    *arena = (struct base_arena){.memory = memory, .size = size, .alignment = alignment};
    return ZERO_OK;
}

void *base_arena_alloc(struct base_arena *arena, size_t size, size_t alignment)
{
    assert(arena->used <= arena->size && (arena->memory || arena->size == 0));
    if (alignment == 0)
        alignment = arena->alignment;
    if (!arena->memory || (alignment & (alignment - 1)) || alignment > arena->alignment)
        return NULL;
    const size_t gap = round_up(arena->used, alignment) - arena->used;
    if (gap > arena->size - arena->used || size > arena->size - arena->used - gap)
        return NULL;
    unsigned char *piece = arena->memory + arena->used + gap;
    arena->used += gap + size;
    assert(arena->used <= arena->size && (uintptr_t)piece % alignment == 0);
    return piece;
}

void base_arena_free(struct base_arena *arena)
{
    assert(!arena || arena->used <= arena->size);
    if (!arena)
        return;
    free(arena->memory);
    *arena = (struct base_arena){0};
}

void *base_calloc(size_t count, size_t size)
{
    count_allocation();
    if (base_fault("alloc"))
        return NULL;
    if (count == 0 || size == 0)
        count = size = 1;
    return calloc(count, size); // checks the product
}

void *base_aligned_alloc(size_t alignment, size_t size)
{
    count_allocation();
    const size_t rounded = round_up(size > 0 ? size : 1, alignment);
    if (rounded < size || base_fault("alloc"))
        return NULL;
    return aligned_alloc(alignment, rounded);
}

char *base_strdup(const char *text)
{
    assert(text);
    const size_t size = strlen(text) + 1;
    char *copy = base_calloc(1, size);
    if (copy)
        memcpy(copy, text, size);
    return copy;
}

void base_free(void *memory)
{
    free(memory);
}
