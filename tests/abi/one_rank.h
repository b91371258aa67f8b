/**
 * tests/abi/one_rank.h: a job of one rank with the smallest model there is, through public calls.
 * To be included behind cmocka.h.
 */
#ifndef TESTS_ABI_ONE_RANK_H
#define TESTS_ABI_ONE_RANK_H

#include <zero/optimizer.h>
#include <zero/zero.h>

static inline zero_config one_rank(void)
{
    zero_config config = zero_config_default();
    config.world = 1;
    config.log_level = ZERO_OFF;
    return config;
}

static inline zero_ctx *one_rank_open(void)
{
    const zero_config config = one_rank();
    zero_ctx *z = NULL;
    assert_int_equal(zero_open(&z, &config), ZERO_OK);
    return z;
}

/** One tensor, of the group that is there or the default one. */
static inline void one_rank_commit(zero_ctx *z)
{
    zero_param_desc param = zero_param_default();
    param.name = "w";
    param.ndim = 1;
    param.shape[0] = 5;
    assert_int_equal(zero_add_param(z, NULL, &param), ZERO_OK);
    assert_int_equal(zero_commit(z), ZERO_OK);
}

static inline zero_ctx *one_rank_committed(void)
{
    zero_ctx *z = one_rank_open();
    one_rank_commit(z);
    return z;
}

/** For an optimizer that has nothing to prepare. */
static inline void one_rank_prepare(void *user, const zero_hyper *hyper, uint64_t updates,
                                    double gradient_scale, void *scalars)
{
    (void)user;
    (void)hyper;
    (void)updates;
    (void)gradient_scale;
    (void)scalars;
}

#endif
