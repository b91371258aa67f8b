// checkpoint/manifest/manifest.h: what is written is read, and nothing else is taken for a
// manifest.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/manifest/manifest_parts.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return base_fault_set(NULL, NULL) ? -1 : 0;
}

/* ------------------------------------------------------------------ a sample */

// Borrows everything; never freed. Three shards, of which the last has no runs.
static struct ckpt_run runs0[] = {{0, 0, 0, 1024}, {1, 1, 0, 3}, {2, 0, 0, 1}};
static struct ckpt_run runs1[] = {{1, 0, 0, 3}, {0, 0, 2048, 452}, {0, 0, 1024, 1024}};
static uint64_t positions[] = {0, 17, CKPT_MAX_NUMBER}, generator[] = {65537};

static struct ckpt_group groups[] = {
    {.name = "all",
     .optimizer = "adamw",
     .decay = "decoupled",
     .hyper =
         {{"lr", 0.25}, {"eps", 5e-324}, {"beta1", DBL_MAX}, {"weight_decay", 0.1}, {"x", -0.0}},
     .hypers = 5},
    {.name = "all", .optimizer = "sgd", .decay = "l2", .nesterov = true, .frozen = true},
};

static struct ckpt_table_tensor tensors[] = {
    {.name = "z \"quoted\" \\ \n \xc3\xa9",
     .ndim = 2,
     .shape = {50, 50},
     .slices = 1,
     .numel = 2500,
     .dtype = CKPT_BF16,
     .grad_dtype = CKPT_F32,
     .trains = true,
     .field = {CKPT_F32, CKPT_F32, CKPT_BF16},
     .fields = 3,
     .sum = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)}},
    {.name = "stacked",
     .ndim = 3,
     .shape = {2, 1, 3},
     .slices = 2,
     .numel = 3,
     .dtype = CKPT_F16,
     .grad_dtype = CKPT_F16,
     .group = 1,
     .field = {CKPT_F16},
     .fields = 1},
    {.name = "a scalar",
     .slices = 1,
     .numel = 1,
     .dtype = CKPT_F32,
     .grad_dtype = CKPT_F32,
     .trains = true,
     .field = {CKPT_F32, CKPT_F32},
     .fields = 2},
};

static struct ckpt_blob blobs[] = {
    {.name = "position", .of_rank = true, .bytes = positions},
    {.name = "generator", .bytes = generator},
};

static struct ckpt_shard_entry shards[] = {
    {8192, 4096, UINT64_C(0xffffffffffffffff), runs0, 3},
    {CKPT_MAX_NUMBER - 4096, 4097, 1, runs1, 3},
    {12288, 8191, 0, NULL, 0},
};

static struct ckpt_manifest sample(void)
{
    return (struct ckpt_manifest){
        .id = {0, 1, 2, 3, 0xfe, 0xff},
        .library = "0.1.0",
        .job = "",
        .created = "2026-01-31T23:59:59Z",
        .sequence = 12,
        .run = {{0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xf5}},
        .run_told = true,
        .level = 1,
        .state = {.step = 50,
                  .updates = 49,
                  .skips = 1,
                  .micro_batches = 8,
                  .sum_group = 2,
                  .seed = UINT64_C(0xfedcba9876543210),
                  .has_loss_scale = true,
                  .loss_scale_dynamic = true,
                  .loss_scale = 65536,
                  .loss_scale_clean = 7,
                  .local = true,
                  .comm_dtype = CKPT_OTHER,
                  .stage = 3,
                  .fingerprint = {9, 8, 7}},
        .groups = groups,
        .group_count = 2,
        .tensors = tensors,
        .tensor_count = 3,
        .blobs = blobs,
        .blob_count = 2,
        .shards = shards,
        .world = 3,
    };
}

// The sample's text with a final zero, to be freed with free().
static char *sample_text(size_t *length)
{
    const struct ckpt_manifest manifest = sample();
    char *text;
    assert_int_equal(ckpt_manifest_format(&manifest, &text, length, &failure), ZERO_OK);
    char *copy = malloc(*length + 1);
    assert_non_null(copy);
    memcpy(copy, text, *length);
    copy[*length] = '\0';
    base_free(text);
    return copy;
}

static bool is_empty(const struct ckpt_manifest *manifest)
{
    static const struct ckpt_manifest empty;
    return memcmp(manifest, &empty, sizeof empty) == 0;
}

static zero_result parse(const char *text, size_t length)
{
    // Exactly as long as it is, so that a sanitizer sees one byte too far.
    char *copy = malloc(length + 1);
    struct ckpt_manifest manifest;
    assert_non_null(copy);
    memcpy(copy + 1, text, length);
    base_error_clear(&failure);
    const zero_result result = ckpt_manifest_parse(&manifest, copy + 1, length, "f", &failure);
    free(copy);
    assert_int_equal(result, failure.result);
    assert_true((result == ZERO_OK) == (failure.message[0] == '\0'));
    assert_true(result == ZERO_OK || is_empty(&manifest));
    ckpt_manifest_free(&manifest);
    assert_true(is_empty(&manifest));
    return result;
}

/* ------------------------------------------------------------------ what is written is read */

static void check_tensors(const struct ckpt_manifest *back)
{
    assert_int_equal(back->tensor_count, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct ckpt_table_tensor *a = &tensors[i], *b = &back->tensors[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->ndim, b->ndim);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        assert_int_equal(a->slices, b->slices);
        assert_int_equal(a->numel, b->numel);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->grad_dtype, b->grad_dtype);
        assert_int_equal(a->group, b->group);
        assert_int_equal(a->trains, b->trains);
        assert_int_equal(a->fields, b->fields);
        assert_memory_equal(a->field, b->field, sizeof a->field);
        assert_memory_equal(&a->sum, &b->sum, sizeof a->sum);
    }
}

static void check_groups(const struct ckpt_manifest *back)
{
    assert_int_equal(back->group_count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(groups[i].name, back->groups[i].name);
        assert_string_equal(groups[i].optimizer, back->groups[i].optimizer);
        assert_string_equal(groups[i].decay, back->groups[i].decay);
        assert_int_equal(groups[i].nesterov, back->groups[i].nesterov);
        assert_int_equal(groups[i].frozen, back->groups[i].frozen);
        assert_int_equal(groups[i].hypers, back->groups[i].hypers);
        assert_memory_equal(groups[i].hyper, back->groups[i].hyper, sizeof groups[i].hyper);
    }
}

static void check_shards_and_blobs(const struct ckpt_manifest *back)
{
    assert_int_equal(back->world, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(shards[i].bytes, back->shards[i].bytes);
        assert_int_equal(shards[i].index_offset, back->shards[i].index_offset);
        assert_int_equal(shards[i].index_xxh3, back->shards[i].index_xxh3);
        assert_int_equal(shards[i].run_count, back->shards[i].run_count);
        for (size_t r = 0; r < shards[i].run_count; r++)
            assert_memory_equal(&shards[i].runs[r], &back->shards[i].runs[r],
                                sizeof(struct ckpt_run));
    }
    assert_int_equal(back->blob_count, 2);
    assert_string_equal(back->blobs[0].name, "position");
    assert_true(back->blobs[0].of_rank && !back->blobs[1].of_rank);
    assert_memory_equal(back->blobs[0].bytes, positions, sizeof positions);
    assert_memory_equal(back->blobs[1].bytes, generator, sizeof generator);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    const struct ckpt_manifest manifest = sample();
    size_t length;
    char *text = sample_text(&length);
    struct ckpt_manifest back;
    assert_int_equal(ckpt_manifest_parse(&back, text, length, "f", &failure), ZERO_OK);
    assert_memory_equal(back.id, manifest.id, sizeof back.id);
    assert_string_equal(back.library, manifest.library);
    assert_string_equal(back.job, manifest.job);
    assert_string_equal(back.created, manifest.created);
    assert_int_equal(back.sequence, manifest.sequence);
    assert_int_equal(back.level, manifest.level);
    assert_true(back.run_told && ckpt_same_run(&back.run, &manifest.run));
    const struct ckpt_state *a = &manifest.state, *b = &back.state;
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->updates, b->updates);
    assert_int_equal(a->skips, b->skips);
    assert_int_equal(a->micro_batches, b->micro_batches);
    assert_int_equal(a->sum_group, b->sum_group);
    assert_int_equal(a->seed, b->seed);
    assert_true(a->loss_scale == b->loss_scale && b->has_loss_scale && b->loss_scale_dynamic);
    assert_int_equal(a->loss_scale_clean, b->loss_scale_clean);
    assert_true(b->local && b->comm_dtype == CKPT_OTHER && b->stage == 3);
    assert_memory_equal(a->fingerprint, b->fingerprint, sizeof a->fingerprint);
    check_tensors(&back);
    check_groups(&back);
    check_shards_and_blobs(&back);

    // The same text again.
    char *again;
    size_t again_length;
    assert_int_equal(ckpt_manifest_format(&back, &again, &again_length, &failure), ZERO_OK);
    assert_int_equal(again_length, length);
    assert_memory_equal(again, text, length);
    base_free(again);
    ckpt_manifest_free(&back);
    free(text);
}

static void tensors_and_elements_are_found(void **state)
{
    (void)state;
    size_t length;
    char *text = sample_text(&length);
    struct ckpt_manifest back;
    assert_int_equal(ckpt_manifest_parse(&back, text, length, "f", &failure), ZERO_OK);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ckpt_manifest_find(&back, tensors[i].name), i);
    assert_int_equal(ckpt_manifest_find(&back, ""), SIZE_MAX);
    assert_int_equal(ckpt_manifest_find(&back, "stacke"), SIZE_MAX);
    assert_int_equal(ckpt_manifest_find(&back, "\xff"), SIZE_MAX);

    for (uint32_t t = 0; t < 3; t++) {
        for (uint32_t s = 0; s < tensors[t].slices; s++) {
            for (uint64_t e = 0; e < tensors[t].numel; e++) {
                const size_t place = ckpt_manifest_locate(&back, t, s, e);
                assert_true(place < back.index.place_count);
                const struct ckpt_place *p = &back.index.places[place];
                const struct ckpt_run *run = &back.shards[p->shard].runs[p->run];
                assert_true(run->tensor == t && run->slice == s);
                assert_true(run->first <= e && e - run->first < run->count);
            }
        }
    }
    ckpt_manifest_free(&back);
    free(text);
}

static void nothing_is_a_checkpoint_too(void **state)
{
    (void)state;
    static struct ckpt_shard_entry empty = {.bytes = 8192, .index_offset = 4096};
    const struct ckpt_manifest manifest = {.library = "",
                                           .job = "",
                                           .created = "",
                                           .sequence = 1,
                                           .state = {.micro_batches = 1, .sum_group = 1},
                                           .shards = &empty,
                                           .world = 1};
    char *text;
    size_t length;
    assert_int_equal(ckpt_manifest_format(&manifest, &text, &length, &failure), ZERO_OK);
    assert_int_equal(parse(text, length), ZERO_OK);
    base_free(text);
}

/* ------------------------------------------------------------------ what is refused */

// The sample with the first `from` replaced by `to` and a new checksum, to be freed.
static char *change(const char *from, const char *to, size_t *length)
{
    char *text = sample_text(length), line[CKPT_LAST_LINE + 1];
    char *at = strstr(text, from);
    if (!at)
        fail_msg("the sample has no %s", from);
    char *changed = malloc(*length + strlen(to) + 1);
    assert_non_null(changed);
    text[*length - CKPT_LAST_LINE] = '\0';
    const int before = sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ckpt_last_line(changed, (size_t)before, line);
    strcpy(changed + before, line);
    *length = (size_t)before + CKPT_LAST_LINE;
    free(text);
    return changed;
}

static zero_result parse_changed(const char *from, const char *to)
{
    size_t length;
    char *changed = change(from, to, &length);
    const zero_result result = parse(changed, length);
    free(changed);
    return result;
}

static const struct change {
    const char *from, *to;
    zero_result result;
    const char *message; // part of it
} changes[] = {
    // What is right, at its edges.
    {"\"step\": 50", "\"unknown\": [{}], \"step\": 50", ZERO_OK, ""},
    {"\"lr\": 0.25", "\"lr\": 1", ZERO_OK, ""},
    {"\"step\": 50", "\"step\": 9007199254740992", ZERO_OK, ""},
    {"\"level\": 1", "\"level\": 2147483647", ZERO_OK, ""},
    {"\"comm_dtype\": \"default\"", "\"comm_dtype\": \"bf16\"", ZERO_OK, ""},
    {"{\"value\": 65536.0, \"clean\": 7, \"dynamic\": true}", "null", ZERO_OK, ""},
    // Another format.
    {"\"format\": 1", "\"format\": 2", ZERO_E_VERSION, "its format is 2"},
    {"\"format\": 1", "\"format\": 9007199254740992", ZERO_E_VERSION, "its format is 9"},
    {"\"format\": 1", "\"format\": 0", ZERO_E_CORRUPT, "'format' is not 1"},
    {"\"format\": 1", "\"format\": \"1\"", ZERO_E_CORRUPT, "'format' is no integer"},
    {"\"format\": 1", "\"x\": 1", ZERO_E_CORRUPT, "'format' is no integer"},
    // No JSON.
    {"{", "[", ZERO_E_CORRUPT, "damaged at byte"},
    {"{", "", ZERO_E_CORRUPT, "damaged at byte"},
    {"{", "{}{", ZERO_E_CORRUPT, "damaged at byte"},
    {"50", "050", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"stacked\"", "\"\\u0000\"", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"stacked\"", "\"\xff\"", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"stacked\"", "\"\\ud800\"", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"job\": \"\"", "\"job\": \"\", \"job\": \"\"", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"lr\": 0.25", "\"lr\": 0.25, \"l\\u0072\": 0.25", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"step\": 50", "\"step\": 18446744073709551616", ZERO_E_CORRUPT, "damaged at byte"},
    {"\"lr\": 0.25", "\"lr\": 1e999", ZERO_E_CORRUPT, "damaged at byte"},
    // Members of other types, or missing.
    {"\"step\": 50", "\"step\": -1", ZERO_E_CORRUPT, "'step' is no integer"},
    {"\"step\": 50", "\"step\": 50.0", ZERO_E_CORRUPT, "'step' is no integer"},
    {"\"step\": 50", "\"step\": 9007199254740993", ZERO_E_CORRUPT, "'step' is no integer"},
    {"\"step\"", "\"Step\"", ZERO_E_CORRUPT, "'step' is no integer"},
    {"\"sequence\": 12", "\"sequence\": 0", ZERO_E_CORRUPT, "sequence 0"},
    {"\"sequence\"", "\"Sequence\"", ZERO_E_CORRUPT, "'sequence' is no integer"},
    {"\"job\": \"\"", "\"job\": null", ZERO_E_CORRUPT, "'job' is no text"},
    {"\"library\"", "\"Library\"", ZERO_E_CORRUPT, "'library' is no text"},
    {"\"id\": \"00", "\"id\": \"0", ZERO_E_CORRUPT, "'id' has not 32"},
    {"\"id\": \"00", "\"id\": \"00\", \"x\": \"", ZERO_E_CORRUPT, "'id' has not 32"},
    {"fedcba9876543210", "FEDCBA9876543210", ZERO_E_CORRUPT, "'seed' has not 16"},
    {"fedcba9876543210", "fedcba987654321g", ZERO_E_CORRUPT, "'seed' has not 16"},
    {"\"090807", "\"0x0807", ZERO_E_CORRUPT, "'fingerprint' has not 32"},
    {"\"stage\": 3", "\"stage\": 4", ZERO_E_CORRUPT, "'stage' is no integer from 0 to 3"},
    {"\"native\"", "\"Native\"", ZERO_E_CORRUPT, "'reduction' is 'Native'"},
    {"\"default\"", "\"f64\"", ZERO_E_CORRUPT, "'comm_dtype' is 'f64'"},
    {"\"micro_batches\": 8", "\"micro_batches\": 0", ZERO_E_CORRUPT, "micro_batches 0"},
    {"\"sum_group\": 2", "\"sum_group\": 0", ZERO_E_CORRUPT, "sum_group 0"},
    {"\"loss_scale\": {", "\"x\": {", ZERO_E_CORRUPT, "'loss_scale' is neither"},
    {"\"value\": 65536.0", "\"value\": 0", ZERO_E_CORRUPT, "a loss scale of 0"},
    {"\"value\": 65536.0", "\"value\": \"\"", ZERO_E_CORRUPT, "'value' is no number"},
    {"\"dynamic\": true", "\"dynamic\": 1", ZERO_E_CORRUPT, "'dynamic' is neither"},
    // Groups.
    {"\"groups\": [", "\"groups\": 1, \"x\": [", ZERO_E_CORRUPT, "'groups' is no array"},
    {"\"groups\": [", "\"groups\": [0,", ZERO_E_CORRUPT, "groups[0]: 'name' is no text"},
    {"\"decoupled\"", "\"L2\"", ZERO_E_CORRUPT, "groups[0]: a decay 'L2'"},
    {"\"nesterov\": true", "\"nesterov\": null", ZERO_E_CORRUPT, "groups[1]: 'nesterov' is nei"},
    {"\"hyper\": {}", "\"hyper\": []", ZERO_E_CORRUPT, "groups[1]: 'hyper' is no object"},
    {"\"lr\": 0.25", "\"lr\": \"\"", ZERO_E_CORRUPT, "groups[0]: 'lr' is no number"},
    {"\"lr\": 0.25", "\"\": 0.25", ZERO_E_CORRUPT, "groups[0]: hyper '' is 0.25"},
    {"\"lr\"", "\"a name of 24 bytes......\"", ZERO_E_CORRUPT, "has the long name 'a name"},
    {"\"lr\"", "\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"f\"", ZERO_E_CORRUPT, "at most 8"},
    // Tensors.
    {"\"stacked\"", "\"a scalar\"", ZERO_E_CORRUPT, "tensors[1] and tensors[2] are both called"},
    {"\"stacked\"", "\"a\\u0020scalar\"", ZERO_E_CORRUPT, "are both called 'a scalar'"},
    {"\"stacked\"", "\"\"", ZERO_E_CORRUPT, "tensors[1] has no name"},
    {"\"shape\": [50, 50]", "\"shape\": [50, 0]", ZERO_E_CORRUPT, "no elements, or too many"},
    {"\"shape\": [50, 50]", "\"shape\": [50, -1]", ZERO_E_CORRUPT, "'shape' is no integer"},
    {"\"shape\": [50, 50]", "\"shape\": 2500", ZERO_E_CORRUPT, "'shape' is no array"},
    {"\"shape\": [50, 50]", "\"shape\": [1,1,1,1,1,1,1,1,1]", ZERO_E_CORRUPT, "9 elements, more"},
    {"\"shape\": [50, 50]", "\"shape\": [4294967296, 4294967296]", ZERO_E_CORRUPT, "overflows"},
    {"\"shape\": [50, 50]", "\"shape\": [4294967296, 4194304]", ZERO_E_CORRUPT, "or too many"},
    {"\"shape\": [50, 50]", "\"shape\": [2501]", ZERO_E_CORRUPT, "there is no such part"},
    {"\"shape\": [50, 50]", "\"shape\": [2499]", ZERO_E_CORRUPT, "there is no such part"},
    {"\"slices\": 2", "\"slices\": 0", ZERO_E_CORRUPT, "its slices are no equal parts"},
    {"\"slices\": 2", "\"slices\": 4", ZERO_E_CORRUPT, "its slices are no equal parts"},
    {"\"slices\": 2", "\"slices\": 4294967296", ZERO_E_CORRUPT, "'slices' is no integer"},
    {"\"slices\": 2", "\"slices\": 6", ZERO_E_CORRUPT, "there is no such part"},
    {"\"slices\": 2", "\"slices\": 1", ZERO_E_CORRUPT, "there is no such part"},
    {"\"dtype\": \"bf16\"", "\"dtype\": \"BF16\"", ZERO_E_CORRUPT, "'dtype' is 'BF16'"},
    {"\"grad_dtype\": \"f32\"", "\"grad_dtype\": 0", ZERO_E_CORRUPT, "'grad_dtype' is no text"},
    {"\"group\": 1", "\"group\": 2", ZERO_E_CORRUPT, "there is no such group"},
    {"\"fields\": [\"f16\"]", "\"fields\": []", ZERO_E_CORRUPT, "so many fields"},
    {"\"fields\": [\"f16\"]", "\"fields\": [\"f16\", \"f16\"]", ZERO_E_CORRUPT, "so many fields"},
    {"\"fields\": [\"f16\"]", "\"fields\": [\"default\"]", ZERO_E_CORRUPT, "'fields' is 'default'"},
    {"\"f32\", \"bf16\"]", "\"f32\", \"f32\", \"f32\"]", ZERO_E_CORRUPT, "4 elements, more than 3"},
    // Blobs.
    {"\"generator\"", "\"position\"", ZERO_E_CORRUPT, "blobs[0] and blobs[1] are both"},
    {"\"generator\"", "\"\"", ZERO_E_CORRUPT, "blobs[1] has no name"},
    {"\"scope\": \"rank\"", "\"scope\": \"global\"", ZERO_E_CORRUPT, "'bytes' is no integer"},
    {"\"scope\": \"global\"", "\"scope\": \"rank\"", ZERO_E_CORRUPT, "'bytes' has not one"},
    {"[0, 17,", "[17,", ZERO_E_CORRUPT, "'bytes' has not one element a shard"},
    {"[0, 17,", "[0, null,", ZERO_E_CORRUPT, "'bytes' is no integer"},
    // Shards.
    {"\"shard-00001.zst\"", "\"../shard\"", ZERO_E_CORRUPT, "shards[1]: 'file' is '../shard'"},
    {"\"shard-00001.zst\"", "\"shard-00000.zst\"", ZERO_E_CORRUPT, "shards[1]: 'file' is"},
    {"\"world\": 3", "\"world\": 2", ZERO_E_CORRUPT, "'world' is 2, but there are 3 shards"},
    {"\"bytes\": 12288", "\"bytes\": 12287", ZERO_E_CORRUPT, "an index at 8191 of 12287 bytes"},
    {"\"index_offset\": 8191", "\"index_offset\": 12288", ZERO_E_CORRUPT, "an index at 12288"},
    {"\"index_offset\": 8191", "\"index_offset\": 4095", ZERO_E_CORRUPT, "an index at 4095"},
    {"[1, 1, 0, 3]", "[1, 1, 0]", ZERO_E_CORRUPT, "no array of 4 numbers"},
    {"[1, 1, 0, 3]", "[1, 1, 0, 3, 0]", ZERO_E_CORRUPT, "no array of 4 numbers"},
    {"[1, 1, 0, 3]", "[4294967296, 1, 0, 3]", ZERO_E_CORRUPT, "'runs' is no integer"},
    {"[1, 1, 0, 3]", "[3, 0, 0, 3]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 2, 0, 3]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 1, 0, 4]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 1, 0, 2]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 1, 0, 0]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 1, 3, 0]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 1, 9007199254740992, 3]", ZERO_E_CORRUPT, "there is no such part"},
    {"[1, 1, 0, 3]", "[1, 0, 0, 3]", ZERO_E_CORRUPT, "element 0 of slice 0 of tensor 'stacked'"},
    {"[1, 1, 0, 3], ", "", ZERO_E_CORRUPT, "no shard has element 0 of slice 1 of tensor 'stack"},
    {", [2, 0, 0, 1]", "", ZERO_E_CORRUPT, "no shard has element 0 of slice 0 of tensor 'a sc"},
    {"[0, 0, 2048, 452], ", "", ZERO_E_CORRUPT, "no shard has element 2048 of slice 0 of tensor"},
    {"[0, 0, 1024, 1024]", "[0, 0, 0, 2048]", ZERO_E_CORRUPT, "another run, too, has element 0"},
    {"[0, 0, 1024, 1024]", "[0, 0, 1024, 1476]", ZERO_E_CORRUPT, "too, has element 2048"},
    {"[0, 0, 1024, 1024]", "[0, 0, 1000, 1024]", ZERO_E_CORRUPT, "there is no such part"},
};

static void hostile_manifests(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        const zero_result result = parse_changed(c->from, c->to);
        if (result != c->result || !strstr(failure.message, c->message))
            print_error("%s to %s: %d '%s'\n", c->from, c->to, (int)result, failure.message);
        assert_int_equal(result, c->result);
        assert_non_null(strstr(failure.message, c->message));
    }
}

static void deep_and_wide_manifests(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    char *deep = malloc(MANY + 16);
    assert_non_null(deep);
    memset(strcpy(deep, "\"x\": ") + 5, '[', MANY);
    deep[MANY + 5] = '\0';
    assert_int_equal(parse_changed("\"step\"", deep), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "damaged at byte"));
    free(deep);
    char *wide = malloc(3 * MANY + 32);
    assert_non_null(wide);
    char *end = stpcpy(wide, "\"shape\": [1");
    for (int i = 0; i < MANY; i++)
        end = stpcpy(end, ", 1");
    assert_int_equal(parse_changed("\"shape\": [50, 50", wide), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "100001 elements, more than 8"));
    free(wide);
}

static void every_changed_byte_and_every_cut_is_found(void **state)
{
    (void)state;
    size_t length;
    char *text = sample_text(&length);
    for (size_t i = 0; i < length; i++) {
        const char byte = text[i];
        text[i] = (char)(byte ^ (1 << i % 8));
        assert_int_equal(parse(text, length), ZERO_E_CORRUPT);
        text[i] = byte;
    }
    for (size_t cut = 0; cut < length; cut++)
        assert_int_equal(parse(text, cut), ZERO_E_CORRUPT);
    text[length] = '\n';
    assert_int_equal(parse(text, length + 1), ZERO_E_CORRUPT);
    assert_int_equal(parse(text, length), ZERO_OK);
    free(text);
}

/* ------------------------------------------------------------------ the head alone */

static zero_result glance(const char *text, size_t length, struct ckpt_manifest_head *head)
{
    char *exact = malloc(length ? length : 1); // so that a byte too far is found
    assert_non_null(exact);
    memcpy(exact, text, length);
    base_error_clear(&failure);
    const zero_result result = ckpt_manifest_parse_head(head, exact, length, "f", &failure);
    free(exact);
    return result;
}

#define RUN_LINE "\"run\": \"a00102030405060708090a0b0c0d0ef5\",\n"

// Of a text that parsing takes: a glance at it finds its run.
static void check_run(const char *text, size_t length, const struct ckpt_manifest_head *head)
{
    struct ckpt_manifest manifest;
    assert_int_equal(ckpt_manifest_parse(&manifest, text, length, "f", &failure), ZERO_OK);
    assert_true(ckpt_same_run(&head->run, &manifest.run));
    ckpt_manifest_free(&manifest);
}

// Whatever is in the head, a glance sees what parsing does.
static void heads(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        uint64_t step, sequence; // 0: refused
    } cases[] = {
        {"\"sequence\": 12", "\"sequence\": 12", 50, 12},
        {"\"sequence\": 12", "\"sequence\": 9007199254740992", 50, CKPT_MAX_NUMBER},
        {"\"sequence\": 12", "\"sequence\":5", 50, 5},
        {"\"sequence\": 12,\n", "\"sequence\": 12, ", 50, 12},
        {"\"library\"", "\"new\": 0, \"library\"", 50, 12},
        {"\"step\": 50", "\"step\": 70", 70, 12},
        {"\"sequence\": 12,\n\"step\": 50", "\"step\": 7,\n\"sequence\": 4", 7, 4},
        {"\"sequence\": 12", "\"sequence\": 0", 0, 0},
        {"\"sequence\": 12", "\"sequence\": 012", 0, 0},
        {"\"sequence\": 12", "\"sequence\": -12", 0, 0},
        {"\"sequence\": 12", "\"sequence\": ", 0, 0},
        {"\"sequence\": 12", "\"sequence\": 12.0", 0, 0},
        {"\"sequence\": 12", "\"sequence\": 9007199254740993", 0, 0},
        {"\"sequence\": 12", "\"sequence\": 18446744073709551619", 0, 0},
        {"\"sequence\": 12,\n", "", 0, 0},
        {"\"format\": 1", "\"format\": 2", 0, 0},
        {"\"step\": 50", "\"step\": ", 0, 0},
        {RUN_LINE, "", 50, 12},
        {RUN_LINE, "\"run\": \"00000000000000000000000000000000\", ", 50, 12},
        {"\"run\": \"a0", "\"run\": \"A0", 0, 0},
        {"\"run\": \"a0", "\"run\": \"a", 0, 0},
        {"\"run\": \"a0", "\"run\": \"0a0", 0, 0},
        {RUN_LINE, "\"run\": null,\n", 0, 0},
        {RUN_LINE, "\"run\": 7,\n", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length;
        struct ckpt_manifest_head head;
        char *text = change(cases[i].from, cases[i].to, &length);
        const zero_result parsed = parse(text, length);
        const zero_result result = glance(text, length, &head);
        assert_int_equal(result, parsed);
        assert_true((result == ZERO_OK) == (cases[i].sequence > 0));
        assert_true(result || head.step == cases[i].step);
        assert_true(result || head.sequence == cases[i].sequence);
        if (!result)
            check_run(text, length, &head);
        free(text);
    }
}

static struct ckpt_run_id run_of(const char *from, const char *to)
{
    size_t length;
    struct ckpt_manifest_head head;
    char *text = change(from, to, &length), *bare = strstr(text, RUN_LINE),
         line[CKPT_LAST_LINE + 1];
    const size_t rest = length - (size_t)(bare - text) - strlen(RUN_LINE);
    memmove(bare, bare + strlen(RUN_LINE), rest);
    length -= strlen(RUN_LINE);
    ckpt_last_line(text, length - CKPT_LAST_LINE, line);
    memcpy(text + length - CKPT_LAST_LINE, line, CKPT_LAST_LINE);
    assert_int_equal(glance(text, length, &head), ZERO_OK);
    check_run(text, length, &head);
    free(text);
    return head.run;
}

// Files that don't tell their run: those of one run have the same, wherever it has got to.
static void runs_that_are_not_told(void **state)
{
    (void)state;
    const struct ckpt_run_id run = run_of("\"step\": 50", "\"step\": 50");
    const struct ckpt_run_id later = run_of("\"step\": 50", "\"step\": 60");
    const struct ckpt_run_id other = run_of("\"seed\": \"fe", "\"seed\": \"ff");
    const struct ckpt_run_id named = run_of("\"job\": \"\"", "\"job\": \"a\"");
    assert_true(ckpt_same_run(&run, &later));
    assert_false(ckpt_same_run(&run, &other));
    assert_false(ckpt_same_run(&run, &named));
}

// Wherever a text with a good checksum ends: it has a head, or is refused.
static void short_heads(void **state)
{
    (void)state;
    size_t length;
    struct ckpt_manifest_head head;
    char *text = sample_text(&length), line[CKPT_LAST_LINE + 1];
    const size_t end = (size_t)(strstr(text, "\"updates\"") - text); // behind step and run
    for (size_t cut = 0; cut < end + 8; cut++) {
        char begin[1024];
        assert_true(cut + CKPT_LAST_LINE < sizeof begin);
        memcpy(begin, text, cut);
        ckpt_last_line(begin, cut, line);
        strcpy(begin + cut, line);
        assert_int_equal(glance(begin, cut + CKPT_LAST_LINE, &head),
                         cut < end ? ZERO_E_CORRUPT : ZERO_OK);
        assert_int_equal(glance(begin, cut, &head), ZERO_E_CORRUPT);
    }
    free(text);
}

/* ------------------------------------------------------------------ what is not written */

static void expect_no_text(const struct ckpt_manifest *manifest, zero_result result,
                           const char *message)
{
    char *text = (char *)&failure;
    size_t length;
    base_error_clear(&failure);
    assert_int_equal(ckpt_manifest_format(manifest, &text, &length, &failure), result);
    assert_null(text);
    if (!strstr(failure.message, message))
        print_error("%s\n", failure.message);
    assert_non_null(strstr(failure.message, message));
}

static void what_no_reader_takes_is_not_written(void **state)
{
    (void)state;
    struct ckpt_manifest manifest = sample();
    manifest.state.step = CKPT_MAX_NUMBER + 1;
    expect_no_text(&manifest, ZERO_E_INVALID, "9007199254740993 is more than 2^53");
    manifest = sample();
    manifest.sequence = 0;
    expect_no_text(&manifest, ZERO_E_INVALID, "sequence 0");
    manifest = sample();
    manifest.job = "\xc0\xaf";
    expect_no_text(&manifest, ZERO_E_INVALID, "is no UTF-8");
    manifest = sample();
    manifest.state.loss_scale = INFINITY;
    expect_no_text(&manifest, ZERO_E_INVALID, "a loss scale of inf");
    manifest = sample();
    manifest.world = 1;
    expect_no_text(&manifest, ZERO_E_INVALID, "no shard has element 1024 of slice 0");
    manifest.world = 0;
    expect_no_text(&manifest, ZERO_E_INVALID, "0 shards");

    struct ckpt_group group = groups[0];
    manifest = sample();
    manifest.groups = &group;
    manifest.group_count = 1;
    expect_no_text(&manifest, ZERO_E_INVALID, "'stacked': there is no such group");
    group.hyper[1] = group.hyper[0];
    expect_no_text(&manifest, ZERO_E_INVALID, "hyper 'lr' comes twice");
    group.hyper[0].value = NAN;
    expect_no_text(&manifest, ZERO_E_INVALID, "hyper 'lr' is nan");
}

// Whatever allocation fails, nothing is left but the error.
static void no_memory(void **state)
{
    (void)state;
    const struct ckpt_manifest manifest = sample();
    size_t length, made;
    char *text = sample_text(&length), *again, fault[32];
    for (int n = 1, failed = 1; failed; n++) {
        snprintf(fault, sizeof fault, "alloc@%d", n);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        base_error_clear(&failure);
        const zero_result result = ckpt_manifest_format(&manifest, &again, &made, &failure);
        failed = base_fault_fired() > 0;
        assert_int_equal(result, failed ? ZERO_E_NOMEM : ZERO_OK);
        assert_true(!failed || (!again && strstr(failure.message, "no memory")));
        base_free(again);
        assert_true(failed || n > 4);
    }
    for (int n = 1, failed = 1; failed; n++) {
        snprintf(fault, sizeof fault, "alloc@%d", n);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        const zero_result result = parse(text, length);
        failed = base_fault_fired() > 0;
        assert_int_equal(result, failed ? ZERO_E_NOMEM : ZERO_OK);
        assert_true(!failed || strstr(failure.message, "'f': no memory"));
        assert_true(failed || n > 20);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tensors_and_elements_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_a_checkpoint_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hostile_manifests, set_up, tear_down),
        cmocka_unit_test_setup_teardown(deep_and_wide_manifests, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_changed_byte_and_every_cut_is_found, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(heads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(runs_that_are_not_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_heads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_no_reader_takes_is_not_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_memory, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
