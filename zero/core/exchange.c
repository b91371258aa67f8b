// The exchange that ends a step: parts of all modules, one behind the other.

#include "zero/core/exchange.h"
#include "zero/core/api_call.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

void eng_exchange_add(zero_ctx *z, const struct eng_exchange_part *part)
{
    assert(z->stepping.exchange.part_count < ENG_MAX_PARTS);
    assert(!z->stepping.exchange.room.all && part->kinds);
    z->stepping.exchange.parts[z->stepping.exchange.part_count++] = part;
}

/** Bytes of a part, so that the next one is aligned. */
static size_t part_bytes(const zero_ctx *z, const struct eng_exchange_part *part, bool most)
{
    const size_t bytes = part->bytes + (part->more ? part->more(z, most) : 0);
    return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

/** Bytes of a rank, if each part has the most it may have. */
static size_t most_bytes(const zero_ctx *z)
{
    size_t bytes = 0;
    for (int i = 0; i < z->stepping.exchange.part_count; i++)
        bytes += part_bytes(z, z->stepping.exchange.parts[i], true);
    return bytes;
}

size_t eng_exchange_bytes(const zero_ctx *z)
{
    return ((size_t)z->config.world + 1) * most_bytes(z);
}

zero_result eng_exchange_make(const zero_ctx *z, struct eng_exchange_room *room,
                              struct base_error *error)
{
    *room = (struct eng_exchange_room){.mine = base_calloc(1, eng_exchange_bytes(z))};
    if (!room->mine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for what %d ranks tell each other",
                         z->config.world);
    room->all = room->mine + most_bytes(z);
    return ZERO_OK;
}

void eng_exchange_take(zero_ctx *z, const struct eng_exchange_room *room)
{
    assert(room->mine && room->all);
    eng_exchange_drop(&z->stepping.exchange.room);
    z->stepping.exchange.room = *room;
}

void eng_exchange_drop(const struct eng_exchange_room *room)
{
    base_free(room->mine);
}

/** Fills this rank's parts; returns their bytes. */
static size_t fill(const zero_ctx *z, enum eng_exchange_kind kind)
{
    unsigned char *const mine = z->stepping.exchange.room.mine;
    size_t at = 0;
    for (int i = 0; i < z->stepping.exchange.part_count; i++) {
        const struct eng_exchange_part *part = z->stepping.exchange.parts[i];
        if (!(part->kinds & kind))
            continue;
        const size_t bytes = part_bytes(z, part, false);
        memset(mine + at, 0, bytes);
        part->fill(z, mine + at);
        at += bytes;
    }
    assert(at <= most_bytes(z));
    return at;
}

zero_result eng_exchange_parts(zero_ctx *z, enum eng_exchange_kind kind)
{
    const unsigned char *const all = z->stepping.exchange.room.all;
    const size_t stride = fill(z, kind);
    size_t at = 0;
    zero_result r =
        eng_exchange(z, z->stepping.exchange.room.mine, stride, z->stepping.exchange.room.all);
    for (int i = 0; !r && i < z->stepping.exchange.part_count; i++) {
        const struct eng_exchange_part *part = z->stepping.exchange.parts[i];
        if (!(part->kinds & kind))
            continue;
        const size_t bytes = part_bytes(z, part, false);
        r = part->hear(z, all + at, stride);
        at += bytes;
    }
    assert(r || at == stride);
    return r;
}
