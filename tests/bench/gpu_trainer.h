/**
 * tests/bench/gpu_trainer.h: gpt2's trainer on a GPU, as benchmarks have it: GPT-2 124M, bf16, at
 * context 1024, with tokens drawn by chance. What fails ends the program: with 77 where there is no
 * GPU.
 */
#ifndef TESTS_BENCH_GPU_TRAINER_H
#define TESTS_BENCH_GPU_TRAINER_H

#include "gpt2_trainer.h"

struct gpu_trainer {
    struct options options;
    struct data data;
    struct trainer trainer;
};

/** Ends the program with the message unless the result is ZERO_OK. */
void gpu_must(zero_result result, const char *message);

/** Zeroed memory of the host. */
void *gpu_room(size_t count, size_t size);

/** Sequences a micro-batch, and the stage; then more options of gpt2, which hold instead: not those
 * of another number of micro-batches than one, nor of another type than bf16. */
void gpu_trainer_open(struct gpu_trainer *g, const char *batch, const char *stage, int more,
                      char **options);
void gpu_trainer_close(struct gpu_trainer *g);

/** A step's tokens. */
int gpu_trainer_tokens(const struct gpu_trainer *g);

/** So many steps, one after the other; waits until the last one's update is done, too. */
void gpu_trainer_steps(struct gpu_trainer *g, int steps);

/** Waits for what is queued on the stream that the layers are computed on. */
void gpu_trainer_wait(const struct gpu_trainer *g);

#endif
