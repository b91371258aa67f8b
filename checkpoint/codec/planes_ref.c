// What the bytes are.

#include "checkpoint/codec/planes.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "byte 0 is the least significant");

static void split(struct ckpt_block_code code, const void *elements, size_t count,
                  unsigned char *const plane[CKPT_MAX_PLANES])
{
    const size_t bytes = code.element_bytes;
    const unsigned rotated = code.rotate, width = 8 * code.element_bytes;
    const unsigned char *in = elements;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, in + i * bytes, bytes);
        bits = bits << rotated | bits >> (width - rotated);
        for (size_t p = 0; p < bytes; p++)
            if (plane[p])
                plane[p][i] = (unsigned char)(bits >> (8 * p));
    }
}

static void merge(struct ckpt_block_code code, const unsigned char *const plane[CKPT_MAX_PLANES],
                  size_t count, void *elements)
{
    const size_t bytes = code.element_bytes;
    const unsigned rotated = code.rotate, width = 8 * code.element_bytes;
    unsigned char *out = elements;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        for (size_t p = 0; p < bytes; p++)
            bits |= (uint64_t)plane[p][i] << (8 * p);
        bits = bits >> rotated | bits << (width - rotated);
        memcpy(out + i * bytes, &bits, bytes);
    }
}

const struct ckpt_planes ckpt_planes_ref = {
    .size = sizeof(struct ckpt_planes),
    .name = "ref",
    .split = split,
    .merge = merge,
};
