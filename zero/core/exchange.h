/**
 * zero/core/exchange.h: what ranks tell each other when a step ends, in one exchange.
 *
 * Each module that has something to say registers a part: how many bytes of each rank it needs,
 * how it fills this rank's, and what it does when it has those of all. zero_commit() adds the
 * parts, in one order on all ranks. They are filled, and heard, in that order.
 */
#ifndef ZERO_CORE_EXCHANGE_H
#define ZERO_CORE_EXCHANGE_H

#include "zero/core/context.h"

/** What an exchange is for. */
enum eng_exchange_kind {
    ENG_EXCHANGE_NORM = 1,  /**< zero_grad_norm(): the step goes on */
    ENG_EXCHANGE_STEP = 2,  /**< a step ends, and all of it is known */
    ENG_EXCHANGE_EARLY = 4, /**< a step ends whose gradients and metrics are known later */
};

struct eng_exchange_part {
    const char *name;
    unsigned kinds; /**< exchanges that it is a part of, added up */
    size_t bytes;   /**< of each rank */
    /** Bytes behind them, whose number changes; most: the most that there may be before
     * zero_set_micro_batches(). NULL: none. */
    size_t (*more)(const zero_ctx *z, bool most);
    /** Writes what this rank says to `mine`, which is zeros. *Local.* */
    void (*fill)(const zero_ctx *z, unsigned char *mine);
    /** Hears what all ranks say: rank r's is at all + r * stride. Parts behind one that fails hear
     * nothing. Only the last part may use the memory of the exchange for another one. Collective.
     */
    zero_result (*hear)(zero_ctx *z, const unsigned char *all, size_t stride);
};

/** Adds a part, at most ENG_MAX_PARTS. */
void eng_exchange_add(zero_ctx *z, const struct eng_exchange_part *part);

/** Bytes of all ranks' parts and of what this rank fills, at most. */
size_t eng_exchange_bytes(const zero_ctx *z);

/** Makes memory for an exchange as micro-batches are now; takes it in place of the one before, or
 * drops it. ZERO_E_NOMEM: *room is empty. */
zero_result eng_exchange_make(const zero_ctx *z, struct eng_exchange_room *room,
                              struct base_error *error);
void eng_exchange_take(zero_ctx *z, const struct eng_exchange_room *room);
void eng_exchange_drop(const struct eng_exchange_room *room);

/** Fills all parts of this kind, exchanges them, and has them heard. Collective, ordered. */
zero_result eng_exchange_parts(zero_ctx *z, enum eng_exchange_kind kind);

#endif
