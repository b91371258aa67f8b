#include "collectives/rendezvous/meeting.h"

#include "base/clock.h"

#include <assert.h>
#include <stddef.h>

_Static_assert(offsetof(struct boot_caller, said.peer) ==
                   offsetof(struct boot_caller, said) + sizeof(struct boot_header),
               "what follows the header follows it at once");

// A caller has this long to introduce itself. The oldest one has less where no other can be let in
// before it leaves; a lost packet is sent again within that.
static const uint64_t hello_ns = UINT64_C(2000000000), hurry_ns = UINT64_C(500000000);

// When the silence of caller i has been too long.
static uint64_t deadline_of(const struct boot_callers *callers, int i)
{
    return callers->all[i].since_ns + (callers->crowded && i == 0 ? hurry_ns : hello_ns);
}

int boot_callers_poll(const struct boot_callers *callers, int listener, struct pollfd *polls)
{
    const bool room = callers->count < BOOT_CALLERS_MAX && !callers->crowded;
    polls[0] = (struct pollfd){.fd = room ? listener : -1, .events = POLLIN};
    for (int i = 0; i < callers->count; i++)
        polls[1 + i] = (struct pollfd){.fd = callers->all[i].fd, .events = POLLIN};
    return 1 + callers->count;
}

int boot_callers_patience(const struct boot_callers *callers)
{
    const int left = callers->count > 0 ? boot_time_left(deadline_of(callers, 0), 1000) : 1000;
    return left > 0 ? left : 1;
}

static const char *silence_text(const struct boot_callers *callers)
{
    return callers->crowded ? "it did not introduce itself within 0.5 s, and no descriptor is left "
                              "for others that call"
                            : "it did not introduce itself within 2 s";
}

// Whether the header of a caller's first message is that of an introduction.
static zero_result check_first(const struct boot_header *header,
                               const struct boot_reception *reception, struct base_error *error)
{
    const zero_result result = boot_check(header, reception->length, error);
    if (result)
        return result;
    if (header->fds > 0) // the kernel has closed them
        return zero_fail(error, ZERO_E_INVALID, "it sends descriptors that no rank asked for");
    if (header->type != reception->type || header->length != reception->length)
        return zero_fail(error, ZERO_E_INVALID, "its first message does not introduce it");
    return ZERO_OK;
}

// Hears what caller i says, if it has said something or has been silent for too long.
static zero_result hear(struct boot_callers *callers, int i, const struct boot_reception *reception,
                        void *user, bool ready, struct base_error *error)
{
    struct base_error heard = {.result = ZERO_OK};
    struct boot_caller *caller = &callers->all[i];
    const struct boot_header *header = &caller->said.header;
    bool whole = false, gone = false;
    // What came while this process had no processor is no silence.
    const bool late = base_clock_ns() >= deadline_of(callers, i);
    if (ready || late)
        whole = boot_receive_some(caller->fd, &caller->said, sizeof *header + reception->length,
                                  &caller->used, &gone);
    if (caller->used >= sizeof *header && check_first(header, reception, &heard))
        reception->refuse(user, caller, heard.result, heard.message);
    else if (whole)
        return reception->introduce(user, caller, error);
    else if (gone)
        reception->refuse(user, caller, ZERO_E_PEER, "it has hung up");
    else if (late)
        reception->refuse(user, caller, ZERO_E_TIMEOUT, silence_text(callers));
    return ZERO_OK;
}

static zero_result hear_all(struct boot_callers *callers, const struct boot_reception *reception,
                            void *user, const struct pollfd *polls, struct base_error *error)
{
    zero_result result = ZERO_OK;
    int kept = 0;
    for (int i = 0; i < callers->count; i++) {
        if (!result)
            result = hear(callers, i, reception, user, polls[1 + i].revents != 0, error);
        if (callers->all[i].fd >= 0)
            callers->all[kept++] = callers->all[i];
    }
    callers->crowded = callers->crowded && kept == callers->count;
    callers->count = kept;
    return result;
}

static zero_result accept_one(struct boot_callers *callers, const struct boot_reception *reception,
                              void *user, int listener, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    assert(callers->count < BOOT_CALLERS_MAX);
    struct boot_caller *caller = &callers->all[callers->count];
    *caller = (struct boot_caller){.since_ns = base_clock_ns()};
    const zero_result result = boot_accept(&caller->fd, listener, &why);
    const char *refusal =
        caller->fd >= 0 && reception->admit ? reception->admit(user, caller) : NULL;
    if (refusal)
        reception->refuse(user, caller, ZERO_E_INVALID, refusal);
    if (caller->fd >= 0)
        callers->count++;
    // A caller that is here leaves, in one way or another, and makes room.
    callers->crowded = result == ZERO_E_LIMIT && callers->count > 0;
    return result && !callers->crowded ? zero_fail(error, ZERO_E_IO, "%s", why.message) : ZERO_OK;
}

zero_result boot_callers_receive(struct boot_callers *callers,
                                 const struct boot_reception *reception, void *user, int listener,
                                 const struct pollfd *polls, struct base_error *error)
{
    const zero_result result = hear_all(callers, reception, user, polls, error);
    return !result && polls[0].revents ? accept_one(callers, reception, user, listener, error)
                                       : result;
}

void boot_callers_close(struct boot_callers *callers)
{
    for (int i = 0; i < callers->count; i++)
        boot_fd_close(&callers->all[i].fd);
    callers->count = 0;
}
