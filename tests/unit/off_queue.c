// offload/io/io_requests.c against an engine of the test's: how many transfers are under way,
// which, and what becomes of requests when the engine breaks.
#include "base/arena.h"
#include "offload/io/io.h"
#include "offload/io/io_engine.h"
#include "offload/pages.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { READS = 3, WRITES = 2, TRANSFER = 4096, DEPTH = READS + WRITES };
enum { REQUESTS = 40, MOST_UNITS = 9, FILE_UNITS = REQUESTS * MOST_UNITS, UNIT = 512 };

// A file in memory that moves what it is told to, in random order and parts.
static struct script {
    unsigned char *file;
    struct off_transfer transfer[DEPTH];
    bool submitted[DEPTH], begun[DEPTH];
    unsigned under_way[OFF_DIRECTIONS];
    unsigned most_under_way[OFF_DIRECTIONS];
    uint32_t state;
    int commits, breaks_at; // the commit that fails; 0: none
    bool mean;              // short, EAGAIN, EINTR now and then
    bool shy, idle;         // now and then begins not all, or nothing; never anything
    uint64_t put_off;       // commits of which that came
} script;

static uint32_t draw(uint32_t below)
{
    script.state = script.state * 1664525 + 1013904223;
    return (script.state >> 8) % below;
}

static struct off_io_memory memory(unsigned depth)
{
    assert_int_equal(depth, DEPTH);
    return (struct off_io_memory){.bytes = sizeof script};
}

static zero_result create(void **state, const struct off_io_engine_config *config,
                          struct base_error *error)
{
    (void)error;
    assert_int_equal(config->depth, DEPTH);
    *state = &script;
    return ZERO_OK;
}

static zero_result add_file(void *state, int fd, const char *path, struct base_error *error)
{
    (void)state, (void)error;
    assert_int_equal(fd, 17);
    assert_string_equal(path, "memory");
    return ZERO_OK;
}

static void submit(void *state, unsigned number, const struct off_transfer *transfer)
{
    (void)state;
    assert_true(number < DEPTH);
    assert_false(script.submitted[number]);
    script.submitted[number] = true;
    script.transfer[number] = *transfer;
    assert_true(transfer->bytes > 0 && transfer->bytes <= TRANSFER);
    const uintptr_t first = (uintptr_t)transfer->memory, last = first + transfer->bytes - 1;
    assert_int_equal(first / TRANSFER, last / TRANSFER);
    const unsigned now = ++script.under_way[transfer->direction];
    if (now > script.most_under_way[transfer->direction])
        script.most_under_way[transfer->direction] = now;
}

static zero_result commit(void *state, struct base_error *error)
{
    (void)state;
    if (++script.commits == script.breaks_at)
        return zero_fail(error, ZERO_E_IO, "the engine broke");
    if (script.idle || (script.shy && draw(3) > 0)) {
        const uint32_t from = script.idle ? DEPTH : draw(DEPTH + 1);
        for (uint32_t i = from; i < DEPTH; i++)
            script.begun[i] = script.submitted[i];
        script.put_off++;
        return zero_fail(error, ZERO_AGAIN, "not now");
    }
    memcpy(script.begun, script.submitted, sizeof script.begun);
    return ZERO_OK;
}

static int move(const struct off_transfer *transfer)
{
    const uint32_t luck = script.mean ? draw(5) : 4;
    if (luck == 0)
        return draw(2) ? -EAGAIN : -EINTR;
    const size_t bytes = luck == 1 ? 1 + draw((uint32_t)transfer->bytes) : transfer->bytes;
    unsigned char *place = script.file + transfer->offset;
    if (transfer->direction == OFF_READ)
        memcpy(transfer->memory, place, bytes);
    else
        memcpy(place, transfer->memory, bytes);
    return bytes < UNIT && transfer->direction == OFF_READ ? -EINTR : (int)bytes;
}

static zero_result reap(void *state, uint64_t deadline_ns, struct off_completion *done, size_t most,
                        size_t *count, struct base_error *error)
{
    (void)state, (void)deadline_ns, (void)error;
    const uint32_t from = draw(DEPTH), wanted = 1 + draw(DEPTH);
    *count = 0;
    for (uint32_t i = 0; i < DEPTH && *count < wanted && *count < most; i++) {
        const unsigned number = (from + i) % DEPTH;
        if (!script.begun[number])
            continue;
        script.begun[number] = script.submitted[number] = false;
        script.under_way[script.transfer[number].direction]--;
        done[(*count)++] =
            (struct off_completion){.number = number, .result = move(&script.transfer[number])};
    }
    return ZERO_OK;
}

static void wake(void *state)
{
    (void)state;
}

static void destroy(void *state)
{
    assert_ptr_equal(state, &script);
}

static const struct off_io_engine scripted = {
    .size = sizeof(struct off_io_engine),
    .name = "scripted",
    .memory = memory,
    .create = create,
    .add_file = add_file,
    .submit = submit,
    .commit = commit,
    .reap = reap,
    .wake = wake,
    .destroy = destroy,
};

/* ------------------------------------------------------------------ */

static struct off_pages pages;
static struct off_request requests[REQUESTS];
static struct off_io *io;

static int set_up(void **state)
{
    (void)state;
    script = (struct script){.state = 7, .file = base_calloc(FILE_UNITS, UNIT)};
    const struct base_error none = {.result = ZERO_OK};
    struct base_error failure = none;
    if (!script.file || off_pages_create(&pages, (size_t)FILE_UNITS * UNIT, &failure))
        return -1;
    const struct off_range range = {.memory = pages.memory, .bytes = pages.bytes};
    const struct off_io_config config = {
        .engine = &scripted,
        .transfer_bytes = TRANSFER,
        .credits = {READS, WRITES},
        .ranges = &range,
        .range_count = 1,
    };
    int file;
    return off_io_create(&io, &config, NULL) ||
           off_io_add_file(io, 17, UNIT, "memory", &file, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    off_io_destroy(io);
    off_pages_destroy(&pages);
    base_free(script.file);
    return 0;
}

static unsigned char expected(int request, size_t at)
{
    return (unsigned char)(request * 37 + (int)(at / UNIT) * 11 + (int)at);
}

// Requests of 1 to 9 units, one after the other in memory and file; odd ones write.
static void submit_all(void)
{
    size_t at = 0;
    for (int i = 0; i < REQUESTS; i++) {
        const size_t bytes = (size_t)UNIT * (1 + (size_t)i % MOST_UNITS);
        requests[i] = (struct off_request){
            .direction = i % 2 ? OFF_WRITE : OFF_READ,
            .memory = (unsigned char *)pages.memory + at,
            .bytes = bytes,
            .offset = at,
            .what = "it",
        };
        unsigned char *source = i % 2 ? requests[i].memory : (void *)(script.file + at);
        for (size_t b = 0; b < bytes; b++)
            source[b] = expected(i, b);
        assert_int_equal(off_io_submit(io, &requests[i], NULL), ZERO_OK);
        at += bytes;
    }
}

static void check_moved(const struct off_request *request)
{
    const int i = (int)(request - requests);
    const unsigned char *memory = request->memory, *file = script.file + request->offset;
    for (size_t b = 0; b < request->bytes; b++) {
        assert_int_equal(memory[b], expected(i, b));
        assert_int_equal(file[b], expected(i, b));
    }
}

static void take_all(bool whole)
{
    struct off_request *done;
    bool seen[REQUESTS] = {false};
    for (int i = 0; i < REQUESTS; i++) {
        while (off_io_wait(io, UINT64_MAX, &done) == ZERO_AGAIN)
            ;
        assert_false(seen[done - requests]);
        seen[done - requests] = true;
        if (done->result == ZERO_OK)
            check_moved(done);
        else
            assert_false(whole);
    }
    assert_int_equal(off_io_wait(io, 0, &done), ZERO_AGAIN);
    assert_int_equal(off_io_pending(io), 0);
}

static void credits_are_kept(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        script.mean = round % 2;
        submit_all();
        assert_int_equal(off_io_commit(io, NULL), ZERO_OK);
        assert_int_equal(script.under_way[OFF_READ], READS);
        assert_int_equal(script.under_way[OFF_WRITE], WRITES);
        take_all(true);
    }
    const struct off_io_counts counts = off_io_counts(io);
    assert_int_equal(counts.commits, script.commits);
    assert_true(counts.repeated > 50 && counts.shortened > 50);
    uint64_t bytes[OFF_DIRECTIONS] = {0, 0};
    for (int i = 0; i < REQUESTS; i++)
        bytes[requests[i].direction] += 50 * requests[i].bytes;
    assert_int_equal(counts.bytes[OFF_READ], bytes[OFF_READ]);
    assert_int_equal(counts.bytes[OFF_WRITE], bytes[OFF_WRITE]);
}

// A direction that is alone has all credits; the other one has its own back as soon as they return.
static void credits_are_lent(void **state)
{
    (void)state;
    for (int d = 0; d < OFF_DIRECTIONS; d++) {
        const enum off_direction other = d == OFF_READ ? OFF_WRITE : OFF_READ;
        struct off_request *done;
        submit_all();
        while (off_io_wait(io, UINT64_MAX, &done) == ZERO_OK)
            ;
        for (int i = 0; i < REQUESTS; i++)
            requests[i].direction = i < REQUESTS / 2 ? (enum off_direction)d : other;
        for (int i = 0; i < REQUESTS / 2; i++)
            assert_int_equal(off_io_submit(io, &requests[i], NULL), ZERO_OK);
        assert_int_equal(off_io_commit(io, NULL), ZERO_OK);
        assert_int_equal(script.under_way[d], DEPTH);
        for (int i = REQUESTS / 2; i < REQUESTS; i++)
            assert_int_equal(off_io_submit(io, &requests[i], NULL), ZERO_OK);
        assert_int_equal(off_io_commit(io, NULL), ZERO_OK);
        assert_int_equal(script.under_way[other], 0);
        unsigned lent = DEPTH;
        while (script.under_way[other] < (other == OFF_READ ? READS : WRITES)) {
            off_io_wait(io, UINT64_MAX, &done);
            assert_true(script.under_way[d] <= lent);
            lent = script.under_way[d];
        }
        while (off_io_wait(io, UINT64_MAX, &done) == ZERO_OK)
            ;
        assert_int_equal(off_io_pending(io), 0);
    }
}

// What does not begin does so later, and is counted.
static void what_is_put_off_comes_later(void **state)
{
    (void)state;
    script.shy = true;
    for (int round = 0; round < 50; round++) {
        script.mean = round % 2;
        submit_all();
        assert_int_equal(off_io_commit(io, NULL), ZERO_OK);
        take_all(true);
    }
    assert_true(script.put_off > 50);
    assert_int_equal(off_io_counts(io).put_off, script.put_off);
}

static void what_never_begins_is_told(void **state)
{
    (void)state;
    script.idle = true;
    submit_all();
    take_all(false);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(requests[i].result, ZERO_E_IO);
        assert_non_null(strstr(requests[i].error.message, "memory: it: reading "));
        assert_non_null(strstr(requests[i].error.message, " at offset "));
        assert_non_null(strstr(requests[i].error.message, ": not now, "));
        assert_non_null(strstr(requests[i].error.message, " times in "));
    }
    assert_int_equal(off_io_counts(io).put_off + 1, script.put_off);
}

// Whichever commit fails: what was done is, everything else comes back with the failure.
static void a_broken_engine_fails_everything(void **state)
{
    (void)state;
    submit_all();
    take_all(true);
    const int commits = script.commits;
    assert_true(commits > 10);
    for (int n = 1; n <= commits; n++) {
        tear_down(NULL);
        assert_int_equal(set_up(NULL), 0);
        script.breaks_at = n;
        submit_all();
        take_all(false);
        int failed = 0;
        for (int i = 0; i < REQUESTS; i++)
            if (requests[i].result != ZERO_OK) {
                assert_int_equal(requests[i].result, ZERO_E_IO);
                assert_string_equal(requests[i].error.message, "the engine broke");
                failed++;
            }
        assert_true(failed > 0);
        // And so does what comes afterwards.
        struct base_error failure = {.result = ZERO_OK};
        struct off_request *done;
        assert_int_equal(off_io_submit(io, &requests[0], NULL), ZERO_OK);
        assert_int_equal(off_io_commit(io, &failure), ZERO_E_IO);
        assert_string_equal(failure.message, "the engine broke");
        assert_int_equal(off_io_wait(io, 0, &done), ZERO_OK);
        assert_int_equal(done->result, ZERO_E_IO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(credits_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(credits_are_lent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_put_off_comes_later, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_never_begins_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_broken_engine_fails_everything, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("off_queue", tests, NULL, NULL);
}
