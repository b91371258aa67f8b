// One rank of a job that saves after every other step and goes on from what is there:
//
//     saving_rank <directory> <ms> [<fault>]
//
// Each step takes that long. Rank 0 has the fault (base/fault.h) once training begins; "fails" ends
// it in the fourth step, "waits" has all ranks wait there, with what they have saved acknowledged,
// until there is <directory>.go. What has been acknowledged is in <directory>.acknowledged, and the
// ranks' numbers are in <directory>.<rank>. Told to stop, it saves and ends with 0. At the end the
// state is that of a run that nothing has interrupted, or it ends with 3.
#include "base/fault.h"
#include "tests/numerics/synthetic_matrix.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPTIMIZER = 0, PRECISION = 1, EVERY = 2, FAILED = 9, ANOTHER_STATE = 3 };

static int failed(const zero_ctx *z, const char *call)
{
    fprintf(stderr, "saving_rank: %s: %s\n", call, zero_last_error(z));
    return FAILED;
}

static bool write_number(const char *directory, const char *name, unsigned long long number)
{
    char path[512];
    snprintf(path, sizeof path, "%s.%s", directory, name);
    FILE *file = fopen(path, "w");
    const bool written = file && fprintf(file, "%llu\n", number) > 0;
    return file && fclose(file) == 0 && written;
}

static bool acknowledge(zero_ctx *z, const char *directory)
{
    zero_save_info info = {.struct_size = sizeof info};
    return zero_rank(z) != 0 || zero_save_poll(z, &info) != ZERO_OK ||
           info.phase != ZERO_SAVE_COMPLETE || write_number(directory, "acknowledged", info.step);
}

static bool wait_for_sign(zero_ctx *z, const char *directory)
{
    char path[512];
    snprintf(path, sizeof path, "%s.go", directory);
    const bool saved = zero_save_wait(z) == ZERO_OK && acknowledge(z, directory);
    while (saved && access(path, F_OK) != 0)
        usleep(1000);
    return saved;
}

static int finish(zero_ctx *z)
{
    uint8_t digest[16];
    char text[33];
    if (zero_save_wait(z) != ZERO_OK || zero_fingerprint(z, digest) != ZERO_OK)
        return failed(z, "the end");
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(text, matrix_golden(OPTIMIZER, PRECISION, MATRIX_CLIPPED)) != 0)
        return ANOTHER_STATE;
    if (zero_rank(z) == 0)
        printf("as written\n");
    return 0;
}

static int train(zero_ctx *z, const char *directory, unsigned ms, const char *fault)
{
    const struct synthetic model = matrix_model(OPTIMIZER, PRECISION, MATRIX_CLIPPED);
    const zero_save_options options = {.struct_size = sizeof options, .keep = 2};
    zero_load_result loaded = {.struct_size = sizeof loaded};
    const bool fails = fault && strcmp(fault, "fails") == 0;
    const bool waits = fault && strcmp(fault, "waits") == 0;
    if (synthetic_commit(z, &model) != ZERO_OK)
        return failed(z, "commit");
    const zero_result r = zero_resume(z, directory, NULL, &loaded);
    if (r != ZERO_OK && r != ZERO_NOT_FOUND)
        return failed(z, "zero_resume");
    if (zero_rank(z) == 0)
        printf("resumed %llu, %d damaged\n", (unsigned long long)loaded.step, loaded.damaged);
    if (fault && !fails && !waits && zero_rank(z) == 0 && base_fault_set(fault, NULL) != ZERO_OK)
        return 2;
    for (uint64_t step = loaded.step; step < MATRIX_STEPS; step++) {
        if (synthetic_step(z, &model, step) != ZERO_OK || !acknowledge(z, directory))
            return failed(z, "a step");
        usleep(1000 * ms);
        if (step == 3 && (fails || (waits && !wait_for_sign(z, directory))))
            return FAILED;
        const bool stops = zero_stop_requested(z);
        if ((stops || step % EVERY == 0) && zero_save(z, directory, &options) != ZERO_OK)
            return failed(z, "zero_save");
        if (stops)
            return zero_save_wait(z) == ZERO_OK && acknowledge(z, directory) ? 0 : FAILED;
    }
    return finish(z);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const struct synthetic model = matrix_model(OPTIMIZER, PRECISION, MATRIX_CLIPPED);
    setvbuf(stdout, NULL, _IOLBF, 0);
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.stage = 2;
    synthetic_configure(&model, &config);
    if (zero_open(&z, &config) != ZERO_OK)
        return failed(NULL, "zero_open");
    const char *rank = zero_rank(z) == 0 ? "0" : "1";
    const int code =
        write_number(argv[1], rank, (unsigned long long)getpid())
            ? train(z, argv[1], (unsigned)strtoul(argv[2], NULL, 10), argc > 3 ? argv[3] : NULL)
            : 2;
    zero_close(z);
    return code;
}
