// The records of a tile file, and the tiles that they name.
#include "tile_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

enum { PAGE = 4096, HEAD = 72, BLOCK = 32768, LATER = 65536, MOST_FILE = 4 << 20 };

/* ------------------------------------------------------------------ bytes */

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "tile_file_reader: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

uint64_t get(const unsigned char *at, size_t bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

static uint64_t up(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        fail("no memory");
    return memory;
}

void release(struct bytes *bytes)
{
    free(bytes->at);
    *bytes = (struct bytes){NULL, 0};
}

// All of a file; no bytes if it cannot be opened.
static struct bytes read_whole(const char *path)
{
    struct bytes out = {allocate(MOST_FILE), 0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return out;
    out.count = fread(out.at, 1, MOST_FILE, file);
    fclose(file);
    return out;
}

struct bytes read_file(const char *path)
{
    char name[512];
    struct bytes out = read_whole(path);
    if (out.count > 0)
        return out;
    snprintf(name, sizeof name, "%s.zst", path);
    const struct bytes packed = read_whole(name);
    out.count = ZSTD_decompress(out.at, MOST_FILE, packed.at, packed.count);
    if (packed.count == 0 || ZSTD_isError(out.count))
        fail("%s: it is not there, and %s is not, or is damaged", path, name);
    free(packed.at);
    return out;
}

/* ------------------------------------------------------------------ 1, 2: file and records */

uint64_t place_offset(const struct tile_file *file, uint32_t tile, uint64_t place)
{
    uint64_t offset = 2 * file->record_room;
    for (uint32_t i = 0; i < tile; i++)
        offset += 2 * up(file->cut.tile_bytes[i]);
    return offset + place * up(file->cut.tile_bytes[tile]);
}

void describe(const struct job *job, uint32_t rank, struct tile_file *file)
{
    cut_tiles(job, rank, &file->cut);
    const uint32_t tiles = file->cut.tile_count;
    file->payload_most = 64 + 48 * (uint64_t)job->group_count + LATER;
    for (int b = 0; b < 2; b++)
        file->payload_most += 80 + job->blob_bytes[b];
    file->record_room = up(HEAD + file->payload_most + ENTRY * (uint64_t)tiles);
    file->identity[0] = identity(job, rank);
    file->identity[1] = identity(job, UINT64_MAX);
    file->shape =
        XXH3_64bits_withSeed(file->cut.tile_bytes, tiles * sizeof(uint64_t), file->payload_most);
}

const char *read_record(const struct tile_file *file, uint64_t r, struct record *record)
{
    const unsigned char *at = file->bytes.at + r * file->record_room;
    const uint32_t tiles = file->cut.tile_count;
    if (memcmp(at, "zeroslot", 8) != 0 || get(at + 8, 4) != 2)
        return "no record of version 2";
    if (get(at + 12, 4) != tiles || get(at + 32, 8) != file->shape)
        return "a record of another shape";
    if (get(at + 16, 8) != file->identity[0] || get(at + 24, 8) != file->identity[1])
        return "a record of another job or rank";
    *record = (struct record){.sequence = get(at + 40, 8),
                              .number = get(at + 48, 8),
                              .payload = at + HEAD,
                              .payload_bytes = get(at + 56, 8)};
    if (record->payload_bytes > file->payload_most)
        return "a payload that is too long";
    record->entries = record->payload + record->payload_bytes;
    const size_t bytes = HEAD + record->payload_bytes + ENTRY * (size_t)tiles;
    unsigned char *copy = allocate(bytes);
    memcpy(copy, at, bytes);
    memset(copy + 64, 0, 8);
    const uint64_t checksum = XXH3_64bits_withSeed(copy, bytes, 0);
    free(copy);
    return checksum == get(at + 64, 8) ? NULL : "a record with another checksum";
}

struct entry entry_of(const struct record *record, uint32_t tile)
{
    const unsigned char *at = record->entries + (size_t)tile * ENTRY;
    return (struct entry){get(at, 8), get(at + 8, 8), get(at + 16, 4), get(at + 20, 4)};
}

const char *check_tile(const struct tile_file *file, const struct record *record, uint32_t tile)
{
    const struct entry entry = entry_of(record, tile);
    if (entry.has != 1 || entry.place > 1 || entry.stored < 1 ||
        entry.stored > file->cut.tile_bytes[tile])
        return "an entry that says what cannot be";
    const unsigned char *stored = file->bytes.at + place_offset(file, tile, entry.place);
    return XXH3_64bits_withSeed(stored, (size_t)entry.stored, tile) == entry.checksum
               ? NULL
               : "a tile with another checksum";
}

/* ------------------------------------------------------------------ 5.5: encoded tiles */

// Decodes a block of elements of `size` bytes; returns the bytes that it was stored in.
static size_t decode_block(const unsigned char *stored, size_t left, unsigned char *to,
                           size_t count, size_t size, bool rotated)
{
    static unsigned char plane[BLOCK];
    size_t at = 16;
    memset(to, 0, count * size);
    for (size_t p = 0; p < size; p++) {
        const size_t bytes = (size_t)get(stored + 4 * p, 4);
        if (at + bytes > left || ZSTD_decompress(plane, BLOCK, stored + at, bytes) != count)
            fail("a frame that is damaged");
        for (size_t i = 0; i < count; i++)
            to[i * size + size - 1 - p] = plane[i];
        at += bytes;
    }
    for (size_t i = 0; rotated && i < count; i++) {
        const uint64_t value = get(to + i * size, size), top = (value & 1) << (8 * size - 1);
        for (size_t b = 0; b < size; b++)
            to[i * size + b] = (unsigned char)((value >> 1 | top) >> 8 * b);
    }
    return at;
}

// Which moments of a bucket are never negative: those that are in all its tensors.
static uint32_t squares_of(const struct job *job, uint32_t unit, uint64_t kind)
{
    uint32_t squares = 3;
    for (uint32_t t = 0; t < job->tensor_count; t++)
        if (is_in(&job->tensors[t], unit) && kind_of(job, &job->tensors[t]) == kind)
            squares &= job->groups[job->tensors[t].group].squares;
    return squares;
}

uint64_t field_bytes(uint64_t kind, uint32_t field)
{
    return field > 0 ? 4 : element_bytes(kind) - 4 * (kind & 255);
}

unsigned char *contents_of(const struct job *job, const struct tile_file *file,
                           const struct record *record, uint32_t tile)
{
    const struct entry entry = entry_of(record, tile);
    const unsigned char *stored = file->bytes.at + place_offset(file, tile, entry.place);
    unsigned char *contents = allocate((size_t)file->cut.tile_bytes[tile]), *to = contents;
    size_t at = 0;
    if (entry.stored == file->cut.tile_bytes[tile])
        return memcpy(contents, stored, (size_t)entry.stored);
    for (uint32_t p = 0; p < file->cut.piece_count; p++) {
        const struct piece *piece = &file->cut.pieces[p];
        const uint32_t squares = squares_of(job, piece->unit, piece->kind);
        for (uint32_t f = 0; piece->tile == tile && f <= (piece->kind & 255); f++) {
            const size_t size = (size_t)field_bytes(piece->kind, f);
            const bool rotated = f == 0 || !(squares >> (f - 1) & 1);
            for (uint64_t left = piece->granules * GRANULE, n; left > 0; left -= n) {
                n = left < BLOCK ? left : BLOCK;
                at += decode_block(stored + at, (size_t)entry.stored - at, to, (size_t)n, size,
                                   rotated);
                to += n * size;
            }
        }
    }
    if (at != entry.stored || to != contents + file->cut.tile_bytes[tile])
        fail("tile %u is not what was encoded", tile);
    return contents;
}
