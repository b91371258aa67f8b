// offload/tilefile.h: what a job that is cut otherwise now, and a forked child, leave of a file.
#include "base/error.h"
#include "base/hash.h"
#include "offload/tilefile.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TILES = 3, PAYLOAD = 100 };

static struct temporary temporary;
static struct base_error failure;

static int set_up(void **state)
{
    (void)state;
    base_error_clear(&failure);
    return temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&temporary);
    return 0;
}

static void ok(zero_result result)
{
    if (result)
        fail_msg("%s: %s", base_result_text(result), failure.message);
}

static const size_t as_they_were[TILES] = {5000, 4096, 1};

static struct off_tilefile_config config_of(const size_t *tile_bytes, size_t tiles, size_t payload)
{
    return (struct off_tilefile_config){
        .path = temporary_path(&temporary, "slots"),
        .identity = {3, 5},
        .tiles = tiles,
        .tile_bytes = tile_bytes,
        .payload_bytes = payload,
    };
}

static zero_result open_tilefile(struct off_tilefile **tilefile,
                                 const struct off_tilefile_config *config, int *recorded)
{
    base_error_clear(&failure);
    return off_tilefile_open(tilefile, config, recorded, &failure);
}

// A file with two records.
static struct off_tilefile *open_with_records(void)
{
    const struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    struct off_tilefile *tilefile;
    int recorded;
    ok(open_tilefile(&tilefile, &config, &recorded));
    ok(off_tilefile_record(tilefile, 1, "one", 4, &failure));
    ok(off_tilefile_record(tilefile, 2, "two", 4, &failure));
    return tilefile;
}

static void refuses(const struct off_tilefile_config *config)
{
    struct off_tilefile *tilefile;
    int recorded;
    assert_int_equal(open_tilefile(&tilefile, config, &recorded), ZERO_E_STATE);
    assert_null(tilefile);
    assert_non_null(strstr(failure.message, "a step of the same job, cut into 3 tiles"));
}

static void still_has(int records)
{
    const struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    struct off_tilefile *tilefile;
    int recorded;
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, records);
    off_tilefile_close(tilefile, false);
}

// Fewer tiles, tiles of other sizes in a file of the same size, and more that is attached.
static void another_shape_is_refused(void **state)
{
    (void)state;
    const size_t fewer[] = {9000}, other_sizes[TILES] = {4096, 5000, 1};
    const struct off_tilefile_config configs[] = {
        config_of(fewer, 1, PAYLOAD),
        config_of(other_sizes, TILES, PAYLOAD),
        config_of(as_they_were, TILES, 50000),
    };
    off_tilefile_close(open_with_records(), false);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++)
        refuses(&configs[i]);
    still_has(2);
}

// The first record is void: the second one is where the other shape has it.
static void any_record_is_found(void **state)
{
    (void)state;
    const size_t fewer[] = {9000};
    const struct off_tilefile_config config = config_of(fewer, 1, PAYLOAD);
    struct off_tilefile *tilefile = open_with_records(); // the current one is the second
    ok(off_tilefile_void_older(tilefile, &failure));
    off_tilefile_close(tilefile, false);
    refuses(&config);
    still_has(1);
}

static bool from_two_on(uint64_t step)
{
    return step >= 2;
}

static bool from_three_on(uint64_t step)
{
    return step >= 3;
}

static void change_bytes(const off_t *offsets, int count)
{
    const int fd = open(temporary_path(&temporary, "slots"), O_RDWR);
    for (int i = 0; i < count; i++) {
        char byte;
        assert_int_equal(pread(fd, &byte, 1, offsets[i]), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, offsets[i]), 1);
    }
    close(fd);
}

// A byte of a record is another: the one before counts, and it is known where. With no other one
// nothing is touched, but for what never counted.
static void damage_is_found(void **state)
{
    (void)state;
    struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    const off_t second =
        (off_t)((off_tilefile_file_bytes(&config) - 2 * (uint64_t)(8192 + 4096 + 4096)) / 2);
    const off_t places[] = {second + 80, 80};
    struct off_tilefile *tilefile;
    uint64_t torn[2];
    int recorded;
    off_tilefile_close(open_with_records(), false);
    change_bytes(places, 1);
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, 1);
    assert_int_equal(off_tilefile_step(tilefile, 0), 1);
    assert_int_equal(off_tilefile_torn(tilefile, torn), 1);
    assert_int_equal(torn[0], second);
    off_tilefile_close(tilefile, false);
    change_bytes(places + 1, 1);
    assert_int_equal(open_tilefile(&tilefile, &config, &recorded), ZERO_E_CORRUPT);
    assert_non_null(strstr(failure.message, "/slots: the record at offset "));
    change_bytes(places, 2);
    still_has(2);
    change_bytes(places, 2);
    config.counts = from_three_on;
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, 0);
    assert_int_equal(off_tilefile_torn(tilefile, torn), 2);
    off_tilefile_close(tilefile, true);
}

// Records at which no job would come back are not lost.
static void what_does_not_count_is_no_reason(void **state)
{
    (void)state;
    const size_t fewer[] = {9000};
    struct off_tilefile_config config = config_of(fewer, 1, PAYLOAD);
    struct off_tilefile *tilefile;
    int recorded;
    off_tilefile_close(open_with_records(), false);
    config.counts = from_two_on;
    refuses(&config);
    config.counts = from_three_on;
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, 0);
    off_tilefile_close(tilefile, true);
}

static bool all_but_two(uint64_t step)
{
    return step != 2;
}

static void abandon_a_tile(struct off_tilefile *tilefile)
{
    off_tilefile_note_write(tilefile, 0, "", 1);
    off_tilefile_abandon(tilefile);
}

static void write_a_tile(struct off_tilefile *tilefile)
{
    off_tilefile_note_write(tilefile, 0, "", 1);
}

static void void_older(struct off_tilefile *tilefile)
{
    ok(off_tilefile_void_older(tilefile, &failure));
}

// Where the second record does not count the third takes its place, and the first stays; unless
// that is void, or tiles were written to its places.
static void what_counts_is_kept(void **state)
{
    (void)state;
    static const struct {
        uint64_t second, kept;
        void (*between)(struct off_tilefile *tilefile);
    } cases[] = {
        {2, 1, NULL},       {2, 2, write_a_tile}, {2, 2, abandon_a_tile},
        {2, 2, void_older}, {5, 5, NULL},
    };
    struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    struct off_tilefile *tilefile;
    int recorded;
    config.counts = all_but_two;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ok(open_tilefile(&tilefile, &config, &recorded));
        ok(off_tilefile_record(tilefile, 1, NULL, 0, &failure));
        ok(off_tilefile_record(tilefile, cases[i].second, NULL, 0, &failure));
        if (cases[i].between)
            cases[i].between(tilefile);
        ok(off_tilefile_record(tilefile, 3, NULL, 0, &failure));
        off_tilefile_close(tilefile, false);
        ok(open_tilefile(&tilefile, &config, &recorded));
        assert_int_equal(recorded, 2);
        assert_int_equal(off_tilefile_step(tilefile, 0), 3);
        assert_int_equal(off_tilefile_step(tilefile, 1), cases[i].kept);
        off_tilefile_close(tilefile, true);
    }
}

// Tiles that are written behind a record that does not count would go to the places of one that
// does: that is void first. Behind one that counts both are kept.
static void what_is_written_over_is_void(void **state)
{
    (void)state;
    struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    struct off_tilefile *tilefile;
    int recorded;
    config.counts = all_but_two;
    for (uint64_t second = 2; second <= 3; second++) {
        ok(open_tilefile(&tilefile, &config, &recorded));
        ok(off_tilefile_void_before_write(tilefile, &failure));
        ok(off_tilefile_record(tilefile, 1, NULL, 0, &failure));
        ok(off_tilefile_void_before_write(tilefile, &failure));
        ok(off_tilefile_record(tilefile, second, NULL, 0, &failure));
        ok(off_tilefile_void_before_write(tilefile, &failure));
        write_a_tile(tilefile);
        off_tilefile_close(tilefile, false);
        ok(open_tilefile(&tilefile, &config, &recorded));
        assert_int_equal(recorded, second == 2 ? 1 : 2);
        assert_int_equal(off_tilefile_step(tilefile, 0), second);
        off_tilefile_close(tilefile, true);
    }
}

// A record that was taken back is no longer before the one that takes its place.
static void what_was_taken_back_is_not_kept(void **state)
{
    (void)state;
    struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    struct off_tilefile *tilefile;
    char payload[PAYLOAD];
    size_t bytes;
    int recorded;
    config.counts = all_but_two;
    ok(open_tilefile(&tilefile, &config, &recorded));
    ok(off_tilefile_record(tilefile, 2, NULL, 0, &failure));
    off_tilefile_close(tilefile, false);
    ok(open_tilefile(&tilefile, &config, &recorded));
    ok(off_tilefile_recover(tilefile, 0, payload, &bytes, &failure));
    ok(off_tilefile_record(tilefile, 3, NULL, 0, &failure));
    ok(off_tilefile_recover(tilefile, 0, payload, &bytes, &failure));
    ok(off_tilefile_record(tilefile, 3, NULL, 0, &failure));
    off_tilefile_close(tilefile, false);
    still_has(2);
}

static void another_identity_is_no_reason(void **state)
{
    (void)state;
    const size_t fewer[] = {9000};
    struct off_tilefile_config config = config_of(fewer, 1, PAYLOAD);
    struct off_tilefile *tilefile;
    int recorded;
    config.identity[0]++;
    off_tilefile_close(open_with_records(), false);
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, 0);
    off_tilefile_close(tilefile, true);
}

// It is written and read in several parts.
static void a_record_may_be_large(void **state)
{
    (void)state;
    enum { LARGE = (16 << 20) + 4096 };
    const struct off_tilefile_config config = config_of(as_they_were, TILES, LARGE);
    unsigned char *written = malloc(LARGE), *found = malloc(LARGE);
    struct off_tilefile *tilefile;
    size_t bytes;
    int recorded;
    assert_true(written && found);
    for (size_t i = 0; i < LARGE; i++)
        written[i] = (unsigned char)(i >> 12);
    ok(open_tilefile(&tilefile, &config, &recorded));
    ok(off_tilefile_record(tilefile, 1, written, LARGE, &failure));
    off_tilefile_close(tilefile, false);
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, 1);
    ok(off_tilefile_recover(tilefile, 0, found, &bytes, &failure));
    assert_int_equal(bytes, LARGE);
    assert_memory_equal(found, written, LARGE);
    off_tilefile_close(tilefile, true);
    free(written);
    free(found);
}

static void a_child_leaves_the_file_and_its_lock(void **state)
{
    (void)state;
    const struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    struct off_tilefile *tilefile = open_with_records(), *second;
    int recorded, status;
    const pid_t child = fork();
    if (child == 0) {
        off_tilefile_close(tilefile, true);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(open_tilefile(&second, &config, &recorded), ZERO_E_STATE);
    assert_non_null(strstr(failure.message, "another process keeps its state in it"));
    ok(off_tilefile_record(tilefile, 3, NULL, 0, &failure));
    off_tilefile_close(tilefile, true);
    assert_int_equal(access(config.path, F_OK), -1);
}

// The record at the beginning of the file: its first entry has no contents, and says a place and a
// size that there are not.
static void an_entry_without_contents_says_nothing_else(void **state)
{
    (void)state;
    enum { HEAD = 72, SIZE = HEAD + 4 + TILES * 24, CHECKSUM = 64 };
    const struct off_tilefile_config config = config_of(as_they_were, TILES, PAYLOAD);
    const struct {
        uint64_t checksum, stored;
        uint32_t place, has;
    } entry = {7, 1 << 30, 7, 0};
    unsigned char record[SIZE], payload[PAYLOAD];
    struct off_tilefile *tilefile;
    size_t bytes;
    int recorded;
    off_tilefile_close(open_with_records(), false);
    ok(open_tilefile(&tilefile, &config, &recorded));
    ok(off_tilefile_recover(tilefile, 1, payload, &bytes, &failure));
    off_tilefile_close(tilefile, false);
    const int fd = open(temporary_path(&temporary, "slots"), O_RDWR);
    assert_int_equal(pread(fd, record, SIZE, 0), SIZE);
    memcpy(record + HEAD + 4, &entry, sizeof entry);
    memset(record + CHECKSUM, 0, 8);
    const uint64_t sum = base_hash64(record, SIZE, 0);
    memcpy(record + CHECKSUM, &sum, sizeof sum);
    assert_int_equal(pwrite(fd, record, SIZE, 0), SIZE);
    close(fd);
    ok(open_tilefile(&tilefile, &config, &recorded));
    assert_int_equal(recorded, 1);
    ok(off_tilefile_recover(tilefile, 0, payload, &bytes, &failure));
    assert_false(off_tilefile_has_contents(tilefile, 0));
    assert_int_equal(off_tilefile_stored_bytes(tilefile, 0), 0);
    assert_int_equal(off_tilefile_next_place(tilefile, 0), off_tilefile_current_place(tilefile, 0));
    off_tilefile_close(tilefile, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(another_shape_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(any_record_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_count_is_no_reason, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_counts_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_written_over_is_void, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_taken_back_is_not_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(another_identity_is_no_reason, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_record_may_be_large, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_entry_without_contents_says_nothing_else, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_child_leaves_the_file_and_its_lock, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
