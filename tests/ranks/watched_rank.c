// One rank of the synthetic model's training, to be watched by zero-run:
//
//     watched_rank train <steps> <ms>    takes that long in each step
//     watched_rank listen <steps> <ms>   the same, and says after which step it is told to stop
//     watched_rank exits <steps> <ms>    the same, and exits with ZERO_EXIT_STOPPED then
//     watched_rank early <steps> <ms>    the same, and listens a while before it opens a context
//     watched_rank evaluate <n> <ms>     one step, then an evaluation of n micro-batches a rank
//     watched_rank first <n> <ms>        the evaluation without a step before it
//     watched_rank own <steps>           the same, and the last rank asks for it in the third one
//     watched_rank deaf <steps> <ms>     asks whether it is to stop, and goes on
//     watched_rank again <steps>         in its first start, rank 1 is killed in the middle
//     watched_rank late <steps>          rank 1 does not come any more after them
//     watched_rank gone <steps>          rank 1 leaves with 0 after them
//     watched_rank killed <steps>        rank 1 is killed behind them, in a micro-batch, with so
//                                        much memory that the others are gone before it
#include "tests/numerics/synthetic.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TOKENS = 256, MUCH = 256 << 20 };

static const struct synthetic model = {.dtype = ZERO_F32, .micro_batches = 6, .tied = true};

static int failed(const zero_ctx *z, const char *call)
{
    fprintf(stderr, "watched_rank: %s: %s\n", call, zero_last_error(z));
    return 7;
}

static zero_result step(zero_ctx *z, uint64_t number)
{
    zero_hyper hyper[SYNTHETIC_GROUPS];
    zero_step_args args = zero_step_args_default();
    zero_result result = ZERO_OK;
    synthetic_hyper(&model, number, hyper);
    args.group_count = SYNTHETIC_GROUPS;
    args.hyper = hyper;
    args.scale = 1.0 / model.micro_batches;
    for (int32_t i = 0; i < zero_micro_count(z) && result == ZERO_OK; i++) {
        result = synthetic_micro(z, &model, i);
        if (result == ZERO_OK)
            result = zero_metric(z, "tokens", TOKENS);
    }
    return result == ZERO_OK ? zero_step(z, &args, NULL) : result;
}

/** Whether the job is to stop, for programs that want to know. */
static bool asks(zero_ctx *z, const char *how, uint64_t number)
{
    const bool own = !strcmp(how, "own"), early = !strcmp(how, "early");
    const bool listens = own || early || !strcmp(how, "listen") || !strcmp(how, "exits");
    if (!listens && strcmp(how, "deaf") != 0)
        return false;
    if (own && number == 2 && zero_rank(z) == zero_world(z) - 1)
        zero_request_stop(z);
    const bool requested = zero_stop_requested(z);
    if (number == 1 && zero_rank(z) == 0 && !early)
        printf("listening\n");
    if (!requested || !listens)
        return false;
    printf("stopped after %llu\n", (unsigned long long)number);
    return true;
}

/** An evaluation that is left when the job is to stop; it has more to do then. */
static int evaluate(zero_ctx *z, const char *how, int micro_batches, unsigned ms)
{
    const bool first = !strcmp(how, "first");
    if (synthetic_commit(z, &model) != ZERO_OK || (!first && step(z, 0) != ZERO_OK) ||
        zero_stop_requested(z) || zero_eval_begin(z, micro_batches * zero_world(z)) != ZERO_OK)
        return failed(z, "zero_eval_begin");
    int i = 0;
    for (; i < micro_batches && !zero_stop_requested(z); i++) {
        if (zero_micro_begin(z, i, NULL) != ZERO_OK || zero_metric(z, "loss", i) != ZERO_OK)
            return failed(z, "zero_micro_begin");
        if (i == 0 && zero_rank(z) == 0)
            printf("listening\n");
        usleep(1000 * ms);
    }
    if (zero_eval_end(z) != ZERO_AGAIN)
        return failed(z, "zero_eval_end");
    printf("left after %d\nstopped after %d\n", i, !first);
    return ZERO_EXIT_STOPPED;
}

static int train(zero_ctx *z, const char *how, uint64_t steps, unsigned ms)
{
    zero_micro micro = {.struct_size = sizeof micro};
    if (synthetic_commit(z, &model) != ZERO_OK)
        return failed(z, "commit");
    asks(z, how, 0); // so that every rank listens when the first step ends
    for (uint64_t number = 0; number < steps; number++) {
        if (step(z, number) != ZERO_OK)
            return failed(z, "step");
        usleep(1000 * ms);
        if (!strcmp(how, "again") && !zero_restarts(z) && zero_rank(z) == 1 && number == steps / 2)
            raise(SIGKILL);
        if (asks(z, how, number + 1))
            return strcmp(how, "exits") ? 0 : ZERO_EXIT_STOPPED;
    }
    if (!strcmp(how, "late") && zero_rank(z) == 1)
        pause();
    if (!strcmp(how, "aborts") && zero_rank(z) == 1) {
        zero_abort(z, "my reason\n");
        return 9;
    }
    if (!strcmp(how, "gone") && zero_rank(z) == 1)
        _exit(0);
    if (!strcmp(how, "killed") && zero_rank(z) == 1) {
        if (zero_micro_begin(z, 0, &micro) != ZERO_OK || zero_gather(z, 0, NULL) != ZERO_OK)
            return failed(z, "zero_gather");
        if (mmap(NULL, MUCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
                 0) == MAP_FAILED)
            return 3;
        raise(SIGKILL);
    }
    if (!strcmp(how, "late") || !strcmp(how, "aborts") || !strcmp(how, "gone") ||
        !strcmp(how, "killed"))
        return step(z, steps) == ZERO_OK ? 0 : failed(z, "step");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const unsigned ms = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    if (!strcmp(argv[1], "early")) {
        if (zero_stop_on_signals(NULL) != ZERO_OK)
            return failed(NULL, "zero_stop_on_signals");
        printf("listening\n");
        usleep(1000 * ms);
    }
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.stage = 3;
    config.micro_batches = model.micro_batches;
    if (zero_open(&z, &config) != ZERO_OK)
        return failed(NULL, "zero_open");
    const unsigned long steps = strtoul(argv[2], NULL, 10);
    const bool evaluates = !strcmp(argv[1], "evaluate") || !strcmp(argv[1], "first");
    const int code = evaluates                   ? evaluate(z, argv[1], (int)steps, ms)
                     : !strcmp(argv[1], "early") ? train(z, "early", steps, 1)
                                                 : train(z, argv[1], steps, ms);
    zero_close(z);
    return code;
}
