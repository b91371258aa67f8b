// One rank of the synthetic model's training, of a job that may lose ranks and hosts:
//
//     far_rank <directory> <stage> <ms> [<rank> <step>]
//
// Each step takes so many milliseconds more. It saves after every other step, goes on from what is
// in the directory, and ignores SIGTERM, so that it says itself what it has been told of a failure:
//
//     resumed <step>                                  rank 0
//     rank <rank> in step <step>, process <pid>       each rank, once it has finished five steps
//     rank <rank> failed, <result> at <ns>: <text>    by the monotonic clock, when the call
//     returned as undisturbed                                  rank 0: the fingerprint is the one
//     written down
//
// In its first start rank <rank> is killed before <step>. Exit codes: 9, it has failed; 3, its
// state is another one.
#include "base/clock.h"
#include "tests/numerics/synthetic.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVERY = 2, SAID = 4, FAILED = 9, ANOTHER_STATE = 3 };

static const struct synthetic model = {.dtype = ZERO_F32, .micro_batches = 5, .tied = true};

static int failed(const zero_ctx *z, zero_result result)
{
    const uint64_t now = base_clock_ns();
    printf("rank %d failed, %d at %" PRIu64 ": %s\n", z ? zero_rank(z) : -1, result, now,
           zero_last_error(z));
    return FAILED;
}

static int finish(zero_ctx *z)
{
    uint8_t digest[16];
    char text[33];
    zero_result r = zero_save_wait(z);
    if (!r)
        r = zero_fingerprint(z, digest);
    if (r)
        return failed(z, r);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(text, synthetic_golden(&model)) != 0)
        return ANOTHER_STATE;
    if (zero_rank(z) == 0)
        printf("as undisturbed\n");
    return 0;
}

struct wishes {
    const char *directory;
    unsigned ms;
    int victim, last; /**< this rank is killed before that step; -1: none is */
};

static int train(zero_ctx *z, const struct wishes *wishes)
{
    const zero_save_options options = {.struct_size = sizeof options, .keep = 2};
    zero_load_result loaded = {.struct_size = sizeof loaded};
    zero_result r = synthetic_commit(z, &model);
    if (!r)
        r = zero_resume(z, wishes->directory, NULL, &loaded);
    if (r && r != ZERO_NOT_FOUND)
        return failed(z, r);
    if (zero_rank(z) == 0)
        printf("resumed %" PRIu64 "\n", loaded.step);
    for (uint64_t step = loaded.step; step < SYNTHETIC_STEPS; step++) {
        if (zero_rank(z) == wishes->victim && (int)step == wishes->last && !zero_restarts(z))
            kill(getpid(), SIGKILL);
        r = synthetic_step(z, &model, step);
        if (!r && step == loaded.step + SAID)
            printf("rank %d in step %" PRIu64 ", process %d\n", zero_rank(z), step, (int)getpid());
        if (!r && step % EVERY == 0)
            r = zero_save(z, wishes->directory, &options);
        if (r)
            return failed(z, r);
        if (zero_rank(z) == zero_world(z) - 1)
            usleep(1000 * wishes->ms);
    }
    return finish(z);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const struct wishes wishes = {.directory = argv[1],
                                  .ms = (unsigned)strtoul(argv[3], NULL, 10),
                                  .victim = argc > 5 ? (int)strtol(argv[4], NULL, 10) : -1,
                                  .last = argc > 5 ? (int)strtol(argv[5], NULL, 10) : -1};
    signal(SIGTERM, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.stage = (int32_t)strtol(argv[2], NULL, 10);
    synthetic_configure(&model, &config);
    const zero_result r = zero_open(&z, &config);
    const int code = r ? failed(NULL, r) : train(z, &wishes);
    zero_close(z);
    return code;
}
