// tile_file_reader FILES DATA [PAGE]: reads the tile files FILES/<job>/zero-*.slots, or what they
// are packed to, by offload/FORMAT.md alone. Their names and sizes, both records, all checksums and
// the padding have to be what that page says. The fingerprint of the state in them, by section 5 of
// checkpoint/FORMAT.md, has to be the one that DATA, which is tests/data/a449ca1, has of the step.
// A byte that is changed has to be found. PAGE is offload/FORMAT.md, for its example.
#include "tile_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { FIELDS = 3, STEP = 5 };

#define RUN UINT64_C(0x6e75722d6f72657a)

/* ------------------------------------------------------------------ the state, and its sum */

struct state {
    unsigned char *fields[TENSORS][FIELDS]; // slice by slice
    uint64_t seen;                          // elements
};

// Copies what a bucket's granule has in a piece to its tensor.
static void take_granule(const struct job *job, const struct piece *piece,
                         const unsigned char *contents, uint64_t granule, struct state *state)
{
    uint64_t before = 0, count;
    uint32_t t = 0;
    for (;; t++) { // the tensor whose slice has the granule
        const struct tensor *tensor = &job->tensors[t];
        count = parts(numel_of(tensor), GRANULE);
        if (!is_in(tensor, piece->unit) || kind_of(job, tensor) != piece->kind)
            continue;
        if (granule < before + count)
            break;
        before += count;
    }
    const struct tensor *tensor = &job->tensors[t];
    const uint64_t first = (granule - before) * GRANULE, numel = numel_of(tensor);
    const uint64_t n = numel - first < GRANULE ? numel - first : GRANULE;
    const uint64_t slice = piece->unit - tensor->unit;
    const unsigned char *field = contents + piece->offset;
    for (uint32_t f = 0; f <= moments_of(job, tensor); f++) {
        const uint64_t size = field_bytes(piece->kind, f);
        const unsigned char *from = field + (granule - piece->first) * GRANULE * size;
        memcpy(state->fields[t][f] + (slice * numel + first) * size, from, (size_t)(n * size));
        for (uint64_t i = n * size; i < GRANULE * size; i++)
            if (from[i])
                fail("%s: padding that is not zero", tensor->name);
        field += piece->granules * GRANULE * size;
    }
    state->seen += n;
}

static void take_tiles(const struct job *job, const struct tile_file *file,
                       const struct record *record, struct state *state)
{
    for (uint32_t tile = 0; tile < file->cut.tile_count; tile++) {
        unsigned char *contents = contents_of(job, file, record, tile);
        for (uint32_t p = 0; p < file->cut.piece_count; p++) {
            const struct piece *piece = &file->cut.pieces[p];
            for (uint64_t g = 0; piece->tile == tile && g < piece->granules; g++)
                take_granule(job, piece, contents, piece->first + g, state);
        }
        free(contents);
    }
}

static XXH128_hash_t add(XXH128_hash_t a, XXH128_hash_t b)
{
    const XXH64_hash_t low = a.low64 + b.low64;
    return (XXH128_hash_t){low, a.high64 + b.high64 + (low < a.low64)};
}

static XXH128_hash_t sum_of(const struct job *job, const struct state *state, uint32_t t)
{
    const struct tensor *tensor = &job->tensors[t];
    const uint64_t numel = numel_of(tensor);
    const uint64_t name = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), 0);
    XXH128_hash_t sum = {0, 0};
    for (uint32_t f = 0; f <= moments_of(job, tensor); f++)
        for (uint64_t slice = 0; slice < tensor->slices; slice++)
            for (uint64_t first = 0; first < numel; first += GRANULE) {
                const uint64_t size = f > 0 ? 4 : weight_bytes(tensor);
                const uint64_t n = numel - first < GRANULE ? numel - first : GRANULE;
                const uint64_t which[] = {slice, first / GRANULE,
                                          tensor->frozen ? UINT64_C(1) << 20 : f};
                sum = add(
                    sum, XXH3_128bits_withSeed(state->fields[t][f] + (slice * numel + first) * size,
                                               (size_t)(n * size),
                                               XXH3_64bits_withSeed(which, sizeof which, name)));
            }
    return sum;
}

static XXH128_hash_t link(XXH128_hash_t before, const void *bytes, size_t count)
{
    return XXH3_128bits_withSeed(bytes, count, before.low64 ^ before.high64);
}

/* ------------------------------------------------------------------ 5.3: payload */

// Adds the groups, whose part of the payload begins at `at`, to the fingerprint.
static XXH128_hash_t sum_groups(const struct job *job, const unsigned char *at, XXH128_hash_t r)
{
    for (uint32_t g = 0; g < job->group_count; g++, at += 48) {
        const struct group *group = &job->groups[g];
        const uint64_t choice[] = {group->decay, group->nesterov};
        if (get(at + 40, 8) != 0)
            fail("%s: a group that is frozen", job->name);
        r = link(r, at, 40);
        if (strcmp(group->optimizer, "adamw") != 0 || group->decay != 1) {
            r = link(r, choice, sizeof choice);
            r = link(r, group->optimizer, strlen(group->optimizer));
        }
    }
    return r;
}

// Adds the blobs to the fingerprint; *at is where they begin, then where they end.
static XXH128_hash_t sum_blobs(const struct job *job, const unsigned char **at, uint64_t count,
                               XXH128_hash_t r)
{
    XXH128_hash_t sum = {0, 0};
    for (uint64_t b = 0; b < count; b++) {
        const char *name = (const char *)*at;
        const uint64_t bytes = get(*at + 64, 8), of_rank = get(*at + 72, 8);
        const uint64_t seed = XXH3_64bits_withSeed(name, strlen(name), 0);
        if (bytes != job->blob_bytes[b] || of_rank != b)
            fail("%s: another blob %.64s", job->name, name);
        if (!of_rank)
            sum = add(sum, XXH3_128bits_withSeed(*at + 80, (size_t)bytes, seed));
        *at += 80 + bytes;
    }
    const uint64_t halves[] = {sum.low64, sum.high64};
    return link(r, halves, sizeof halves);
}

// The fingerprint, as far as the payload says it.
static XXH128_hash_t sum_payload(const struct job *job, const struct record *record)
{
    const unsigned char *at = record->payload, *groups = at + 64;
    const unsigned char *blobs = groups + 48 * (size_t)job->group_count;
    const uint64_t count = get(at + 32, 8);
    const uint64_t numbers[] = {get(at, 8), get(at + 8, 8), get(at + 56, 4), get(at + 40, 8),
                                job->sum_group};
    const uint64_t scale[] = {get(at + 48, 8), get(at + 24, 8)};
    if (get(at, 8) != STEP || get(at + 40, 8) != job->seed || count != 2)
        fail("%s: a payload of another step, seed or number of blobs", job->name);
    XXH128_hash_t r =
        XXH3_128bits_withSeed(numbers, (job->sum_group == 1 ? 4 : 5) * sizeof *numbers, 0);
    r = link(r, scale, sizeof scale);
    r = sum_groups(job, groups, r);
    r = sum_blobs(job, &blobs, count, r);
    const uint64_t left = (uint64_t)(record->entries - blobs);
    if (left != 0 && (left != 40 || get(blobs, 8) != RUN))
        fail("%s: a payload with another end", job->name);
    return r;
}

static uint32_t next_by_name(const struct job *job, const bool done[TENSORS])
{
    uint32_t next = TENSORS;
    for (uint32_t t = 0; t < job->tensor_count; t++)
        if (!done[t] &&
            (next == TENSORS || strcmp(job->tensors[t].name, job->tensors[next].name) < 0))
            next = t;
    return next;
}

static void fingerprint_of(const struct job *job, const struct record *record,
                           const struct state *state, char text[33])
{
    bool done[TENSORS] = {false};
    XXH128_hash_t r = sum_payload(job, record);
    XXH128_canonical_t canonical;
    for (uint32_t i = 0; i < job->tensor_count; i++) {
        const uint32_t next = next_by_name(job, done);
        unsigned char bytes[40];
        const char *name = job->tensors[next].name;
        const uint64_t hash = XXH3_64bits_withSeed(name, strlen(name), 0);
        XXH128_canonicalFromHash((XXH128_canonical_t *)bytes, r);
        XXH128_canonicalFromHash((XXH128_canonical_t *)(bytes + 16), sum_of(job, state, next));
        memcpy(bytes + 32, &hash, 8);
        r = XXH3_128bits_withSeed(bytes, sizeof bytes, 0);
        done[next] = true;
    }
    XXH128_canonicalFromHash(&canonical, r);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", canonical.digest[i]);
}

/* ------------------------------------------------------------------ what is tested */

// Reads both records, of which the newer one is the first, and checks all tiles.
static void read_records(const struct tile_file *file, const char *path, struct record newest[2])
{
    for (uint64_t r = 0; r < 2; r++) {
        const char *wrong = read_record(file, r, &newest[r]);
        for (uint32_t tile = 0; !wrong && tile < file->cut.tile_count; tile++)
            wrong = check_tile(file, &newest[r], tile);
        if (wrong)
            fail("%s: record %" PRIu64 ": %s", path, r, wrong);
    }
    if (newest[1].sequence > newest[0].sequence) {
        const struct record newer = newest[1];
        newest[1] = newest[0];
        newest[0] = newer;
    }
    if (newest[0].sequence != newest[1].sequence + 1 || newest[0].number != newest[1].number + 2 ||
        newest[0].number % 2 != 0)
        fail("%s: records that do not follow each other", path);
}

// Any byte of a record or of a tile may be damaged, and is found.
static void damage(const struct tile_file *file, const char *path, const struct record *newest)
{
    struct record record;
    const uint64_t number = newest->payload > file->bytes.at + file->record_room;
    unsigned char *begin = file->bytes.at + number * file->record_room;
    const size_t bytes = (size_t)(newest->entries - begin) + ENTRY * (size_t)file->cut.tile_count;
    for (size_t i = 0; i < bytes; i++) {
        begin[i] ^= 1;
        if (!read_record(file, number, &record))
            fail("%s: byte %zu of a record was changed, and it is whole", path, i);
        begin[i] ^= 1;
    }
    for (uint32_t tile = 0; tile < file->cut.tile_count; tile++) {
        const struct entry entry = entry_of(newest, tile);
        unsigned char *stored = file->bytes.at + place_offset(file, tile, entry.place);
        for (size_t i = 0; i < entry.stored; i += entry.stored / 97 + 1) {
            stored[i] ^= 128;
            if (!check_tile(file, newest, tile))
                fail("%s: byte %zu of tile %u was changed, and it is whole", path, i, tile);
            stored[i] ^= 128;
        }
    }
}

static uint32_t encoded_tiles(const struct tile_file *file, const struct record *record)
{
    uint32_t count = 0;
    for (uint32_t tile = 0; tile < file->cut.tile_count; tile++)
        count += entry_of(record, tile).stored < file->cut.tile_bytes[tile];
    return count;
}

// What numerics.old_files expects of the library at this step.
static void expected_fingerprint(const struct job *job, const char *data, char text[33])
{
    char path[512], line[128], wanted[64];
    snprintf(path, sizeof path, "%s/fingerprints", data);
    const int length = snprintf(wanted, sizeof wanted, "%s trained %d ", job->name, STEP);
    FILE *file = fopen(path, "r");
    if (!file)
        fail("%s: cannot be opened", path);
    text[0] = '\0';
    while (fgets(line, sizeof line, file))
        if (strncmp(line, wanted, (size_t)length) == 0)
            snprintf(text, 33, "%.32s", line + length);
    fclose(file);
}

static void read_job(const struct job *job, const char *files, const char *data)
{
    struct state state = {.seen = 0};
    char text[33], expected[33];
    uint64_t elements = 0;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        elements += numel_of(&job->tensors[t]) * job->tensors[t].slices;
        for (uint32_t f = 0; f < FIELDS; f++)
            state.fields[t][f] =
                allocate((size_t)(4 * numel_of(&job->tensors[t]) * job->tensors[t].slices));
    }
    for (uint32_t rank = 0; rank < job->world; rank++) {
        char path[512];
        struct record records[2];
        struct tile_file file;
        describe(job, rank, &file);
        snprintf(path, sizeof path, "%s/%s/zero-%016" PRIx64 "-rank-%u.slots", files, job->name,
                 file.identity[1], rank);
        file.bytes = read_file(path);
        if (file.bytes.count != place_offset(&file, file.cut.tile_count, 0))
            fail("%s: %zu bytes", path, file.bytes.count);
        read_records(&file, path, records);
        damage(&file, path, &records[0]);
        take_tiles(job, &file, &records[0], &state);
        printf("%s: %u tiles, %u of them encoded\n", path, file.cut.tile_count,
               encoded_tiles(&file, &records[0]));
        if (rank == job->world - 1)
            fingerprint_of(job, &records[0], &state, text);
        release(&file.bytes);
    }
    expected_fingerprint(job, data, expected);
    if (state.seen != elements || strcmp(text, expected) != 0)
        fail("%s: %" PRIu64 " of %" PRIu64 " elements, fingerprint %s, not %s", job->name,
             state.seen, elements, text, expected);
    printf("%s: fingerprint %s\n", job->name, text);
    for (uint32_t t = 0; t < job->tensor_count; t++)
        for (uint32_t f = 0; f < FIELDS; f++)
            free(state.fields[t][f]);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4)
        fail("tile_file_reader FILES DATA [PAGE]");
    if (argc == 4)
        check_example(argv[3]);
    for (size_t j = 0; j < JOBS; j++)
        read_job(&jobs[j], argv[1], argv[2]);
    return 0;
}
