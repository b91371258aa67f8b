// Sums in files as an update reads them: strip by strip, in the order of its pieces.
#include "zero/store/nvme_sums.h"
#include "zero/store/nvme_tier.h"

#include <assert.h>

/** Whether an update needs a strip: of what does not train it has nothing that counts. */
static bool trains(const zero_ctx *z, const struct eng_strip *strip)
{
    for (size_t i = strip->first_piece; i < strip->first_piece + strip->pieces; i++)
        if (z->io[z->tier->tiles.pieces[i].bucket].trains)
            return true;
    return false;
}

void eng_sums_update_begin(zero_ctx *z, size_t count)
{
    struct eng_strip_file *file = &z->tier->sums.file;
    off_pipeline_forget(file->pipeline); // the tile I/O has written others since
    eng_strip_file_begin(z, file, count, trains, false);
}

zero_result eng_sums_update_piece(zero_ctx *z, size_t number, struct base_error *error)
{
    const struct eng_piece *piece = &z->tier->tiles.pieces[number];
    struct base_error failure = {0};
    unsigned char *bytes;
    const zero_result r = eng_strip_file_piece(&z->tier->sums.file, number, &bytes, &failure);
    if (r)
        return zero_fail(error, r, "gradient sums: %s", failure.message);
    const float *gradient = (const float *)(const void *)bytes;
    for (size_t i = piece->first_segment; i < piece->first_segment + piece->segments; i++) {
        struct eng_segment *segment = &z->update.segments[i];
        assert(segment->bucket == piece->bucket);
        segment->gradient = gradient + (segment->first - piece->first * BASE_GRANULE);
    }
    return ZERO_OK;
}

void eng_sums_update_end(zero_ctx *z, struct base_error *error)
{
    struct base_error end = {0};
    if (eng_strip_file_end(&z->tier->sums.file, &end) && !error->result)
        *error = end;
}
