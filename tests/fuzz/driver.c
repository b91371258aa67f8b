// Runs a fuzz target without a fuzzer: every file given (or in a directory given), and mutations
// of each, the same ones every time. With libFuzzer this file is left out:
// clang -fsanitize=fuzzer,address,undefined target.c <objects>.
//
//     driver [-n mutations] file-or-directory...
#include "tests/fuzz/target.h"

#include <zero/random.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 1 << 20 };

struct input {
    uint8_t *data; // LARGEST bytes
    size_t size;
};

// Random numbers of one mutation, one after the other.
struct dice {
    uint64_t stream, index;
};

static size_t roll(struct dice *dice, size_t sides)
{
    return sides > 0 ? zero_random_bits(1, dice->stream, dice->index++) % sides : 0;
}

static void flip_bit(struct input *input, struct dice *dice)
{
    if (input->size > 0)
        input->data[roll(dice, input->size)] ^= (uint8_t)(1 << roll(dice, 8));
}

static void set_byte(struct input *input, struct dice *dice)
{
    static const uint8_t likely[] = {0,   1,   0x7f, 0x80, 0xff, '"',  '{', '}', '[', ']',
                                     ',', ':', '-',  '0',  '9',  '\\', ' ', '=', '.', '\n'};
    if (input->size > 0)
        input->data[roll(dice, input->size)] = likely[roll(dice, sizeof likely)];
}

static void remove_range(struct input *input, struct dice *dice)
{
    const size_t first = roll(dice, input->size), length = roll(dice, input->size - first + 1);
    memmove(input->data + first, input->data + first + length, input->size - first - length);
    input->size -= length;
}

static void repeat_range(struct input *input, struct dice *dice)
{
    const size_t first = roll(dice, input->size);
    size_t length = roll(dice, input->size - first + 1);
    if (length > LARGEST - input->size)
        length = LARGEST - input->size;
    memmove(input->data + first + length, input->data + first, input->size - first);
    input->size += length;
}

static void cut(struct input *input, struct dice *dice)
{
    input->size = roll(dice, input->size + 1);
}

static void mutate(struct input *input, struct dice *dice)
{
    static void (*const ways[])(struct input *, struct dice *) = {
        flip_bit, set_byte, set_byte, remove_range, repeat_range, cut};
    for (size_t i = roll(dice, 4) + 1; i-- > 0;)
        ways[roll(dice, sizeof ways / sizeof *ways)](input, dice);
}

static bool read_input(const char *path, struct input *input)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    input->size = fread(input->data, 1, LARGEST, file);
    const bool good = !ferror(file);
    fclose(file);
    return good;
}

// An exact copy on the heap, so that a sanitizer sees one byte too far.
static void run_target(const struct input *input)
{
    uint8_t *copy = malloc(input->size + 1);
    if (!copy)
        abort();
    memcpy(copy + 1, input->data, input->size);
    LLVMFuzzerTestOneInput(copy + 1, input->size);
    free(copy);
}

static int run_file(const char *path, long mutations, struct input *input)
{
    if (!read_input(path, input)) {
        fprintf(stderr, "cannot read %s\n", path);
        return -1;
    }
    run_target(input);
    for (long i = 0; i < mutations; i++) {
        const char *slash = strrchr(path, '/');
        struct dice dice = {.stream = zero_random_stream(slash ? slash + 1 : path) + (uint64_t)i};
        if (!read_input(path, input))
            return -1;
        mutate(input, &dice);
        run_target(input);
    }
    return 1;
}

// Number of inputs run, -1 after a failure.
static int run_path(const char *path, long mutations, struct input *input)
{
    DIR *directory = opendir(path);
    if (!directory)
        return run_file(path, mutations, input);
    int count = 0;
    for (struct dirent *entry; count >= 0 && (entry = readdir(directory));) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        const int done = run_file(name, mutations, input);
        count = done < 0 ? -1 : count + done;
    }
    closedir(directory);
    return count;
}

int main(int argc, char **argv)
{
    long mutations = 0;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "-n") == 0) {
        mutations = atol(argv[2]);
        first = 3;
    }
    struct input input = {.data = malloc(LARGEST)};
    int count = input.data ? 0 : -1;
    for (int i = first; count >= 0 && i < argc; i++) {
        const int done = run_path(argv[i], mutations, &input);
        count = done < 0 ? -1 : count + done;
    }
    free(input.data);
    printf("%d inputs, %ld mutations each\n", count, mutations);
    return count > 0 ? 0 : 1;
}
