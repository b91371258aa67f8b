// base/hash.h: the published values of XXH3, which files and fingerprints rely on.
#include "base/hash.h"
#include "base/hash/hash_long.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void known_values(void **state)
{
    (void)state;
    // From the specification and the test vectors of xxHash.
    assert_true(base_hash64(NULL, 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(base_hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    const struct base_hash128 empty = base_hash128(NULL, 0, 0);
    assert_true(empty.high == UINT64_C(0x99aa06d3014798d8));
    assert_true(empty.low == UINT64_C(0x6001c324468d497f));

    uint8_t bytes[16];
    static const uint8_t canonical[16] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                          0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
    base_hash128_bytes(empty, bytes);
    assert_memory_equal(bytes, canonical, sizeof bytes);
}

static void every_byte_and_the_seed_count(void **state)
{
    (void)state;
    uint8_t data[300];
    memset(data, 7, sizeof data);
    const uint64_t hash64 = base_hash64(data, sizeof data, 1);
    const struct base_hash128 hash128 = base_hash128(data, sizeof data, 1);
    assert_true(base_hash64(data, sizeof data, 2) != hash64);
    assert_true(base_hash128(data, sizeof data, 2).low != hash128.low);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] ^= 1;
        assert_true(base_hash64(data, sizeof data, 1) != hash64);
        assert_true(base_hash128(data, sizeof data, 1).low != hash128.low);
        data[i] ^= 1;
    }
    assert_true(base_hash64(data, sizeof data, 1) == hash64);
}

static void sums_carry(void **state)
{
    (void)state;
    const struct base_hash128 a = {.low = UINT64_MAX, .high = 5}, b = {.low = 2, .high = 7};
    struct base_hash128 sum = base_hash128_add(a, b);
    assert_true(sum.low == 1 && sum.high == 13);
    sum = base_hash128_add(b, a);
    assert_true(sum.low == 1 && sum.high == 13);
    const struct base_hash128 most = {.low = UINT64_MAX, .high = UINT64_MAX};
    sum = base_hash128_add(most, most);
    assert_true(sum.low == UINT64_MAX - 1 && sum.high == UINT64_MAX);
}

// Of any length at any place, whichever instructions the machine has.
static void every_table_gives_the_same_values(void **state)
{
    (void)state;
    static uint8_t data[8300];
    const struct base_hash_long *plain = base_hash_long_at(0), *table;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i >> 5);
    assert_string_equal(plain->name, "plain");
    for (int t = 1; (table = base_hash_long_at(t)) != NULL; t++)
        for (size_t size = 0, first = 0; size <= 8200; size += size < 1100 ? 1 : 31) {
            const uint64_t seed = size % 3 * UINT64_C(0x9e3779b97f4a7c15);
            first = (first + 1) % 64;
            uint64_t one[2], other[2];
            plain->hash128(data + first, size, seed, one);
            table->hash128(data + first, size, seed, other);
            assert_memory_equal(one, other, sizeof one);
            assert_true(plain->hash64(data + first, size, seed) ==
                        table->hash64(data + first, size, seed));
            assert_true(base_hash64(data + first, size, seed) ==
                        plain->hash64(data + first, size, seed));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(every_byte_and_the_seed_count),
        cmocka_unit_test(sums_carry),
        cmocka_unit_test(every_table_gives_the_same_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
