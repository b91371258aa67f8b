#include "blas.h"

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// Weak: another BLAS has none of these, and links all the same.
extern void openblas_set_num_threads(int threads) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
extern void bli_thread_set_num_threads(int64_t threads) __attribute__((weak));

#ifdef __x86_64__
// The kernels this CPU can run, by OpenBLAS's name, or NULL where its choice can't be bettered.
static const char *better_core(void)
{
    if (!openblas_get_corename)
        return NULL;
    const char *core = openblas_get_corename();
    const bool fallback = strcmp(core, "Prescott") == 0 || strcmp(core, "Barcelona") == 0;
    if (!fallback)
        return NULL;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "HASWELL";
    return NULL;
}
#else
static const char *better_core(void)
{
    return NULL;
}
#endif

// Returns where it can't; then the slow kernels must do.
static void start_anew(char **argv)
{
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0) {
        path[length] = '\0';
        execv(path, argv);
    }
}

void blas_prepare(char **argv)
{
    const char *core = better_core();
    if (core && !getenv("OPENBLAS_CORETYPE")) {
        setenv("OPENBLAS_CORETYPE", core, 1);
        setenv("OPENBLAS_NUM_THREADS", "1", 1); // it need not even make the others
        start_anew(argv);
    }
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    if (bli_thread_set_num_threads)
        bli_thread_set_num_threads(1);
}

void blas_describe(char *text, size_t size)
{
    char name[32] = "the system's BLAS", version[32] = "";
    if (openblas_get_config)
        sscanf(openblas_get_config(), "%31s %31s", name, version);
    snprintf(text, size, "%s %s %s", name, version,
             openblas_get_corename ? openblas_get_corename() : "");
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void blas_gemm(struct pool_meter *meter, int m, int n, int k, real alpha, struct matrix a,
               struct matrix b, real beta, real *c, int c_stride)
{
    const CBLAS_TRANSPOSE trans_a = a.transposed ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE trans_b = b.transposed ? CblasTrans : CblasNoTrans;
    const double start = seconds_now();
#ifdef GPT2_DOUBLE
    cblas_dgemm(CblasRowMajor, trans_a, trans_b, m, n, k, alpha, a.data, a.stride, b.data, b.stride,
                beta, c, c_stride);
#else
    cblas_sgemm(CblasRowMajor, trans_a, trans_b, m, n, k, alpha, a.data, a.stride, b.data, b.stride,
                beta, c, c_stride);
#endif
    meter->seconds += seconds_now() - start;
    meter->operations += 2.0 * m * n * k;
}
