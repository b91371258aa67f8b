// The header of a safetensors file. The input's first 8 bytes tell how many bytes of tensors the
// file would have, the rest is the header. Whatever is accepted has to be consistent, and what the
// writer makes of it has to be accepted again.
#include "base/arena.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "tests/fuzz/target.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_header(const struct ckpt_header *header, uint64_t start, uint64_t data_bytes)
{
    uint64_t end = start;
    for (size_t i = 0; i < header->count; i++) {
        const struct ckpt_tensor *tensor = &header->tensor[i];
        require(tensor->offset == end);
        require(tensor->ndim >= 0 && tensor->ndim <= CKPT_MAX_DIMS);
        const size_t size = ckpt_dtype_size(tensor->dtype);
        require(size == 0 || tensor->bytes == tensor->count * size);
        end += tensor->bytes;
        require(end >= tensor->offset);
        require(i == 0 || strcmp(header->by_name[i - 1]->name, header->by_name[i]->name) < 0);
    }
    require(end == start + data_bytes);
}

static bool can_be_written(const struct ckpt_header *header)
{
    for (size_t i = 0; i < header->count; i++)
        if (header->tensor[i].dtype == CKPT_OTHER || !header->tensor[i].name[0])
            return false;
    return true;
}

static void check_round_trip(const struct ckpt_header *header, uint64_t data_bytes)
{
    struct ckpt_header again;
    char *text;
    size_t length;
    require(ckpt_header_format(header->tensor, header->count, NULL, 0, &text, &length, "fuzz",
                               NULL) == 0);
    require(ckpt_header_parse(&again, text + 8, length - 8, data_bytes, "fuzz", NULL) == ZERO_OK);
    check_header(&again, length, data_bytes);
    require(again.count == header->count);
    for (size_t i = 0; i < again.count; i++) {
        const struct ckpt_tensor *a = again.by_name[i], *b = header->by_name[i];
        require(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->ndim == b->ndim);
        require(memcmp(a->shape, b->shape, sizeof a->shape) == 0 && a->offset == b->offset);
    }
    ckpt_header_free(&again);
    base_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t data_bytes = 0;
    if (size < 8)
        return 0;
    for (int i = 0; i < 8; i++)
        data_bytes |= (uint64_t)data[i] << (8 * i);
    data_bytes &= INT64_MAX; // as a file's size
    struct ckpt_header header;
    struct base_error error = {.result = ZERO_OK};
    const zero_result result =
        ckpt_header_parse(&header, (const char *)data + 8, size - 8, data_bytes, "fuzz", &error);
    if (result) {
        require(error.result == result && error.message[0] != '\0');
        require(!header.tensor && !header.by_name && !header.names && header.count == 0);
        return 0;
    }
    check_header(&header, 8 + size - 8, data_bytes);
    if (can_be_written(&header))
        check_round_trip(&header, data_bytes);
    ckpt_header_free(&header);
    return 0;
}
