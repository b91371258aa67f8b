// What a saver writes is the state as it was when it began, however early the state changes after
// ckpt_saver_before_change() has returned, and however little room there is for copies.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "tests/unit/ckpt_sample.h"
#include "tests/unit/temporary.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const uint64_t step = 7;

enum { MOST_LATE = 1000 };

// Some elements on their way.
struct late {
    void *to;
    const void *from;
    size_t bytes;
};

struct bench {
    struct temporary temporary;
    struct ckpt_manifest manifest;
    struct ckpt_source *sources;
    struct ckpt_saver_load load;
    struct ckpt_directory *directory;
    struct ckpt_saver *saver;
    _Atomic uint64_t progress;
    atomic_size_t seen;  // blocks that the saver's thread has come to
    atomic_bool changed; // one of them was not as it was at the start
    long pause_us;       // what it takes its time for with each
    pthread_mutex_t mutex;
    struct late late[MOST_LATE]; // copies that have begun, and are made when a caller waits
    size_t late_count;
    unsigned char *fetched; // a block
    bool fails;             // copies do
};

static void pause_us(long us)
{
    const struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

// Long after the thread has learnt where a block is there is still what was there at the start.
static void see(void *user, const struct ckpt_source *source, int field, uint64_t first,
                size_t count, const void *elements)
{
    unsigned char wanted[4 * CKPT_BLOCK_ELEMENTS];
    struct bench *bench = user;
    const struct ckpt_run *run = &source->run;
    atomic_fetch_add(&bench->seen, 1);
    pause_us(bench->pause_us);
    sample_elements(&bench->manifest, run->tensor, run->slice, field, first, count, wanted);
    if (memcmp(elements, wanted, count * source->code[field].element_bytes) != 0)
        atomic_store(&bench->changed, true);
}

static const unsigned char *elements_of(const struct ckpt_source *source, int field, uint64_t first)
{
    return (const unsigned char *)source->field[field] +
           (first - source->run.first) * source->code[field].element_bytes;
}

// What is elsewhere is copied late.
static zero_result copy(void *user, const struct ckpt_source *source, int field, uint64_t first,
                        size_t count, void *to, struct base_error *error)
{
    struct bench *bench = user;
    if (bench->fails)
        return zero_fail(error, ZERO_E_DEVICE, "a copy of %zu elements", count);
    pthread_mutex_lock(&bench->mutex);
    assert_true(bench->late_count < MOST_LATE);
    bench->late[bench->late_count++] = (struct late){to, elements_of(source, field, first),
                                                     count * source->code[field].element_bytes};
    pthread_mutex_unlock(&bench->mutex);
    return ZERO_OK;
}

static void make_copies(struct bench *bench)
{
    pthread_mutex_lock(&bench->mutex);
    for (size_t i = 0; i < bench->late_count; i++)
        memcpy(bench->late[i].to, bench->late[i].from, bench->late[i].bytes);
    bench->late_count = 0;
    pthread_mutex_unlock(&bench->mutex);
}

static zero_result fetch(void *user, const struct ckpt_source *source, int field, uint64_t first,
                         size_t count, const void **elements, struct base_error *error)
{
    struct bench *bench = user;
    (void)error;
    if (*elements) {
        make_copies(bench);
        return ZERO_OK;
    }
    memcpy(bench->fetched, elements_of(source, field, first),
           count * source->code[field].element_bytes);
    *elements = bench->fetched;
    return ZERO_OK;
}

static void fill_source(struct bench *bench, size_t i)
{
    const struct ckpt_run *run = &bench->manifest.shards[0].runs[i];
    struct ckpt_source *source = &bench->sources[i];
    *source =
        (struct ckpt_source){.run = *run, .fields = bench->manifest.tensors[run->tensor].fields};
    bench->load.sources++;
    bench->load.blocks += (size_t)ckpt_block_count(run->first, run->count) * (size_t)source->fields;
    for (int f = 0; f < source->fields; f++) {
        const size_t bytes = run->count * sample_element_bytes(&bench->manifest, run->tensor, f);
        void *memory = base_aligned_alloc(64, bytes);
        assert_non_null(memory);
        sample_elements(&bench->manifest, run->tensor, run->slice, f, run->first, run->count,
                        memory);
        source->field[f] = memory;
        source->code[f] = sample_code(&bench->manifest, run->tensor, f);
        bench->load.bytes += bytes;
    }
}

static void open_bench_of(struct bench *bench, size_t budget, bool elsewhere)
{
    *bench = (struct bench){.pause_us = 3000}; // longer than it takes to change everything
    pthread_mutex_init(&bench->mutex, NULL);
    bench->fetched = base_calloc(CKPT_BLOCK_ELEMENTS, 4);
    assert_non_null(bench->fetched);
    assert_true(temporary_make(&bench->temporary));
    sample_make(&bench->manifest, SAMPLE_LARGE, 1, 0);
    bench->manifest.state.step = step;
    bench->sources = base_calloc(bench->manifest.shards[0].run_count, sizeof *bench->sources);
    assert_non_null(bench->sources);
    for (size_t i = 0; i < bench->manifest.shards[0].run_count; i++)
        fill_source(bench, i);
    bench->load.blobs = bench->manifest.blob_count;
    for (size_t b = 0; b < bench->manifest.blob_count; b++)
        bench->load.blob_bytes += sample_blob_bytes(&bench->manifest, b, 0);
    const struct ckpt_saver_config config = {
        .store = &ckpt_store_posix,
        .level = CKPT_LEVEL_DEFAULT,
        .budget = budget,
        .sources = bench->sources,
        .load = bench->load,
        .seen = see,
        .seen_user = bench,
        .fetch = elsewhere ? fetch : NULL,
        .copy = elsewhere ? copy : NULL,
        .fetch_user = bench,
        .progress = &bench->progress,
    };
    assert_int_equal(ckpt_saver_create(&bench->saver, &config, NULL), ZERO_OK);
    assert_int_equal(ckpt_directory_open(&bench->directory, &ckpt_store_posix,
                                         bench->temporary.directory, 1, NULL),
                     ZERO_OK);
}

static void open_bench(struct bench *bench, size_t budget)
{
    open_bench_of(bench, budget, false);
}

static void close_bench(struct bench *bench)
{
    ckpt_saver_destroy(bench->saver);
    pthread_mutex_destroy(&bench->mutex);
    base_free(bench->fetched);
    ckpt_directory_close(bench->directory);
    for (size_t i = 0; i < bench->manifest.shards[0].run_count; i++)
        for (int f = 0; f < bench->sources[i].fields; f++)
            base_free((void *)bench->sources[i].field[f]);
    base_free(bench->sources);
    ckpt_manifest_free(&bench->manifest);
    temporary_remove(&bench->temporary);
}

/** `fault`: of what the saver does, or NULL. */
static void start_with(struct bench *bench, const char *fault)
{
    struct ckpt_blob_source blobs[CKPT_MAX_BLOBS];
    unsigned char *memory = base_calloc(1, bench->load.blob_bytes), *at = memory;
    struct ckpt_target target = {.id = {.step = step, .rank = 0, .world = 1},
                                 .path = bench->temporary.directory};
    assert_non_null(memory);
    memcpy(target.id.checkpoint, bench->manifest.id, sizeof bench->manifest.id);
    for (size_t b = 0; b < bench->manifest.blob_count; b++) {
        blobs[b] =
            (struct ckpt_blob_source){(uint32_t)b, at, sample_blob_bytes(&bench->manifest, b, 0)};
        sample_blob(&bench->manifest, b, 0, at);
        at += blobs[b].size;
    }
    atomic_store(&bench->seen, 0);
    assert_int_equal(ckpt_begin(bench->directory, step, NULL), ZERO_OK);
    assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
    assert_int_equal(
        ckpt_saver_start(bench->saver, &target, blobs, bench->manifest.blob_count, NULL), ZERO_OK);
    base_free(memory); // it has copies
}

static void start(struct bench *bench)
{
    start_with(bench, NULL);
}

// The program's next step, behind the copies that have begun.
static void change_everything(struct bench *bench)
{
    make_copies(bench);
    for (size_t i = 0; i < bench->load.sources; i++)
        for (int f = 0; f < bench->sources[i].fields; f++)
            memset((void *)bench->sources[i].field[f], 0xA5,
                   bench->sources[i].run.count * bench->sources[i].code[f].element_bytes);
}

static void fill_again(const struct bench *bench)
{
    for (size_t i = 0; i < bench->load.sources; i++)
        for (int f = 0; f < bench->sources[i].fields; f++) {
            const struct ckpt_run *run = &bench->sources[i].run;
            sample_elements(&bench->manifest, run->tensor, run->slice, f, run->first, run->count,
                            (void *)bench->sources[i].field[f]);
        }
}

static zero_result commit(void *user, struct base_error *error)
{
    struct bench *bench = user;
    return ckpt_commit(bench->directory, &bench->manifest, error);
}

static void finish(struct bench *bench)
{
    ckpt_saver_wait(bench->saver);
    assert_int_equal(ckpt_saver_state(bench->saver), CKPT_SAVE_DURABLE);
    assert_false(atomic_load(&bench->changed));
    assert_int_equal(atomic_load(&bench->progress), bench->load.bytes);
    const struct ckpt_shard_entry *entry = ckpt_saver_entry(bench->saver);
    bench->manifest.shards[0].bytes = entry->bytes;
    bench->manifest.shards[0].index_offset = entry->index_offset;
    bench->manifest.shards[0].index_xxh3 = entry->index_xxh3;
    ckpt_saver_run(bench->saver, commit, bench);
    ckpt_saver_wait(bench->saver);
    assert_int_equal(ckpt_saver_state(bench->saver), CKPT_SAVE_DONE);
}

// Every element of every field, as it was at the start.
static void check_saved(struct bench *bench)
{
    struct ckpt_loader *loader;
    assert_int_equal(
        ckpt_loader_open(&loader, &ckpt_store_posix, bench->temporary.directory, step, NULL),
        ZERO_OK);
    for (size_t t = 0; t < bench->manifest.tensor_count; t++) {
        const struct ckpt_table_tensor *tensor = &bench->manifest.tensors[t];
        for (uint32_t s = 0; s < tensor->slices; s++)
            for (int f = 0; f < tensor->fields; f++) {
                const size_t bytes = tensor->numel * sample_element_bytes(&bench->manifest, t, f);
                unsigned char *saved = base_calloc(2, bytes), *known = saved + bytes;
                assert_non_null(saved);
                sample_elements(&bench->manifest, t, s, f, 0, tensor->numel, known);
                assert_int_equal(ckpt_loader_read(loader, t, s, f, 0, tensor->numel, saved, NULL),
                                 ZERO_OK);
                assert_memory_equal(saved, known, bytes);
                base_free(saved);
            }
    }
    ckpt_loader_close(loader);
}

// With no room the program waits for everything, with enough of it for one block.
static void change_after_hold(bool elsewhere)
{
    const size_t budgets[] = {0, 100000, 3000000, SIZE_MAX};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct bench bench;
        open_bench_of(&bench, budgets[i], elsewhere);
        start(&bench);
        pause_us(10000);
        ckpt_saver_before_change(bench.saver);
        const size_t seen = atomic_load(&bench.seen);
        if (!elsewhere || i % 2 == 0) // else who fetches is all that waits for copies
            change_everything(&bench);
        if (budgets[i] == 0)
            assert_int_equal(seen, bench.load.blocks);
        if (budgets[i] == SIZE_MAX)
            assert_true(seen < bench.load.blocks);
        ckpt_saver_before_change(bench.saver); // what is copied needs no second one
        finish(&bench);
        check_saved(&bench);
        close_bench(&bench);
    }
}

static void the_state_may_change_after_hold(void **state)
{
    (void)state;
    change_after_hold(false);
}

static void and_so_may_what_is_copied_late(void **state)
{
    (void)state;
    change_after_hold(true);
}

// Source by source, each when its blocks have been read; what is read later is as it was.
static void or_piece_by_piece(void **state)
{
    (void)state;
    struct bench bench;
    size_t blocks = 0;
    open_bench(&bench, 0);
    bench.pause_us = 500;
    start(&bench);
    for (size_t i = 0; i < bench.load.sources; i++) {
        const struct ckpt_source *source = &bench.sources[i];
        blocks +=
            (size_t)ckpt_block_count(source->run.first, source->run.count) * (size_t)source->fields;
        ckpt_saver_wait_for_blocks(bench.saver, blocks);
        assert_true(ckpt_saver_blocks_read(bench.saver) >= blocks);
        assert_true(atomic_load(&bench.seen) >= blocks);
        for (int f = 0; f < source->fields; f++)
            memset((void *)source->field[f], 0xA5,
                   source->run.count * source->code[f].element_bytes);
    }
    finish(&bench);
    assert_int_equal(ckpt_saver_blocks_read(bench.saver), bench.load.blocks);
    check_saved(&bench);
    close_bench(&bench);
}

// A copy that fails is a save that fails, also where not all could be copied yet; the next one is
// whole.
static void a_copy_may_fail(void **state)
{
    (void)state;
    static const size_t budgets[] = {300000, SIZE_MAX};
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        open_bench_of(&bench, budgets[i], true);
        bench.fails = true;
        bench.pause_us = 20000; // no caller is so late that all is saved by then
        start(&bench);
        ckpt_saver_before_change(bench.saver);
        change_everything(&bench);
        ckpt_saver_wait(bench.saver);
        assert_int_equal(ckpt_saver_state(bench.saver), CKPT_SAVE_FAILED);
        assert_int_equal(ckpt_saver_error(bench.saver)->result, ZERO_E_DEVICE);
        assert_non_null(strstr(ckpt_saver_error(bench.saver)->message, "a copy of"));
        ckpt_cancel(bench.directory);
        bench.fails = false;
        bench.pause_us = 3000;
        atomic_store(&bench.changed, false);
        fill_again(&bench);
        start(&bench);
        ckpt_saver_before_change(bench.saver);
        finish(&bench);
        check_saved(&bench);
        close_bench(&bench);
    }
}

// The file's bytes; freed by the caller.
static unsigned char *contents(const char *path, size_t *bytes)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(in);
    rewind(in);
    unsigned char *all = base_calloc(1, *bytes);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, *bytes, in), *bytes);
    fclose(in);
    return all;
}

// The thread alone, or with the program that waits, or is held: block after block.
static void what_is_written_does_not_depend_on_who_encodes(void **state)
{
    (void)state;
    struct bench bench;
    char path[256];
    size_t bytes, known_bytes;
    open_bench(&bench, 3000000);
    bench.pause_us = 0;
    snprintf(path, sizeof path, "%.200s/alone", bench.temporary.directory);
    assert_int_equal(
        sample_write_shard(&bench.manifest, 0, &ckpt_store_posix, path, CKPT_LEVEL_DEFAULT, NULL),
        ZERO_OK);
    unsigned char *known = contents(path, &known_bytes);
    assert_int_equal(remove(path), 0);
    for (int i = 0; i < 12; i++) {
        start(&bench);
        if (i % 3 == 1)
            ckpt_saver_before_change(bench.saver);
        while (i % 3 == 2 && ckpt_saver_state(bench.saver) == CKPT_SAVE_WRITING)
            pause_us(100);
        finish(&bench);
        snprintf(path, sizeof path, "%.200s/step-%08d/shard-00000.zst", bench.temporary.directory,
                 (int)step);
        unsigned char *written = contents(path, &bytes);
        assert_int_equal(bytes, known_bytes);
        assert_memory_equal(written, known, bytes);
        base_free(written);
    }
    base_free(known);
    close_bench(&bench);
}

// The same saver again and again, held at once, later, or never.
static void one_saver_saves_many_times(void **state)
{
    (void)state;
    struct bench bench;
    open_bench(&bench, 1 << 20);
    for (int i = 0; i < 3; i++) {
        bench.pause_us = 100 * i;
        start(&bench);
        if (i < 2)
            ckpt_saver_before_change(bench.saver);
        ckpt_saver_before_change(bench.saver);
        if (i < 2)
            change_everything(&bench);
        finish(&bench);
        check_saved(&bench);
        fill_again(&bench);
    }
    close_bench(&bench);
}

// Given up in the middle: nothing reads the memory any more, and the next one is whole.
static void a_save_can_be_given_up(void **state)
{
    (void)state;
    struct bench bench;
    open_bench(&bench, 0);
    start(&bench);
    pause_us(10000);
    ckpt_saver_cancel(bench.saver);
    assert_int_equal(ckpt_saver_state(bench.saver), CKPT_SAVE_IDLE);
    const size_t seen = atomic_load(&bench.seen);
    assert_true(seen < bench.load.blocks);
    ckpt_saver_before_change(bench.saver);
    ckpt_cancel(bench.directory);
    start(&bench);
    finish(&bench);
    check_saved(&bench);
    start(&bench); // destroyed while it writes
    close_bench(&bench);
}

// A failure frees the program's memory at once, and says what it was; the next save is whole.
static void a_save_may_fail(void **state)
{
    (void)state;
    static const char *const faults[] = {"io.open@1",  "io.write@1",    "io.write:enospc@2",
                                         "io.fsync@1", "io.truncate@1", "io.close@1"};
    struct bench bench;
    open_bench(&bench, 0);
    bench.pause_us = 0;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        start_with(&bench, faults[i]);
        if (i % 2 == 0)
            ckpt_saver_before_change(bench.saver);
        else
            ckpt_saver_wait_for_blocks(bench.saver, bench.load.blocks);
        ckpt_saver_wait(bench.saver);
        base_fault_set(NULL, NULL);
        assert_int_equal(ckpt_saver_state(bench.saver), CKPT_SAVE_FAILED);
        assert_int_equal(ckpt_saver_error(bench.saver)->result, ZERO_E_IO);
        assert_non_null(strstr(ckpt_saver_error(bench.saver)->message, "shard-00000"));
        ckpt_cancel(bench.directory);
        start(&bench);
        finish(&bench);
        check_saved(&bench);
    }
    close_bench(&bench);
}

static void without_memory_there_is_none(void **state)
{
    (void)state;
    struct bench bench;
    open_bench(&bench, 1 << 20);
    const struct ckpt_saver_config config = {.store = &ckpt_store_posix,
                                             .level = CKPT_LEVEL_DEFAULT,
                                             .sources = bench.sources,
                                             .load = bench.load,
                                             .progress = &bench.progress};
    bool failed = true;
    for (int n = 1; failed; n++) {
        char fault[32];
        struct ckpt_saver *saver;
        struct base_error error = {0};
        snprintf(fault, sizeof fault, "alloc@%d,thread@%d", n, n == 1 ? 1 : 1000);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        failed = ckpt_saver_create(&saver, &config, &error) != ZERO_OK;
        base_fault_set(NULL, NULL);
        assert_true(failed == (saver == NULL));
        assert_true(!failed || error.result == ZERO_E_NOMEM);
        ckpt_saver_destroy(saver);
        assert_true(n < 50);
    }
    close_bench(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_state_may_change_after_hold),
        cmocka_unit_test(and_so_may_what_is_copied_late),
        cmocka_unit_test(or_piece_by_piece),
        cmocka_unit_test(a_copy_may_fail),
        cmocka_unit_test(what_is_written_does_not_depend_on_who_encodes),
        cmocka_unit_test(one_saver_saves_many_times),
        cmocka_unit_test(a_save_can_be_given_up),
        cmocka_unit_test(a_save_may_fail),
        cmocka_unit_test(without_memory_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
