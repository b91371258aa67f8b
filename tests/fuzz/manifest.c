// A checkpoint's manifest. The input is what comes before its last line, which is added. Whatever
// is accepted has to be consistent, and what the writer makes of it has to be accepted again.
#include "checkpoint/manifest/manifest.h"
#include "base/arena.h"
#include "checkpoint/manifest/manifest_parts.h"
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

static const struct ckpt_run *run_of(const struct ckpt_manifest *manifest, size_t place)
{
    require(place < manifest->index.place_count);
    const struct ckpt_place *at = &manifest->index.places[place];
    require(at->shard < manifest->world && at->run < manifest->shards[at->shard].run_count);
    return &manifest->shards[at->shard].runs[at->run];
}

static void check_tensor(const struct ckpt_manifest *manifest, size_t t)
{
    const struct ckpt_table_tensor *tensor = &manifest->tensors[t];
    require(ckpt_manifest_find(manifest, tensor->name) == t);
    require(tensor->group < manifest->group_count);
    require(tensor->fields >= 1 && tensor->fields <= CKPT_MAX_FIELDS);
    for (int f = 0; f < tensor->fields; f++)
        require(ckpt_dtype_size(tensor->field[f]) > 0);
    // The first and the last element of the first and the last slice, which are in some run.
    for (int corner = 0; corner < 4; corner++) {
        const uint32_t slice = corner & 1 ? (uint32_t)tensor->slices - 1 : 0;
        const uint64_t element = corner & 2 ? tensor->numel - 1 : 0;
        const struct ckpt_run *run =
            run_of(manifest, ckpt_manifest_locate(manifest, t, slice, element));
        require(run->tensor == t && run->slice == slice);
        require(run->first <= element && element - run->first < run->count);
    }
}

static void check_round_trip(const struct ckpt_manifest *manifest)
{
    char *text, *again;
    size_t length, again_length;
    struct ckpt_manifest back;
    require(ckpt_manifest_format(manifest, &text, &length, NULL) == ZERO_OK);
    require(ckpt_manifest_parse(&back, text, length, "fuzz", NULL) == ZERO_OK);
    require(ckpt_manifest_format(&back, &again, &again_length, NULL) == ZERO_OK);
    require(length == again_length && memcmp(text, again, length) == 0);
    ckpt_manifest_free(&back);
    base_free(text);
    base_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + CKPT_LAST_LINE + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    ckpt_last_line(text, size, text + size);
    struct ckpt_manifest manifest;
    struct base_error error = {.result = ZERO_OK};
    const zero_result result =
        ckpt_manifest_parse(&manifest, text, size + CKPT_LAST_LINE, "fuzz", &error);
    free(text);
    if (result) {
        static const struct ckpt_manifest empty;
        require(error.result == result && error.message[0] != '\0');
        require(memcmp(&manifest, &empty, sizeof empty) == 0);
        return 0;
    }
    for (size_t t = 0; t < manifest.tensor_count; t++)
        check_tensor(&manifest, t);
    check_round_trip(&manifest);
    ckpt_manifest_free(&manifest);
    return 0;
}
