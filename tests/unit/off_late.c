#include "tests/unit/off_late.h"

#include "base/clock.h"

#include <time.h>

struct late late;

static struct off_io_memory late_memory(unsigned depth)
{
    (void)depth;
    return (struct off_io_memory){.bytes = sizeof late};
}

static zero_result late_create(void **state, const struct off_io_engine_config *config,
                               struct base_error *error)
{
    (void)config, (void)error;
    late.count = 0;
    late.ns = LATE_NS;
    late.begun = late.never = late.woken = late.gone = late.asked = false;
    *state = &late;
    return ZERO_OK;
}

static zero_result late_add_file(void *state, int fd, const char *path, struct base_error *error)
{
    (void)state, (void)fd, (void)path, (void)error;
    return ZERO_OK;
}

static void late_submit(void *state, unsigned number, const struct off_transfer *transfer)
{
    (void)state;
    if (transfer->direction == OFF_WRITE && !late.begun) {
        late.since = base_clock_ns();
        late.begun = true;
    }
    late.number[late.count] = number;
    late.transfer[late.count++] = *transfer;
}

static zero_result late_commit(void *state, struct base_error *error)
{
    (void)state, (void)error;
    return ZERO_OK;
}

static bool late_has_news(void)
{
    const bool held = late.never || base_clock_ns() - late.since < late.ns;
    return late.count > 0 && !(late.count == 1 && late.begun && held);
}

static zero_result late_reap(void *state, uint64_t deadline_ns, struct off_completion *done,
                             size_t most, size_t *count, struct base_error *error)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)state, (void)most, (void)error;
    while (!late_has_news() && !atomic_exchange(&late.woken, false) &&
           base_clock_ns() < deadline_ns)
        nanosleep(&pause, NULL);
    *count = 0;
    if (!late_has_news())
        return ZERO_OK;
    const struct off_transfer *last = &late.transfer[--late.count];
    done[0] = (struct off_completion){.number = late.number[late.count],
                                      .result = off_transfer_now(last)};
    *count = 1;
    return ZERO_OK;
}

static void late_wake(void *state)
{
    (void)state;
    late.woken = true;
    late.asked = late.asked || late.gone;
}

static void late_destroy(void *state)
{
    (void)state;
    late.gone = true;
}

const struct off_io_engine off_io_engine_late = {
    .size = sizeof(struct off_io_engine),
    .name = "late",
    .memory = late_memory,
    .create = late_create,
    .add_file = late_add_file,
    .submit = late_submit,
    .commit = late_commit,
    .reap = late_reap,
    .wake = late_wake,
    .destroy = late_destroy,
};
