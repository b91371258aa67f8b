/**
 * What the program registered: groups and tensors, before any layout.
 */
#ifndef ZERO_MODEL_REGISTRY_H
#define ZERO_MODEL_REGISTRY_H

#include "base/error.h"
#include "base/hash.h"
#include "zero/model/dtype.h"
#include "zero/optim/optim.h"
#include "zero/zero.h"

#include <stdbool.h>

/** An optimizer that the program brought. */
struct eng_own_optimizer {
    struct eng_optimizer optimizer;
    zero_optimizer_desc desc; /**< its name is a copy */
    struct eng_own_optimizer *next;
};

struct eng_group {
    char *name; /**< "group<n>" unless the program gave one */
    bool named; /**< it did */
    const struct eng_optimizer *optimizer;
    struct eng_choice choice;
    bool frozen; /**< at present; see zero_set_frozen() */
};

struct eng_param {
    char *name;
    uint64_t name_hash; /**< XXH3-64 of the name, seed 0; part of the fingerprint */
    uint64_t shape[ZERO_MAX_DIMS];
    int32_t ndim;
    zero_dtype dtype;
    zero_dtype grad_dtype;
    zero_unit unit;      /**< of slice 0; slice s belongs to unit + s */
    int32_t slice_count; /**< 1 unless stacked */
    size_t slice_numel;
    zero_group group;
    const void *data; /**< borrowed until commit */
    zero_fill_fn fill;
    void *fill_user;
    bool frozen;         /**< never updated */
    bool nonfinite;      /**< one of its first values is, which this rank has told */
    void *borrow, *grad; /**< the caller's buffers, or NULL; see zero_param_desc */
};

struct eng_model {
    int stage;        /**< decides which buffers can be the caller's */
    bool params_nvme; /**< working copies are none of them */
    bool borrows;     /**< some tensor's working copy is the caller's */
    struct eng_own_optimizer *own_optimizers;
    struct eng_group *groups;
    size_t group_count, group_capacity;
    struct eng_param *params;
    size_t param_count, param_capacity;
    size_t unit_count; /**< one more than the highest unit registered */
};

/** Checks and adds; see zero_add_optimizer(), zero_add_group() and zero_add_param(). Nothing is
 * changed on error. */
zero_result eng_model_add_optimizer(struct eng_model *model, const zero_optimizer_desc *desc,
                                    struct base_error *error);
zero_result eng_model_add_group(struct eng_model *model, zero_group *group,
                                const zero_group_desc *desc, struct base_error *error);
zero_result eng_model_add_param(struct eng_model *model, zero_param *param,
                                const zero_param_desc *desc, struct base_error *error);

/** What must hold before a layout can be made: at least one tensor, every unit has one; adds the
 * default group if there is none. ZERO_E_INVALID, ZERO_E_NOMEM. */
zero_result eng_model_complete(struct eng_model *model, struct base_error *error);

/** The tensor called `name`, -1 if there is none. */
zero_param eng_model_find(const struct eng_model *model, const char *name);

/** What a group's weight decay is called in files. */
const char *eng_decay_name(const struct eng_group *group);

/** Hash of everything about tensor p that ranks must agree on. */
uint64_t eng_model_param_hash(const struct eng_model *model, size_t p);

/** Elements of all tensors. */
uint64_t eng_model_elements(const struct eng_model *model);

/** Bytes of the caller's buffers: of working copies, and of gradients. */
void eng_model_borrowed(const struct eng_model *model, uint64_t *work, uint64_t *gradients);

/** Values of state that tensor p's optimizer keeps for an element. */
int eng_model_moments(const struct eng_model *model, size_t p);

void eng_model_free(struct eng_model *model);

#endif
