// The update of a step: bucket by bucket, each sent on its way to the other ranks when it is
// updated. Where state is, and who computes, is behind the store's entries.

#include "zero/step/update.h"
#include "zero/core/overwrite.h"
#include "zero/core/telemetry.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"

#include "base/clock.h"

#include <assert.h>

/** Whether a bucket comes in this turn: 0 of two is of what persists. */
static bool has_turn(const zero_ctx *z, const struct eng_update_pass *pass, size_t bucket, int turn)
{
    return !pass->persistent_first || z->layout.buckets[bucket].persistent == (turn == 0);
}

/** Goes through all buckets, in the order of the pass. All ranks publish in one order. */
static zero_result update_buckets(zero_ctx *z, const struct eng_update_pass *pass)
{
    const size_t buckets = z->layout.bucket_count;
    assert(!pass->persistent_first || !pass->down);
    zero_result r = ZERO_OK, published = ZERO_OK;
    // What persists goes first, for the step waits until it is current; the rest may take its time.
    for (int turn = 0; turn < (pass->persistent_first ? 2 : 1); turn++)
        for (size_t i = 0; !r && i < buckets; i++) {
            const size_t s = pass->down ? buckets - 1 - i : i;
            if (!has_turn(z, pass, s, turn) || (published && !pass->completes))
                continue;
            r = z->store->update_bucket(z, s);
            if (!r && !published && z->io[s].trains)
                published = eng_publish_start(z, s);
        }
    return r ? r : published;
}

static zero_result update_and_publish(zero_ctx *z)
{
    struct eng_update_pass pass = {.down = false};
    zero_result r = z->update.begun ? ZERO_OK : eng_slots_keep(z);
    if (!r)
        r = z->store->update_begin(z, &pass);
    if (r)
        return r;
    r = z->store->update_end(z, update_buckets(z, &pass));
    assert(r || !z->update.begun);
    if (!r)
        eng_slots_kept(z);
    return r;
}

zero_result eng_update_all(zero_ctx *z)
{
    eng_before_overwrite(z);
    const uint64_t begin = z->update.began_ns ? z->update.began_ns : base_clock_ns();
    z->update.began_ns = 0;
    z->publication.version++;
    zero_result r = z->link->fetch_sums(z);
    if (r)
        return r;
    r = update_and_publish(z);
    if (!r)
        r = eng_sums_return(z);
    eng_stretch(z, CONTROL_UPDATE, -1, begin, &z->stats.update_s);
    return r;
}
