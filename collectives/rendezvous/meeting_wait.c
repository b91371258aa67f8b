// What a rank says while it waits for others, and how it names them.

#include "collectives/rendezvous/meeting.h"

#include "base/clock.h"

/* ------------------------------------------------------------------ when */

enum {
    TELLINGS = 3, // of rank 0's in the time before a first reminder
    LOOK_MS = 20, // how late a rank sees that it waits in vain
};

// How long a rank that is asked to stop waits for the others: they may be about to come, and then
// all of them learn of the request in good order.
#define STOP_NS UINT64_C(2000000000)

struct boot_wait boot_wait_begin(uint64_t remind_ns, uint64_t deadline_ns)
{
    const uint64_t now = base_clock_ns();
    const uint64_t half = deadline_ns > now ? (deadline_ns - now) / 2 : 0;
    uint64_t first_ns = remind_ns ? remind_ns : BASE_REMINDER_NS;
    if (half < first_ns)
        first_ns = half > 0 ? half : 1;
    return (struct boot_wait){.begun_ns = now, .said = {.first_ns = first_ns}};
}

bool boot_wait_says(struct boot_wait *wait, double *seconds)
{
    const uint64_t waited_ns = base_clock_ns() - wait->begun_ns;
    *seconds = (double)waited_ns * 1e-9;
    return base_reminder_due(&wait->said, waited_ns);
}

// When rank 0 tells the others next.
static uint64_t next_telling(const struct boot_wait *wait)
{
    return (wait->told_ns ? wait->told_ns : wait->begun_ns) + wait->said.first_ns / TELLINGS;
}

bool boot_wait_tells(struct boot_wait *wait)
{
    const uint64_t now = base_clock_ns();
    if (now < next_telling(wait))
        return false;
    wait->told_ns = now;
    return true;
}

bool boot_wait_stops(struct boot_wait *wait)
{
    if (!wait->asked || !wait->asked())
        return false;
    const uint64_t now = base_clock_ns();
    if (wait->asked_ns == 0)
        wait->asked_ns = now;
    return now - wait->asked_ns >= STOP_NS + wait->grace_ns;
}

int boot_wait_left(struct boot_wait *wait, uint64_t deadline_ns, int most)
{
    if (boot_wait_stops(wait) || (wait->in_vain && wait->in_vain(wait->user)))
        return 0;
    if (wait->in_vain && most > LOOK_MS)
        most = LOOK_MS;
    const uint64_t step = wait->said.first_ns / TELLINGS / UINT64_C(1000000);
    const int left = boot_time_left(deadline_ns, step < (uint64_t)most ? (int)step + 1 : most);
    const int reminder =
        boot_time_left(wait->begun_ns + base_reminder_next(&wait->said), left > 0 ? left : 1);
    return left > 0 && reminder < left ? (reminder > 0 ? reminder : 1) : left;
}

/* ------------------------------------------------------------------ for whom */

zero_result boot_fail_stopped(int rank, const char *ranks, int world, struct base_error *error)
{
    return zero_fail(error, ZERO_E_ABORTED,
                     "rank %d: asked to stop by a signal or by zero-run while waiting for %s of %d "
                     "to come to the rendezvous",
                     rank, ranks, world);
}

const char *boot_missing_text(struct base_numbers *missing, const pid_t *pids, int world)
{
    *missing = (struct base_numbers){.count = 0};
    for (int rank = 0; rank < world; rank++)
        if (pids[rank] == 0)
            base_numbers_add(missing, rank);
    return base_numbers_text(missing, "rank");
}
