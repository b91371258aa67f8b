#include "tests/cuda/kernel_tests.h"

#include "base/kernels/kernel_tables.h"
#include "tests/cuda/leftovers.h"

#include <stdint.h>
#include <stdio.h>

const struct base_device *const device = &base_device_cuda;
const struct base_device_kernels *const kernels = &base_device_kernels_cuda;
void *kernel_state, *kernel_stream;

int kernel_tests_set_up(void **unused)
{
    (void)unused;
    static struct base_fp_state saved; // the processor is left as the definition wants it
    base_fp_enter(&saved);
    return device->enter(0, NULL) || device->stream_create(&kernel_stream, false, NULL) ||
                   kernels->open(&kernel_state, NULL)
               ? -1
               : 0;
}

int kernel_tests_tear_down(void **unused)
{
    (void)unused;
    kernels->close(kernel_state);
    device->stream_destroy(kernel_stream);
    device->leave();
    return cuda_left_nothing() ? 0 : -1;
}

void ok(zero_result result)
{
    assert_int_equal(result, ZERO_OK);
}

void *put(const void *bytes, size_t size)
{
    void *there;
    ok(device->alloc(&there, size, NULL));
    ok(device->copy(there, bytes, size, kernel_stream, NULL));
    ok(device->stream_sync(kernel_stream, NULL));
    return there;
}

void take(void *bytes, void *there, size_t size)
{
    ok(device->copy(bytes, there, size, kernel_stream, NULL));
    ok(device->stream_sync(kernel_stream, NULL));
    device->free(there);
}

void compare(const char *what, int turn, const void *a, const void *b, size_t size)
{
    for (size_t i = 0; i < size / sizeof(uint32_t); i++) {
        const uint32_t x = ((const uint32_t *)a)[i], y = ((const uint32_t *)b)[i];
        if (x != y)
            fail_msg("%s, turn %d: word %zu is 0x%08x instead of 0x%08x", what, turn, i, x, y);
    }
}

bool kernel_tests_skip(void)
{
    struct base_error error = {.result = ZERO_OK};
    if (!device->enter(0, &error)) {
        device->leave();
        return false;
    }
    printf("skipped: %s\n", error.message);
    return true;
}
