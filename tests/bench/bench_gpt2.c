// GPT-2's training step: how much of its time goes into matrix products, and how fast these are
// beside the largest rate OpenBLAS reaches on this machine with the same number of threads.
#include "base/cpu.h"
#include "gpt2_trainer.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    TOKENS = 1 << 20,
    PEAK = 1024, // rows and columns of the square matrices that the peak is measured with
    PEAK_REPEATS = 8,
    WORDS = 16,
};

// A model, as gpt2's command line would describe it.
struct size {
    const char *name;
    const char *words[WORDS];
    int count;
};

// What gpt2 trains by default, and two layers as wide as GPT-2 small.
static const struct size sizes[] = {
    {"width 128", {"gpt2"}, 1},
    {"width 768",
     {"gpt2", "--layers", "2", "--heads", "12", "--width", "768", "--context", "256", "--vocab",
      "4096", "--batch", "1"},
     13},
};

struct work {
    struct options options;
    struct data data;
    struct trainer trainer;
    real *square[2]; // input of all threads
    real **product;  // output, one a thread
    struct pool_meter *unmetered;
    bool good;
};

/* ------------------------------------------------------------------ gpt2 */

struct cost {
    double wall, products; // seconds; of products the mean over threads
    double operations;
};

static void meter(const struct work *work, struct cost *cost, int sign)
{
    const int threads = pool_threads(work->trainer.pool);
    for (int t = 0; t < threads; t++) {
        const struct pool_meter *m = pool_meter(work->trainer.pool, t);
        cost->products += sign * m->seconds / threads;
        cost->operations += sign * m->operations;
    }
}

static struct cost train_step(struct work *work)
{
    struct cost cost = {0};
    struct step_report report;
    meter(work, &cost, -1);
    const double begin = bench_now();
    if (work->good)
        work->good = trainer_step(&work->trainer, &report) == ZERO_OK;
    cost.wall = bench_now() - begin;
    meter(work, &cost, 1);
    return cost;
}

static double step(void *user)
{
    return train_step(user).wall;
}

static double step_products(void *user)
{
    return train_step(user).products;
}

/* ------------------------------------------------------------------ OpenBLAS */

static void multiply(void *arg, size_t index, int thread)
{
    struct work *work = arg;
    (void)index;
    const struct matrix a = {work->square[0], PEAK, false}, b = {work->square[1], PEAK, false};
    for (int i = 0; i < PEAK_REPEATS; i++)
        blas_gemm(&work->unmetered[thread], PEAK, PEAK, PEAK, 1, a, b, 0, work->product[thread],
                  PEAK);
}

static double peak(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    pool_run(work->trainer.pool, multiply, work, (size_t)pool_threads(work->trainer.pool));
    return bench_now() - begin;
}

static bool allocate(struct work *work)
{
    const size_t bytes = sizeof(real) * PEAK * PEAK;
    const int threads = work->options.threads;
    work->product = calloc((size_t)threads, sizeof *work->product);
    work->unmetered = calloc((size_t)threads, sizeof *work->unmetered);
    bool good = work->product && work->unmetered;
    for (int i = 0; good && i < 2; i++)
        good = (work->square[i] = malloc(bytes)) != NULL;
    for (int i = 0; good && i < threads; i++)
        good = (work->product[i] = malloc(bytes)) != NULL;
    for (int i = 0; good && i < PEAK * PEAK; i++)
        work->square[0][i] = work->square[1][i] = (real)1e-3 * (real)(1 + i % 1000);
    return good;
}

static void release(struct work *work)
{
    for (int i = 0; work->product && i < work->options.threads; i++)
        free(work->product[i]);
    free(work->product);
    free(work->unmetered);
    free(work->square[0]);
    free(work->square[1]);
    trainer_close(&work->trainer);
    options_free(&work->options);
}

/* ------------------------------------------------------------------ rows */

static void rows(struct work *work, const char *size)
{
    char name[80];
    const int threads = work->options.threads;
    const double billions = 1e-9 * train_step(work).operations;
    const double peak_billions = 2e-9 * PEAK * PEAK * PEAK * PEAK_REPEATS * threads;
    struct bench_row row = {
        .name = name,
        .reference_name = "its products alone",
        .unit = "step/s",
        .ours_amount = 1.0,
        .reference_amount = 1.0,
        .ours = step,
        .reference = step_products,
        .user = work,
    };
    snprintf(name, sizeof name, "gpt2 step, %s, %d thread%s", size, threads, &"s"[threads == 1]);
    bench_run(&row);
    row.reference_name = "peak of OpenBLAS";
    row.unit = "GFLOP/s";
    row.ours_amount = billions;
    row.reference_amount = peak_billions;
    row.ours = step_products;
    row.reference = peak;
    snprintf(name, sizeof name, "gpt2 products, %s, %d thread%s", size, threads,
             &"s"[threads == 1]);
    bench_run(&row);
}

// Any tokens do: no time depends on them.
static void make_data(struct data *data)
{
    for (size_t i = 0; i < TOKENS; i++)
        data->token[i] = (uint16_t)(i * i % 251);
    data->count = TOKENS;
}

static bool run(struct work *work, const struct size *size, int threads)
{
    char text[16], *words[WORDS + 2];
    struct reason reason = {0};
    const struct place place = {NULL, 1, 0};
    int count = 0;
    for (; count < size->count; count++)
        words[count] = (char *)(uintptr_t)size->words[count];
    snprintf(text, sizeof text, "%d", threads);
    words[count++] = (char *)(uintptr_t) "--threads";
    words[count++] = text;
    work->good = true;
    if (options_parse(&work->options, count, words, &reason) != REQUEST_TRAIN) {
        fprintf(stderr, "bench_gpt2: %s\n", reason.text);
        options_free(&work->options);
        return false;
    }
    if (trainer_open(&work->trainer, &work->options, &work->data, &place) == ZERO_OK &&
        allocate(work))
        rows(work, size->name);
    else
        work->good = false;
    if (!work->good)
        fprintf(stderr, "bench_gpt2: %s\n", trainer_failure(&work->trainer));
    release(work);
    return work->good;
}

int main(int argc, char **argv)
{
    (void)argc;
    blas_prepare(argv);
    char blas[128];
    struct work work = {.data = {.token = malloc(TOKENS * sizeof(uint16_t))}};
    const int most = base_cpu_allowed();
    bool good = work.data.token != NULL;
    if (good)
        make_data(&work.data);
    blas_describe(blas, sizeof blas);
    printf("%s\n", blas);
    bench_print_header();
    for (size_t i = 0; good && i < sizeof sizes / sizeof sizes[0]; i++) {
        good = run(&work, &sizes[i], 1);
        if (good && most > 1)
            good = run(&work, &sizes[i], most);
    }
    free(work.data.token);
    return good ? 0 : 1;
}
