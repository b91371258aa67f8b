// The price of the canonical sum: whole GPT-2 steps with it over steps with reduction=local, for as
// many micro-batches as ranks and for four times as many. Ranks are threads.
#include "base/cpu.h"
#include "gpt2_trainer.h"
#include "tests/bench/job.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORLD = 2, TOKENS = 1 << 20, WORDS = 18 };

enum work { CANONICAL, LOCAL, WORKS };

// What the ranks share.
struct bench {
    const char *micro_batches;
    struct data data;
    struct coll_team *team;
    zero_team *teams[WORKS];
};

struct rank {
    struct bench *bench;
    int number;
    struct coll_comm *comm;
    struct options options;
    struct trainer trainers[WORKS];
    bool good;
};

static zero_result step(void *user, int work)
{
    struct rank *rank = user;
    struct step_report report;
    return trainer_step(&rank->trainers[work], &report);
}

// Opens both trainers, one after the other on all ranks.
static zero_result open_trainers(struct rank *rank)
{
    const char *const words[WORDS] = {
        "gpt2", "--stage", "1",   "--layers",    "2",       "--heads",
        "12",   "--width", "768", "--context",   "64",      "--vocab",
        "4096", "--batch", "1",   "--transport", "threads", "--micro-batches",
    };
    char *argv[WORDS + 3];
    struct reason reason = {0};
    for (int i = 0; i < WORDS; i++)
        argv[i] = (char *)(uintptr_t)words[i];
    argv[WORDS] = (char *)(uintptr_t)rank->bench->micro_batches;
    argv[WORDS + 1] = (char *)(uintptr_t) "--ranks";
    argv[WORDS + 2] = (char *)(uintptr_t) "2";
    if (options_parse(&rank->options, WORDS + 3, argv, &reason) != REQUEST_TRAIN) {
        fprintf(stderr, "bench_local: %s\n", reason.text);
        return ZERO_E_INVALID;
    }
    zero_result r = ZERO_OK;
    for (int work = CANONICAL; work < WORKS && !r; work++) {
        const struct place place = {rank->bench->teams[work], WORLD, rank->number};
        if (rank->number == 0)
            r = setenv("ZERO_REDUCTION", work == LOCAL ? "local" : "canonical", 1);
        if (!r)
            r = coll_barrier(rank->comm);
        if (!r)
            r = trainer_open(&rank->trainers[work], &rank->options, &rank->bench->data, &place);
        if (r)
            fprintf(stderr, "bench_local: %s\n", trainer_failure(&rank->trainers[work]));
    }
    return r;
}

static zero_result measure(struct rank *rank)
{
    char name[80];
    struct job job = {rank->comm, step, rank};
    if (rank->number != 0)
        return job_follow(&job);
    snprintf(name, sizeof name, "gpt2 step, V = %s, canonical", rank->bench->micro_batches);
    job_measure(&job, &(struct job_row){.name = name,
                                        .work = CANONICAL,
                                        .amount = 1,
                                        .reference = LOCAL,
                                        .reference_amount = 1,
                                        .reference_name = "local",
                                        .unit = "step/s"});
    return job_finish(&job);
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct base_error error = {0};
    const struct coll_config config = {
        .transport = "threads",
        .rank = rank->number,
        .world = WORLD,
        .name = "bench",
        .team = rank->bench->team,
        .timeout_ns = UINT64_C(600000000000),
    };
    rank->good = coll_open(&rank->comm, &config, &error) == ZERO_OK &&
                 open_trainers(rank) == ZERO_OK && measure(rank) == ZERO_OK;
    for (int work = CANONICAL; work < WORKS; work++)
        trainer_close(&rank->trainers[work]);
    options_free(&rank->options);
    coll_close(rank->comm);
    return NULL;
}

static bool row(struct bench *bench)
{
    struct base_error error;
    pthread_t threads[WORLD];
    struct rank ranks[WORLD] = {0};
    bool good = coll_team_create(&bench->team, WORLD, &error) == ZERO_OK;
    for (int work = CANONICAL; work < WORKS; work++)
        good = good && zero_team_create(&bench->teams[work], WORLD) == ZERO_OK;
    for (int r = 0; r < WORLD && good; r++) {
        ranks[r] = (struct rank){.bench = bench, .number = r};
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0)
            abort(); // the others would wait for it
    }
    for (int r = 0; r < WORLD && good; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < WORLD; r++)
        good = good && ranks[r].good;
    for (int work = CANONICAL; work < WORKS; work++)
        zero_team_free(bench->teams[work]);
    coll_team_free(bench->team);
    return good;
}

int main(int argc, char **argv)
{
    (void)argc;
    blas_prepare(argv);
    static const char *const micro_batches[] = {"2", "8"};
    struct bench bench = {.data = {.token = calloc(TOKENS, sizeof(uint16_t)), .count = TOKENS}};
    bool good = bench.data.token != NULL;
    const bool alone = base_cpu_allowed() < WORLD;
    if (alone)
        printf("rows with %d ranks are left out: this process may use one processor only\n", WORLD);
    else
        bench_print_header();
    for (size_t i = 0; i < sizeof micro_batches / sizeof *micro_batches && good && !alone; i++) {
        bench.micro_batches = micro_batches[i];
        good = row(&bench);
    }
    free(bench.data.token);
    return good ? 0 : 1;
}
