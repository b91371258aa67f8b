/**
 * recovery.h: where a run begins, the checkpoints that it leaves, and when it has to stop.
 */
#ifndef GPT2_RECOVERY_H
#define GPT2_RECOVERY_H

#include "gpt2_trainer.h"

/** The weights to begin with: those of a checkpoint, of a file, or random ones. *step: how many
 * steps they have behind them. *Collective.* */
zero_result recovery_begin(struct trainer *trainer, uint64_t *step);

/** After a step: begins a checkpoint if one is due, or the job is to stop. *Collective.* */
zero_result recovery_step(struct trainer *trainer, uint64_t step);

/** After the last step: waits for the last checkpoint, and says where it is. *Collective.* */
zero_result recovery_end(struct trainer *trainer);

#endif
