#include "checkpoint/manifest/manifest_parts.h"

#include "base/arena.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

// The text so far. Of what fails the first is kept in `error`, and nothing is added any more.
struct writer {
    struct base_error error;
    char *text;
    size_t length, room;
};

/* ------------------------------------------------------------------ values */

static void grow(struct writer *writer, size_t length)
{
    if (writer->error.result || length <= writer->room)
        return;
    if (length > CKPT_MAX_MANIFEST) {
        zero_fail(&writer->error, ZERO_E_LIMIT, "manifest: more than %" PRIu64 " bytes",
                  CKPT_MAX_MANIFEST);
        return;
    }
    const size_t room = 2 * length + 4096;
    char *text = base_calloc(room, 1);
    if (!text) {
        zero_fail(&writer->error, ZERO_E_NOMEM, "manifest: no memory for %zu bytes", room);
        return;
    }
    if (writer->length > 0)
        memcpy(text, writer->text, writer->length);
    base_free(writer->text);
    writer->text = text;
    writer->room = room;
}

// As jansson calls it with what it dumps.
static int put_bytes(const char *bytes, size_t count, void *user)
{
    struct writer *writer = user;
    grow(writer, writer->length + count);
    if (writer->error.result)
        return -1;
    assert(writer->length + count <= writer->room);
    memcpy(writer->text + writer->length, bytes, count);
    writer->length += count;
    return 0;
}

static void put(struct writer *writer, const char *text)
{
    put_bytes(text, strlen(text), writer);
}

// Puts a value, which it frees, behind the text `before`.
static void put_value(struct writer *writer, const char *before, json_t *value)
{
    put(writer, before);
    if (json_dump_callback(value, put_bytes, writer, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)))
        zero_fail(&writer->error, ZERO_E_NOMEM, "manifest: no memory for a value");
    json_decref(value);
}

static void put_text(struct writer *writer, const char *before, const char *text)
{
    json_t *value = json_string(text);
    if (!value)
        zero_fail(&writer->error, ZERO_E_INVALID, "manifest: '%.80s' is no UTF-8",
                  text ? text : "NULL");
    put_value(writer, before, value);
}

static void put_number(struct writer *writer, const char *before, uint64_t number)
{
    char digits[24];
    if (number > CKPT_MAX_NUMBER)
        zero_fail(&writer->error, ZERO_E_INVALID, "manifest: %" PRIu64 " is more than 2^53",
                  number);
    snprintf(digits, sizeof digits, "%" PRIu64, number);
    put(writer, before);
    put(writer, digits);
}

static void put_flag(struct writer *writer, const char *before, bool flag)
{
    put(writer, before);
    put(writer, flag ? "true" : "false");
}

// Text of ours, which needs no escapes.
static void put_word(struct writer *writer, const char *before, const char *word)
{
    put(writer, before);
    put(writer, "\"");
    put(writer, word);
    put(writer, "\"");
}

static void put_digits(struct writer *writer, const char *before, const uint8_t bytes[16])
{
    char digits[33];
    ckpt_hex(bytes, 16, digits);
    put_word(writer, before, digits);
}

static void put_hex64(struct writer *writer, const char *before, uint64_t value)
{
    char digits[17];
    snprintf(digits, sizeof digits, "%016" PRIx64, value);
    put_word(writer, before, digits);
}

static void put_dtype(struct writer *writer, const char *before, enum ckpt_dtype dtype)
{
    put_word(writer, before, dtype < CKPT_OTHER ? ckpt_dtype_names[dtype] : "default");
}

/* ------------------------------------------------------------------ tables */

static void put_group(struct writer *writer, const struct ckpt_manifest *manifest, size_t i)
{
    const struct ckpt_group *group = &manifest->groups[i];
    put_text(writer, "{\"name\": ", group->name);
    put_text(writer, ", \"optimizer\": ", group->optimizer);
    put_text(writer, ", \"decay\": ", group->decay);
    put_flag(writer, ", \"nesterov\": ", group->nesterov);
    put_flag(writer, ", \"frozen\": ", group->frozen);
    put(writer, ", \"hyper\": {");
    for (int h = 0; h < group->hypers; h++) {
        put_text(writer, h > 0 ? ", " : "", group->hyper[h].name);
        put_value(writer, ": ", json_real(group->hyper[h].value));
    }
    put(writer, "}}");
}

static void put_tensor(struct writer *writer, const struct ckpt_manifest *manifest, size_t i)
{
    const struct ckpt_table_tensor *tensor = &manifest->tensors[i];
    uint8_t sum[16];
    base_hash128_bytes(tensor->sum, sum);
    put_text(writer, "{\"name\": ", tensor->name);
    put(writer, ", \"shape\": [");
    for (int d = 0; d < tensor->ndim; d++)
        put_number(writer, d > 0 ? ", " : "", tensor->shape[d]);
    put_number(writer, "], \"slices\": ", tensor->slices);
    put_dtype(writer, ", \"dtype\": ", tensor->dtype);
    put_dtype(writer, ", \"grad_dtype\": ", tensor->grad_dtype);
    put_number(writer, ", \"group\": ", tensor->group);
    put_flag(writer, ", \"trains\": ", tensor->trains);
    put(writer, ", \"fields\": [");
    for (int f = 0; f < tensor->fields; f++)
        put_dtype(writer, f > 0 ? ", " : "", tensor->field[f]);
    put_digits(writer, "], \"sum\": ", sum);
    put(writer, "}");
}

static void put_blob(struct writer *writer, const struct ckpt_manifest *manifest, size_t i)
{
    const struct ckpt_blob *blob = &manifest->blobs[i];
    put_text(writer, "{\"name\": ", blob->name);
    put_word(writer, ", \"scope\": ", blob->of_rank ? "rank" : "global");
    if (!blob->of_rank)
        put_number(writer, ", \"bytes\": ", blob->bytes[0]);
    for (size_t s = 0; blob->of_rank && s < manifest->world; s++)
        put_number(writer, s > 0 ? ", " : ", \"bytes\": [", blob->bytes[s]);
    put(writer, blob->of_rank ? "]}" : "}");
}

static void put_shard(struct writer *writer, const struct ckpt_manifest *manifest, size_t i)
{
    const struct ckpt_shard_entry *shard = &manifest->shards[i];
    char file[CKPT_SHARD_NAME];
    ckpt_shard_name((uint32_t)i, file);
    put_word(writer, "{\"file\": ", file);
    put_number(writer, ", \"bytes\": ", shard->bytes);
    put_number(writer, ", \"index_offset\": ", shard->index_offset);
    put_hex64(writer, ", \"index_xxh3\": ", shard->index_xxh3);
    put(writer, ", \"runs\": [");
    for (size_t r = 0; r < shard->run_count; r++) {
        const struct ckpt_run *run = &shard->runs[r];
        put_number(writer, r > 0 ? ", [" : "[", run->tensor);
        put_number(writer, ", ", run->slice);
        put_number(writer, ", ", run->first);
        put_number(writer, ", ", run->count);
        put(writer, "]");
    }
    put(writer, "]}");
}

// A table as an array, an element a line.
static void put_table(struct writer *writer, const char *before, size_t count,
                      void put_element(struct writer *, const struct ckpt_manifest *, size_t),
                      const struct ckpt_manifest *manifest)
{
    put(writer, before);
    put(writer, "[");
    for (size_t i = 0; i < count && !writer->error.result; i++) {
        put(writer, i > 0 ? ",\n  " : "\n  ");
        put_element(writer, manifest, i);
    }
    put(writer, "]");
}

/* ------------------------------------------------------------------ the whole */

static void put_state(struct writer *writer, const struct ckpt_state *state)
{
    put_number(writer, ",\n\"updates\": ", state->updates);
    put_number(writer, ",\n\"micro_batches\": ", state->micro_batches);
    put_number(writer, ",\n\"sum_group\": ", state->sum_group);
    put_number(writer, ",\n\"skips\": ", state->skips);
    put_hex64(writer, ",\n\"seed\": ", state->seed);
    put_number(writer, ",\n\"stage\": ", (uint64_t)state->stage);
    put_word(writer, ",\n\"reduction\": ", state->local ? "native" : "canonical");
    put_dtype(writer, ",\n\"comm_dtype\": ", state->comm_dtype);
    put(writer, ",\n\"loss_scale\": ");
    if (state->has_loss_scale) {
        put_value(writer, "{\"value\": ", json_real(state->loss_scale));
        put_number(writer, ", \"clean\": ", state->loss_scale_clean);
        put_flag(writer, ", \"dynamic\": ", state->loss_scale_dynamic);
        put(writer, "}");
    } else {
        put(writer, "null");
    }
    put_digits(writer, ",\n\"fingerprint\": ", state->fingerprint);
}

static void put_manifest(struct writer *writer, const struct ckpt_manifest *manifest)
{
    put_number(writer, "{\n\"format\": ", CKPT_FORMAT);
    put_text(writer, ",\n\"library\": ", manifest->library);
    put_text(writer, ",\n\"created\": ", manifest->created);
    put_digits(writer, ",\n\"id\": ", manifest->id);
    put_text(writer, ",\n\"job\": ", manifest->job);
    put_number(writer, ",\n\"sequence\": ", manifest->sequence);
    put_number(writer, ",\n\"step\": ", manifest->state.step);
    if (manifest->run_told)
        put_digits(writer, ",\n\"run\": ", manifest->run.bytes);
    put_state(writer, &manifest->state);
    put_number(writer, ",\n\"world\": ", manifest->world);
    put_number(writer, ",\n\"level\": ", (uint64_t)manifest->level);
    put_table(writer, ",\n\"groups\": ", manifest->group_count, put_group, manifest);
    put_table(writer, ",\n\"tensors\": ", manifest->tensor_count, put_tensor, manifest);
    put_table(writer, ",\n\"blobs\": ", manifest->blob_count, put_blob, manifest);
    put_table(writer, ",\n\"shards\": ", manifest->world, put_shard, manifest);
    put(writer, ",\n");
}

zero_result ckpt_manifest_format(const struct ckpt_manifest *manifest, char **text, size_t *length,
                                 struct base_error *error)
{
    *text = NULL;
    const struct ckpt_error_context blame = {"manifest", ZERO_E_INVALID};
    struct ckpt_manifest_index index;
    const zero_result result = ckpt_manifest_check(manifest, &index, &blame, error);
    ckpt_manifest_index_free(&index);
    if (result)
        return result;
    struct writer writer = {.length = 0};
    put_manifest(&writer, manifest);
    if (!writer.error.result) {
        char line[CKPT_LAST_LINE + 1];
        ckpt_last_line(writer.text, writer.length, line);
        put(&writer, line);
    }
    if (writer.error.result) {
        base_free(writer.text);
        return zero_fail(error, writer.error.result, "%s", writer.error.message);
    }
    *text = writer.text;
    *length = writer.length;
    return ZERO_OK;
}
