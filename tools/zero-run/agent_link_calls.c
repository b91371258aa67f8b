#include "tools/zero-run/agent_link_parts.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/reminder.h"
#include "base/text.h"
#include "collectives/rendezvous/mesh_internal.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { BACKLOG = 1024 };

static const uint64_t ms_ns = UINT64_C(1000000);
// How long a caller may take to prove itself; how long a host may take to answer a call, and the
// coordinator then.
static const uint64_t prove_ns = UINT64_C(5000000000), call_ns = UINT64_C(5000000000),
                      answer_ns = UINT64_C(10000000000);
// How long a caller has its place while others wait, and from one line about refused ones to the
// next.
static const uint64_t spare_ns = UINT64_C(250000000), quiet_ns = UINT64_C(10000000000),
                      most_quiet_ns = UINT64_C(600000000000);

/* ------------------------------------------------------------------ the coordinator's port */

zero_result run_listener_open(struct run_listener *listener, int port, const struct run_self *self,
                              struct base_error *error)
{
    static const unsigned char any[MESH_ADDRESS_BYTES];
    unsigned char own[MESH_ADDRESS_BYTES];
    *listener =
        (struct run_listener){.fd = -1, .prove_ns = prove_ns, .spare_ns = spare_ns, .self = *self};
    listener->self.called = true;
    zero_result result = mesh_listen(&listener->fd, any, port, BACKLOG, error);
    if (!result && !mesh_address(listener->fd, false, own, &listener->port)) {
        result = zero_fail_errno(error, ZERO_E_IO, errno, "the port for agents");
        run_listener_close(listener);
    }
    return result;
}

// When a caller's place may be given to another one.
static uint64_t spare_until(const struct run_listener *listener, const struct run_link *link)
{
    const uint64_t begun_ns = link->meet_ns - listener->prove_ns;
    if (link->state == RUN_LINK_OPEN) // it is an agent
        return UINT64_MAX;
    return begun_ns + (link->greeted ? 4 : 1) * listener->spare_ns;
}

// The caller whose time is over first.
static int find_spare(const struct run_listener *listener)
{
    int spare = 0;
    for (int i = 1; i < listener->count; i++)
        if (spare_until(listener, listener->callers[i]) <
            spare_until(listener, listener->callers[spare]))
            spare = i;
    return spare;
}

// When there is, or may be, a place for one more.
static uint64_t room_ns(const struct run_listener *listener)
{
    return listener->count < RUN_CALLERS_MAX
               ? 0
               : spare_until(listener, listener->callers[find_spare(listener)]);
}

int run_listener_poll(const struct run_listener *listener, struct pollfd *polls)
{
    const bool room = room_ns(listener) <= base_clock_ns();
    polls[0] = (struct pollfd){.fd = room ? listener->fd : -1, .events = POLLIN};
    for (int i = 0; i < listener->count; i++) {
        struct pollfd both[RUN_LINK_POLLS];
        run_link_poll(listener->callers[i], both);
        polls[1 + i] = both[0];
    }
    return 1 + listener->count;
}

uint64_t run_listener_due(const struct run_listener *listener)
{
    const struct run_refusals *kinds[] = {&listener->strangers, &listener->agents};
    const uint64_t room = room_ns(listener);
    uint64_t due = room > base_clock_ns() ? room : UINT64_MAX;
    for (int i = 0; i < listener->count; i++) {
        const uint64_t one = run_link_due(listener->callers[i]);
        due = one < due ? one : due;
    }
    for (int i = 0; i < 2; i++)
        if (kinds[i]->count > 0 && kinds[i]->tell_ns < due)
            due = kinds[i]->tell_ns;
    return due;
}

static void address_text(int fd, char text[INET6_ADDRSTRLEN + 8])
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    char host[INET6_ADDRSTRLEN + 8] = "";
    if (getpeername(fd, (struct sockaddr *)&name, &length) ||
        getnameinfo((struct sockaddr *)&name, length, host, sizeof host, NULL, 0, NI_NUMERICHOST))
        strcpy(host, "a caller");
    strcpy(text, strncmp(host, "::ffff:", 7) ? host : host + 7);
}

static void forget(struct run_listener *listener, int i)
{
    listener->count--;
    memmove(&listener->callers[i], &listener->callers[i + 1],
            (size_t)(listener->count - i) * sizeof *listener->callers);
}

static void refuse_caller(struct run_listener *listener, int i)
{
    struct run_link *link = listener->callers[i];
    struct run_refusals *kind =
        link->end == RUN_LINK_REFUSED ? &listener->agents : &listener->strangers;
    struct base_text reason = {kind->reason, sizeof kind->reason, 0};
    char address[INET6_ADDRSTRLEN + 8];
    address_text(link->in, address);
    base_text_add(&reason, "%s: %s", address, link->why.message);
    kind->count++;
    forget(listener, i);
    run_link_close(link);
    base_free(link);
}

// The caller whose time is over gives its place to another one that waits.
static bool make_place(struct run_listener *listener)
{
    struct pollfd waits = {.fd = listener->fd, .events = POLLIN};
    if (listener->count < RUN_CALLERS_MAX)
        return true;
    if (room_ns(listener) > base_clock_ns() || poll(&waits, 1, 0) <= 0)
        return false;
    const int spare = find_spare(listener);
    run_link_fail(listener->callers[spare], RUN_LINK_SILENT,
                  "it has not proved itself in %d ms, and other callers wait",
                  (int)(listener->spare_ns / ms_ns));
    refuse_caller(listener, spare);
    return true;
}

// A caller that cannot be let in for lack of memory or descriptors calls again.
static bool let_in(struct run_listener *listener)
{
    int fd;
    if (!make_place(listener) || boot_accept(&fd, listener->fd, NULL) || fd < 0)
        return false;
    struct run_link *link = base_calloc(1, sizeof *link);
    if (!link) {
        boot_fd_close(&fd);
        return false;
    }
    if (run_link_begin(link, fd, fd, &listener->self, NULL)) {
        base_free(link);
        return false;
    }
    link->meet_ns = base_clock_ns() + listener->prove_ns;
    listener->callers[listener->count++] = link;
    return true;
}

static void hear_callers(struct run_listener *listener)
{
    for (int i = listener->count - 1; i >= 0; i--) {
        struct run_link *link = listener->callers[i];
        if (link->state == RUN_LINK_MEETING)
            run_link_turn(link);
        if (link->state == RUN_LINK_ENDED)
            refuse_caller(listener, i);
    }
}

void run_listener_turn(struct run_listener *listener)
{
    hear_callers(listener); // what has come by now counts
    for (int more = RUN_CALLERS_MAX; more > 0 && let_in(listener); more--)
        continue;
    hear_callers(listener);
}

struct run_link *run_listener_next(struct run_listener *listener)
{
    for (int i = 0; i < listener->count; i++) {
        struct run_link *link = listener->callers[i];
        if (link->state != RUN_LINK_OPEN)
            continue;
        forget(listener, i);
        return link;
    }
    return NULL;
}

static bool tell_refusals(struct run_refusals *kind, bool all, struct base_text *out)
{
    const uint64_t now = base_clock_ns();
    if (kind->count == 0 || (!all && now < kind->tell_ns))
        return false;
    const bool calm = now > kind->tell_ns + kind->quiet_ns;
    kind->quiet_ns = calm ? quiet_ns : 2 * kind->quiet_ns;
    kind->quiet_ns = kind->quiet_ns < most_quiet_ns ? kind->quiet_ns : most_quiet_ns;
    kind->tell_ns = now + kind->quiet_ns;
    if (kind->count > 1)
        base_text_add(out, "%d callers were refused, the last one ", kind->count);
    else
        base_text_add(out, "a caller was refused, ");
    base_text_add(out, "%s", kind->reason);
    kind->count = 0;
    return true;
}

bool run_listener_refusals(struct run_listener *listener, bool all, char *text, size_t size)
{
    struct base_text out = {text, size, 0};
    return tell_refusals(&listener->agents, all, &out) ||
           tell_refusals(&listener->strangers, all, &out);
}

void run_listener_close(struct run_listener *listener)
{
    for (int i = 0; i < listener->count; i++) {
        run_link_close(listener->callers[i]);
        base_free(listener->callers[i]);
    }
    listener->count = 0;
    boot_fd_close(&listener->fd);
}

/* ------------------------------------------------------------------ an agent's calls */

struct call {
    const struct run_calling *calling;
    const struct run_self *self;
    struct base_reminder said;
    uint64_t begun_ns;
    char why[400]; // how the last call ended
};

static bool is_asked(const struct call *call)
{
    return call->calling->asked && call->calling->asked();
}

static bool is_over(const struct call *call)
{
    return base_clock_ns() >= call->calling->deadline_ns || is_asked(call);
}

// One that has called hears what the coordinator says.
static void hear_answer(struct run_link *link, const struct call *call)
{
    struct pollfd polls[RUN_LINK_POLLS];
    link->meet_ns = base_clock_ns() + answer_ns;
    if (call->calling->deadline_ns < link->meet_ns)
        link->meet_ns = call->calling->deadline_ns;
    for (;;) {
        run_link_turn(link);
        if (link->state != RUN_LINK_MEETING || is_asked(call))
            return;
        run_link_poll(link, polls);
        poll(polls, RUN_LINK_POLLS, boot_time_left(link->meet_ns, 100));
    }
}

static void keep_reason(struct call *call, const char *address, const char *why)
{
    snprintf(call->why, sizeof call->why, "port %d of %.100s: %.250s", call->calling->port, address,
             why);
}

// ZERO_AGAIN: it has to call again.
static zero_result call_one(struct run_link *link, struct call *call, const char *address,
                            struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    struct boot_master master = {.port = call->calling->port};
    const uint64_t soon = base_clock_ns() + call_ns;
    int fd;
    snprintf(master.address, sizeof master.address, "%s", address);
    if (mesh_call(&fd, &master, 0,
                  soon < call->calling->deadline_ns ? soon : call->calling->deadline_ns, &why)) {
        keep_reason(call, address, why.message);
        return ZERO_AGAIN;
    }
    const zero_result result = run_link_begin(link, fd, fd, call->self, error);
    if (result)
        return result;
    hear_answer(link, call);
    if (link->state == RUN_LINK_OPEN)
        return ZERO_OK;
    keep_reason(call, address, link->why.message);
    run_link_close(link);
    if (link->end == RUN_LINK_REFUSED || link->end == RUN_LINK_FAILED)
        return zero_fail(error, link->end == RUN_LINK_REFUSED ? ZERO_E_INVALID : ZERO_E_IO,
                         "the coordinator at %s", call->why);
    return ZERO_AGAIN;
}

static zero_result call_all(struct run_link *link, struct call *call, struct base_error *error)
{
    zero_result result = ZERO_AGAIN;
    for (int i = 0; i < call->calling->count && result == ZERO_AGAIN && !is_over(call); i++)
        result = call_one(link, call, call->calling->addresses[i], error);
    return result;
}

static void pause_for(const struct call *call, uint64_t pause_ns)
{
    const uint64_t end = base_clock_ns() + pause_ns;
    while (!is_over(call) && base_clock_ns() < end)
        poll(NULL, 0, boot_time_left(end, 100));
}

zero_result run_link_call(struct run_link *link, const struct run_calling *calling,
                          const struct run_self *self, struct base_error *error)
{
    struct call call = {.calling = calling,
                        .self = self,
                        .said = {BASE_REMINDER_NS, 0},
                        .begun_ns = base_clock_ns(),
                        .why = "there was no time to call"};
    zero_result result = ZERO_AGAIN;
    *link = (struct run_link){.in = -1, .out = -1, .state = RUN_LINK_ENDED};
    assert(calling->count > 0);
    for (uint64_t pause_ns = 50 * ms_ns; result == ZERO_AGAIN && !is_over(&call);) {
        result = call_all(link, &call, error);
        const uint64_t waited_ns = base_clock_ns() - call.begun_ns;
        if (result != ZERO_AGAIN)
            break;
        if (calling->say && base_reminder_due(&call.said, waited_ns))
            calling->say(calling->user, (double)waited_ns * 1e-9, call.why);
        pause_for(&call, pause_ns);
        pause_ns = pause_ns < 2000 * ms_ns ? 2 * pause_ns : pause_ns;
    }
    if (result != ZERO_AGAIN)
        return result;
    if (is_asked(&call))
        return zero_fail(error, ZERO_E_ABORTED,
                         "this process was asked to stop while it called the coordinator");
    return zero_fail(error, ZERO_E_TIMEOUT, "the coordinator has not answered in %.3g s: %s",
                     (double)(base_clock_ns() - call.begun_ns) * 1e-9, call.why);
}
