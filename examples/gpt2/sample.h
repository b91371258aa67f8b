/**
 * sample.h: text from the model.
 */
#ifndef GPT2_SAMPLE_H
#define GPT2_SAMPLE_H

#include "gpt2_trainer.h"

/**
 * Generates options->sample tokens and prints them on rank 0: as text where tokens are bytes, else
 * as numbers. *Collective*: every rank generates the same. A local failure aborts the job.
 */
zero_result sample_print(struct trainer *trainer);

#endif
