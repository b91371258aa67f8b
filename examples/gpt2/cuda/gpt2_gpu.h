/**
 * gpt2_gpu.h: one rank's GPU, by NVIDIA's driver, which is loaded when one is asked for.
 *
 * Work is queued on one stream and done later, in order. The first failure is kept, with its
 * reason, and everything after it is left out: calls need not be checked one by one. A struct gpu
 * belongs to the thread that has opened it, where it stays the current one.
 */
#ifndef GPT2_CUDA_GPU_H
#define GPT2_CUDA_GPU_H

#include "gpt2_kernels.h"
#include "reason.h"

#include <stdbool.h>
#include <stddef.h>

struct gpu;

/** Types of elements, in the order of a kernel's two forms. */
enum gpu_dtype { GPU_F32, GPU_BF16, GPU_DTYPES };

/** Bytes of an element. */
static inline size_t gpu_size(enum gpu_dtype dtype)
{
    return dtype == GPU_F32 ? 4 : 2;
}

enum gpu_kernel {
#define GPU_KERNEL(name, threads) GPU_##name,
    GPT2_KERNELS(GPU_KERNEL) GPT2_TILE_KERNELS(GPU_KERNEL)
#undef GPU_KERNEL
        GPU_KERNELS
};

/** The GPU of this number. NULL: there is none, or it fails; the reason names what is missing. */
struct gpu *gpu_open(int number, struct reason *reason);

/** Ends it, after its work is done and what was allocated is freed. Accepts NULL. */
void gpu_close(struct gpu *gpu);

/** The reason of the first failure; NULL: there was none. */
const char *gpu_failure(const struct gpu *gpu);

/** Keeps a failure of what works on this GPU, unless there was one before. */
void gpu_fail(struct gpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** A function of a library, and the pointer that becomes its address. */
struct gpu_symbol {
    const char *name;
    void *place;
};

/** Loads a library, for as long as the process lives, and finds all of them. False, and it is a
 * failure: there is no `what` here, or one is missing. */
bool gpu_load(struct gpu *gpu, const char *library, const char *what,
              const struct gpu_symbol *symbols, size_t count);

/** Its stream, a cudaStream_t. */
void *gpu_stream(const struct gpu *gpu);

/** Memory of the GPU, at a multiple of 256 bytes; NULL: failed. */
void *gpu_alloc(struct gpu *gpu, size_t bytes);

/** When no work is left that needs it; accepts NULL. */
void gpu_free(struct gpu *gpu, void *memory);

/** Memory of the host from and to which copies go without the host's help; zeros. */
void *gpu_alloc_host(struct gpu *gpu, size_t bytes);
void gpu_free_host(struct gpu *gpu, void *memory);

/** Queues a copy, either way. */
void gpu_copy(struct gpu *gpu, void *to, const void *from, size_t bytes);

/** Queues a kernel: blocks for so many tasks, of which a block does `a_block`. */
void gpu_run(struct gpu *gpu, enum gpu_kernel kernel, enum gpu_dtype dtype, size_t tasks,
             size_t a_block, const void *argument);

/** Waits for all queued work. */
void gpu_wait(struct gpu *gpu);

/** A place in the queue, to be waited for: made, put behind what is queued, waited for. */
void *gpu_mark_create(struct gpu *gpu);
void gpu_mark_free(struct gpu *gpu, void *mark);
void gpu_mark(struct gpu *gpu, void *mark);
void gpu_mark_wait(struct gpu *gpu, void *mark);

#endif
