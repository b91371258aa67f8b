/* After a failure every call of every rank returns the same error, whichever rank failed, and
 * whatever the call needs of the others. */
#include "tests/ranks/toy.h"

#include <zero/optimizer.h>

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, CULPRIT = 1, IN_STEP = 14, CALLS = IN_STEP + 15 };

enum how { ABORT_FROM_A_THREAD, TOO_MANY_UNITS, OTHER_ARGUMENTS, DEATH };

/** Ways to run a context. */
static const struct setting {
    int stage;
    const char *gather;
    int paranoid;
} settings[] = {{0, NULL, 0}, {1, NULL, 0},   {2, NULL, 0},
                {3, NULL, 0}, {3, "copy", 0}, {1, NULL, 1}};

struct job {
    enum how how;
    struct setting setting;
    zero_result expected;
    const char *says;
    atomic_int done;
    bool good[WORLD];
};

/* ------------------------------------------------------------------ every call */

static zero_result call_in_step(zero_ctx *z, int which)
{
    double value = 0;
    const float metric = 1;
    const zero_step_args args = zero_step_args_default();
    switch (which) {
    case 0:
        return zero_micro_begin(z, 0, NULL);
    case 1:
        return zero_gather(z, 0, NULL);
    case 2:
        return zero_release(z, 0, NULL);
    case 3:
        return zero_grad_open(z, 0, NULL);
    case 4:
        return zero_grad_open_raw(z, 0, NULL);
    case 5:
        return zero_grad_done(z, 0, NULL);
    case 6:
        return zero_grad_none(z, 0, NULL);
    case 7:
        return zero_metric(z, "sum", 1);
    case 8:
        return zero_metric_from(z, "sum", &metric, NULL);
    case 9:
        return zero_step_in_backward(z, &args);
    case 10:
        return zero_grad_norm(z, 1, &value);
    case 11:
        return zero_skip_step(z);
    case 12:
        return zero_step(z, &args, NULL);
    default:
        return zero_step(z, NULL, NULL);
    }
}

static zero_result call_outside(zero_ctx *z, int which)
{
    double value = 0;
    float element = 0;
    uint8_t digest[16];
    zero_optimizer_desc optimizer = zero_optimizer_default();
    zero_param_desc desc = zero_param_default();
    switch (which) {
    case 0:
        return zero_eval_begin(z, 1);
    case 1:
        return zero_eval_end(z);
    case 2:
        return zero_fingerprint(z, digest);
    case 3:
        return zero_export(z, "nowhere/at.all");
    case 4:
        return zero_import(z, "nowhere/at.all", NULL);
    case 5:
        return zero_set_micro_batches(z, 2);
    case 6:
        return zero_param_read(z, 0, 0, 0, 1, &element);
    case 7:
        return zero_param_write(z, 0, 0, 0, 1, &element);
    case 8:
        return zero_set_frozen(z, 0, 1);
    case 9:
        return zero_allreduce(z, &value, 1, ZERO_SUM);
    case 10:
        return zero_barrier(z);
    case 11:
        return zero_add_param(z, NULL, &desc);
    case 12:
        return zero_add_group(z, NULL, NULL);
    case 13:
        return zero_add_optimizer(z, &optimizer);
    default:
        return zero_commit(z);
    }
}

static zero_result call(zero_ctx *z, int which)
{
    return which < IN_STEP ? call_in_step(z, which) : call_outside(z, which - IN_STEP);
}

/** What a program does with every tensor that checks nothing but zero_step(). */
static bool go_on_unchecked(const struct team_rank *rank)
{
    zero_ctx *z = rank->z;
    for (int t = 0; t < toy_odd.tensor_count; t++) {
        const struct toy_tensor *tensor = &toy_odd.tensors[t];
        for (int s = 0; s < tensor->slices; s++) {
            zero_gather(z, tensor->unit + s, NULL);
            zero_grad_open(z, tensor->unit + s, NULL);
            const float *weight = zero_param_ptr(z, t, s);
            float *gradient = zero_grad_ptr(z, t, s);
            TEAM_CHECK(weight && gradient);
            const uintptr_t aligned = rank->config.paranoid ? 64 : 2048;
            TEAM_CHECK((uintptr_t)weight % aligned == 0 && (uintptr_t)gradient % aligned == 0);
            for (uint64_t i = 0; i < tensor->numel; i++)
                gradient[i] += weight[i];
            zero_grad_done(z, tensor->unit + s, NULL);
            zero_release(z, tensor->unit + s, NULL);
        }
        TEAM_CHECK(!zero_param_ptr(z, t, tensor->slices) && !zero_grad_ptr(z, t, tensor->slices));
    }
    return true;
}

/** Whether all calls return what they should, twice over, and the getters still answer. */
static bool all_refuse(const struct team_rank *rank, const struct job *job)
{
    zero_ctx *z = rank->z;
    for (int i = 0; i < 2 * CALLS; i++) {
        const zero_result result = call(z, i % CALLS);
        if (result != job->expected || !strstr(zero_last_error(z), job->says)) {
            fprintf(stderr, "rank %d, call %d: %d: %s\n", rank->rank, i % CALLS, result,
                    zero_last_error(z));
            return false;
        }
    }
    zero_statistics stats = {.struct_size = sizeof stats};
    TEAM_CHECK(zero_stats(z, &stats) == ZERO_OK);
    TEAM_CHECK(zero_param_ptr(z, 0, 0) && zero_world(z) == WORLD);
    TEAM_CHECK(zero_plan_text(z)[0] && zero_plan_json(z)[0]);
    TEAM_CHECK(zero_loss_scale(z) == 1 && zero_micro_total(z) == toy_odd.micro_batches);
    return go_on_unchecked(rank);
}

/* ------------------------------------------------------------------ how it comes about */

static void *abort_later(void *z)
{
    usleep(20000);
    zero_abort(z, "the operator said so");
    zero_abort(z, "twice");
    return NULL;
}

/** Trains until something fails. */
static zero_result train(struct team_rank *rank, const struct job *job)
{
    const bool culprit = rank->rank == CULPRIT;
    zero_result r = ZERO_OK;
    for (int step = 0; !r; step++) {
        zero_hyper hyper[] = {{1e-3, 0.9, 0.95, 1e-8, 0}, {1e-3, 0.9, 0.95, 1e-8, 0}};
        zero_step_args args = zero_step_args_default();
        args.hyper = hyper;
        args.group_count = 2;
        if (culprit && step == 2 && job->how == OTHER_ARGUMENTS)
            args.scale = 2;
        if (culprit && step == 2 && job->how == DEATH)
            raise(SIGKILL);
        for (zero_unit u = 0; culprit && !r && step == 2 && job->how == TOO_MANY_UNITS; u++)
            r = zero_gather(rank->z, u, NULL);
        for (int i = 0; !r && i < zero_micro_count(rank->z); i++) {
            r = zero_micro_begin(rank->z, i, NULL);
            for (zero_unit u = 0; !r && u < toy_odd.unit_count; u++) {
                r = zero_grad_open(rank->z, u, NULL);
                r = r ? r : zero_grad_done(rank->z, u, NULL);
            }
        }
        r = r ? r : zero_step(rank->z, &args, NULL);
    }
    return r;
}

static bool fail_together(struct team_rank *rank, void *user)
{
    struct job *job = user;
    pthread_t thread;
    const bool aborts = rank->rank == CULPRIT && job->how == ABORT_FROM_A_THREAD;
    rank->config.stage = job->setting.stage;
    rank->config.gather = job->setting.gather;
    rank->config.paranoid = job->setting.paranoid;
    if (!toy_open(rank, &toy_odd))
        return false;
    if (aborts)
        TEAM_CHECK(pthread_create(&thread, NULL, abort_later, rank->z) == 0);
    const zero_result result = train(rank, job);
    if (aborts)
        pthread_join(thread, NULL);
    TEAM_CHECK(result == job->expected);
    job->good[rank->rank] = all_refuse(rank, job);
    // A rank that leaves tells no other.
    atomic_fetch_add(&job->done, 1);
    const int others = job->how == DEATH ? WORLD - 1 : WORLD;
    for (int waited = 0; waited < 20000 && atomic_load(&job->done) < others; waited++)
        usleep(1000);
    return true;
}

static void fail_over(const char *transport, enum how how, zero_result expected, const char *says)
{
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct setting *setting = &settings[i];
        if (how == TOO_MANY_UNITS && setting->stage < 3 && !setting->paranoid)
            continue; // without a limit
        if (how == TOO_MANY_UNITS && setting->gather)
            continue; // the culprit's gathers are another order of operations first
        struct job *job = team_shared(sizeof *job);
        *job = (struct job){.how = how, .setting = *setting, .expected = expected, .says = says};
        const bool ran = team_run(transport, WORLD, fail_together, job);
        for (int r = 0; r < WORLD; r++)
            if ((!ran && how != DEATH) || (!job->good[r] && !(how == DEATH && r == CULPRIT)))
                fail_msg("%s, stage %d, setting %zu, rank %d", transport, setting->stage, i, r);
        team_shared_free(job, sizeof *job);
    }
}

static void an_abort_from_any_thread(void **state)
{
    (void)state;
    fail_over("threads", ABORT_FROM_A_THREAD, ZERO_E_ABORTED, "the operator said so");
    fail_over("shm", ABORT_FROM_A_THREAD, ZERO_E_ABORTED, "the operator said so");
}

static void a_limit(void **state)
{
    (void)state;
    fail_over("threads", TOO_MANY_UNITS, ZERO_E_LIMIT, "open_units");
    fail_over("shm", TOO_MANY_UNITS, ZERO_E_LIMIT, "open_units");
}

static void arguments_that_differ(void **state)
{
    (void)state;
    fail_over("threads", OTHER_ARGUMENTS, ZERO_E_DIVERGED, "ranks 0 and 1");
    fail_over("shm", OTHER_ARGUMENTS, ZERO_E_DIVERGED, "ranks 0 and 1");
}

static void a_death(void **state)
{
    (void)state;
    fail_over("shm", DEATH, ZERO_E_PEER, "rank 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_from_any_thread),
        cmocka_unit_test(a_limit),
        cmocka_unit_test(arguments_that_differ),
        cmocka_unit_test(a_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
