/* The plan of a world that is not there is the plan such a world makes; what does not fit is
 * refused by all ranks alike, before anything is allocated. Linked with --wrap=base_memory_limits.
 */
#include "tests/ranks/process_memory.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"
#include "zero/core/context.h"
#include "zero/store/host_memory.h"

#include <jansson.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { JSON_BYTES = 65536, MOST = 5, NAMES = 300 };

static struct temporary directory;

struct job {
    int stage;
    const char *gather;
    char planned[JSON_BYTES]; /**< of rank 0 */
    int64_t limit;            /**< memory_limit */
    int victim;               /**< the only rank that is given it; -1: all */
};

/* ------------------------------------------------------------------ what limits a rank */

static _Thread_local struct base_memory_limits made_up;
static _Thread_local bool is_made_up;

void __real_base_memory_limits(struct base_memory_limits *limits, const char *root);
void __wrap_base_memory_limits(struct base_memory_limits *limits, const char *root);

void __wrap_base_memory_limits(struct base_memory_limits *limits, const char *root)
{
    if (is_made_up)
        *limits = made_up;
    else
        __real_base_memory_limits(limits, root);
}

/** More than any rank needs of everything. */
static void make_up_limits(void)
{
    static const uint64_t much = UINT64_C(1) << 60;
    made_up = (struct base_memory_limits){.total = 4 * much,
                                          .available = 4 * much,
                                          .group_limit = 4 * much,
                                          .group = "/of all",
                                          .address_limit = 4 * much};
    is_made_up = true;
}

/* ------------------------------------------------------------------ plans */

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *plan = json_loads(text, 0, &error);
    if (!plan)
        fprintf(stderr, "%s: %.200s\n", error.text, text);
    return plan;
}

static bool configure(struct team_rank *rank, const struct job *job)
{
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.micro_batches = toy_odd.micro_batches;
    rank->config.memory_limit = job->victim < 0 || job->victim == rank->rank ? job->limit : 0;
    return team_open(rank) && toy_register(rank, &toy_odd);
}

/** The plan that zero-run --plan --world `world` gets, made by this process alone. */
static bool make_plan(struct team_rank *rank, void *user)
{
    struct job *job = user;
    TEAM_CHECK(configure(rank, job));
    TEAM_CHECK(zero_commit(rank->z) == ZERO_PLANNED);
    snprintf(job->planned, sizeof job->planned, "%s", zero_plan_json(rank->z));
    return true;
}

static bool plan_for(int world, struct job *job)
{
    char number[16];
    snprintf(number, sizeof number, "%d", world);
    setenv("ZERO_PLAN", "1", 1);
    setenv("ZERO_PLAN_WORLD", number, 1);
    setenv("ZERO_TRANSPORT", world > 1 ? "shm" : "self", 1);
    const bool good = team_run("self", 1, make_plan, job);
    unsetenv("ZERO_PLAN");
    unsetenv("ZERO_PLAN_WORLD");
    unsetenv("ZERO_TRANSPORT");
    return good;
}

/** Whether two objects of spreads are the same but for what belongs to one rank. */
static bool same_spreads(json_t *a, json_t *b, bool rank_too)
{
    const char *key, *field;
    json_t *spread, *value;
    bool same = json_object_size(a) == json_object_size(b);
    json_object_foreach(a, key, spread) json_object_foreach(
        spread, field,
        value) if ((rank_too || strcmp(field, "bytes") != 0) &&
                   !json_equal(value, json_object_get(json_object_get(b, key), field)))
    {
        fprintf(stderr, "%s.%s differs\n", key, field);
        same = false;
    }
    return same;
}

static size_t number(json_t *object, const char *name, const char *field)
{
    return (size_t)json_integer_value(json_object_get(json_object_get(object, name), field));
}

/** Of the rank that is said to have most, what it has is that. */
static bool most_is_had(const struct team_rank *rank, json_t *spreads)
{
    const char *key;
    json_t *spread;
    bool good = true;
    json_object_foreach(spreads, key, spread)
    {
        const bool here = number(spreads, key, "largest_rank") == (size_t)rank->rank;
        good &= !here || number(spreads, key, "bytes") == number(spreads, key, "max");
    }
    return good;
}

static bool compare_plans(struct team_rank *rank, json_t *planned, json_t *made)
{
    json_t *before = json_object_get(planned, "memory"), *now = json_object_get(made, "memory");
    json_t *rows = json_object_get(json_object_get(now, "tiers"), "host");
    TEAM_CHECK(same_spreads(json_object_get(json_object_get(before, "tiers"), "host"), rows,
                            rank->rank == 0));
    TEAM_CHECK(same_spreads(json_object_get(before, "peaks"), json_object_get(now, "peaks"),
                            rank->rank == 0));
    TEAM_CHECK(json_equal(json_object_get(planned, "slots"), json_object_get(made, "slots")));
    TEAM_CHECK(json_equal(json_object_get(planned, "model"), json_object_get(made, "model")));
    json_t *ranks = json_object_get(json_object_get(made, "host"), "rank_bytes");
    TEAM_CHECK(json_equal(json_object_get(json_object_get(planned, "host"), "rank_bytes"), ranks));
    // What this rank says of itself is what every rank knows of it.
    json_t *peaks = json_object_get(now, "peaks"), *peak;
    const char *key;
    size_t most = 0;
    TEAM_CHECK(most_is_had(rank, rows) && most_is_had(rank, peaks));
    json_object_foreach(peaks, key, peak) if (number(peaks, key, "bytes") > most) most =
        number(peaks, key, "bytes");
    TEAM_CHECK((size_t)json_integer_value(json_array_get(ranks, (size_t)rank->rank)) == most);
    struct eng_tier_needs needs;
    TEAM_OK(rank, rank->z->store->needs(rank->z, &rank->z->placement, &needs, NULL));
    TEAM_CHECK(number(rows, "tables", "bytes") ==
               eng_memory_tables(rank->z, &rank->z->placement, &needs));
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_CHECK(stats.allocated_bytes == number(now, "total", "bytes"));
    return true;
}

static bool commit_and_compare(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    TEAM_CHECK(configure(rank, job));
    TEAM_OK(rank, zero_commit(rank->z));
    json_t *planned = parse(job->planned), *made = parse(zero_plan_json(rank->z));
    const bool good = planned && made && compare_plans(rank, planned, made);
    json_decref(planned);
    json_decref(made);
    return good;
}

static void a_world_makes_the_plan_that_was_made_for_it(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST; world++)
        for (int i = 0; i < 7; i++) {
            static struct job job;
            job = (struct job){
                .stage = i < 4 ? i : i - 3, .gather = i < 4 ? "copy" : "shared", .victim = -1};
            if (!plan_for(world, &job) ||
                !team_run(world > 1 ? "shm" : "self", world, commit_and_compare, &job))
                fail_msg("world %d, stage %d, %s", world, job.stage, job.gather);
        }
}

/** One rank knows of a limit: all refuse, for the same reason, and none has allocated. */
static bool refuse(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    TEAM_CHECK(configure(rank, job));
    const size_t mapped = process_state().mapped;
    TEAM_CHECK(zero_commit(rank->z) == ZERO_E_NOMEM);
    const char *message = zero_last_error(rank->z);
    TEAM_CHECK(strstr(message, "1024 B left of 1024 B (memory_limit)"));
    TEAM_CHECK(strstr(message, "; stage=1 would need ") || job->stage == 3);
    TEAM_CHECK(job->victim < 0 || job->victim == rank->rank ||
               strstr(message, job->victim ? "rank 1: " : "rank 0: "));
    TEAM_CHECK(rank->config.team || process_state().mapped < mapped + (1 << 20));
    TEAM_CHECK(strstr(zero_plan_text(rank->z), "  fits         "));
    TEAM_CHECK(zero_commit(rank->z) == ZERO_E_NOMEM);
    return true;
}

static void all_ranks_refuse_alike(void **state)
{
    (void)state;
    for (int victim = -1; victim < 2; victim++)
        for (int t = 0; t < 2; t++) {
            struct job job = {.stage = 3 * t, .limit = 1024, .victim = victim};
            if (!team_run(t ? "shm" : "threads", 3, refuse, &job))
                fail_msg("victim %d, %s", victim, t ? "shm" : "threads");
        }
}

// Without a GPU the host updates, whether a rank says so or leaves it open, and nothing is
// measured.
static bool one_says_who_updates(struct team_rank *rank, void *user)
{
    (void)user;
    rank->config.offload_update = rank->rank == 1 ? "host" : NULL;
    TEAM_CHECK(toy_open(rank, &toy_odd));
    TEAM_CHECK(!strstr(zero_plan_text(rank->z), "\n  update "));
    TEAM_CHECK(strstr(zero_plan_json(rank->z), "\"update\": null"));
    TEAM_CHECK(rank->z->plan.peaks[ENG_PEAK_COMMIT].mine < 32 << 20);
    return true;
}

static void who_updates_is_settled_without_a_gpu(void **state)
{
    (void)state;
    assert_true(team_run("threads", 2, one_says_who_updates, NULL));
}

/* ------------------------------------------------------------------ saving */

static bool refuses_to_save(struct team_rank *rank, const char *says)
{
    uint8_t before[16], after[16];
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    TEAM_CHECK(zero_save(rank->z, directory.directory, NULL) == ZERO_E_NOMEM);
    TEAM_CHECK(strstr(zero_last_error(rank->z), says));
    TEAM_CHECK(strstr(zero_last_error(rank->z), "are room_bytes of zero_save_options"));
    TEAM_CHECK(rank->z->plan.saving.sum > 0); // as before: none of it is allocated
    TEAM_OK(rank, zero_fingerprint(rank->z, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) == 0);
    return toy_train(rank, &toy_odd, 1);
}

/** What saving takes is not part of what zero_commit() demands: the first zero_save() does, and
 * touches none of it where it does not fit. */
static bool save_where_it_fits(struct team_rank *rank, void *user)
{
    struct job *job = user;
    TEAM_CHECK(configure(rank, job));
    TEAM_OK(rank, zero_commit(rank->z));
    const struct eng_plan *plan = &rank->z->plan;
    const size_t most = plan->peaks[eng_plan_worst(plan)].sum, saving = plan->saving.sum;
    TEAM_CHECK(saving > 0);
    // As found on one rank, by now.
    make_up_limits();
    if (rank->rank == rank->world - 1)
        made_up.available = saving / 2;
    if (!refuses_to_save(rank, "this host's memory"))
        return false;
    made_up.available = 2 * saving;
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_CHECK(rank->z->plan.saving.sum == 0);
    is_made_up = false;
    team_close(rank);
    job->limit = (int64_t)(most + saving / 2);
    TEAM_CHECK(configure(rank, job));
    TEAM_OK(rank, zero_commit(rank->z));
    if (!refuses_to_save(rank, "(memory_limit)"))
        return false;
    team_close(rank);
    job->limit = (int64_t)(most + 2 * saving);
    TEAM_CHECK(configure(rank, job));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_save(rank->z, temporary_path(&directory, "second"), NULL));
    TEAM_OK(rank, zero_save_wait(rank->z));
    return toy_train(rank, &toy_odd, 1);
}

static void saving_must_fit(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        struct job job = {.stage = 1, .victim = -1};
        assert_true(temporary_make(&directory));
        const bool good = team_run(world > 1 ? "shm" : "self", world, save_where_it_fits, &job);
        temporary_remove(&directory);
        assert_true(good);
    }
}

/* ------------------------------------------------------------------ loading */

static bool refuses_to_load(struct team_rank *rank, const char *path, const char *says)
{
    uint8_t before[16], after[16];
    zero_result r;
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    r = path ? zero_load(rank->z, path, NULL, NULL)
             : zero_resume(rank->z, directory.directory, NULL, NULL);
    TEAM_CHECK(r == ZERO_E_NOMEM && strstr(zero_last_error(rank->z), says));
    TEAM_OK(rank, zero_fingerprint(rank->z, after));
    TEAM_CHECK(memcmp(before, after, sizeof before) == 0);
    return toy_train(rank, &toy_odd, 1);
}

/** Nor is what loading takes. */
static bool load_where_it_fits(struct team_rank *rank, void *user)
{
    struct job *job = user;
    char path[sizeof directory.directory + 32];
    snprintf(path, sizeof path, "%s/step-00000001", directory.directory);
    TEAM_CHECK(configure(rank, job));
    TEAM_OK(rank, zero_commit(rank->z));
    const struct eng_plan *plan = &rank->z->plan;
    const size_t total = plan->total.sum, loading = plan->loading.sum;
    TEAM_CHECK(loading > 0 && toy_train(rank, &toy_odd, 1));
    TEAM_OK(rank, zero_save(rank->z, directory.directory, NULL));
    TEAM_OK(rank, zero_save_wait(rank->z));
    make_up_limits();
    if (rank->rank == rank->world - 1)
        made_up.available = plan->loading.sum - 1;
    if (!refuses_to_load(rank, path, "this host's memory") ||
        !refuses_to_load(rank, NULL, "this host's memory"))
        return false;
    made_up.available = plan->loading.sum;
    TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
    TEAM_OK(rank, zero_resume(rank->z, directory.directory, NULL, NULL));
    is_made_up = false;
    team_close(rank);
    for (int missing = 1; missing >= 0; missing--) {
        job->limit = (int64_t)(total + loading) - missing;
        TEAM_CHECK(configure(rank, job));
        TEAM_OK(rank, zero_commit(rank->z));
        if (missing && !refuses_to_load(rank, path, "(memory_limit)"))
            return false;
        if (!missing)
            TEAM_OK(rank, zero_load(rank->z, path, NULL, NULL));
        team_close(rank);
    }
    return true;
}

static void loading_must_fit(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        struct job job = {.stage = 1, .victim = -1};
        assert_true(temporary_make(&directory));
        const bool good = team_run(world > 1 ? "shm" : "self", world, load_where_it_fits, &job);
        temporary_remove(&directory);
        assert_true(good);
    }
}

/* ------------------------------------------------------------------ control groups */

/** Names, which a file has in its header: rank 0 needs most where they are written, the others
 * where they are read. */
static bool add_names(struct team_rank *rank)
{
    for (int i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof name, "name%d", i);
        zero_param_desc desc = zero_param_vector(name, 1, NULL);
        desc.frozen = 1;
        TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    }
    return true;
}

/** What ranks need that are limited together: all of them at the worst moment, or of some of them
 * each one's most. */
static size_t group_need(const struct eng_plan *plan, bool apart, int rank)
{
    size_t sum = 0, most = 0;
    for (int i = 0; i < ENG_PEAKS; i++)
        most = plan->peaks[i].sum > most ? plan->peaks[i].sum : most;
    for (int r = 0; r < plan->world; r++)
        sum += r % 2 == rank % 2 ? plan->ranks[r] : 0;
    return apart ? sum : most;
}

/** Even ranks in one control group, odd ones in another one, or all in one; it is the tightest
 * limit. */
static bool group_is_told(struct team_rank *rank, bool apart)
{
    make_up_limits();
    made_up.group_limit /= 4;
    made_up.address_limit /= 2;
    if (apart && rank->rank % 2)
        snprintf(made_up.group, sizeof made_up.group, "/of some");
    TEAM_OK(rank, zero_commit(rank->z));
    const struct eng_fit *fit = &rank->z->plan.fit;
    TEAM_CHECK(strncmp(fit->source, "control group /of", 17) == 0);
    TEAM_CHECK(fit->needed == group_need(&rank->z->plan, apart, rank->rank));
    return true;
}

static bool groups(struct team_rank *rank, void *user)
{
    struct job *job = user;
    for (int apart = 0; apart < 2; apart++) {
        TEAM_CHECK(configure(rank, job) && add_names(rank) && group_is_told(rank, apart));
        const struct eng_spread *peaks = rank->z->plan.peaks;
        TEAM_CHECK(peaks[ENG_PEAK_LOAD].sum > peaks[ENG_PEAK_SAVE].sum);
        TEAM_CHECK(peaks[ENG_PEAK_LOAD].least > peaks[ENG_PEAK_SAVE].least);
        TEAM_CHECK(peaks[ENG_PEAK_LOAD].most < peaks[ENG_PEAK_SAVE].most);
        team_close(rank);
    }
    return true;
}

static void a_control_group_is_for_its_ranks(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage += 3) {
        struct job job = {.stage = stage, .gather = "copy", .victim = -1};
        assert_true(team_run("threads", 3, groups, &job));
    }
}

/* ------------------------------------------------------------------ addresses */

/** Elements; what a huge page has; and how many blocks begin at one. */
enum { LARGE = 3 << 20, HUGE_BYTES = 2 << 20, BLOCKS = 4 };

struct addresses {
    int stage, paranoid;
    const char *gather;
    pthread_barrier_t barrier;
};

static void wait_for_threads(struct team_rank *rank, struct addresses *job)
{
    if (rank->config.team)
        pthread_barrier_wait(&job->barrier);
}

/** Bytes that zero_commit() maps in this process. */
static bool map_all(struct team_rank *rank, struct addresses *job, size_t *mapped)
{
    wait_for_threads(rank, job);
    const size_t before = process_state().mapped;
    wait_for_threads(rank, job);
    const zero_result result = zero_commit(rank->z);
    wait_for_threads(rank, job);
    *mapped = process_state().mapped - before;
    wait_for_threads(rank, job);
    TEAM_OK(rank, result);
    return true;
}

/** The addresses that are said to be needed are those that are taken, but for what comes and goes.
 */
static bool addresses_are_taken(struct team_rank *rank, void *user)
{
    struct addresses *job = user;
    zero_param_desc desc = zero_param_vector("large", LARGE, NULL);
    size_t mapped;
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.paranoid = job->paranoid;
    make_up_limits();
    made_up.address_limit /= 2;
    if (!team_open(rank))
        return false;
    TEAM_OK(rank, zero_add_param(rank->z, NULL, &desc));
    if (!map_all(rank, job, &mapped))
        return false;
    const struct eng_fit *fit = &rank->z->plan.fit;
    TEAM_CHECK(strcmp(fit->source, "address space of a process (ulimit -v)") == 0);
    // Large blocks begin at huge pages, and take one more to find such a place.
    const size_t ranks = rank->config.team ? (size_t)rank->world : 1;
    TEAM_CHECK(process_sanitized() || mapped + 2 * HUGE_BYTES > fit->needed);
    TEAM_CHECK(process_sanitized() || mapped < fit->needed + ranks * BLOCKS * HUGE_BYTES);
    return true;
}

static void the_addresses_are_those_of_all_ranks(void **state)
{
    (void)state;
    mallopt(M_MMAP_THRESHOLD, 1 << 17); // for good: what is freed is mapped no more
    static const struct addresses jobs[] = {
        {.stage = 0, .gather = "auto"},
        {.stage = 1, .gather = "auto", .paranoid = 1},
        {.stage = 3, .gather = "copy", .paranoid = 1},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        for (int t = 0; t < 2; t++) {
            struct addresses job = jobs[i];
            pthread_barrier_init(&job.barrier, NULL, 2);
            if (!team_run(t ? "shm" : "threads", 2, addresses_are_taken, &job))
                fail_msg("stage %d, %s, %s", job.stage, job.gather, t ? "shm" : "threads");
            pthread_barrier_destroy(&job.barrier);
        }
}

/** zero_commit() under a limit of addresses fails; what it says. */
static const char *refusal_for(struct team_rank *rank, int paranoid, uint64_t addresses)
{
    zero_param_desc desc = zero_param_vector("large", LARGE, NULL);
    team_close(rank);
    rank->config.paranoid = paranoid;
    make_up_limits();
    made_up.address_limit = addresses;
    return team_open(rank) && !zero_add_param(rank->z, NULL, &desc) &&
                   zero_commit(rank->z) == ZERO_E_NOMEM
               ? zero_last_error(rank->z)
               : "";
}

/** It is named, and nothing else, where all else has its addresses. */
static bool names_paranoid(struct team_rank *rank, void *user)
{
    (void)user;
    const char *message = refusal_for(rank, 0, 1024);
    TEAM_CHECK(strstr(message, "(ulimit -v)") && !strstr(message, "paranoid"));
    TEAM_CHECK(!strstr(message, "fewer ranks") == (rank->world == 1));
    message = refusal_for(rank, 1, 1024);
    TEAM_CHECK(strstr(message, "; paranoid=1 takes "));
    TEAM_CHECK(strstr(message, "; stage=") || rank->world == 1);
    message = refusal_for(rank, 1, rank->z->plan.fit.needed - 1);
    TEAM_CHECK(strstr(message, "; paranoid=1 takes ") && strstr(message, " of these addresses, "));
    TEAM_CHECK(!strstr(message, "would need") && !strstr(message, "fewer ranks"));
    return true;
}

static void paranoid_is_named_where_it_takes_the_addresses(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        for (int t = 0; t < 2; t++)
            if (!team_run(t ? "threads" : world > 1 ? "shm" : "self", world, names_paranoid, NULL))
                fail_msg("world %d, %s", world, t ? "threads" : "processes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_world_makes_the_plan_that_was_made_for_it),
        cmocka_unit_test(all_ranks_refuse_alike),
        cmocka_unit_test(who_updates_is_settled_without_a_gpu),
        cmocka_unit_test(saving_must_fit),
        cmocka_unit_test(loading_must_fit),
        cmocka_unit_test(a_control_group_is_for_its_ranks),
        cmocka_unit_test(the_addresses_are_those_of_all_ranks),
        cmocka_unit_test(paranoid_is_named_where_it_takes_the_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
