#include "gpt2_gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

/** gpt2_kernels.cu as nvcc has compiled it, for several architectures. */
extern const unsigned char gpt2_cuda_image[];
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".global gpt2_cuda_image\n"
        ".hidden gpt2_cuda_image\n"
        "gpt2_cuda_image:\n"
        ".incbin \"" GPT2_CUDA_IMAGE "\"\n"
        ".popsection\n");

// The driver's functions that are called: as a field, and by their name in <cuda.h>.
#define FUNCTIONS(X)                                                                               \
    X(init, cuInit)                                                                                \
    X(error_text, cuGetErrorString)                                                                \
    X(device_get, cuDeviceGet)                                                                     \
    X(device_count, cuDeviceGetCount)                                                              \
    X(context_retain, cuDevicePrimaryCtxRetain)                                                    \
    X(context_push, cuCtxPushCurrent)                                                              \
    X(context_pop, cuCtxPopCurrent)                                                                \
    X(alloc, cuMemAlloc)                                                                           \
    X(free, cuMemFree)                                                                             \
    X(host_register, cuMemHostRegister)                                                            \
    X(host_unregister, cuMemHostUnregister)                                                        \
    X(copy, cuMemcpyAsync)                                                                         \
    X(stream_create, cuStreamCreateWithPriority)                                                   \
    X(stream_sync, cuStreamSynchronize)                                                            \
    X(stream_destroy, cuStreamDestroy)                                                             \
    X(event_create, cuEventCreate)                                                                 \
    X(event_record, cuEventRecord)                                                                 \
    X(event_sync, cuEventSynchronize)                                                              \
    X(event_destroy, cuEventDestroy)                                                               \
    X(module_load, cuModuleLoadData)                                                               \
    X(module_unload, cuModuleUnload)                                                               \
    X(module_function, cuModuleGetFunction)                                                        \
    X(launch, cuLaunchKernel)

struct driver {
#define FIELD(field, function) __typeof__(function) *(field);
    FUNCTIONS(FIELD)
#undef FIELD
};

struct gpu {
    struct driver driver;
    bool entered;
    CUmodule module;
    CUstream stream;
    CUfunction kernels[GPU_DTYPES][GPU_KERNELS];
    bool failed;
    struct reason failure;
};

static const struct {
    const char *name;
    unsigned threads;
} kernels[GPU_KERNELS] = {
#define KERNEL(name, threads) [GPU_##name] = {"gpt2_" #name, threads},
    GPT2_KERNELS(KERNEL) GPT2_TILE_KERNELS(KERNEL)
#undef KERNEL
};

void gpu_fail(struct gpu *gpu, const char *format, ...)
{
    if (gpu->failed)
        return;
    gpu->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(gpu->failure.text, sizeof gpu->failure.text, format, arguments);
    va_end(arguments);
}

const char *gpu_failure(const struct gpu *gpu)
{
    return gpu->failed ? gpu->failure.text : NULL;
}

bool gpu_load(struct gpu *gpu, const char *library, const char *what,
              const struct gpu_symbol *symbols, size_t count)
{
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!loaded) { // its message has the library's name
        gpu_fail(gpu, "no %s here: %s", what, dlerror());
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(loaded, symbols[i].name);
        if (!found) {
            gpu_fail(gpu, "the %s, %s, has no %s: it is too old", what, library, symbols[i].name);
            return false;
        }
        memcpy(symbols[i].place, &found, sizeof found);
    }
    return true;
}

// Whether a call went well; `what` says what for.
static bool check(struct gpu *gpu, CUresult status, const char *call, const char *what)
{
    const char *text = NULL;
    if (status == CUDA_SUCCESS)
        return true;
    gpu->driver.error_text(status, &text);
    gpu_fail(gpu, "%s%s%s: %s (%d)", call, *what ? ", " : "", what, text ? text : "unknown",
             (int)status);
    return false;
}

// <cuda.h> gives functions the names of their newest versions: as text, those of the symbols.
#define SYMBOL(function) #function

static bool load_driver(struct gpu *gpu)
{
    const struct gpu_symbol symbols[] = {
#define SYMBOL_OF(field, function) {SYMBOL(function), &gpu->driver.field},
        FUNCTIONS(SYMBOL_OF)
#undef SYMBOL_OF
    };
    return gpu_load(gpu, LIBRARY, "GPU driver", symbols, sizeof symbols / sizeof *symbols) &&
           check(gpu, gpu->driver.init(0), "cuInit", "");
}

static bool enter(struct gpu *gpu, int number)
{
    const struct driver *d = &gpu->driver;
    int count = 0;
    CUdevice device;
    CUcontext context;
    if (!check(gpu, d->device_count(&count), "cuDeviceGetCount", ""))
        return false;
    if (number >= count) {
        gpu_fail(gpu, "there is no GPU %d: the driver finds %d", number, count);
        return false;
    }
    gpu->entered =
        check(gpu, d->device_get(&device, number), "cuDeviceGet", "") &&
        check(gpu, d->context_retain(&context, device), "cuDevicePrimaryCtxRetain", "") &&
        check(gpu, d->context_push(context), "cuCtxPushCurrent", "");
    return gpu->entered;
}

static bool find_kernels(struct gpu *gpu)
{
    static const char *const suffixes[GPU_DTYPES] = {"_f32", "_bf16"};
    for (int dtype = 0; dtype < GPU_DTYPES; dtype++)
        for (int k = 0; k < GPU_KERNELS; k++) {
            char name[64];
            if (dtype == GPU_F32 && k >= GPU_tile_delta)
                continue;
            snprintf(name, sizeof name, "%s%s", kernels[k].name, suffixes[dtype]);
            if (!check(gpu, gpu->driver.module_function(&gpu->kernels[dtype][k], gpu->module, name),
                       "cuModuleGetFunction", name))
                return false;
        }
    return true;
}

struct gpu *gpu_open(int number, struct reason *reason)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu) {
        refuse(reason, "out of memory");
        return NULL;
    }
    const bool open = load_driver(gpu) && enter(gpu, number) &&
                      check(gpu, gpu->driver.stream_create(&gpu->stream, CU_STREAM_NON_BLOCKING, 0),
                            "cuStreamCreateWithPriority", "") &&
                      check(gpu, gpu->driver.module_load(&gpu->module, gpt2_cuda_image),
                            "cuModuleLoadData", "the kernels of gpt2") &&
                      find_kernels(gpu);
    if (open)
        return gpu;
    refuse(reason, "--device cuda: %s", gpu->failure.text);
    gpu_close(gpu);
    return NULL;
}

// The context is the process's, which others use too.
void gpu_close(struct gpu *gpu)
{
    CUcontext context;
    if (!gpu)
        return;
    if (gpu->module)
        gpu->driver.module_unload(gpu->module);
    if (gpu->stream)
        gpu->driver.stream_destroy(gpu->stream);
    if (gpu->entered)
        gpu->driver.context_pop(&context);
    free(gpu);
}

void *gpu_stream(const struct gpu *gpu)
{
    return gpu->stream;
}

/* ------------------------------------------------------------------ memory */

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

void *gpu_alloc(struct gpu *gpu, size_t bytes)
{
    CUdeviceptr memory = 0;
    char what[64];
    snprintf(what, sizeof what, "%.1f MiB for activations", (double)bytes / 1048576);
    if (gpu->failed || !check(gpu, gpu->driver.alloc(&memory, bytes), "cuMemAlloc", what))
        return NULL;
    return (void *)(uintptr_t)memory; // NOLINT(performance-no-int-to-ptr)
}

void gpu_free(struct gpu *gpu, void *memory)
{
    if (memory)
        gpu->driver.free(address_of(memory));
}

void *gpu_alloc_host(struct gpu *gpu, size_t bytes)
{
    const size_t room = (bytes + 4095) / 4096 * 4096;
    void *memory = gpu->failed ? NULL : aligned_alloc(4096, room);
    if (!memory) {
        gpu_fail(gpu, "no %zu bytes of memory for tokens", room);
        return NULL;
    }
    memset(memory, 0, room);
    if (check(gpu, gpu->driver.host_register(memory, room, 0), "cuMemHostRegister", ""))
        return memory;
    free(memory);
    return NULL;
}

void gpu_free_host(struct gpu *gpu, void *memory)
{
    if (memory)
        gpu->driver.host_unregister(memory);
    free(memory);
}

/* ------------------------------------------------------------------ work */

void gpu_copy(struct gpu *gpu, void *to, const void *from, size_t bytes)
{
    if (!gpu->failed)
        check(gpu, gpu->driver.copy(address_of(to), address_of(from), bytes, gpu->stream),
              "cuMemcpyAsync", "");
}

void gpu_run(struct gpu *gpu, enum gpu_kernel kernel, enum gpu_dtype dtype, size_t tasks,
             size_t a_block, const void *argument)
{
    void *arguments[] = {(void *)(uintptr_t)argument}; // which is copied, not changed
    const size_t blocks = (tasks + a_block - 1) / a_block;
    if (!gpu->failed && blocks > 0)
        check(gpu,
              gpu->driver.launch(gpu->kernels[dtype][kernel], (unsigned)blocks, 1, 1,
                                 kernels[kernel].threads, 1, 1, 0, gpu->stream, arguments, NULL),
              "cuLaunchKernel", kernels[kernel].name);
}

void gpu_wait(struct gpu *gpu)
{
    check(gpu, gpu->driver.stream_sync(gpu->stream), "cuStreamSynchronize", "");
}

void *gpu_mark_create(struct gpu *gpu)
{
    CUevent event = NULL;
    if (!gpu->failed)
        check(gpu, gpu->driver.event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", "");
    return event;
}

void gpu_mark_free(struct gpu *gpu, void *mark)
{
    if (mark)
        gpu->driver.event_destroy(mark);
}

void gpu_mark(struct gpu *gpu, void *mark)
{
    if (!gpu->failed)
        check(gpu, gpu->driver.event_record(mark, gpu->stream), "cuEventRecord", "");
}

void gpu_mark_wait(struct gpu *gpu, void *mark)
{
    if (!gpu->failed)
        check(gpu, gpu->driver.event_sync(mark), "cuEventSynchronize", "");
}
