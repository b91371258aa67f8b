// Which tokens examples/gpt2 reads, and which of them make a sample.
#include "data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/gpt2_data.XXXXXX";
static struct reason reason;

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    FILE *stream = fopen(path_of(name), "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

static bool load(struct data *data, const char *name, int vocab, int context)
{
    const char *path = path_of(name);
    *reason.text = '\0';
    return data_load(data, &path, 1, vocab, context, &reason);
}

static void assert_refused(const char *name, int vocab, int context, const char *words)
{
    struct data data;
    assert_false(load(&data, name, vocab, context));
    data_free(&data);
    if (!strstr(reason.text, words) || strchr(reason.text, '\n'))
        fail_msg("'%s' doesn't say '%s' in one line", reason.text, words);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

// Sample k is the `context` tokens from k * context mod M, M = floor((tokens - 1) / T) * T.
static void test_sequential(void **state)
{
    (void)state;
    char text[23];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i);
    write_file("text", text, sizeof text);
    struct data data;
    assert_true(load(&data, "text", 256, 4));
    assert_int_equal(data.count, 23);
    for (uint64_t k = 0; k < 12; k++) {
        uint16_t token[4], target[4];
        data_sample(&data, 4, false, 1, k, token, target);
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(token[i], text[k * 4 % 20 + i]);
            assert_int_equal(target[i], text[k * 4 % 20 + i + 1]);
        }
    }
    data_free(&data);
}

// One more or one less token moves M: with exactly context + 1 there is one window.
static void test_fewest_tokens(void **state)
{
    (void)state;
    write_file("nine", "123456789", 9);
    struct data data;
    uint16_t token[8], target[8];
    assert_true(load(&data, "nine", 256, 8));
    data_sample(&data, 8, false, 1, 5, token, target);
    assert_int_equal(token[0], '1');
    assert_int_equal(target[7], '9');
    data_sample(&data, 8, true, 1, 5, token, target);
    assert_int_equal(token[0], '1');
    data_free(&data);
    assert_refused("nine", 256, 9, "9 tokens");
}

// Each epoch sees every window once, in an order of its own.
static void test_shuffled(void **state)
{
    (void)state;
    enum { WINDOWS = 37, EPOCHS = 3 };
    unsigned char text[WINDOWS * 2 + 1];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)i;
    write_file("text", text, sizeof text);
    struct data data;
    assert_true(load(&data, "text", 256, 2));
    uint16_t order[EPOCHS][WINDOWS];
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[WINDOWS] = {0};
        for (uint64_t k = 0; k < WINDOWS; k++) {
            uint16_t token[2], target[2];
            data_sample(&data, 2, true, 5, epoch * WINDOWS + k, token, target);
            assert_int_equal(token[0] % 2, 0);
            assert_int_equal(token[1], token[0] + 1);
            assert_int_equal(target[1], token[0] + 2);
            assert_int_equal(seen[token[0] / 2]++, 0);
            order[epoch][k] = token[0];
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    assert_memory_not_equal(order[1], order[2], sizeof order[0]);
    data_free(&data);
}

static void test_directory(void **state)
{
    (void)state;
    mkdir(path_of("tree"), 0755);
    mkdir(path_of("tree/b"), 0755);
    mkdir(path_of("tree/.git"), 0755);
    write_file("tree/c", "C", 1);
    write_file("tree/a.txt", "A", 1);
    write_file("tree/b/2", "2", 1);
    write_file("tree/b/1", "1", 1);
    write_file("tree/.hidden", "x", 1);
    write_file("tree/.git/x", "x", 1);
    write_file("tree/image", "x\0x", 3);
    write_file("tree/empty", "", 0);
    write_file("tree/tokens.bin", "xy", 2);
    struct data data;
    assert_true(load(&data, "tree", 256, 1));
    const char expected[] = "A12C";
    assert_int_equal(data.count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(data.token[i], expected[i]);
    data_free(&data);
}

static void test_tokens(void **state)
{
    (void)state;
    const uint16_t bare[] = {5, 50256, 258};
    write_file("bare.bin", bare, sizeof bare);
    uint32_t header[256] = {20240520, 1, 3};
    char whole[sizeof header + sizeof bare];
    memcpy(whole, header, sizeof header);
    memcpy(whole + sizeof header, bare, sizeof bare);
    write_file("headed.bin", whole, sizeof whole);
    const char *const names[] = {"bare.bin", "headed.bin"};
    for (int i = 0; i < 2; i++) {
        struct data data;
        assert_true(load(&data, names[i], 50257, 2));
        assert_int_equal(data.count, 3);
        assert_memory_equal(data.token, bare, sizeof bare);
        data_free(&data);
        assert_refused(names[i], 50256, 2, "token 50256 at position 1");
    }
    header[1] = 7;
    write_file("version.bin", header, sizeof header);
    assert_refused("version.bin", 50257, 2, "version 7");
    header[1] = 1;
    write_file("short.bin", header, sizeof header);
    assert_refused("short.bin", 50257, 2, "says 3 tokens of 2 bytes, but 0 bytes");
    write_file("odd.bin", "123", 3);
    assert_refused("odd.bin", 50257, 2, "3 bytes");
}

// 32-bit tokens behind a header of the same form.
static void test_wide_tokens(void **state)
{
    (void)state;
    uint32_t file[256 + 3] = {20240801, 7, 3, [256] = 5, 50256, 258};
    struct data data;
    write_file("wide.bin", file, sizeof file);
    assert_true(load(&data, "wide.bin", 50257, 2));
    assert_int_equal(data.count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(data.token[i], file[256 + i]);
    data_free(&data);
    assert_refused("wide.bin", 50256, 2, "token 50256 at position 1");
    file[257] = 128000;
    write_file("wide.bin", file, sizeof file);
    assert_refused("wide.bin", 65536, 2, "token 128000 at position 1 is beyond the vocabulary");
    write_file("wide.bin", file, sizeof file - 2);
    assert_refused("wide.bin", 65536, 2, "says 3 tokens of 4 bytes, but 10 bytes");
    write_file("wide.bin", file, sizeof file - 4);
    assert_refused("wide.bin", 65536, 2, "says 3 tokens of 4 bytes, but 8 bytes");
    file[1] = 1;
    write_file("wide.bin", file, sizeof file);
    assert_refused("wide.bin", 65536, 2, "version 1 of llm.c's header 20240801");
    write_file("wide.bin", file, 12);
    file[1] = 7;
    write_file("wide.bin", file, 12);
    assert_refused("wide.bin", 65536, 2, "header has 1024 bytes, the file only 12");
}

// llm.c's weights, tokenizer and evaluations are .bin files, too.
static void test_files_of_something_else(void **state)
{
    (void)state;
    static const uint32_t magics[] = {20240326, 20240327, 20240328, 20240522};
    uint32_t file[256 + 3] = {0, 1, 3};
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        file[0] = magics[i];
        write_file("other.bin", file, sizeof file);
        assert_refused("other.bin", 65536, 2, "something else than tokens");
    }
    // Tokens that happen to begin so.
    const uint16_t bare[] = {55544, 308, 7, 9};
    struct data data;
    write_file("bare.bin", bare, sizeof bare);
    assert_true(load(&data, "bare.bin", 65536, 2));
    assert_int_equal(data.count, 4);
    data_free(&data);
}

static void test_refusals(void **state)
{
    (void)state;
    write_file("empty", "", 0);
    write_file("text", "abc\xff", 4);
    assert_refused("missing", 256, 2, "No such file");
    assert_refused("empty", 256, 2, "is empty");
    assert_refused("text", 128, 2, "byte 255 at position 3");
    mkfifo(path_of("pipe"), 0644);
    assert_refused("pipe", 256, 2, "neither a file nor a directory");
    mkdir(path_of("nothing"), 0755);
    assert_refused("nothing", 256, 2, "0 tokens");
    // Files that a directory is read without are counted, and the way to have them is named.
    assert_int_equal(mkdir(path_of("binaries"), 0700), 0);
    write_file("binaries/a.bin", "abcdefgh", 8);
    write_file("binaries/b.bin", "abcdefgh", 8);
    write_file("binaries/zero", "a\0b", 3);
    assert_refused("binaries", 256, 2, "left out, 2 here");
    assert_refused("binaries", 256, 2, "--data DIR/*.bin");
    assert_refused("binaries", 256, 2, "left out, 1 here");
}

// The last tenth is kept for evaluation, or one window of it.
static void test_held(void **state)
{
    (void)state;
    char bytes[200];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)i;
    uint16_t token[4], target[4];
    struct data data;
    write_file("text", bytes, sizeof bytes);
    assert_true(load(&data, "text", 256, 4));
    assert_int_equal(data_held(&data, 4), 0);
    assert_true(data_hold(&data, 4, &reason));
    assert_int_equal(data.count, 180);
    assert_int_equal(data_held(&data, 4), 4);
    for (uint64_t k = 0; k < 9; k++) {
        data_sample_held(&data, 4, k, token, target);
        assert_int_equal(token[0], 180 + k % 4 * 4);
        assert_int_equal(target[3], 180 + k % 4 * 4 + 4);
    }
    data_free(&data);

    write_file("text", bytes, 10);
    assert_true(load(&data, "text", 256, 4));
    assert_true(data_hold(&data, 4, &reason));
    assert_int_equal(data.count, 5);
    assert_int_equal(data_held(&data, 4), 1);
    data_free(&data);
    assert_true(load(&data, "text", 256, 5));
    assert_false(data_hold(&data, 5, &reason));
    assert_non_null(strstr(reason.text, "6 of 10 tokens"));
    data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequential),  cmocka_unit_test(test_fewest_tokens),
        cmocka_unit_test(test_shuffled),    cmocka_unit_test(test_directory),
        cmocka_unit_test(test_wide_tokens), cmocka_unit_test(test_files_of_something_else),
        cmocka_unit_test(test_tokens),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_held),
    };
    return cmocka_run_group_tests_name("gpt2_data", tests, make_folder, remove_folder);
}
