// gpt2 --device cuda as a whole, beside the CPU: loss curves side by side, the same bits in every
// run, with --recompute and at every stage, and what it refuses. With the driver and the cuBLAS
// that stand in for NVIDIA's, or on a GPU. Arguments: the program, a file to train on, and, with
// the stand-ins, a folder in which the driver is none.
#include "tests/numerics/gpt2_command.h"
#include "tests/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77, STEPS = 4 };

// Windows of two tiles of attention, a vocabulary that no pack divides, batches of two
// micro-batches.
static const char model[] = "--layers 2 --heads 1 --width 64 --context 70 --vocab 131 --batch 1 "
                            "--micro-batches 2 --steps 4 --warmup 1 --lr 1e-3 --eval 4 --sample 3";

static const char *program, *data, *no_driver;

static int run_gpt2(char *output, const char *options)
{
    return command_run(output, "'%s' %s --data '%s' %s", program, model, data, options);
}

struct curve {
    double loss[STEPS], norm[STEPS], evaluated;
};

static struct curve curve_of(const char *options)
{
    static char output[COMMAND_OUTPUT_BYTES];
    struct curve curve = {.evaluated = NAN};
    assert_int_equal(run_gpt2(output, options), 0);
    for (int n = 0; n < STEPS; n++) {
        char begin[32];
        snprintf(begin, sizeof begin, "\nstep %d ", n + 1);
        const char *line = strstr(output, begin);
        assert_non_null(line);
        assert_int_equal(
            sscanf(line + strlen(begin), "loss %lf norm %lf", &curve.loss[n], &curve.norm[n]), 2);
    }
    const char *line = strstr(output, "\nevaluation step 4 ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "\nevaluation step 4 loss %lf", &curve.evaluated), 1);
    return curve;
}

// The fingerprint of two steps on the GPU.
static void fingerprint_of(char digest[33], const char *more)
{
    static char output[COMMAND_OUTPUT_BYTES];
    char options[128];
    snprintf(options, sizeof options, "--device cuda --dtype bf16 --steps 2 --eval 0 --sample 0 %s",
             more);
    assert_int_equal(run_gpt2(output, options), 0);
    const char *line = strstr(output, "\nfingerprint step 2 ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "\nfingerprint step 2 %32s", digest), 1);
}

static void expect_same_bits(const char *const *runs, size_t count)
{
    static char digest[33];
    char other[33];
    if (!*digest)
        fingerprint_of(digest, "");
    for (size_t i = 0; i < count; i++)
        if (test_takes((int)i)) {
            fingerprint_of(other, runs[i]);
            assert_string_equal(other, digest);
        }
}

static void compare(const char *cpu_options, const char *cuda_options, double tolerance)
{
    const struct curve cpu = curve_of(cpu_options), cuda = curve_of(cuda_options);
    for (int n = 0; n < STEPS; n++) {
        assert_true(fabs(cpu.loss[n] - cuda.loss[n]) <= tolerance * cpu.loss[n]);
        assert_true(fabs(cpu.norm[n] - cuda.norm[n]) <= 4 * tolerance * cpu.norm[n]);
    }
    assert_true(fabs(cpu.evaluated - cuda.evaluated) <= tolerance * cpu.evaluated);
}

static void test_beside_cpu(void **state)
{
    (void)state;
    compare("--device cpu --dtype f32", "--device cuda --dtype f32", 2e-5);
    compare("--device cpu --dtype bf16", "--device cuda --dtype bf16", 2e-3);
}

static void test_same_bits(void **state)
{
    (void)state;
    static const char *const runs[] = {"", "--recompute --stage 1", "--stage 3",
                                       "--stage 3 --recompute"};
    expect_same_bits(runs, sizeof runs / sizeof *runs);
}

// Each has a GPU of its own, and there is no NCCL here.
static void test_ranks(void **state)
{
    (void)state;
    setenv("ZERO_DEVICE_TRANSPORT", "host", 1);
    static const char *const runs[] = {"--ranks 2 --stage 1", "--ranks 2 --stage 3 --recompute"};
    expect_same_bits(runs, sizeof runs / sizeof *runs);
    unsetenv("ZERO_DEVICE_TRANSPORT");
}

static void expect_refused(const char *options, int code, const char *words)
{
    static char output[COMMAND_OUTPUT_BYTES];
    assert_int_equal(run_gpt2(output, options), code);
    if (!strstr(output, words))
        fail_msg("'%s' is not in: %s", words, output);
}

static void test_refused(void **state)
{
    (void)state;
    expect_refused("--device cuda --dtype f16", 2, "computes with --dtype f32 or bf16");
    expect_refused("--device gpu", 2, "'gpu' is none of cpu|cuda");
    expect_refused("--device cuda --width 20", 1, "--width 20 is not a multiple of 8");
    expect_refused("--device cuda --width 264", 1, "a head of 264 elements is wider than 256");
    setenv("ZERO_DEVICE", "cpu", 1);
    expect_refused("--device cuda", 78, "zero was told otherwise: device=cpu");
    unsetenv("ZERO_DEVICE");
}

// What cuBLAS has no way to do is done otherwise, and said.
static void test_apart(void **state)
{
    (void)state;
    static char output[COMMAND_OUTPUT_BYTES];
    const char *options = "--device cuda --dtype bf16 --steps 1";
    assert_int_equal(run_gpt2(output, options), 0);
    assert_null(strstr(output, "\nnote: "));
    setenv("CUBLASLT_DOUBLE_LACKS", "gelu", 1);
    assert_int_equal(run_gpt2(output, options), 0);
    unsetenv("CUBLASLT_DOUBLE_LACKS");
    assert_non_null(strstr(output, "\nnote: cuBLAS has no way here to join GELU"));
}

// What is not there is named, in a line.
static void test_missing(void **state)
{
    (void)state;
    static char output[COMMAND_OUTPUT_BYTES];
    const char *stand_ins = getenv("LD_LIBRARY_PATH");
    assert_non_null(stand_ins);
    char *path = strdup(stand_ins);
    setenv("LD_LIBRARY_PATH", no_driver, 1);
    const int code = run_gpt2(output, "--device cuda --steps 1");
    setenv("LD_LIBRARY_PATH", path, 1);
    free(path);
    assert_int_equal(code, 1);
    const char *reason = strstr(output, "no GPU driver here: ");
    assert_non_null(reason);
    assert_non_null(strstr(reason, "libcuda.so.1"));
}

static bool there_is_a_gpu(void)
{
    static char output[COMMAND_OUTPUT_BYTES];
    return run_gpt2(output, "--device cuda --steps 1") == 0 ||
           (!strstr(output, "no GPU driver here") && !strstr(output, "finds no GPU"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_cpu),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refused),
    };
    const struct CMUnitTest alone[] = {cmocka_unit_test(test_ranks), cmocka_unit_test(test_apart),
                                       cmocka_unit_test(test_missing)};
    if (argc < 3)
        return 1;
    program = argv[1];
    data = argv[2];
    no_driver = argv[3];
    if (!there_is_a_gpu()) {
        printf("skipped: there is no GPU here\n");
        return SKIPPED;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return no_driver ? failed + cmocka_run_group_tests(alone, NULL, NULL) : failed;
}
