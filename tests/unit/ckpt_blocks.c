#include "tests/unit/ckpt_blocks.h"

#include <string.h>
#include <zero/random.h>

const struct ckpt_block_code block_codes[BLOCK_CODES] = {{1, 0}, {2, 0}, {2, 1}, {4, 0}, {4, 1}};

uint32_t block_bits(uint32_t seed, uint32_t index)
{
    uint64_t x = (uint64_t)seed << 32 | index;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) >> 16);
}

// A row of normally distributed numbers, made once.
static float normal(size_t i)
{
    static float row[CKPT_BLOCK_ELEMENTS];
    if (row[0] == 0.0f)
        for (size_t k = 0; k < CKPT_BLOCK_ELEMENTS; k++)
            row[k] = 0.02f * (float)zero_random_normal(3, 5, k);
    return row[i % CKPT_BLOCK_ELEMENTS];
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// 32 bits, of which narrower elements take the upper ones.
static uint32_t element(enum block_kind kind, size_t i)
{
    static const uint32_t special[] = {0x7fc00000, 0xffc12345, 0x7f800000, 0xff800000,
                                       0x7f812345, 0x80000000, 0x00012345};
    const uint32_t noise = block_bits(7, (uint32_t)i);
    switch (kind) {
    case BLOCK_CONSTANT:
        return 0x3dcccccd;
    case BLOCK_NOISE:
        return noise;
    case BLOCK_NAN:
        return i % 3 == 0 ? noise : special[i % 7];
    case BLOCK_NORMAL:
        return bits_of(normal(i));
    case BLOCK_SQUARE:
        return bits_of(normal(i) * normal(i));
    case BLOCK_SPARSE:
        return i % 50 == 49 ? noise : 0;
    default:
        return 0;
    }
}

void block_fill(enum block_kind kind, struct ckpt_block_code code, size_t first, void *elements,
                size_t count)
{
    const size_t bytes = code.element_bytes;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = element(kind, first + i) >> (32 - 8 * bytes);
        memcpy((unsigned char *)elements + i * bytes, &bits, bytes);
    }
}

void block_planes(struct ckpt_block_code code, const void *elements, size_t count,
                  unsigned char *planes)
{
    const unsigned char *in = elements;
    const unsigned bytes = code.element_bytes, width = 8 * bytes;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        for (unsigned k = 0; k < bytes; k++)
            bits |= (uint64_t)in[i * bytes + k] << (8 * k);
        if (code.rotate)
            bits = 2 * bits % (UINT64_C(1) << width) + (bits >> (width - 1));
        for (unsigned k = 0; k < bytes; k++)
            planes[(bytes - 1 - k) * count + i] = (unsigned char)(bits >> (8 * k));
    }
}
