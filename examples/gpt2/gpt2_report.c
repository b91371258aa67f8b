#include "gpt2_report.h"

#include "blas.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

void report_step(const struct trainer *trainer, const struct step_report *step)
{
    if (zero_rank(trainer->z) != 0)
        return;
    printf("step %" PRIu64 " loss %.6f norm %.6f lr %.3e tokens/s %.0f", step->step, step->loss,
           step->norm, step->lr, step->tokens_per_s);
    if (step->loss_scale != 1)
        printf(" loss-scale %.0f", step->loss_scale);
    printf("%s\n", step->skipped ? " skipped" : "");
}

void report_evaluation(const struct trainer *trainer, uint64_t step, double loss)
{
    if (zero_rank(trainer->z) == 0)
        printf("evaluation step %" PRIu64 " loss %.6f\n", step, loss);
}

void report_stop(const struct trainer *trainer, uint64_t step)
{
    if (zero_rank(trainer->z) == 0)
        printf("stopped on request after step %" PRIu64 "%s\n", step,
               trainer->options->checkpoint ? "" : ": nothing is saved without --checkpoint");
}

zero_result report_fingerprint(struct trainer *trainer, uint64_t step)
{
    uint8_t digest[16];
    const zero_result result = zero_fingerprint(trainer->z, digest);
    if (result || zero_rank(trainer->z) != 0)
        return result;
    printf("fingerprint step %" PRIu64 " ", step);
    for (size_t i = 0; i < sizeof digest; i++)
        printf("%02x", digest[i]);
    printf("\n");
    return ZERO_OK;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_time(const struct trainer *t)
{
    const struct step_time *s = &t->time;
    const double compute = t->train_s - s->gathers - s->reductions - s->updates - s->agreement;
    printf("time %.1f s: compute %.1f %%, waiting for gathers %.1f %%, for reductions %.1f %%, "
           "update %.1f %%, agreement %.1f %%\n",
           t->train_s, percent(compute, t->train_s), percent(s->gathers, t->train_s),
           percent(s->reductions, t->train_s), percent(s->updates, t->train_s),
           percent(s->agreement, t->train_s));
}

static void print_files(const zero_statistics *s)
{
    const struct {
        const char *what;
        uint64_t read, written;
    } files[] = {
        {"state", s->state_read_bytes, s->state_written_bytes},
        {"parameters", s->params_read_bytes, s->params_written_bytes},
        {"sums of gradients", s->sums_read_bytes, s->sums_written_bytes},
    };
    const char *separator = "files of this rank, MiB read and written: ";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i].written == 0)
            continue;
        printf("%s%s %.1f and %.1f", separator, files[i].what, (double)files[i].read / 1048576,
               (double)files[i].written / 1048576);
        separator = ", ";
    }
    if (s->state_written_bytes > 0)
        printf("; %" PRIu64 " transfers repeated\n", s->io_repeated);
}

static void print_products(const struct trainer *t)
{
    const struct step_time *s = &t->time;
    char blas[128];
    blas_describe(blas, sizeof blas);
    printf("matrix products: %.1f %% of the time at %.1f GFLOP/s a thread (%s)\n",
           percent(s->products, pool_threads(t->pool) * t->train_s),
           s->products > 0 ? s->operations / s->products / 1e9 : 0, blas);
}

static zero_result print_memory(const struct trainer *t, const zero_statistics *s)
{
    struct rusage usage;
    double memory[] = {(double)s->allocated_bytes,
                       (double)t->ops->bytes(t->compute) + (double)units_bytes(t->units), 0};
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        memory[2] = (double)usage.ru_maxrss * 1024;
    const zero_result result = zero_allreduce(t->z, memory, 3, ZERO_MAX);
    if (result == ZERO_OK && zero_rank(t->z) == 0)
        printf("memory a rank: zero %.1f MiB, activations %.1f MiB; peak of the process %.1f MiB\n",
               memory[0] / 1048576, memory[1] / 1048576, memory[2] / 1048576);
    return result;
}

zero_result report_summary(struct trainer *trainer)
{
    zero_statistics statistics = {.struct_size = sizeof statistics};
    const zero_result result = zero_stats(trainer->z, &statistics);
    if (result)
        return result;
    if (zero_rank(trainer->z) == 0) {
        print_time(trainer);
        print_files(&statistics);
        if (trainer->options->device == DEVICE_CPU)
            print_products(trainer);
        const char *notes = trainer->ops->notes ? trainer->ops->notes(trainer->compute) : NULL;
        if (notes)
            printf("note: %s\n", notes);
    }
    return print_memory(trainer, &statistics);
}
