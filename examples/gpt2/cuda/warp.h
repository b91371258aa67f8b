/**
 * cuda/warp.h: what threads of a block do together. Here for a GPU; a test that compiles the
 * kernels for the processor brings functions of its own by these names.
 */
#ifndef GPT2_CUDA_WARP_H
#define GPT2_CUDA_WARP_H

#ifdef __CUDACC__

#include <stdint.h>

#define WARP_CALL static __device__ __forceinline__

/** Waits for the block's threads. */
WARP_CALL void block_sync(void)
{
    __syncthreads();
}

/** The x of the warp's thread whose number differs from this one's by `mask`, bit by bit. */
WARP_CALL float shuffle_xor(float x, int mask)
{
    return __shfl_xor_sync(0xffffffff, x, mask);
}

/** 2^x, with an error of two units in the last place; results below 2^-126 are 0. */
WARP_CALL float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** bf16 to nearest even: `low` in the lower half. */
WARP_CALL uint32_t pack_bf16(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/**
 * c (16 x 8) += a (16 x 16) b (16 x 8), bf16 with fp32 sums. With g = lane / 4 and t = lane % 4
 * a thread holds
 *     c[0..1]: row g,   columns 2t, 2t+1       a[0]: row g,   k = 2t, 2t+1       b[0]: k = 2t, 2t+1
 *     c[2..3]: row g+8, the same               a[1]: row g+8, the same                 column g
 *                                              a[2], a[3]: the same, k + 8       b[1]: k + 8
 */
WARP_CALL void multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/** Four 8 x 8 matrices of bf16 in shared memory: lane 8i + j has the address of row j of matrix i.
 * r[i]: row lane / 4, columns 2 (lane % 4) and the next, of matrix i. */
WARP_CALL void load_matrices(uint32_t r[4], const void *row)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/** Loads four fragments, each transposed. */
WARP_CALL void load_transposed(uint32_t r[4], const void *row)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/** Begins to copy 16 bytes to shared memory: zeros unless `there`. */
WARP_CALL void copy_begin(void *shared, const void *global, bool there)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/** Ends a group of copies, */
WARP_CALL void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/** and waits for all of this thread's groups but the last `left`. */
template <int left> WARP_CALL void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#endif

#endif
