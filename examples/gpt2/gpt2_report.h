/**
 * gpt2_report.h: what is printed about a run; by rank 0 only.
 */
#ifndef GPT2_REPORT_H
#define GPT2_REPORT_H

#include "gpt2_trainer.h"

/** The line of a step. */
void report_step(const struct trainer *trainer, const struct step_report *step);

/** The line of an evaluation after step `step`. */
void report_evaluation(const struct trainer *trainer, uint64_t step, double loss);

/** The job stops after step `step`, which is not the last one, because it was asked to. */
void report_stop(const struct trainer *trainer, uint64_t step);

/** The line of a fingerprint after step `step`. *Collective.* */
zero_result report_fingerprint(struct trainer *trainer, uint64_t step);

/** After the last step: where the time went, and memory a rank. *Collective.* */
zero_result report_summary(struct trainer *trainer);

#endif
