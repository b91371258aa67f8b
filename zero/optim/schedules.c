#include <zero/zero.h>

#include <math.h>

// lr * n / warmup while n <= warmup, exactly lr at the end; returns 0 when the warm-up is over.
static int warms_up(uint64_t n, double lr, uint64_t warmup, double *value)
{
    if (n > warmup || warmup == 0)
        return 0;
    *value = lr * ((double)n / (double)warmup);
    return 1;
}

// How far step n is on the way from the end of the warm-up (0) to `total` (1).
static double progress(uint64_t n, uint64_t warmup, uint64_t total)
{
    if (n >= total)
        return 1;
    return (double)(n - warmup) / (double)(total - warmup);
}

double zero_schedule_constant(uint64_t n, double lr, uint64_t warmup)
{
    double value;
    return warms_up(n, lr, warmup, &value) ? value : lr;
}

double zero_schedule_linear(uint64_t n, double lr, uint64_t warmup, uint64_t total, double min_lr)
{
    double value;
    if (warms_up(n, lr, warmup, &value))
        return value;
    const double p = progress(n, warmup, total);
    return p < 1 ? lr + (min_lr - lr) * p : min_lr;
}

double zero_schedule_cosine(uint64_t n, double lr, uint64_t warmup, uint64_t total, double min_lr)
{
    double value;
    if (warms_up(n, lr, warmup, &value))
        return value;
    const double pi = 3.14159265358979323846;
    const double p = progress(n, warmup, total);
    return p < 1 ? min_lr + (lr - min_lr) * 0.5 * (1 + cos(pi * p)) : min_lr;
}

double zero_schedule_scaled(double base_lr, uint64_t batch, uint64_t base_batch)
{
    return base_lr * (double)batch / (double)base_batch;
}
