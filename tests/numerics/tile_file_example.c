// The example at the end of offload/FORMAT.md: a file that the library has written.
#include "tile_file.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { ROOM = 4096, BYTES = 6 * ROOM, PAYLOAD = 16 };

// Takes a line of the dump; false: it is none. The last one has an offset alone.
static bool take_line(const char *line, unsigned char *bytes, unsigned *offset)
{
    unsigned value;
    int length;
    if (strncmp(line, "    ", 4) != 0 || sscanf(line + 4, "%8x%n", offset, &length) != 1 ||
        length != 8)
        return false;
    line += 12;
    for (unsigned i = 0; i < 16 && sscanf(line, " %2x%n", &value, &length) == 1; i++) {
        if (*offset + i >= BYTES)
            fail("the example is too long");
        bytes[*offset + i] = (unsigned char)value;
        line += length;
    }
    return true;
}

static struct bytes read_example(const char *page)
{
    struct bytes out = {allocate(BYTES), 0};
    char line[256];
    unsigned offset = 0;
    FILE *file = fopen(page, "r");
    if (!file)
        fail("%s: cannot be opened", page);
    while (fgets(line, sizeof line, file))
        if (take_line(line, out.at, &offset))
            out.count = offset;
    fclose(file);
    if (out.count != BYTES)
        fail("%s: an example of %zu bytes", page, out.count);
    return out;
}

static void check_record(const struct tile_file *file, uint64_t number, const char *payload,
                         const char *weights)
{
    struct record record;
    const char *wrong = read_record(file, number, &record);
    for (uint32_t tile = 0; !wrong && tile < 2; tile++)
        wrong = check_tile(file, &record, tile);
    if (wrong)
        fail("the example's record %d: %s", (int)number, wrong);
    const struct entry first = entry_of(&record, 0), second = entry_of(&record, 1);
    if (record.sequence != number + 1 || record.number != 2 * (number + 1) ||
        record.payload_bytes != strlen(payload) ||
        memcmp(record.payload, payload, strlen(payload)) != 0 ||
        memcmp(file->bytes.at + place_offset(file, 0, first.place), weights, 8) != 0 ||
        memcmp(file->bytes.at + place_offset(file, 1, second.place), "tile1", 5) != 0)
        fail("the example's record %d is another one", (int)number);
}

void check_example(const char *page)
{
    struct tile_file file = {.bytes = read_example(page),
                             .cut = {.tile_count = 2, .tile_bytes = {8, 5}},
                             .identity = {0x1111111111111111, 0x2222222222222222},
                             .payload_most = PAYLOAD,
                             .record_room = ROOM};
    file.shape =
        XXH3_64bits_withSeed(file.cut.tile_bytes, 2 * sizeof *file.cut.tile_bytes, PAYLOAD);
    if (place_offset(&file, 2, 0) != BYTES)
        fail("the example has another size");
    check_record(&file, 0, "step 1", "weights1");
    check_record(&file, 1, "step 2", "weights2");
    release(&file.bytes);
}
