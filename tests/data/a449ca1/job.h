/**
 * tests/data/a449ca1/job.h: two small jobs whose checkpoints, recovery points and safetensors files
 * are kept as test data. The program that made the data (make.c) and the test that reads them
 * (tests/numerics/old_files.c) train the same model by this code.
 *
 * It calls the public interface only, and only what commit a449ca1 had. The gradient of an element
 * is a formula of (weight, step, micro-batch, element), in single fp32 operations: every compiler
 * gives the same bits.
 */
#ifndef TESTS_DATA_A449CA1_JOB_H
#define TESTS_DATA_A449CA1_JOB_H

#include <zero/zero.h>

#include <stdbool.h>
#include <stdint.h>

/** What of a job was kept: its checkpoint, its recovery point, and how far it went on. */
enum { OLD_SAVED_STEP = 3, OLD_RECORDED_STEP = 5, OLD_LAST_STEP = 8 };

enum old_kind {
    /** AdamW in two groups, bf16 working copies, a dynamic loss scale with one skipped step; two
     * ranks, stage 2, tiles as they are. */
    OLD_ADAMW,
    /** SGD with Nesterov's momentum, Lion and AdaGrad, a frozen tensor, blocks of two
     * micro-batches, gradients that travel in bf16, a fixed loss scale; three ranks, stage 1,
     * compressed tiles. */
    OLD_OTHERS,
    OLD_KINDS
};

/** What is attached: a blob of all ranks, and one of each rank. */
struct old_blobs {
    uint64_t position[3];
    uint64_t random[2];
};

extern const char *const old_names[OLD_KINDS];

/** Ranks of the job whose files were kept. */
int old_world(enum old_kind kind);

/** A configuration of the numerics, the name, and the stage that the job had. */
void old_configure(enum old_kind kind, zero_config *config);

/** State in files of `directory`, as the job had it. */
void old_offload(enum old_kind kind, zero_config *config, const char *directory);

/** Registers groups, tensors and blobs, and commits. `blobs` lives until zero_close(). With
 * `other_values` the first values are not those of the job: what is not read from a file shows. */
zero_result old_commit(zero_ctx *z, enum old_kind kind, bool other_values, struct old_blobs *blobs);

/** Steps `from` to `to` - 1. */
zero_result old_train(zero_ctx *z, enum old_kind kind, struct old_blobs *blobs, uint64_t from,
                      uint64_t to);

/** Whether the blobs are what they were after so many steps; that of a rank if `ranks` is set. */
bool old_blobs_are(const struct old_blobs *blobs, uint64_t step, int rank, bool ranks);

/** The fingerprint in hexadecimal digits. */
zero_result old_fingerprint(zero_ctx *z, char text[33]);

#endif
