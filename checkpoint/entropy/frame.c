#include "checkpoint/entropy/frame.h"

#include <assert.h>
#include <string.h>

static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd};

// The descriptor in a frame's head: one segment, and how many bytes of content size follow.
enum { SIZE_OF_1 = 0x20, SIZE_OF_2 = 0x60, SIZE_OF_4 = 0xa0 };
enum { SIZE_OF_2_ADDS = 256 };

// A block's head: bit 0 says that it is the last one, bits 1 and 2 its type, the others a size.
enum { BLOCK_HEAD = 3, LAST = 1, RAW = 0 << 1, RLE = 1 << 1, COMPRESSED = 2 << 1, SIZE_SHIFT = 3 };

void ckpt_frame_put(unsigned char *out, uint64_t value, size_t bytes)
{
    assert(bytes <= sizeof value);
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> (8 * i));
}

static size_t get(const unsigned char *in, size_t bytes)
{
    size_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (size_t)in[i] << (8 * i);
    return value;
}

// The head of a frame, and that of its only block, which is of a type and a size.
static size_t write_heads(unsigned char *out, size_t count, size_t type, size_t size)
{
    assert(count < SIZE_OF_2_ADDS + 65536 && size < (size_t)1 << (8 * BLOCK_HEAD - SIZE_SHIFT));
    const bool small = count < SIZE_OF_2_ADDS;
    const size_t size_bytes = small ? 1 : 2;
    unsigned char *at = out + sizeof magic;
    memcpy(out, magic, sizeof magic);
    *at++ = small ? SIZE_OF_1 : SIZE_OF_2;
    ckpt_frame_put(at, small ? count : count - SIZE_OF_2_ADDS, size_bytes);
    at += size_bytes;
    ckpt_frame_put(at, size << SIZE_SHIFT | type | LAST, BLOCK_HEAD);
    return (size_t)(at + BLOCK_HEAD - out);
}

size_t ckpt_frame_store(unsigned char *out, size_t count)
{
    return write_heads(out, count, RAW, count);
}

size_t ckpt_frame_repeat(unsigned char *out, size_t count, unsigned char byte)
{
    const size_t head = write_heads(out, count, RLE, count);
    out[head] = byte;
    return head + 1;
}

size_t ckpt_frame_compressed(unsigned char *out, size_t count, size_t block_bytes)
{
    return write_heads(out, count, COMPRESSED, block_bytes);
}

// Reads the head of a frame: its length, or 0 if it is none that is allowed or is not all there.
static size_t read_head(const unsigned char *in, size_t bytes, size_t *count)
{
    const size_t size_at = sizeof magic + 1;
    if (bytes < size_at || memcmp(in, magic, sizeof magic) != 0)
        return 0;
    const unsigned descriptor = in[sizeof magic];
    const size_t size_bytes = descriptor == SIZE_OF_1   ? 1
                              : descriptor == SIZE_OF_2 ? 2
                              : descriptor == SIZE_OF_4 ? 4
                                                        : 0;
    if (size_bytes == 0 || bytes < size_at + size_bytes)
        return 0;
    *count = get(in + size_at, size_bytes) + (size_bytes == 2 ? SIZE_OF_2_ADDS : 0);
    return size_at + size_bytes;
}

const char *ckpt_frame_read(const unsigned char *in, size_t bytes, size_t count,
                            struct ckpt_frame *frame)
{
    size_t announced = 0;
    const size_t head = read_head(in, bytes, &announced);
    *frame = (struct ckpt_frame){.kind = CKPT_FRAME_OTHER};
    if (head == 0)
        return "are no zstd frame of one segment with a content size";
    if (announced != count)
        return "announce another content size";
    if (bytes - head < BLOCK_HEAD)
        return "are cut short";
    const size_t block = get(in + head, BLOCK_HEAD), content = bytes - head - BLOCK_HEAD;
    if (block == (count << SIZE_SHIFT | RAW | LAST)) {
        frame->kind = CKPT_FRAME_STORED;
        frame->content = in + head + BLOCK_HEAD;
        return content == count ? NULL : "are not its length";
    }
    if (block == (count << SIZE_SHIFT | RLE | LAST)) {
        frame->kind = CKPT_FRAME_REPEATED;
        frame->content = in + head + BLOCK_HEAD;
        return content == 1 ? NULL : "are not its length";
    }
    return NULL;
}
