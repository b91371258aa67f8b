#include "tests/unit/link_pair.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

struct run_link agent, coordinator;

struct link_inbox at_agent, at_coordinator;

void link_take(struct run_link *link, struct link_inbox *inbox)
{
    struct run_frame frame;
    while (run_link_next(link, &frame)) {
        if (frame.type == RUN_FRAME_CONTROL) {
            char *text = json_dumps(frame.object, JSON_COMPACT);
            snprintf(inbox->last, sizeof inbox->last, "%s", text);
            free(text);
            json_decref(frame.object);
            inbox->controls++;
            continue;
        }
        for (size_t i = 0; i < frame.count; i++)
            inbox->wrong |= frame.bytes[i] != (char)('a' + (inbox->raw + i) % 26);
        inbox->raw += frame.count;
        inbox->tag = frame.tag;
    }
}

void link_turn(void)
{
    struct pollfd polls[2 * RUN_LINK_POLLS];
    run_link_poll(&agent, polls);
    run_link_poll(&coordinator, polls + RUN_LINK_POLLS);
    poll(polls, 2 * RUN_LINK_POLLS, 5);
    run_link_turn(&agent);
    run_link_turn(&coordinator);
    link_take(&agent, &at_agent);
    link_take(&coordinator, &at_coordinator);
}

bool link_are_open(void)
{
    return agent.state == RUN_LINK_OPEN && coordinator.state == RUN_LINK_OPEN;
}

bool link_have_ended(void)
{
    return agent.state == RUN_LINK_ENDED && coordinator.state == RUN_LINK_ENDED;
}

bool link_has_coordinator_ended(void)
{
    return coordinator.state == RUN_LINK_ENDED;
}

void link_turn_until(bool (*done)(void))
{
    const double deadline = base_clock_s() + LINK_PATIENCE_S;
    while (!done()) {
        link_turn();
        if (base_clock_s() > deadline)
            fail_msg("agent: state %d, \"%s\"; coordinator: state %d, \"%s\"", agent.state,
                     agent.why.message, coordinator.state, coordinator.why.message);
    }
}

const struct run_self plain_agent = {.side = RUN_SIDE_AGENT, .host = 3},
                      plain_coordinator = {.side = RUN_SIDE_COORDINATOR, .host = -1};

void link_begin(const struct run_self *one, const struct run_self *other)
{
    int ends[2];
    struct base_error error = {.result = ZERO_OK};
    at_agent = at_coordinator = (struct link_inbox){.controls = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    if (run_link_begin(&agent, ends[0], ends[0], one, &error) ||
        run_link_begin(&coordinator, ends[1], ends[1], other, &error))
        fail_msg("%s", error.message);
}

void link_open(void)
{
    link_begin(&plain_agent, &plain_coordinator);
    link_turn_until(link_are_open);
}

void link_close(void)
{
    run_link_close(&agent);
    run_link_close(&coordinator);
}

void link_expect_end(const struct run_link *link, enum run_link_end end, const char *why)
{
    if (link->end != end || !strstr(link->why.message, why))
        fail_msg("end %d instead of %d, \"%s\" instead of \"%s\"", link->end, end,
                 link->why.message, why);
}

// Sends bytes behind the agent's back.
void link_send_raw(const void *bytes, size_t count)
{
    assert_int_equal(send(agent.out, bytes, count, MSG_NOSIGNAL), count);
}

void link_send_pattern(struct run_link *link, size_t count)
{
    static size_t sent;
    static char bytes[26 * 8192];
    if (link->unconfirmed == 0 && at_coordinator.raw == 0)
        sent = 0;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)('a' + (sent + i) % 26);
    sent += count;
    run_link_send_bytes(link, RUN_FRAME_OUTPUT, 7, bytes, count);
}

bool link_has_heard_one(void)
{
    return at_coordinator.controls == 1;
}
