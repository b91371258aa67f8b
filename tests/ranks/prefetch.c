/* Gathers ahead, on demand, from what is still there: counted, and with the right values whatever
 * the program does next. */
#include "tests/ranks/toy.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { UNITS = 16, STEPS = 5, MOST_RANKS = 4, MICRO_BATCHES = 9 };

/** Units of one size. */
static const struct toy_tensor even_tensors[] = {
    {.name = "even", .unit = 0, .slices = UNITS, .numel = 3000},
};
static const struct toy even = {.tensors = even_tensors,
                                .tensor_count = 1,
                                .unit_count = UNITS,
                                .micro_batches = MICRO_BATCHES,
                                .dtype = ZERO_F32};

/** Units of several classes, some with a resident part, the last one resident as a whole. */
static const struct toy_tensor mixed_tensors[] = {
    {.name = "even", .unit = 0, .slices = UNITS - 1, .numel = 1500},
    {.name = "bias", .unit = 0, .slices = UNITS, .numel = 100, .group = 1},
    {.name = "heavy", .unit = 8, .slices = 6, .numel = 5000},
    {.name = "wide", .unit = 2, .slices = 1, .numel = 1025, .wide = true},
    {.name = "head", .unit = 14, .slices = 1, .numel = 20000},
};
static const struct toy mixed = {.tensors = mixed_tensors,
                                 .tensor_count = 5,
                                 .unit_count = UNITS,
                                 .micro_batches = MICRO_BATCHES,
                                 .dtype = ZERO_BF16};

/** One way to run. */
struct setting {
    int world, stage, prefetch, open_units, grad_units;
    int64_t live_bytes;
    bool shared; /**< one copy for all, no slots; else gather=copy */
    bool files;  /**< state and working copies are in files */
};

static struct temporary directory; /**< of those */

struct job {
    const struct toy *toy;
    struct setting setting;
    double expected[STEPS + 1][UNITS]; /**< sums of the units' weights before each step */
    bool make;                         /**< writes them instead of comparing */
    uint8_t digest[MOST_RANKS][16];
    zero_statistics stats[MOST_RANKS];
};

static bool open_job(struct team_rank *rank, const struct job *job)
{
    const struct setting *setting = &job->setting;
    rank->config.stage = setting->stage;
    rank->config.prefetch_units = setting->prefetch;
    rank->config.open_units = setting->open_units;
    rank->config.grad_units = setting->grad_units;
    rank->config.live_bytes = setting->live_bytes;
    rank->config.gather = setting->shared ? "shared" : "copy";
    if (setting->files) {
        rank->config.offload_optimizer = rank->config.offload_params = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.tile_bytes = 65536;
    }
    return toy_open(rank, job->toy);
}

static void run_job(struct job *job, team_fn fn)
{
    const struct setting *s = &job->setting;
    if (!team_run(team_threads(s->world), s->world, fn, job))
        fail_msg("world %d, stage %d, prefetch %d, open %d, grads %d, live %lld, %s%s", s->world,
                 s->stage, s->prefetch, s->open_units, s->grad_units, (long long)s->live_bytes,
                 s->shared ? "shared" : "copied", s->files ? ", in files" : "");
}

static zero_statistics stats_of(const struct team_rank *rank)
{
    zero_statistics stats = {.struct_size = sizeof stats};
    zero_stats(rank->z, &stats);
    return stats;
}

/* ------------------------------------------------------------------ counting */

/** In the usual order nothing is gathered on demand but in the very first micro-batch. */
static bool count_ahead(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const bool ahead = job->setting.prefetch > 0;
    if (!open_job(rank, job))
        return false;
    uint64_t micro_batches = 0;
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < zero_micro_count(rank->z); i++, micro_batches++) {
            const zero_statistics before = stats_of(rank);
            if (!toy_micro(rank, job->toy, i, NULL, NULL))
                return false;
            const zero_statistics after = stats_of(rank);
            const uint64_t hits = after.prefetch_hits - before.prefetch_hits;
            const uint64_t resident = after.gather_hits - before.gather_hits;
            const uint64_t gathers = after.gathers - before.gathers;
            if (!ahead || micro_batches == 0) {
                TEAM_CHECK(hits == 0);
                TEAM_CHECK(gathers + resident == 2 * UNITS);
            } else {
                TEAM_CHECK(hits > 0);
                TEAM_CHECK(hits + resident == 2 * UNITS);
            }
        }
        TEAM_OK(rank, toy_update(rank, job->toy));
    }
    TEAM_CHECK(rank->world == 1 || stats_of(rank).gathered_bytes > 0);
    return true;
}

static void all_but_the_first_micro_batch_gather_ahead(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (int prefetch = 0; prefetch <= 3; prefetch++) {
            if (!test_takes(world + prefetch))
                continue;
            struct job job = {.toy = &even,
                              .setting = {.world = world,
                                          .stage = 3,
                                          .prefetch = prefetch ? prefetch : ZERO_OFF,
                                          .open_units = 1,
                                          .files = (world + prefetch) / 3 % 2}};
            run_job(&job, count_ahead);
        }
}

/** One micro-batch a rank and step: the next step replays the one before. */
static void one_micro_batch_a_step_is_enough(void **state)
{
    (void)state;
    struct toy toy = even;
    toy.micro_batches = 2;
    struct job job = {.toy = &toy,
                      .setting = {.world = 2, .stage = 3, .prefetch = 2, .open_units = 1}};
    run_job(&job, count_ahead);
}

static bool train_only(struct team_rank *rank, void *user)
{
    struct job *job = user;
    if (!open_job(rank, job) || !toy_train(rank, job->toy, 3))
        return false;
    job->stats[rank->rank] = stats_of(rank);
    return true;
}

/** Gathers of a step in the usual order if `slots` units fit: six sweeps over the units, to and
 * fro, of which the first finds nothing, and each other one what the one before had last. */
static uint64_t least_gathers(int slots)
{
    return (uint64_t)(UNITS + 5 * (UNITS - slots));
}

/** What stays resident needn't be gathered again, and what is needed last goes first. */
static void live_bytes_keep_units(void **state)
{
    (void)state;
    const int64_t unit_bytes = 3 * 1024 * 4;
    for (int kept = 0; kept <= UNITS - 3; kept++) {
        struct job job = {.toy = &even,
                          .setting = {.world = 3,
                                      .stage = 3,
                                      .prefetch = 2,
                                      .open_units = 1,
                                      .live_bytes = kept * unit_bytes}};
        run_job(&job, train_only);
        const zero_statistics *stats = &job.stats[0];
        assert_int_equal(stats->gathers, 3 * least_gathers(3 + kept));
        assert_int_equal(stats->gathers + stats->gather_hits, 3 * 3 * 2 * UNITS);
    }
}

/** Passes between the steps leave the recorded order alone: no gather more inside them. */
static bool evaluate_between(struct team_rank *rank, void *user)
{
    struct job *job = user;
    if (!open_job(rank, job))
        return false;
    for (int s = 0; s < 3; s++) {
        for (zero_unit u = 0; u < UNITS; u++) {
            TEAM_OK(rank, zero_gather(rank->z, (u + 7) % UNITS, NULL));
            TEAM_OK(rank, zero_release(rank->z, (u + 7) % UNITS, NULL));
        }
        const uint64_t before = stats_of(rank).gathers;
        if (!toy_train(rank, job->toy, 1))
            return false;
        TEAM_CHECK(stats_of(rank).gathers - before <= least_gathers(3));
    }
    return true;
}

static void evaluation_is_not_replayed(void **state)
{
    (void)state;
    struct job job = {.toy = &even,
                      .setting = {.world = 3, .stage = 3, .prefetch = 2, .open_units = 1}};
    run_job(&job, evaluate_between);
}

/** Nor does stage 3, where the ranks share one copy. */
static void stages_below_3_gather_nothing(void **state)
{
    (void)state;
    for (int i = 0; i <= 5; i++) {
        const int stage = i < 3 ? i : i - 2;
        struct job job = {.toy = &mixed,
                          .setting = {.world = 2, .stage = stage, .prefetch = 2, .shared = i >= 3}};
        run_job(&job, train_only);
        assert_int_equal(job.stats[1].gathers, 0);
        assert_int_equal(job.stats[1].gather_hits, 0);
        assert_int_equal(job.stats[1].prefetch_hits, 0);
        // What stages 1 and 2 copy are the values after an update.
        assert_true((job.stats[1].gathered_bytes > 0) == (stage > 0 && i < 3));
    }
}

/* ------------------------------------------------------------------ departures */

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void shuffle(zero_unit order[UNITS], uint32_t *state)
{
    for (int u = 0; u < UNITS; u++)
        order[u] = u;
    for (int u = UNITS - 1; u > 0; u--) {
        const int other = (int)(next_random(state) % (uint32_t)(u + 1));
        const zero_unit swapped = order[u];
        order[u] = order[other];
        order[other] = swapped;
    }
}

/** Looks at the gathered unit's values. */
static bool look(struct team_rank *rank, struct job *job, int step, zero_unit unit)
{
    const double sum = toy_unit_sum(rank, job->toy, unit);
    if (job->make)
        job->expected[step][unit] = sum;
    else
        TEAM_CHECK(sum == job->expected[step][unit]);
    return true;
}

/** A few gathers that no trace knows, two units open at a time, one of them twice. */
static bool stray(struct team_rank *rank, struct job *job, int step, uint32_t *state)
{
    for (uint32_t n = next_random(state) % 4; n > 0; n--) {
        const zero_unit a = (zero_unit)(next_random(state) % UNITS);
        const zero_unit b = (zero_unit)(next_random(state) % UNITS);
        TEAM_OK(rank, zero_gather(rank->z, a, NULL));
        TEAM_OK(rank, zero_gather(rank->z, b, NULL));
        TEAM_OK(rank, zero_gather(rank->z, a, NULL));
        if (!look(rank, job, step, b))
            return false;
        TEAM_OK(rank, zero_release(rank->z, b, NULL));
        TEAM_OK(rank, zero_release(rank->z, a, NULL));
        if (!look(rank, job, step, a))
            return false;
        TEAM_OK(rank, zero_release(rank->z, a, NULL));
    }
    return true;
}

/** A pass over all units outside a step, as an evaluation makes one. */
static bool evaluate(struct team_rank *rank, struct job *job, int step)
{
    for (zero_unit u = 0; u < UNITS; u++) {
        TEAM_OK(rank, zero_gather(rank->z, u, NULL));
        if (!look(rank, job, step, u))
            return false;
        TEAM_OK(rank, zero_release(rank->z, u, NULL));
    }
    return true;
}

/** Trains in another order every time; the ranks dawdle each at its own places. */
static bool wander(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint32_t common = 5, own = (uint32_t)rank->rank;
    if (!open_job(rank, job))
        return false;
    for (int s = 0; s < STEPS; s++) {
        if ((job->make || next_random(&common) % 2) && !evaluate(rank, job, s))
            return false;
        for (int i = 0; i < zero_micro_count(rank->z); i++) {
            zero_unit forward[UNITS], backward[UNITS];
            shuffle(forward, &common);
            shuffle(backward, &common);
            // Now and then the same order again, so that something is replayed.
            const bool usual = next_random(&common) % 2;
            if (next_random(&own) % 4 == 0)
                usleep(200);
            if (!toy_micro(rank, job->toy, i, usual ? NULL : forward, usual ? NULL : backward) ||
                !stray(rank, job, s, &common))
                return false;
        }
        TEAM_OK(rank, toy_update(rank, job->toy));
        if (!stray(rank, job, s + 1, &common))
            return false;
    }
    if (!evaluate(rank, job, STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[rank->rank]));
    job->stats[rank->rank] = stats_of(rank);
    return true;
}

/** Wanders with a setting; values and fingerprint must be the reference's. */
static zero_statistics compare_wandering(const struct job *reference, const struct setting *setting)
{
    static struct job job;
    job = *reference;
    job.make = false;
    job.setting = *setting;
    run_job(&job, wander);
    for (int r = 0; r < setting->world; r++)
        assert_memory_equal(job.digest[r], reference->digest[0], 16);
    return job.stats[0];
}

static void departures_have_the_right_values(void **state)
{
    (void)state;
    static const int depths[] = {ZERO_OFF, 1, 2, 7};
    static const int64_t live[] = {0, 20000, 1 << 20};
    // One rank, nothing sharded: nothing can be stale or in another one's place.
    static struct job reference;
    reference = (struct job){.toy = &mixed, .setting = {.world = 1, .stage = 0}, .make = true};
    run_job(&reference, wander);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int d = 0; d < 4; d++) {
            if (!test_takes(world + 2 * d))
                continue;
            struct setting setting = {.world = world,
                                      .stage = 3,
                                      .prefetch = depths[d],
                                      .open_units = 2 + d % 2 * 2,
                                      .grad_units = 1 + (d + world) % 4,
                                      .live_bytes = live[(world + d) % 3]};
            const zero_statistics stats = compare_wandering(&reference, &setting);
            if (depths[d] > 0 && setting.live_bytes == 0)
                assert_true(stats.prefetch_hits > 0);
            setting.stage = (d + world) % 3;
            compare_wandering(&reference, &setting);
            setting.stage = 1 + (d + world) % 3;
            setting.shared = true;
            compare_wandering(&reference, &setting);
            setting.stage = (2 + d + world) % 4;
            setting.shared = false;
            setting.files = true;
            compare_wandering(&reference, &setting);
        }
}

/* ------------------------------------------------------------------ limits */

/** Any `open_units` units fit at once, whatever their classes; one more is refused everywhere. */
static bool open_pairs(struct team_rank *rank, void *user)
{
    struct job *job = user;
    if (!open_job(rank, job))
        return false;
    for (zero_unit a = 0; a < UNITS; a++)
        for (zero_unit b = 0; b < UNITS; b++) {
            TEAM_OK(rank, zero_gather(rank->z, a, NULL));
            TEAM_OK(rank, zero_gather(rank->z, b, NULL));
            if (!look(rank, job, 0, a) || !look(rank, job, 0, b))
                return false;
            if (a != b)
                TEAM_CHECK(zero_param_ptr(rank->z, 1, a) != zero_param_ptr(rank->z, 1, b));
            TEAM_OK(rank, zero_release(rank->z, a, NULL));
            TEAM_OK(rank, zero_release(rank->z, b, NULL));
        }
    TEAM_OK(rank, zero_gather(rank->z, 3, NULL));
    TEAM_OK(rank, zero_gather(rank->z, 5, NULL));
    TEAM_OK(rank, zero_gather(rank->z, 3, NULL)); // open already
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 1) // who comes last finds it said
        usleep(2000);
    TEAM_CHECK(zero_gather(rank->z, 0, NULL) == ZERO_E_LIMIT);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "open_units"));
    TEAM_CHECK(
        strstr(zero_last_error(rank->z), "2 units are gathered already: 3 (even.3), 5 (even.5)"));
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_LIMIT);
    TEAM_CHECK(toy_update(rank, job->toy) == ZERO_E_LIMIT);
    TEAM_CHECK(look(rank, job, 0, 3) && look(rank, job, 0, 5)); // what was given out stays
    return true;
}

static void open_units_is_the_limit(void **state)
{
    (void)state;
    static struct job job;
    job = (struct job){.toy = &mixed, .setting = {.world = 1, .open_units = UNITS}, .make = true};
    run_job(&job, wander);
    job.make = false;
    for (int world = 1; world <= 3; world++)
        for (int prefetch = 0; prefetch <= 3; prefetch++) {
            if (!test_takes(world + prefetch))
                continue;
            job.setting = (struct setting){.world = world,
                                           .stage = 3,
                                           .prefetch = prefetch ? prefetch : ZERO_OFF,
                                           .open_units = 2,
                                           .shared = prefetch == 3};
            run_job(&job, open_pairs);
        }
}

static bool open_gradients(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const int limit = job->setting.grad_units;
    if (!open_job(rank, job))
        return false;
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit u = 0; u < UNITS; u++) {
        const zero_result expected = job->setting.stage >= 2 && u >= limit ? ZERO_E_LIMIT : ZERO_OK;
        TEAM_OK(rank, zero_barrier(rank->z)); // the first rank's failure is every rank's
        const zero_result result = zero_grad_open(rank->z, u, NULL);
        TEAM_CHECK(result == expected);
        if (result != ZERO_OK) {
            TEAM_CHECK(strstr(zero_last_error(rank->z), "grad_units"));
            TEAM_CHECK(strstr(zero_last_error(rank->z), "already: 0 (even.0)"));
            // What is open stays where it is; what is not goes nowhere.
            const unsigned char *open = zero_grad_ptr(rank->z, 1, 0);
            unsigned char *refused = zero_grad_ptr(rank->z, 1, u);
            TEAM_CHECK(open && refused && open[0] == 1);
            memset(refused, 99, 200);
            TEAM_CHECK(open[0] == 1 && open[199] == 1);
            return true;
        }
        // All of one's own: what is written there is there when the others have been written.
        for (int p = 0; p < job->toy->tensor_count; p++) {
            const struct toy_tensor *tensor = &job->toy->tensors[p];
            void *gradient = zero_grad_ptr(rank->z, p, u - tensor->unit);
            if (gradient)
                memset(gradient, u + 1, tensor->numel * (tensor->wide ? 4 : 2));
        }
        for (zero_unit before = 0; before <= u; before++) {
            const unsigned char *bias = zero_grad_ptr(rank->z, 1, before);
            TEAM_CHECK(bias && bias[0] == before + 1 && bias[199] == before + 1);
        }
    }
    TEAM_CHECK(job->setting.stage < 2 || limit >= UNITS);
    return true;
}

static void grad_units_is_the_limit(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int limit = 1; limit <= UNITS; limit += limit < 3 ? 1 : UNITS - 3) {
            struct job job = {
                .toy = &mixed,
                .setting = {.world = 1 + limit % 2, .stage = stage, .grad_units = limit}};
            run_job(&job, open_gradients);
        }
}

/** Writes over the files of this process in the directory that have no name. */
static int spoil_unnamed(void)
{
    int spoilt = 0;
    for (int fd = 3; fd < 1024; fd++) {
        char path[64], target[512];
        struct stat status;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, directory.directory, strlen(directory.directory)) != 0 ||
            !strstr(target, "(deleted)") || fstat(fd, &status) != 0)
            continue;
        const int other = open(path, O_WRONLY | O_CLOEXEC);
        for (off_t at = 0; other >= 0 && at < status.st_size; at += 512)
            spoilt += pwrite(other, "spoilt", 6, at) == 6;
        close(other);
    }
    return spoilt;
}

static bool gather_what_is_spoilt(struct team_rank *rank, void *user)
{
    if (!open_job(rank, user))
        return false;
    TEAM_CHECK(spoil_unnamed() > 0);
    TEAM_CHECK(zero_gather(rank->z, 4, NULL) == ZERO_E_CORRUPT);
    TEAM_CHECK(strstr(zero_last_error(rank->z), ": tile "));
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_CORRUPT);
    return true;
}

static void a_gather_of_what_is_spoilt_fails(void **state)
{
    (void)state;
    struct job job = {.toy = &even, .setting = {.world = 1, .stage = 1, .files = true}};
    run_job(&job, gather_what_is_spoilt);
}

/** What an update has left in memory is not read from the file. */
static bool gather_what_was_kept(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    if (!open_job(rank, job) || !toy_train(rank, job->toy, 3))
        return false;
    TEAM_CHECK(spoil_unnamed() > 0);
    TEAM_OK(rank, zero_micro_begin(rank->z, 0, NULL));
    for (zero_unit unit = 0; unit < job->setting.prefetch; unit++) {
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
    }
    TEAM_CHECK(zero_gather(rank->z, (zero_unit)job->setting.prefetch, NULL) == ZERO_E_CORRUPT);
    return true;
}

static void what_an_update_has_left_is_not_read(void **state)
{
    (void)state;
    struct job job = {
        .toy = &even,
        .setting = {.world = 1, .stage = 3, .prefetch = 2, .open_units = 3, .files = true}};
    run_job(&job, gather_what_was_kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_but_the_first_micro_batch_gather_ahead),
        cmocka_unit_test(one_micro_batch_a_step_is_enough),
        cmocka_unit_test(live_bytes_keep_units),
        cmocka_unit_test(evaluation_is_not_replayed),
        cmocka_unit_test(stages_below_3_gather_nothing),
        cmocka_unit_test(departures_have_the_right_values),
        cmocka_unit_test(open_units_is_the_limit),
        cmocka_unit_test(grad_units_is_the_limit),
        cmocka_unit_test(a_gather_of_what_is_spoilt_fails),
        cmocka_unit_test(what_an_update_has_left_is_not_read),
    };
    if (!temporary_make(&directory))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temporary_remove(&directory);
    return failed;
}
