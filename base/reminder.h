/**
 * base/reminder.h: when to say that something is still waited for: after a first time, and then at
 * growing intervals. *Local*.
 */
#ifndef BASE_REMINDER_H
#define BASE_REMINDER_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/** The first time where the caller has no reason for another one: 10 s. */
#define BASE_REMINDER_NS UINT64_C(10000000000)

/** Make one as {first_ns, 0}, and a new one for every wait. */
struct base_reminder {
    uint64_t first_ns; /**< of waiting, before the first reminder; above 0 */
    uint64_t next_ns;  /**< of waiting, before the next one; 0: none has been due yet */
};

/** The time of waiting at which the next reminder is due. */
static inline uint64_t base_reminder_next(const struct base_reminder *reminder)
{
    return reminder->next_ns ? reminder->next_ns : reminder->first_ns;
}

/** Whether a reminder is due after `waited_ns` of waiting; then the next one is due later: after 1,
 * 3, 6, 12, 24 ... times first_ns. Reminders that were missed are one. */
static inline bool base_reminder_due(struct base_reminder *reminder, uint64_t waited_ns)
{
    assert(reminder->first_ns > 0);
    uint64_t next_ns = base_reminder_next(reminder);
    if (waited_ns < next_ns)
        return false;
    while (next_ns <= waited_ns)
        next_ns = next_ns == reminder->first_ns ? 3 * next_ns : 2 * next_ns;
    reminder->next_ns = next_ns;
    assert(next_ns > waited_ns);
    return true;
}

#endif
