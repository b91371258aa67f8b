// The kernel that adds up hashes of granules finds those of base/hash.h. As a program: as
// cuda.kernels.
#include "base/hash.h"
#include "tests/cuda/kernel_tests.h"
#include "tests/unit/kernel_inputs.h"

enum {
    LENGTHS = 2 * BASE_GRANULE,
    SLICES = 6,
    HASHED = SLICES * BASE_DEVICE_GRANULES * BASE_GRANULE
};

struct digested {
    struct base_hash128 sums[LENGTHS];
    struct base_device_granules parts[LENGTHS];
    uint32_t elements[HASHED];
};

// What FORMAT.md, section 5, has of a part's granules.
static void add_hashes(struct base_hash128 *sum, const struct base_device_granules *part)
{
    const size_t granule_bytes = (size_t)BASE_GRANULE * part->element_bytes;
    const size_t bytes = (size_t)part->count * part->element_bytes;
    for (size_t at = 0, n; at < bytes; at += n) {
        const uint64_t place[] = {part->slice, part->first + at / granule_bytes, part->array};
        const uint64_t seed = base_hash64(place, sizeof place, part->name);
        n = bytes - at < granule_bytes ? bytes - at : granule_bytes;
        const unsigned char *elements = part->elements;
        *sum = base_hash128_add(*sum, base_hash128(elements + at, n, seed));
    }
}

// A part of so many elements, from a granule of all on.
static struct base_device_granules granules_of(const struct digested *at, size_t granule,
                                               uint32_t count, uint32_t element_bytes)
{
    const size_t first = granule * BASE_GRANULE * element_bytes;
    return (struct base_device_granules){
        .elements = (const unsigned char *)at->elements + first,
        .count = count,
        .element_bytes = element_bytes,
    };
}

// Hashes here and there, and compares; lay() makes the parts for elements at an address.
static void digest_turn(int turn, size_t count,
                        void (*lay)(const struct digested *at, uint32_t turn,
                                    struct base_device_granules *parts))
{
    static struct digested here, result;
    input_fill((enum input_kind)(turn % INPUT_KINDS), 50 + (uint64_t)turn, HASHED,
               (float *)(void *)here.elements);
    for (size_t s = 0; s < LENGTHS; s++)
        here.sums[s] = (struct base_hash128){UINT64_MAX - s, (uint64_t)turn};
    struct digested *there = put(&here, sizeof here);
    lay(there, (uint32_t)turn, here.parts);
    const size_t offset = (size_t)turn % 3 * 48;
    for (size_t r = 0; r < count; r++)
        here.parts[r].elements = (const unsigned char *)here.parts[r].elements - offset;
    ok(device->copy(there->parts, here.parts, sizeof here.parts, kernel_stream, NULL));
    const struct base_device_digest digest = {
        .parts = there->parts, .count = count, .sums = &there->sums[0].low, .offset = offset};
    ok(kernels->digest(kernel_state, &digest, kernel_stream, NULL));
    take(&result, there, sizeof result);
    lay(&here, (uint32_t)turn, here.parts);
    for (size_t r = 0; r < count; r++)
        add_hashes(&here.sums[here.parts[r].sum], &here.parts[r]);
    compare("digest", turn, result.sums, here.sums, sizeof here.sums);
}

// Of 2 and of 4 bytes an element.
static void lay_lengths(const struct digested *at, uint32_t turn,
                        struct base_device_granules *parts)
{
    for (uint32_t r = 0; r < LENGTHS; r++) {
        parts[r] = granules_of(at, (r + turn) % 100, 1 + r / 2, 2 + r % 2 * 2);
        parts[r].sum = r;
    }
}

// XXH3 has another way for each few lengths.
static void digests_of_all_lengths_are_those_of_the_host(void **unused)
{
    (void)unused;
    digest_turn(INPUT_ZERO, LENGTHS, lay_lengths);
    digest_turn(INPUT_ANY, LENGTHS, lay_lengths);
}

// Of several slices of several tensors, one granule and many, whole and cut off.
static void lay_slices(const struct digested *at, uint32_t turn, struct base_device_granules *parts)
{
    static const uint32_t last[] = {0, 1, 30, 60, 61, 120, 121, 600, 1023, BASE_GRANULE};
    for (uint32_t r = 0; r < SLICES; r++) {
        const uint32_t way = turn + r;
        const uint32_t whole = way % 3 == 0 ? BASE_DEVICE_GRANULES - 1 : way % 7;
        parts[r] = granules_of(at, (size_t)r * BASE_DEVICE_GRANULES,
                               whole * BASE_GRANULE + last[way % 10], way % 2 ? 4 : 2);
        parts[r].name = 0x9e3779b97f4a7c15 * (way / 2);
        parts[r].slice = way * 77;
        parts[r].array = way % 5 ? way % 4 : 1 << 20;
        parts[r].first = way % 2 ? (uint64_t)way << 30 : r;
        parts[r].sum = way % 4;
    }
}

static void digests_of_slices_are_added_to_their_sums(void **unused)
{
    (void)unused;
    for (int turn = 0; turn < 30; turn++)
        digest_turn(turn, turn % 9 ? SLICES : 0, lay_slices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_of_all_lengths_are_those_of_the_host),
        cmocka_unit_test(digests_of_slices_are_added_to_their_sums),
    };
    if (kernel_tests_skip())
        return KERNEL_TESTS_SKIPPED;
    return cmocka_run_group_tests(tests, kernel_tests_set_up, kernel_tests_tear_down);
}
