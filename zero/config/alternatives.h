/**
 * zero/config/alternatives.h: what else a job could be configured as, where memory is too little.
 */
#ifndef ZERO_CONFIG_ALTERNATIVES_H
#define ZERO_CONFIG_ALTERNATIVES_H

#include "zero/config/config.h"

/** A setting that may need less memory. */
struct eng_alternative {
    char setting[32];             /**< what a user sets: "stage=2" */
    struct eng_config configs[2]; /**< what ranks may then decide for */
    int count;                    /**< of these */
};

/** Tells alternative `index` of a job with this model, from 0, the mildest: it may need less memory
 * of the host, or of a GPU, on which the program computes. False: there are no more. *Local.* */
bool eng_config_alternative(const struct eng_config *config, const struct eng_model *model,
                            bool of_gpu, int index, struct eng_alternative *alternative);

#endif
