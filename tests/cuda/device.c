// base/device/device_cuda.c with a driver in place of NVIDIA's (fake_cuda.h): what fails says which
// call of the driver it was, and why. As a program: base_cuda <what is there>, where that is one of
//
//     gpus      several GPUs
//     no-gpu    a driver without one
//     old       a driver that lacks a function
//     nothing   no driver, and if there is one, nothing can be tried
#include "base/device.h"
#include "base/device/device_cuda.h"
#include "base/kernels/kernels_cuda.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"

#include <zero/zero.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <cuda.h>

enum { SKIPPED = 77 };

static const struct base_device *const cuda = &base_device_cuda;

static void *stream, *event, *memory, *module, *kernel;

/* ------------------------------------------------------------------ without GPUs */

static void says(const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    int count = -1;
    for (int again = 0; again < 2; again++) {
        base_error_clear(&error);
        assert_int_equal(cuda->count(&count, &error), ZERO_E_UNSUPPORTED);
        assert_int_equal(count, 0);
        if (!strstr(error.message, words))
            fail_msg("'%s' is not in '%s'", words, error.message);
        assert_null(strchr(error.message, '\n'));
        assert_int_equal(cuda->enter(0, NULL), ZERO_E_UNSUPPORTED);
    }
}

static void no_gpu(void **state)
{
    (void)state;
    says("finds no GPU");
}

static void old_driver(void **state)
{
    (void)state;
    says("libcuda.so.1, has no cuLaunchKernel");
}

static void no_driver(void **state)
{
    (void)state;
    says("no GPU driver here: libcuda.so.1");
}

// A program that asks for one is told so at once, and in a line.
static void no_context(void **state)
{
    (void)state;
    zero_config config = zero_config_default();
    zero_ctx *z = NULL;
    config.world = 1;
    config.device = "cuda";
    assert_int_equal(zero_open(&z, &config), ZERO_E_UNSUPPORTED);
    assert_null(z);
    assert_non_null(strstr(zero_last_error(NULL), "device=cuda: no GPU driver here"));
    assert_null(strchr(zero_last_error(NULL), '\n'));
}

/* ------------------------------------------------------------------ with */

static int set_up(void **state)
{
    (void)state;
    if (cuda->enter(1, NULL))
        return -1;
    return cuda->stream_create(&stream, true, NULL) || cuda->event_create(&event, NULL) ||
                   cuda->alloc(&memory, 300, NULL) || base_cuda_load(&module, "", "some", NULL) ||
                   base_cuda_kernel(&kernel, module, "base_cuda_convert", NULL)
               ? -1
               : 0;
}

static int tear_down(void **state)
{
    (void)state;
    cuda->stream_sync(stream, NULL);
    cuda->free(memory);
    cuda->event_destroy(event);
    cuda->stream_destroy(stream);
    base_cuda_unload(module);
    base_cuda_unload(NULL);
    cuda->leave();
    return cuda_left_nothing() ? 0 : -1;
}

static zero_result make_alloc(struct base_error *error)
{
    void *other = &other;
    const zero_result result = cuda->alloc(&other, 12345, error);
    assert_int_equal(other == NULL, result != ZERO_OK);
    cuda->free(other);
    return result;
}

static zero_result look(struct base_error *error)
{
    struct base_device_memory there;
    return cuda->memory(&there, error);
}

static zero_result make_stream(struct base_error *error)
{
    void *other;
    const zero_result result = cuda->stream_create(&other, false, error);
    cuda->stream_destroy(other);
    return result;
}

static zero_result make_event(struct base_error *error)
{
    void *other;
    const zero_result result = cuda->event_create(&other, error);
    cuda->event_destroy(other);
    return result;
}

static zero_result pin(struct base_error *error)
{
    const zero_result result = cuda->pin(&error, sizeof error, error);
    if (!result)
        cuda->unpin(&error);
    return result;
}

static zero_result copy(struct base_error *error)
{
    static const char byte = 0;
    return cuda->copy(memory, &byte, 1, stream, error);
}

static zero_result clear(struct base_error *error)
{
    return cuda->zero(memory, 1, stream, error);
}

static zero_result sync_stream(struct base_error *error)
{
    return cuda->stream_sync(stream, error);
}

static zero_result record(struct base_error *error)
{
    return cuda->event_record(event, stream, error);
}

static zero_result await(struct base_error *error)
{
    return cuda->event_wait(event, stream, error);
}

static zero_result query(struct base_error *error)
{
    return cuda->event_sync(event, NULL) ? ZERO_E_STATE : cuda->event_query(event, error);
}

static zero_result sync_event(struct base_error *error)
{
    return cuda->event_sync(event, error);
}

static zero_result enter_and_leave(int number, struct base_error *error)
{
    const zero_result result = cuda->enter(number, error);
    if (!result)
        cuda->leave();
    return result;
}

static zero_result enter_0(struct base_error *error)
{
    return enter_and_leave(0, error);
}

static zero_result enter_1(struct base_error *error)
{
    return enter_and_leave(1, error);
}

static zero_result enter_2(struct base_error *error)
{
    return enter_and_leave(2, error);
}

static zero_result count(struct base_error *error)
{
    int number;
    return cuda->count(&number, error);
}

static zero_result load(struct base_error *error)
{
    void *other;
    const zero_result result = base_cuda_load(&other, "", "some", error);
    base_cuda_unload(other);
    return result;
}

static zero_result find(struct base_error *error)
{
    void *other;
    return base_cuda_kernel(&other, module, "base_cuda_sum", error);
}

static zero_result launch(struct base_error *error)
{
    struct base_device_conversion nothing = {.count = 0};
    void *arguments[] = {&nothing};
    const struct base_cuda_grid grid = {3, BASE_CUDA_THREADS};
    return base_cuda_launch(kernel, "some", grid, arguments, stream, error);
}

static void a_failure_names_its_call(void **state)
{
    static const struct {
        zero_result (*call)(struct base_error *error);
        const char *function, *says;
    } calls[] = {
        {count, "cuDeviceGetCount", "cuDeviceGetCount: not real"},
        {enter_0, "cuDeviceGet", "cuDeviceGet, GPU 0: not real"},
        {enter_2, "cuDevicePrimaryCtxRetain", "PrimaryCtxRetain, GPU 2: not real"},
        {enter_1, "cuCtxPushCurrent", "cuCtxPushCurrent: not real"},
        {look, "cuCtxGetDevice", "cuCtxGetDevice: not real"},
        {look, "cuDeviceGetUuid", "cuDeviceGetUuid: not real"},
        {look, "cuMemGetInfo", "cuMemGetInfo: not real"},
        {make_alloc, "cuMemAlloc", "cuMemAlloc, 12345 bytes: not real (CUDA_ERROR_FAKE, 719)"},
        {pin, "cuMemHostRegister", "cuMemHostRegister, 8 bytes: not real"},
        {copy, "cuMemcpyAsync", "cuMemcpyAsync: not real"},
        {clear, "cuMemsetD8Async", "cuMemsetD8Async: not real"},
        {make_stream, "cuCtxGetStreamPriorityRange", "cuCtxGetStreamPriorityRange: not real"},
        {make_stream, "cuStreamCreateWithPriority", "cuStreamCreateWithPriority: not real"},
        {sync_stream, "cuStreamSynchronize", "cuStreamSynchronize: not real"},
        {make_event, "cuEventCreate", "cuEventCreate: not real"},
        {record, "cuEventRecord", "cuEventRecord: not real"},
        {await, "cuStreamWaitEvent", "cuStreamWaitEvent: not real"},
        {query, "cuEventQuery", "cuEventQuery: not real"},
        {sync_event, "cuEventSynchronize", "cuEventSynchronize: not real"},
        {load, "cuModuleLoadData", "cuModuleLoadData, some: not real"},
        {find, "cuModuleGetFunction", "cuModuleGetFunction, base_cuda_sum: not real"},
        {launch, "cuLaunchKernel", "cuLaunchKernel, some: not real"},
    };
    const cuda_driver_fail_fn inject = *(const cuda_driver_fail_fn *)*state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct base_error error = {.result = ZERO_OK};
        inject(calls[i].function, CUDA_ERROR_LAUNCH_FAILED);
        assert_int_equal(calls[i].call(&error), ZERO_E_DEVICE);
        if (!strstr(error.message, calls[i].says))
            fail_msg("%zu: '%s'", i, error.message);
        base_error_clear(&error);
        assert_int_equal(calls[i].call(&error), ZERO_OK);
    }
}

static void other_results(void **state)
{
    const cuda_driver_fail_fn inject = *(const cuda_driver_fail_fn *)*state;
    struct base_error error = {.result = ZERO_OK};
    inject("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(make_alloc(&error), ZERO_E_NOMEM);
    assert_string_equal(error.message, "cuMemAlloc, 12345 bytes: out of memory "
                                       "(CUDA_ERROR_OUT_OF_MEMORY, 2)");
    inject("cuEventQuery", CUDA_ERROR_NOT_READY);
    assert_int_equal(query(NULL), ZERO_AGAIN);
    base_error_clear(&error);
    inject("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_int_equal(load(&error), ZERO_E_UNSUPPORTED);
    assert_string_equal(error.message, "some has no code that this GPU and its driver can run");
    base_error_clear(&error);
    const struct base_cuda_grid none = {0, 32}, many = {(size_t)1 << 31, 32};
    assert_int_equal(base_cuda_launch(kernel, "k", none, NULL, stream, NULL), ZERO_OK);
    assert_int_equal(base_cuda_launch(kernel, "k", many, NULL, stream, &error), ZERO_E_DEVICE);
    assert_non_null(strstr(error.message, "2147483648 blocks"));
}

static void what_is_allocated_is_not_free(void **state)
{
    (void)state;
    struct base_device_memory there;
    assert_int_equal(cuda->memory(&there, NULL), ZERO_OK);
    assert_int_equal(there.total, CUDA_DRIVER_ROOM);
    assert_int_equal(there.free, CUDA_DRIVER_ROOM - 300); // of the set-up
}

/* ------------------------------------------------------------------ which of them */

static int run_with_gpus(void)
{
    cuda_driver_fail_fn inject;
    if (!cuda_driver_find(CUDA_DRIVER_FAIL, &inject)) {
        printf("the driver here does not fail when it is told to\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        {"a_failure_names_its_call", a_failure_names_its_call, set_up, tear_down, &inject},
        {"other_results", other_results, set_up, tear_down, &inject},
        {"what_is_allocated_is_not_free", what_is_allocated_is_not_free, set_up, tear_down, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_one(const char *name, CMUnitTestFunction test)
{
    const struct CMUnitTest tests[] = {{name, test, NULL, NULL, NULL}};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "gpus") == 0)
        return run_with_gpus();
    if (strcmp(what, "no-gpu") == 0)
        return run_one("no_gpu", no_gpu);
    if (strcmp(what, "old") == 0)
        return run_one("old_driver", old_driver);
    if (strcmp(what, "nothing") != 0)
        return 2;
    if (dlopen(CUDA_DRIVER, RTLD_NOW)) {
        printf("there is a GPU driver here\n");
        return SKIPPED;
    }
    return run_one("no_driver", no_driver) + run_one("no_context", no_context);
}
