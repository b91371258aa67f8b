#include "zero/store/nvme_compress.h"

#include "base/arena.h"
#include "base/clock.h"
#include "zero/model/state_tiles.h"
#include "zero/store/nvme_codec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** Updates of a trial: one prepares and two count, without and with. */
enum { PREPARES = 1, WITHOUT = 3, PREPARES_WITH = 4, WITH = 6 };

/** Shares of the time of an update without compression: the least that it waits if there is
 * something to gain, and the most that an update with compression may take. */
static const double least_waited = 0.1, most_with = 0.98;

struct eng_compression eng_compression_begin(const struct eng_config *config)
{
    return (struct eng_compression){
        .encodes = strcmp(config->compress, "on") == 0,
        .decided = strcmp(config->compress, "auto") != 0,
    };
}

void eng_compression_hear(struct eng_compression *c, const struct eng_update_time *time)
{
    if (c->decided || time->seconds <= 0)
        return;
    c->heard++;
    assert(c->heard <= WITH && c->encodes == (c->heard > WITHOUT));
    if (c->heard > PREPARES && c->heard <= WITHOUT &&
        (c->without_s <= 0 || time->seconds < c->without_s)) {
        c->without_s = time->seconds;
        c->waited_s = time->waited_s;
    }
    if (c->heard > PREPARES_WITH && (c->with_s <= 0 || time->seconds < c->with_s))
        c->with_s = time->seconds;
    if (c->heard == WITHOUT) {
        c->encodes = c->waited_s >= least_waited * c->without_s;
        c->decided = !c->encodes;
    } else if (c->heard == WITH) {
        c->encodes = c->with_s <= most_with * c->without_s;
        c->decided = true;
    }
}

const char *eng_compression_text(const struct eng_compression *c, char *text, size_t size)
{
    const char *is = c->encodes ? "on" : "off";
    if (!c->decided)
        snprintf(text, size, "%s: the first updates decide", is);
    else if (c->heard == 0)
        snprintf(text, size, "%s: as configured", is);
    else if (c->with_s <= 0)
        snprintf(text, size, "%s: of an update of %.3g s it waits %.3g s for the disk", is,
                 c->without_s, c->waited_s);
    else
        snprintf(text, size, "%s: an update takes %.3g s with it, and %.3g s without", is,
                 c->with_s, c->without_s);
    return text;
}

/* ------------------------------------------------------------------ the codec's speed */

/** Of w, m and the square root of v. */
static const float sizes[] = {0.02F, 1e-4F, 1e-4F};
enum { FIELDS = sizeof sizes / sizeof *sizes };

/** From -1 to 1, mostly near 0, as the sum of two evenly distributed ones: with more bits than a
 * float has, so that every bit below the exponent is noise, as in what training leaves. */
static double noise(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += 0x1p-32 * (double)(uint32_t)(*state >> 32);
    }
    return sum - 1;
}

void eng_codec_sample(float *fields, size_t count, uint64_t seed)
{
    uint64_t state = seed + 1;
    for (size_t i = 0; i < FIELDS * count; i++) {
        const double value = sizes[i / count] * noise(&state);
        fields[i] = (float)(i / count == FIELDS - 1 ? value * value : value);
    }
}

enum { ELEMENTS = 1 << 18, BYTES = FIELDS * ELEMENTS * sizeof(float), ROUNDS = 3 };

/** The best of some rounds; the first one finds cold caches. */
static zero_result measure(struct eng_codec_rate *rate, void *coder, void *tile, void *packed,
                           struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (int round = 0; !r && round < ROUNDS; round++) {
        const uint64_t began = base_clock_ns();
        const size_t stored = eng_tile_codec.encode(coder, 0, tile, BYTES, packed, BYTES);
        if (stored == 0)
            return zero_fail(error, ZERO_E_UNSUPPORTED, "a sample of state is not made smaller");
        r = eng_tile_codec.decode(coder, 0, packed, stored, tile, BYTES, error);
        const double bytes_s = 2e9 * BYTES / (double)(base_clock_ns() - began);
        rate->bytes_s = bytes_s > rate->bytes_s ? bytes_s : rate->bytes_s;
        rate->ratio = (double)stored / BYTES;
    }
    return r;
}

zero_result eng_codec_probe(struct eng_codec_rate *rate, struct base_error *error)
{
    struct eng_piece piece = {
        .granules = ELEMENTS / BASE_GRANULE,
        .weight_size = sizeof(float),
        .moment_size = sizeof(float),
        .moments = FIELDS - 1,
        .never_negative = 1U << (FIELDS - 2),
    };
    struct eng_piece_range all = {.count = 1};
    const struct eng_tiles tiles = {.pieces = &piece, .of_tile = &all, .count = 1};
    float *tile = base_calloc(BYTES, 1);
    unsigned char *packed = base_calloc(BYTES, 1);
    void *coder = NULL;
    zero_result r = eng_tile_codec.create(&coder, &tiles, error);
    *rate = (struct eng_codec_rate){.bytes_s = 0};
    if (tile && packed && !r) {
        eng_codec_sample(tile, ELEMENTS, 0);
        r = measure(rate, coder, tile, packed, error);
    } else if (!r) {
        r = zero_fail(error, ZERO_E_NOMEM, "no memory to find out how fast tiles are encoded");
    }
    eng_tile_codec.destroy(coder);
    base_free(tile);
    base_free(packed);
    return r;
}
