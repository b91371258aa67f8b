/**
 * base/kernels/sum_table.h: the functions of a table of sum.h, and the table, for a file that has
 * defined sum_pass(), which does a pass over such numbers, copy(), and TABLE, the table's name.
 */
#ifndef BASE_KERNELS_SUM_TABLE_H
#define BASE_KERNELS_SUM_TABLE_H

static bool sum_f32(const struct base_pass *pass)
{
    return sum_pass(pass, &of_f32);
}

static bool sum_bf16(const struct base_pass *pass)
{
    return sum_pass(pass, &of_bf16);
}

static bool sum_f16(const struct base_pass *pass)
{
    return sum_pass(pass, &of_f16);
}

static bool sum_f64(const struct base_pass *pass)
{
    return sum_pass(pass, &of_f64);
}

static bool sum_i32(const struct base_pass *pass)
{
    return sum_pass(pass, &of_i32);
}

static bool sum_i64(const struct base_pass *pass)
{
    return sum_pass(pass, &of_i64);
}

const struct base_sum_kernels TABLE = {
    .size = sizeof(struct base_sum_kernels),
    .name = ISA_NAME,
    .sum = {[ZERO_F32] = sum_f32,
            [ZERO_BF16] = sum_bf16,
            [ZERO_F16] = sum_f16,
            [ZERO_F64] = sum_f64,
            [ZERO_I32] = sum_i32,
            [ZERO_I64] = sum_i64},
    .copy = copy,
};

#endif
