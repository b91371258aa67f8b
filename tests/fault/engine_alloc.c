/* Every allocation of a context's life fails once: an error with a message on every rank, in time,
 * and nothing left behind. */
#include "tests/ranks/team.h"
#include "tests/sweep.h"

#include "base/clock.h"
#include "base/fault.h"

#include <zero/optimizer.h>

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD_MAX = 2, UNITS = 5, TIMEOUT_S = 3, PATIENCE_S = 60, BATCH = 24, MOST_HITS = 2000 };

/** One life with one failure; shared with the process that lives it. */
struct attempt {
    char fault[32];
    const char *transport;
    int world;
    int faulty; /**< the rank it strikes; where ranks are threads, whichever comes to it */
    int stage;
    const char *gather;

    atomic_int armed, told;
    zero_result result[WORLD_MAX];
    char message[WORLD_MAX][512];
    char call[WORLD_MAX][24]; /**< the one that failed */
    double seconds[WORLD_MAX];
    uint64_t fired;
    bool left_behind;
    pid_t process;
};

static zero_result fill(void *user, const char *name, int32_t slice, uint64_t first, uint64_t count,
                        float *out)
{
    (void)user;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(first + i) * 0x1p-12f + (float)slice + (float)name[0];
    return ZERO_OK;
}

static void prepare(void *user, const zero_hyper *hyper, uint64_t updates, double gradient_scale,
                    void *scalars)
{
    (void)user;
    (void)updates;
    const float step = (float)(hyper->lr * gradient_scale);
    memcpy(scalars, &step, sizeof step);
}

static void update(void *user, const void *scalars, const zero_optimizer_run *run)
{
    (void)user;
    for (uint64_t i = 0; i < run->count; i++)
        run->weight[i] -= *(const float *)scalars * run->gradient[i];
}

/** Optimizers of the program's own, groups and tensors: more than a first table holds. */
static zero_result add_model(zero_ctx *z)
{
    zero_result r = ZERO_OK;
    zero_optimizer_desc own = zero_optimizer_default();
    own.prepare = prepare;
    own.update = update;
    for (int n = 0; !r && n < 9; n++) {
        char name[16];
        snprintf(name, sizeof name, "own%d", n);
        own.name = name;
        r = zero_add_optimizer(z, &own);
    }
    for (int g = 0; !r && g < 17; g++) {
        zero_group_desc group = zero_group_default();
        group.optimizer = g % 5 == 4 ? "own8" : NULL;
        r = zero_add_group(z, NULL, &group);
    }
    for (int p = 0; !r && p < 18; p++) {
        char name[16];
        zero_param_desc desc = zero_param_default();
        snprintf(name, sizeof name, "%c.%d", 'a' + p, p);
        desc.name = name;
        desc.dtype = p % 2 ? ZERO_BF16 : ZERO_F32;
        desc.ndim = 1;
        desc.shape[0] = (uint64_t)(500 + 100 * p);
        desc.unit = p % UNITS;
        desc.group = p % 17;
        desc.frozen = p % 9 == 8;
        desc.fill = fill;
        r = zero_add_param(z, NULL, &desc);
    }
    return r;
}

/** Two micro-batches, of which the second gathers ahead, and a step. */
static zero_result train(zero_ctx *z)
{
    zero_hyper hyper[17];
    for (int g = 0; g < 17; g++)
        hyper[g] = (zero_hyper){1e-3, 0.9, 0.99, 1e-8, 0};
    zero_step_args args = zero_step_args_default();
    args.hyper = hyper;
    args.group_count = 17;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < zero_micro_count(z); i++) {
        r = zero_micro_begin(z, i, NULL);
        for (zero_unit u = 0; !r && u < UNITS; u++) {
            r = zero_gather(z, u, NULL);
            r = r ? r : zero_grad_open(z, u, NULL);
            r = r ? r : zero_grad_done(z, u, NULL);
            r = r ? r : zero_release(z, u, NULL);
        }
    }
    return r ? r : zero_step(z, &args, NULL);
}

static zero_result digest(zero_ctx *z)
{
    uint8_t bytes[16];
    return zero_fingerprint(z, bytes);
}

/** A call between steps whose failure harms no rank: all ranks have the same one, and train on. */
static zero_result not_fatal(zero_ctx *z, zero_result r)
{
    return r && train(z) ? ZERO_E_STATE : r;
}

/** Another V, or the one there was, and where it came from. */
static zero_result more_micro_batches(zero_ctx *z)
{
    const int32_t before = zero_micro_total(z);
    const zero_result r = not_fatal(z, zero_set_micro_batches(z, before + 1));
    const bool told = strstr(zero_plan_text(z), "(zero_set_micro_batches)") != NULL;
    return zero_micro_total(z) == (r ? before : before + 1) && told == !r ? r : ZERO_E_STATE;
}

static zero_result evaluate(zero_ctx *z)
{
    zero_result r = not_fatal(z, zero_eval_begin(z, 5));
    for (int32_t i = 0; !r && i < zero_micro_count(z); i++) {
        r = zero_micro_begin(z, i, NULL);
        r = r ? r : zero_metric(z, "loss", i);
    }
    return r ? r : zero_eval_end(z);
}

static zero_result write_back(zero_ctx *z)
{
    float values[3];
    const zero_result r = zero_param_read(z, 0, 0, 7, 3, values);
    return r ? r : zero_param_write(z, 0, 0, 7, 3, values);
}

/** A whole life, up to the first failure. */
static void live(struct team_rank *rank, struct attempt *attempt)
{
    static const struct {
        const char *name;
        zero_result (*call)(zero_ctx *z);
    } calls[] = {{"zero_add", add_model},
                 {"zero_commit", zero_commit},
                 {"step 1", train},
                 {"step 2", train},
                 {"zero_set_micro_batches", more_micro_batches},
                 {"zero_eval", evaluate},
                 {"step 3", train},
                 {"zero_param", write_back},
                 {"zero_fingerprint", digest}};
    const int r = rank->rank;
    const double begin = base_clock_s();
    const char *name = "zero_open";
    zero_result result = zero_open(&rank->z, &rank->config);
    for (size_t i = 0; !result && i < sizeof calls / sizeof *calls; i++) {
        name = calls[i].name;
        result = calls[i].call(rank->z);
    }
    attempt->seconds[r] = base_clock_s() - begin;
    attempt->result[r] = result;
    snprintf(attempt->call[r], sizeof attempt->call[r], "%s", result ? name : "");
    snprintf(attempt->message[r], sizeof attempt->message[r], "%s",
             result ? zero_last_error(rank->z) : "");
    // No rank leaves before all have been told: leaving tells too.
    atomic_fetch_add(&attempt->told, 1);
    for (int waited = 0; waited < 2000 && atomic_load(&attempt->told) < rank->world; waited++)
        usleep(10000);
    team_close(rank);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static bool maps_shared_memory(void)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        found |= strstr(line, "memfd:zero") != NULL;
    if (file)
        fclose(file);
    return found;
}

static bool live_and_look(struct team_rank *rank, void *user)
{
    struct attempt *attempt = user;
    const bool alone = strcmp(attempt->transport, "shm") == 0;
    rank->config.stage = attempt->stage;
    rank->config.gather = attempt->gather;
    rank->config.micro_batches = 2 * rank->world;
    rank->config.cpu_threads = 2;
    rank->config.paranoid = rank->world == 1;
    rank->config.verify_micro = attempt->stage == 3;
    rank->config.timeout_s = TIMEOUT_S;
    const int descriptors = open_descriptors();
    if (rank->rank == attempt->faulty)
        TEAM_CHECK(base_fault_set(attempt->fault, NULL) == ZERO_OK);
    // Threads share the faults: none allocates before they are set.
    atomic_fetch_or(&attempt->armed, alone || rank->rank == attempt->faulty);
    while (!atomic_load(&attempt->armed))
        usleep(100);
    live(rank, attempt);
    if (alone && rank->rank == attempt->faulty)
        attempt->fired = base_fault_fired();
    if (alone && (open_descriptors() != descriptors || maps_shared_memory()))
        attempt->left_behind = true;
    return true;
}

/** In a process of its own: what leaks shows at its end, what hangs or crashes harms no test. */
static void start(struct attempt *attempt)
{
    fflush(NULL);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process > 0) {
        attempt->process = process;
        return;
    }
    alarm(PATIENCE_S);
    const bool good = team_run(attempt->transport, attempt->world, live_and_look, attempt);
    if (strcmp(attempt->transport, "shm") != 0)
        attempt->fired = base_fault_fired();
    exit(good ? 0 : 1);
}

static void explain(const struct attempt *attempt, const char *what)
{
    for (int r = 0; r < attempt->world; r++)
        print_message("rank %d, %.2f s: %s: %d: %s\n", r, attempt->seconds[r], attempt->call[r],
                      attempt->result[r], attempt->message[r]);
    fail_msg("%s, %s, world %d, stage %d: %s", attempt->fault, attempt->transport, attempt->world,
             attempt->stage, what);
}

/** Whether the failure struck; fails the test if a rank doesn't know, or came too late. */
static bool judge(const struct attempt *attempt, zero_result expected)
{
    bool told = false, met = true;
    int status = -1;
    waitpid(attempt->process, &status, 0);
    if (status != 0)
        explain(attempt, "crashed, hung or leaked");
    if (attempt->left_behind)
        explain(attempt, "left memory or descriptors behind");
    for (int r = 0; r < attempt->world; r++) {
        if (attempt->fired > 0 && attempt->result[r] == ZERO_OK)
            explain(attempt, "a rank has not heard of it");
        if (attempt->fired > 0 && !*attempt->message[r])
            explain(attempt, "a rank has no message");
        if (attempt->fired == 0 && attempt->result[r] != ZERO_OK)
            explain(attempt, "nothing was injected");
        if (attempt->seconds[r] > TIMEOUT_S + 15)
            explain(attempt, "too late");
        told |= attempt->result[r] == expected;
        met &= strcmp(attempt->call[r], "zero_open") != 0;
    }
    for (int r = 0; r < attempt->world; r++)
        if (met && attempt->result[r] == ZERO_E_TIMEOUT)
            explain(attempt, "a rank had to find out by itself");
    if (attempt->fired > 0 && !told)
        explain(attempt, "no rank says what it was");
    return attempt->fired > 0;
}

/** Fails every hit of `point`, or every `stride`-th one, until there is no such hit any more;
 * returns how many struck. */
static int sweep(const struct attempt *like, const char *point, const char *suffix, int stride)
{
    struct attempt *attempts = team_shared(BATCH * sizeof *attempts);
    assert_non_null(attempts);
    int struck = 0;
    bool more = true;
    for (int first = stride > 1 ? 1 + TEST_PART : 1; more && first < MOST_HITS;
         first += BATCH * stride) {
        for (int i = 0; i < BATCH; i++) {
            attempts[i] = *like;
            snprintf(attempts[i].fault, sizeof attempts[i].fault, "%s@%d%s", point,
                     first + i * stride, suffix);
            start(&attempts[i]);
        }
        for (int i = 0; i < BATCH; i++) {
            more = judge(&attempts[i], ZERO_E_NOMEM);
            struck += more;
        }
    }
    assert_false(more);
    team_shared_free(attempts, BATCH * sizeof *attempts);
    return struck;
}

static void of_one_rank(void **state)
{
    (void)state;
    const struct attempt like = {.transport = "self", .world = 1, .stage = 3};
    assert_true(sweep(&like, "alloc", "", 1) > 30);
    assert_true(sweep(&like, "alloc", "+", TEST_LONG_STRIDE) > 30 / TEST_LONG_STRIDE);
    assert_int_equal(sweep(&like, "thread", "", 1), 1);
}

static void of_one_of_two_threads(void **state)
{
    (void)state;
    const struct attempt like = {.transport = "threads", .world = 2, .stage = 3};
    assert_true(sweep(&like, "alloc", "", TEST_LONG_STRIDE) > 60 / TEST_LONG_STRIDE);
    assert_true(sweep(&like, "alloc", "+", TEST_LONG_STRIDE) > 60 / TEST_LONG_STRIDE);
}

static void of_one_of_two_processes(void **state)
{
    (void)state;
    for (int faulty = 0; faulty < 2; faulty++) {
        const struct attempt like = {.transport = "shm",
                                     .world = 2,
                                     .faulty = faulty,
                                     .stage = 2 * faulty,
                                     .gather = "copy"};
        assert_true(sweep(&like, "alloc", "", TEST_LONG_STRIDE) > 30 / TEST_LONG_STRIDE);
        // A block and three arenas, and as many of the other rank.
        assert_int_equal(sweep(&like, "shm.allocate", "", 1), 4);
        assert_int_equal(sweep(&like, "shm.map", "", 1), 8);
    }
    // A shared arena is allocated run by run, and mapped twice.
    const struct attempt shared = {.transport = "shm", .world = 2, .stage = 2, .gather = "shared"};
    assert_true(sweep(&shared, "shm.allocate", "", 1) > 4);
    assert_int_equal(sweep(&shared, "shm.map", "", 1), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_one_rank),
        cmocka_unit_test(of_one_of_two_threads),
        cmocka_unit_test(of_one_of_two_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
