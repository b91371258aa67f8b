// base/device.h: the list, and the contract every device keeps, tried on each of them and on the
// one that tests have. The argument is one that has to be there: else it is a skip.
#include "base/device.h"
#include "base/fault.h"
#include "base/memory_limits.h"
#include "tests/unit/fake_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SKIPPED = 77 };

static void devices_are_found_by_name(void **state)
{
    (void)state;
    assert_ptr_equal(base_device_find("cpu"), &base_device_cpu);
    assert_null(base_device_find(""));
    assert_null(base_device_find("cp"));
    assert_null(base_device_find("tpu"));
    size_t count = 0;
    for (const struct base_device *device; (device = base_device_at(count)); count++)
        assert_ptr_equal(base_device_find(device->name), device);
    assert_true(count >= 1);
    assert_null(base_device_at(count + 5));
}

static void check_memory(const struct base_device *device, void *stream, size_t bytes)
{
    void *memory;
    unsigned char there[300], back[300];
    assert_true(bytes <= sizeof there);
    memset(there, 0xa5, sizeof there);
    memset(back, 0x77, sizeof back);
    assert_int_equal(device->alloc(&memory, bytes, NULL), ZERO_OK);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 256, 0);
    assert_int_equal(device->pin(back, sizeof back, NULL), ZERO_OK);
    assert_int_equal(device->copy(memory, there, bytes, stream, NULL), ZERO_OK);
    assert_int_equal(device->copy(back, memory, bytes, stream, NULL), ZERO_OK);
    assert_int_equal(device->stream_sync(stream, NULL), ZERO_OK);
    assert_memory_equal(back, there, bytes);
    assert_int_equal(device->zero(memory, bytes, stream, NULL), ZERO_OK);
    assert_int_equal(device->copy(back, memory, bytes, stream, NULL), ZERO_OK);
    assert_int_equal(device->stream_sync(stream, NULL), ZERO_OK);
    for (size_t i = 0; i < sizeof back; i++)
        assert_int_equal(back[i], i < bytes ? 0 : 0x77);
    device->unpin(back);
    device->free(memory);
}

static void check_events(const struct base_device *device, void *stream)
{
    void *event;
    assert_int_equal(device->event_create(&event, NULL), ZERO_OK);
    assert_int_equal(device->event_query(event, NULL), ZERO_OK);
    assert_int_equal(device->event_sync(event, NULL), ZERO_OK);
    assert_int_equal(device->event_wait(event, stream, NULL), ZERO_OK);
    assert_int_equal(device->event_record(event, stream, NULL), ZERO_OK);
    assert_int_equal(device->event_wait(event, stream, NULL), ZERO_OK);
    assert_int_equal(device->event_sync(event, NULL), ZERO_OK);
    assert_int_equal(device->event_query(event, NULL), ZERO_OK);
    assert_int_equal(device->stream_sync(stream, NULL), ZERO_OK);
    device->event_destroy(event);
}

// What there is, of the device that was entered: also of others of its kind, which differ from it.
static void check_room(const struct base_device *device, int number, int count)
{
    struct base_device_memory memory, other;
    static const unsigned char nothing[sizeof memory.identity];
    assert_int_equal(device->memory(&memory, NULL), ZERO_OK);
    assert_true(memory.total > 0 && memory.free <= memory.total);
    assert_true(device->synchronous ||
                memcmp(memory.identity, nothing, sizeof memory.identity) != 0);
    for (int i = 0; i < count; i++) {
        assert_int_equal(device->enter(i, NULL), ZERO_OK);
        assert_int_equal(device->memory(&other, NULL), ZERO_OK);
        device->leave();
        assert_int_equal(memcmp(memory.identity, other.identity, sizeof memory.identity) == 0,
                         i == number);
    }
}

static void check_one(const struct base_device *device, bool urgent)
{
    void *stream;
    assert_int_equal(device->stream_create(&stream, urgent, NULL), ZERO_OK);
    assert_true(!device->synchronous || !stream);
    static const size_t sizes[] = {0, 1, 255, 256, 300};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        check_memory(device, stream, sizes[k]);
    check_events(device, stream);
    device->stream_destroy(stream);
    device->stream_destroy(NULL);
    device->event_destroy(NULL);
    device->unpin(NULL);
    device->free(NULL);
}

// Whether there is one; if not, the message says so in a line.
static bool keeps_the_contract(const struct base_device *device)
{
    struct base_error error = {.result = ZERO_OK};
    int count = -1;
    assert_int_equal(device->size, sizeof *device);
    if (device->count(&count, &error)) {
        print_message("%s: %s\n", device->name, error.message);
        assert_int_equal(error.result, ZERO_E_UNSUPPORTED);
        assert_int_equal(count, 0);
        assert_int_equal(device->enter(0, NULL), ZERO_E_UNSUPPORTED);
        return false;
    }
    assert_true(count > 0);
    assert_int_equal(device->enter(-1, NULL), ZERO_E_UNSUPPORTED);
    assert_int_equal(device->enter(count, &error), ZERO_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, device->name));
    for (int number = 0; number < count; number++) {
        assert_int_equal(device->enter(number, NULL), ZERO_OK);
        assert_int_equal(device->enter(count - 1, NULL), ZERO_OK);
        device->leave();
        check_room(device, number, count);
        check_one(device, number % 2);
        device->leave();
    }
    return true;
}

static void every_device_keeps_the_contract(void **state)
{
    (void)state;
    const struct base_device *device;
    for (size_t i = 0; (device = base_device_at(i)); i++)
        assert_true(keeps_the_contract(device) || device != &base_device_cpu);
    keeps_the_contract(&fake_device);
    assert_int_equal(fake_device_live(), 0);
    assert_null(fake_device_complaint());
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    void *memory = &error;
    assert_int_equal(base_fault_set("alloc@1", NULL), ZERO_OK);
    assert_int_equal(base_device_cpu.alloc(&memory, 123456, &error), ZERO_E_NOMEM);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    assert_null(memory);
    assert_non_null(strstr(error.message, "123456"));
}

static void what_is_allocated_is_not_free(void **state)
{
    (void)state;
    struct base_device_memory there;
    struct base_error error = {.result = ZERO_OK};
    void *memory, *more;
    fake_device_room(1000);
    assert_int_equal(fake_device.enter(1, NULL), ZERO_OK);
    assert_int_equal(fake_device.alloc(&memory, 600, NULL), ZERO_OK);
    assert_int_equal(fake_device.memory(&there, NULL), ZERO_OK);
    assert_true(there.free == 400 && there.total == 1000);
    assert_int_equal(fake_device.alloc(&more, 401, &error), ZERO_E_NOMEM);
    assert_int_equal(fake_device.alloc(&more, 400, NULL), ZERO_OK);
    fake_device_room(500); // less than there is
    assert_int_equal(fake_device.memory(&there, NULL), ZERO_OK);
    assert_true(there.free == 0 && there.total == 500);
    fake_device.free(more);
    assert_int_equal(fake_device.alloc(&more, 1, NULL), ZERO_E_NOMEM);
    fake_device.free(memory);
    fake_device.leave();
    fake_device_room(SIZE_MAX);
    assert_int_equal(fake_device_live(), 0);
}

// What a process may have of the host's.
static void memory_of_the_cpu_is_the_hosts(void **state)
{
    (void)state;
    struct base_device_memory there;
    struct base_memory_limits host;
    base_memory_limits(&host, "");
    assert_int_equal(base_device_cpu.memory(&there, NULL), ZERO_OK);
    assert_true(there.total <= host.total && there.free > 0);
    assert_true(host.group_limit == UINT64_MAX || there.total <= host.group_limit);
    assert_true(host.address_limit == UINT64_MAX || there.total <= host.address_limit);
}

// Whether there is one of this name to be tried; if not, it says why.
static bool is_there(const char *name)
{
    struct base_error error = {.result = ZERO_OK};
    const struct base_device *device = base_device_find(name);
    int count;
    if (device && !device->count(&count, &error))
        return true;
    printf("skipped: %s\n", device ? error.message : "this build has no such device");
    return false;
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_found_by_name),
        cmocka_unit_test(every_device_keeps_the_contract),
        cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(what_is_allocated_is_not_free),
        cmocka_unit_test(memory_of_the_cpu_is_the_hosts),
    };
    if (count > 1 && !is_there(arguments[1]))
        return SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
