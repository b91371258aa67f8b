/**
 * data.h: the tokens to train on, and which of them make a sample.
 */
#ifndef GPT2_DATA_H
#define GPT2_DATA_H

#include "reason.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** All tokens, in the order of the files. */
struct data {
    uint16_t *token;
    size_t count;
    size_t room;
    size_t files;
    size_t held;            /**< tokens behind these that are kept for evaluation */
    size_t binaries, zeros; /**< files of directories that were left out: .bin, with a zero byte */
};

/**
 * Reads files and directories (gpt2_options.c has the rules), at least context + 1 tokens, all
 * below vocab. false: refused, the reason names file and position; data_free() is still due.
 */
bool data_load(struct data *data, const char *const *paths, int count, int vocab, int context,
               struct reason *reason);

/** Keeps the last tenth of the tokens from training, for data_sample_held(). false: they are too
 * few to train on one window and evaluate on one. */
bool data_hold(struct data *data, int context, struct reason *reason);

/** Frees the tokens. */
void data_free(struct data *data);

/**
 * Sample k: `context` tokens, and their successors as targets. In sequence these are the windows of
 * the data one after the other, again and again; shuffled, a random order of them, another one each
 * time they have all been seen.
 */
void data_sample(const struct data *data, int context, bool shuffled, uint64_t seed, uint64_t k,
                 uint16_t *token, uint16_t *target);

/** Windows that were held back, */
size_t data_held(const struct data *data, int context);
/** and the k-th of them, in sequence, again and again. */
void data_sample_held(const struct data *data, int context, uint64_t k, uint16_t *token,
                      uint16_t *target);

#endif
