// Trains a GPT-2 with zero: gpt2 --help.
#include "gpt2_options.h"
#include "gpt2_report.h"
#include "gpt2_trainer.h"
#include "recovery.h"
#include "sample.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

// What the ranks of this process share.
struct job {
    struct options options;
    struct data data;
    pthread_mutex_t gate;
    atomic_bool failed;
    atomic_bool refused; // the library calls something wrong that it was given
    atomic_bool stopped; // the job was asked to, and has more to do
};

// One of them.
struct rank {
    struct job *job;
    struct place place;
    pthread_t thread;
};

static zero_result evaluate(struct trainer *t, uint64_t step)
{
    double loss;
    const zero_result result = trainer_evaluate(t, &loss);
    if (result == ZERO_OK)
        report_evaluation(t, step, loss);
    return result == ZERO_AGAIN ? ZERO_OK : result; // left, to stop
}

// Whether something that is done every `every` steps is due.
static bool is_due(int every, uint64_t step)
{
    return every > 0 && step % (uint64_t)every == 0;
}

static zero_result step(struct trainer *t)
{
    const struct options *o = t->options;
    struct step_report step;
    zero_result result = trainer_step(t, &step);
    if (result)
        return result;
    report_step(t, &step);
    // What takes long is for a job that goes on.
    if (is_due(o->eval, step.step) && !zero_stop_requested(t->z))
        result = evaluate(t, step.step);
    if (result == ZERO_OK && is_due(o->fingerprint, step.step) && step.step < (uint64_t)o->steps)
        result = report_fingerprint(t, step.step);
    return result ? result : recovery_step(t, step.step);
}

// Trains from step *n on; it is the last one afterwards.
static zero_result train(struct trainer *t, uint64_t *n)
{
    zero_result result = ZERO_OK;
    while (result == ZERO_OK && *n < (uint64_t)t->options->steps && !zero_stop_requested(t->z)) {
        result = step(t);
        ++*n;
    }
    return result ? result : recovery_end(t);
}

static zero_result conclude(struct trainer *t, uint64_t n)
{
    const struct options *o = t->options;
    const bool whole = n >= (uint64_t)o->steps; // not asked to stop before
    if (!whole)
        report_stop(t, n);
    zero_result result = report_summary(t);
    if (result == ZERO_OK && whole)
        result = sample_print(t);
    if (result == ZERO_OK)
        result = report_fingerprint(t, n);
    if (result == ZERO_OK && whole && o->save)
        result = zero_export(t->z, o->save);
    return result;
}

// One process says once why it failed, however many ranks it has.
static void complain(struct job *job, const char *reason)
{
    if (!atomic_exchange(&job->failed, true))
        fprintf(stderr, "gpt2: %s\n", reason);
}

static void rank_run(const struct rank *rank)
{
    struct job *job = rank->job;
    struct trainer trainer;
    uint64_t n = 0;
    zero_result result = trainer_open(&trainer, &job->options, &job->data, &rank->place);
    const bool unmet =
        result == ZERO_E_ABORTED && !trainer.z; // asked to stop before all ranks had come
    if (result == ZERO_OK)
        result = recovery_begin(&trainer, &n);
    if (result == ZERO_OK) {
        if (zero_rank(trainer.z) == 0) {
            options_print(&job->options, trainer.micro_total);
            if (n > 0)
                printf("resumed at step %" PRIu64 "%s\n", n,
                       trainer.recovered ? ", of the state on NVMe" : "");
        }
        result = train(&trainer, &n);
    }
    if (result == ZERO_OK)
        result = conclude(&trainer, n);
    if (result == ZERO_OK && n < (uint64_t)job->options.steps)
        atomic_store(&job->stopped, true);
    if (unmet) {
        fprintf(stderr, "gpt2: %s\n", trainer_failure(&trainer));
        atomic_store(&job->stopped, true);
    } else if (result != ZERO_OK && result != ZERO_PLANNED) {
        complain(job, trainer_failure(&trainer));
    }
    if (result == ZERO_E_INVALID)
        atomic_store(&job->refused, true);
    trainer_close(&trainer);
}

// Ranks that are threads wait at the gate until all of them exist, or none is to run.
static void *thread_main(void *arg)
{
    struct rank *rank = arg;
    pthread_mutex_lock(&rank->job->gate);
    pthread_mutex_unlock(&rank->job->gate);
    if (!atomic_load(&rank->job->failed))
        rank_run(rank);
    return NULL;
}

static void run_threads(struct job *job, struct rank *ranks, int world)
{
    int started = 1;
    pthread_mutex_lock(&job->gate);
    while (started < world &&
           pthread_create(&ranks[started].thread, NULL, thread_main, &ranks[started]) == 0)
        started++;
    if (started < world)
        complain(job, "cannot start a thread a rank");
    pthread_mutex_unlock(&job->gate);
    if (started == world)
        rank_run(&ranks[0]);
    for (int r = 1; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
}

static void run_team(struct job *job, int world)
{
    zero_team *team = NULL;
    struct rank *ranks = calloc((size_t)world, sizeof *ranks);
    if (!ranks)
        complain(job, "out of memory");
    else if (zero_team_create(&team, world))
        complain(job, zero_last_error(NULL));
    else {
        for (int r = 0; r < world; r++)
            ranks[r] = (struct rank){.job = job, .place = {team, world, r}};
        run_threads(job, ranks, world);
    }
    zero_team_free(team);
    free(ranks);
}

static int run(struct job *job)
{
    const struct options *o = &job->options;
    struct reason reason;
    if (!data_load(&job->data, o->data, o->data_count, o->dims.vocab, o->dims.context, &reason) ||
        (o->eval && !data_hold(&job->data, o->dims.context, &reason)))
        complain(job, reason.text);
    else if (o->ranks > 1 || o->transport == TRANSPORT_THREADS)
        run_team(job, o->ranks);
    else
        rank_run(&(struct rank){.job = job, .place = {NULL, o->ranks, 0}});
    data_free(&job->data);
    const bool stopped = atomic_load(&job->stopped) && !atomic_load(&job->failed);
    if (fflush(stdout) != 0 || ferror(stdout))
        complain(job, "cannot write to standard output");
    if (atomic_load(&job->refused))
        return EXIT_CONFIG;
    if (stopped) // the terminal may have been closed: that can be why
        return EXIT_STOPPED;
    return atomic_load(&job->failed) ? EXIT_FAILED : EXIT_OK;
}

int main(int argc, char **argv)
{
    blas_prepare(argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    // From here on SIGTERM and SIGINT mean: save after this step.
    const bool listens = zero_stop_on_signals(NULL) == ZERO_OK;
    struct job job = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct reason reason;
    int code = EXIT_OK;
    switch (options_parse(&job.options, argc, argv, &reason)) {
    case REQUEST_TRAIN:
        if (listens)
            code = run(&job);
        else {
            fprintf(stderr, "gpt2: %s\n", zero_last_error(NULL));
            code = EXIT_CONFIG;
        }
        break;
    case REQUEST_HELP:
        options_help(job.options.program);
        break;
    case REQUEST_VERSION:
        printf("gpt2 of zero %s\n", zero_version());
        break;
    case REQUEST_INVALID:
        fprintf(stderr, "gpt2: %s (see --help)\n", reason.text);
        code = EXIT_USAGE;
        break;
    }
    options_free(&job.options);
    if (code == EXIT_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        complain(&job, "cannot write to standard output");
        code = EXIT_FAILED;
    }
    return code;
}
