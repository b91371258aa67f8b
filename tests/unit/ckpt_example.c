// checkpoint/FORMAT.md's worked example is what the library writes: ckpt_example <FORMAT.md>
#include "base/arena.h"
#include "checkpoint/shard/shard.h"
#include "checkpoint/tensor_digest.h"
#include "tests/unit/memory_store.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *format_path;
static const float weights[] = {1.0f, -2.0f, 0.5f, 3.0f};
static const uint16_t moments[] = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
static const char position[] = "step 5";

// The example, whose shard is written.
static void write_example(struct memory_store *memory, struct ckpt_shard_entry *entry)
{
    const struct ckpt_shard_id id = {
        .checkpoint = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        .step = 5,
        .world = 1};
    const struct ckpt_run run = {0, 0, 0, 4};
    struct ckpt_shard_writer *writer;
    struct ckpt_block_codec *codec;
    struct ckpt_file *file;
    assert_int_equal(ckpt_shard_writer_create(&writer, 1, 1, 3, NULL), ZERO_OK);
    assert_int_equal(ckpt_block_codec_create(&codec, CKPT_LEVEL_STORED, NULL), ZERO_OK);
    assert_int_equal(memory->store.create(memory, &file, "shard", false, NULL), ZERO_OK);
    assert_int_equal(ckpt_shard_begin(writer, &memory->store, file, &id, NULL), ZERO_OK);
    assert_int_equal(ckpt_shard_blob(writer, 0, sizeof position - 1, NULL), ZERO_OK);
    assert_int_equal(ckpt_shard_block(writer, codec, (struct ckpt_block_code){1, 0}, 0, position,
                                      sizeof position - 1, NULL),
                     ZERO_OK);
    assert_int_equal(ckpt_shard_run(writer, &run, NULL), ZERO_OK);
    assert_int_equal(
        ckpt_shard_block(writer, codec, (struct ckpt_block_code){4, 1}, 0, weights, 4, NULL),
        ZERO_OK);
    assert_int_equal(
        ckpt_shard_block(writer, codec, (struct ckpt_block_code){2, 0}, 1, moments, 4, NULL),
        ZERO_OK);
    assert_int_equal(ckpt_shard_finish(writer, entry, NULL), ZERO_OK);
    memory->store.close(&file, NULL);
    ckpt_block_codec_destroy(codec);
    ckpt_shard_writer_destroy(writer);
}

static struct base_hash128 example_sum(void)
{
    struct ckpt_digest_place place = {
        .name = ckpt_digest_name("w"), .trains = true, .element_bytes = sizeof weights[0]};
    struct base_hash128 sum = {0, 0};
    ckpt_digest_add(&sum, &place, 0, 4, weights);
    place.field = 1;
    place.element_bytes = sizeof moments[0];
    ckpt_digest_add(&sum, &place, 0, 4, moments);
    return sum;
}

// By section 5, link by link.
static void enter_fingerprint(struct ckpt_manifest *manifest)
{
    const struct ckpt_group *group = &manifest->groups[0];
    const double hyper[] = {group->hyper[0].value, group->hyper[1].value};
    const struct ckpt_digest_group digested = {group->optimizer, group->decay, false, hyper, 2};
    struct base_hash128 root = ckpt_digest_state(&manifest->state);
    root = ckpt_digest_group(root, &digested);
    root = ckpt_digest_blobs(root, ckpt_digest_blob("position", position, sizeof position - 1));
    root = ckpt_digest_tensor(root, ckpt_digest_name("w"), manifest->tensors[0].sum);
    base_hash128_bytes(root, manifest->state.fingerprint);
}

static void format_example(struct ckpt_shard_entry *entry, char **text, size_t *length)
{
    struct ckpt_run run = {0, 0, 0, 4};
    uint64_t bytes = sizeof position - 1;
    struct ckpt_group group = {.name = "group0",
                               .optimizer = "sgd",
                               .decay = "l2",
                               .hyper = {{"lr", 0.1}, {"beta1", 0.5}},
                               .hypers = 2};
    struct ckpt_table_tensor tensor = {.name = "w",
                                       .ndim = 2,
                                       .shape = {2, 2},
                                       .slices = 1,
                                       .numel = 4,
                                       .dtype = CKPT_BF16,
                                       .grad_dtype = CKPT_F32,
                                       .trains = true,
                                       .field = {CKPT_F32, CKPT_BF16},
                                       .fields = 2,
                                       .sum = example_sum()};
    struct ckpt_blob blob = {.name = "position", .bytes = &bytes};
    struct ckpt_manifest manifest = {.id = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                     .library = "0.1.0",
                                     .job = "example",
                                     .created = "2026-01-31T23:59:59Z",
                                     .sequence = 2,
                                     .state = {.step = 5,
                                               .updates = 5,
                                               .micro_batches = 8,
                                               .sum_group = 1,
                                               .seed = 42,
                                               .comm_dtype = CKPT_OTHER,
                                               .stage = 1},
                                     .groups = &group,
                                     .group_count = 1,
                                     .tensors = &tensor,
                                     .tensor_count = 1,
                                     .blobs = &blob,
                                     .blob_count = 1,
                                     .shards = entry,
                                     .world = 1};
    entry->runs = &run;
    entry->run_count = 1;
    enter_fingerprint(&manifest);
    struct base_error error = {.result = ZERO_OK};
    if (ckpt_manifest_format(&manifest, text, length, &error))
        print_error("%s\n", error.message);
    assert_non_null(*text);
}

/* ------------------------------------------------------------------ as it is printed */

struct page {
    char text[32768];
    size_t length;
};

static void print(struct page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void print(struct page *page, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    page->length += (size_t)vsnprintf(page->text + page->length, sizeof page->text - page->length,
                                      format, arguments);
    va_end(arguments);
    assert_true(page->length < sizeof page->text);
}

// As hexdump -C does, but for the star, which stands for lines of zeros, even for one.
static void dump(struct page *page, const unsigned char *bytes, size_t count)
{
    static const unsigned char zeros[16];
    bool star = false;
    for (size_t at = 0; at < count; at += 16) {
        const bool empty = memcmp(bytes + at, zeros, 16) == 0;
        if (empty && !star)
            print(page, "    *\n");
        star = empty;
        if (empty)
            continue;
        print(page, "    %08zx", at);
        for (size_t i = at; i < at + 16; i++)
            print(page, "%s%02x", i % 8 == 0 ? "  " : " ", bytes[i]);
        print(page, "  |");
        for (size_t i = at; i < at + 16; i++)
            print(page, "%c", isprint(bytes[i]) ? bytes[i] : '.');
        print(page, "|\n");
    }
    print(page, "    %08zx\n", count);
}

// The text, each line moved to the right.
static void indent(struct page *page, const char *text, size_t length)
{
    for (const char *line = text, *end; line < text + length; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + length - line));
        assert_non_null(end);
        print(page, "    %.*s\n", (int)(end - line), line);
    }
}

static char *read_format(void)
{
    FILE *file = fopen(format_path, "rb");
    char *text = calloc(1, 1 << 20);
    assert_non_null(file);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 20) - 1, file), 1, (1 << 20) - 2);
    fclose(file);
    return text;
}

static void the_example_is_what_is_written(void **state)
{
    (void)state;
    static struct page shard, manifest;
    struct memory_store memory;
    struct ckpt_shard_entry entry;
    char *text;
    size_t length;
    memory_store_init(&memory);
    write_example(&memory, &entry);
    const struct memory_file *file = memory_store_find(&memory, "shard");
    assert_int_equal(file->bytes, entry.bytes);
    dump(&shard, file->data, file->bytes);
    format_example(&entry, &text, &length);
    indent(&manifest, text, length);

    char *format = read_format();
    const bool same = strstr(format, shard.text) && strstr(format, manifest.text);
    if (!same)
        fprintf(stderr, "%s should have\n\n%s\nand\n\n%s", format_path, shard.text, manifest.text);
    assert_true(same);
    free(format);
    base_free(text);
    memory_store_free(&memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_example_is_what_is_written)};
    if (argc != 2)
        return 2;
    format_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
