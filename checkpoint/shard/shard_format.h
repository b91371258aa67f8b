/**
 * checkpoint/shard/shard_format.h: the numbers of FORMAT.md, section 3. Inline, *local*, pure.
 */
#ifndef CHECKPOINT_SHARD_SHARD_FORMAT_H
#define CHECKPOINT_SHARD_SHARD_FORMAT_H

#include "checkpoint/shard/shard.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are copied as they lie in files");

enum {
    CKPT_SHARD_VERSION = 1,
    CKPT_HEADER_BYTES = 4096,
    CKPT_HEADER_ZEROS = 56, /**< from here on, up to its checksum */
    CKPT_INDEX_HEAD = 40,   /**< before its tables, */
    CKPT_BLOB_ROW = 16,     /**< whose rows have so many bytes */
    CKPT_RUN_ROW = 24,
    CKPT_BLOCK_ROW = 48,
    CKPT_SKIPPABLE_HEAD = 8, /**< number and length of a skippable frame */
    CKPT_TAIL_LEAST = 64,
    CKPT_TAIL_MOST = CKPT_TAIL_LEAST + CKPT_STORE_UNIT - 1,
    CKPT_TAIL_END = 48,   /**< what the tail ends with */
    CKPT_FRAME_GAP = 512, /**< a plane's frame is longer than the plane by so much, at most */
};

#define CKPT_MAGIC_HEADER UINT32_C(0x184D2A5A)
#define CKPT_MAGIC_INDEX UINT32_C(0x184D2A5B)
#define CKPT_MAGIC_TAIL UINT32_C(0x184D2A5C)

static inline void ckpt_put32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline void ckpt_put64(unsigned char *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline uint32_t ckpt_get32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t ckpt_get64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/** The first bytes of header, index and tail: number, length of the rest, name (8 bytes). */
static inline void ckpt_put_head(unsigned char *at, uint32_t magic, size_t bytes)
{
    ckpt_put32(at, magic);
    ckpt_put32(at + 4, (uint32_t)(bytes - CKPT_SKIPPABLE_HEAD));
}

/** Makes a shard's header. */
static inline void ckpt_put_header(unsigned char header[CKPT_HEADER_BYTES],
                                   const struct ckpt_shard_id *id)
{
    memset(header, 0, CKPT_HEADER_BYTES);
    ckpt_put_head(header, CKPT_MAGIC_HEADER, CKPT_HEADER_BYTES);
    memcpy(header + 8, "zeroshrd", 8);
    ckpt_put32(header + 16, CKPT_SHARD_VERSION);
    ckpt_put32(header + 20, id->rank);
    ckpt_put32(header + 24, id->world);
    ckpt_put64(header + 32, id->step);
    memcpy(header + 40, id->checkpoint, sizeof id->checkpoint);
    ckpt_put64(header + CKPT_HEADER_BYTES - 8, base_hash64(header, CKPT_HEADER_BYTES - 8, 0));
}

#endif
