// What streams are.

#include "checkpoint/entropy/streams_put.h"

static void find_rare(const unsigned char *bytes, size_t count, uint32_t frequency[256])
{
    find_rare_bytes(bytes, count, frequency);
}

static void put(const struct ckpt_huffman *huffman, const unsigned char *bytes, const size_t cut[5],
                unsigned char *out, size_t stream_bytes[4])
{
    put_streams(huffman, bytes, cut, out, stream_bytes);
}

const struct ckpt_streams ckpt_streams_ref = {
    .size = sizeof(struct ckpt_streams),
    .name = "ref",
    .find_rare = find_rare,
    .put = put,
};
