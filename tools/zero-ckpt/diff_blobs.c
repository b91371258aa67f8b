#include "tools/zero-ckpt/diff.h"

#include "base/arena.h"

#include <inttypes.h>
#include <string.h>

/** One blob as both checkpoints have it. */
struct pair {
    size_t blob[2]; /**< its number */
    uint32_t rank;  /**< whose it is; of a global one 0 */
    uint64_t bytes[2];
    unsigned char *contents[2];
};

static const struct ckpt_blob *blob_of(const struct comparison *comparison, const struct pair *pair,
                                       int i)
{
    return &comparison->manifests[i]->blobs[pair->blob[i]];
}

static zero_result read_one(struct comparison *comparison, struct pair *pair, int i,
                            struct base_error *error)
{
    const struct ckpt_blob *blob = blob_of(comparison, pair, i);
    pair->bytes[i] = blob->bytes[blob->of_rank ? pair->rank : 0];
    pair->contents[i] = base_calloc((size_t)pair->bytes[i], 1);
    if (!pair->contents[i])
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the %" PRIu64 " bytes of %s",
                         pair->bytes[i], blob->name);
    return pair->bytes[i] == 0 ? ZERO_OK
                               : ckpt_loader_blob(comparison->loaders[i], pair->blob[i], pair->rank,
                                                  pair->contents[i], error);
}

/** A byte, or "end" behind the last one. */
static struct tool_text byte_at(const struct pair *pair, int i, uint64_t at)
{
    return at < pair->bytes[i] ? tool_hex(pair->contents[i] + at, 1)
                               : (struct tool_text){.text = "end"};
}

// Enters the first byte that differs.
static void add_byte(struct comparison *comparison, const struct pair *pair, uint64_t at)
{
    const struct ckpt_blob *blob = blob_of(comparison, pair, 0);
    const struct tool_text a = byte_at(pair, 0, at), b = byte_at(pair, 1, at);
    comparison->differences++;
    if (comparison->options->json)
        comparison->array = tool_json_append(
            comparison->array, json_pack("{s:s, s:o, s:o, s:o, s:s, s:s}", "what", "bytes", "of",
                                         tool_json_text(blob->name), "rank",
                                         blob->of_rank ? json_integer(pair->rank) : json_null(),
                                         "first", tool_json_number(at), "a", a.text, "b", b.text));
    else if (blob->of_rank)
        tool_table_add(&comparison->table, TOOL_PLAIN,
                       "bytes\t%s\t%s\t%s, of rank %" PRIu32 ", first at %" PRIu64, a.text, b.text,
                       blob->name, pair->rank, at);
    else
        tool_table_add(&comparison->table, TOOL_PLAIN, "bytes\t%s\t%s\t%s, first at %" PRIu64,
                       a.text, b.text, blob->name, at);
}

static void compare_bytes(struct comparison *comparison, const struct pair *pair)
{
    const uint64_t both = pair->bytes[0] < pair->bytes[1] ? pair->bytes[0] : pair->bytes[1];
    uint64_t at = 0;
    while (at < both && pair->contents[0][at] == pair->contents[1][at])
        at++;
    if (at < pair->bytes[0] || at < pair->bytes[1])
        add_byte(comparison, pair, at);
}

static zero_result compare_pair(struct comparison *comparison, struct pair *pair,
                                struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int i = 0; i < 2 && !result; i++)
        result = read_one(comparison, pair, i, error);
    if (!result)
        compare_bytes(comparison, pair);
    for (int i = 0; i < 2; i++) {
        base_free(pair->contents[i]);
        pair->contents[i] = NULL;
    }
    return result;
}

// The blob of B of that name and scope; SIZE_MAX: none.
static size_t counterpart(const struct ckpt_manifest *manifest, const struct ckpt_blob *blob)
{
    for (size_t i = 0; i < manifest->blob_count; i++)
        if (manifest->blobs[i].of_rank == blob->of_rank &&
            strcmp(manifest->blobs[i].name, blob->name) == 0)
            return i;
    return SIZE_MAX;
}

zero_result tool_diff_blobs(struct comparison *comparison, struct base_error *error)
{
    const struct ckpt_manifest *a = comparison->manifests[0], *b = comparison->manifests[1];
    zero_result result = ZERO_OK;
    for (size_t i = 0; i < a->blob_count; i++) {
        struct pair pair = {.blob = {i, counterpart(b, &a->blobs[i])}};
        const size_t parts = !a->blobs[i].of_rank ? 1 : a->world == b->world ? a->world : 0;
        if (pair.blob[1] == SIZE_MAX)
            continue;
        for (; pair.rank < parts && !result; pair.rank++)
            result = compare_pair(comparison, &pair, error);
    }
    return result;
}
