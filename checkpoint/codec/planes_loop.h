/**
 * checkpoint/codec/planes_loop.h: the functions of a table, over blocks of as many elements as a
 * vector has bytes, for the file of an instruction set, which includes it behind what it defines:
 *
 *     vector, load, store    at any alignment
 *     left_N, right_N        every element of N bytes rotated by one bit
 *     parts_N, whole_N       a vector's bytes of one significance together, a part each; and back
 *     exchange_N             part j of vector i and part i of vector j, of N vectors
 *     pick_N                 of N vectors' elements, rotated to the right by some bits, the lowest
 *                            bytes, in one vector
 *
 * What is not a whole block is left to the definition (planes_ref.c).
 *
 * Both sides are asked for ahead. Measured with 256 KiB that are in no near cache, and go where
 * nothing is near either: splitting takes 1.6 times as long without.
 */
#ifndef CHECKPOINT_CODEC_PLANES_LOOP_H
#define CHECKPOINT_CODEC_PLANES_LOOP_H

/** Asks for what will be read, or written, after this; it need not exist. */
INLINE void ask_to_read(const unsigned char *at)
{
    __builtin_prefetch((const void *)((uintptr_t)at + 2048));
}

INLINE void ask_to_write(const unsigned char *at)
{
    __builtin_prefetch((const void *)((uintptr_t)at + 1024), 1);
}

/** The elements in a block's vectors become its planes. */
INLINE void split_block(vector *block, size_t bytes, bool rotated)
{
#pragma GCC unroll 4
    for (size_t j = 0; j < bytes; j++) {
        if (rotated)
            block[j] = bytes == 4 ? left_4(block[j]) : left_2(block[j]);
        block[j] = bytes == 4 ? parts_4(block[j]) : parts_2(block[j]);
    }
    if (bytes == 4)
        exchange_4(block);
    else
        exchange_2(block);
}

/** And back. */
INLINE void merge_block(vector *block, size_t bytes, bool rotated)
{
    if (bytes == 4)
        exchange_4(block);
    else
        exchange_2(block);
#pragma GCC unroll 4
    for (size_t j = 0; j < bytes; j++) {
        block[j] = bytes == 4 ? whole_4(block[j]) : whole_2(block[j]);
        if (rotated)
            block[j] = bytes == 4 ? right_4(block[j]) : right_2(block[j]);
    }
}

/** Loads as many elements as a vector has bytes. */
INLINE void load_block(vector block[CKPT_MAX_PLANES], size_t bytes, const unsigned char *in)
{
#pragma GCC unroll 4
    for (size_t j = 0; j < bytes; j++) {
        ask_to_read(in + j * sizeof(vector));
        block[j] = load(in + j * sizeof(vector));
    }
}

/** Splits whole blocks; returns how many elements they have. */
INLINE size_t split_blocks(size_t bytes, bool rotated, const unsigned char *in, size_t count,
                           unsigned char *const plane[CKPT_MAX_PLANES])
{
    size_t i = 0;
    for (; count - i >= sizeof(vector); i += sizeof(vector)) {
        vector block[CKPT_MAX_PLANES];
        load_block(block, bytes, in + i * bytes);
        split_block(block, bytes, rotated);
#pragma GCC unroll 4
        for (size_t j = 0; j < bytes; j++) {
            if (plane[j]) {
                ask_to_write(plane[j] + i);
                store(plane[j] + i, block[j]);
            }
        }
    }
    return i;
}

/** Splits off one plane, which takes less than all of them; returns as split_blocks(). */
INLINE size_t pick_blocks(size_t bytes, bool rotated, const unsigned char *in, size_t count,
                          size_t p, unsigned char *plane)
{
    const unsigned width = 8 * (unsigned)bytes;
    const unsigned right = (8 * (unsigned)p + width - rotated) % width;
    size_t i = 0;
    for (; count - i >= sizeof(vector); i += sizeof(vector)) {
        vector block[CKPT_MAX_PLANES];
        load_block(block, bytes, in + i * bytes);
        store(plane + i, bytes == 4 ? pick_4(block, right) : pick_2(block, right));
    }
    return i;
}

/** Splits whole blocks, all their planes or those that are wanted. */
INLINE size_t split_wanted(size_t bytes, bool rotated, const unsigned char *in, size_t count,
                           unsigned char *const plane[CKPT_MAX_PLANES])
{
    size_t wanted = 0, last = 0;
    for (size_t p = 0; p < bytes; p++) {
        wanted += plane[p] != NULL;
        last = plane[p] ? p : last;
    }
    return wanted == 1 ? pick_blocks(bytes, rotated, in, count, last, plane[last])
                       : split_blocks(bytes, rotated, in, count, plane);
}

/** Merges whole blocks; returns how many elements they have. */
INLINE size_t merge_blocks(size_t bytes, bool rotated,
                           const unsigned char *const plane[CKPT_MAX_PLANES], size_t count,
                           unsigned char *out)
{
    size_t i = 0;
    for (; count - i >= sizeof(vector); i += sizeof(vector)) {
        vector block[CKPT_MAX_PLANES];
#pragma GCC unroll 4
        for (size_t j = 0; j < bytes; j++) {
            ask_to_read(plane[j] + i);
            block[j] = load(plane[j] + i);
        }
        merge_block(block, bytes, rotated);
#pragma GCC unroll 4
        for (size_t j = 0; j < bytes; j++) {
            unsigned char *to = out + i * bytes + j * sizeof(vector);
            ask_to_write(to);
            store(to, block[j]);
        }
    }
    return i;
}

static void split(struct ckpt_block_code code, const void *elements, size_t count,
                  unsigned char *const plane[CKPT_MAX_PLANES])
{
    size_t done = 0;
    if (code.element_bytes == 4 && code.rotate)
        done = split_wanted(4, true, elements, count, plane);
    else if (code.element_bytes == 4)
        done = split_wanted(4, false, elements, count, plane);
    else if (code.element_bytes == 2 && code.rotate)
        done = split_wanted(2, true, elements, count, plane);
    else if (code.element_bytes == 2)
        done = split_wanted(2, false, elements, count, plane);
    unsigned char *rest[CKPT_MAX_PLANES];
    for (size_t p = 0; p < CKPT_MAX_PLANES; p++)
        rest[p] = plane[p] ? plane[p] + done : NULL;
    const unsigned char *in = elements;
    ckpt_planes_ref.split(code, in + done * code.element_bytes, count - done, rest);
}

static void merge(struct ckpt_block_code code, const unsigned char *const plane[CKPT_MAX_PLANES],
                  size_t count, void *elements)
{
    size_t done = 0;
    if (code.element_bytes == 4 && code.rotate)
        done = merge_blocks(4, true, plane, count, elements);
    else if (code.element_bytes == 4)
        done = merge_blocks(4, false, plane, count, elements);
    else if (code.element_bytes == 2 && code.rotate)
        done = merge_blocks(2, true, plane, count, elements);
    else if (code.element_bytes == 2)
        done = merge_blocks(2, false, plane, count, elements);
    const unsigned char *rest[CKPT_MAX_PLANES];
    for (size_t p = 0; p < CKPT_MAX_PLANES; p++)
        rest[p] = plane[p] ? plane[p] + done : NULL;
    unsigned char *out = elements;
    ckpt_planes_ref.merge(code, rest, count - done, out + done * code.element_bytes);
}

#endif
