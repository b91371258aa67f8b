#include "collectives/comm/call_log.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** The most words that are shown at once, and the most ranks whose last calls are all named. */
enum { MOST_WORDS = 32, MOST_SINGLE = 3 };

void coll_shown_write(_Atomic uint64_t *stamp, _Atomic uint64_t *shown, size_t count, uint64_t next,
                      const void *bytes)
{
    uint64_t words[MOST_WORDS];
    assert(count <= MOST_WORDS && next % 2 == 0);
    memcpy(words, bytes, count * sizeof *words);
    // A reader that sees a new word sees the odd stamp that was stored before it.
    atomic_store_explicit(stamp, next - 1, memory_order_relaxed);
    for (size_t i = 0; i < count; i++)
        atomic_store_explicit(&shown[i], words[i], memory_order_release);
    atomic_store_explicit(stamp, next, memory_order_release);
}

uint64_t coll_shown_read(const _Atomic uint64_t *stamp, const _Atomic uint64_t *shown, size_t count,
                         void *bytes)
{
    uint64_t words[MOST_WORDS];
    assert(count <= MOST_WORDS);
    const uint64_t before = atomic_load_explicit(stamp, memory_order_acquire);
    for (size_t i = 0; i < count; i++)
        words[i] = atomic_load_explicit(&shown[i], memory_order_acquire);
    memcpy(bytes, words, count * sizeof *words);
    const bool same = atomic_load_explicit(stamp, memory_order_relaxed) == before;
    return same && before % 2 == 0 ? before : 0;
}

void coll_absent_add(struct coll_absent *absent, int rank, const char *last_call)
{
    struct base_text list = {absent->each, sizeof absent->each, absent->used};
    if (absent->ranks.count == 0)
        snprintf(absent->first, sizeof absent->first, "rank %d: %s", rank, last_call);
    base_numbers_add(&absent->ranks, rank);
    base_text_add(&list, "%srank %d (last call: %s)", list.used ? ", " : "", rank, last_call);
    absent->used = list.used;
}

void coll_absent_text(struct coll_absent *absent, struct base_text *text)
{
    if (absent->ranks.count <= MOST_SINGLE)
        base_text_add(text, "%s", absent->each);
    else
        base_text_add(text, "%s (last call of %s)", base_numbers_text(&absent->ranks, "rank"),
                      absent->first);
}
