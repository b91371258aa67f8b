// The link between a coordinator and an agent: what passes, and how it ends.
#include "base/clock.h"
#include "tests/unit/link_pair.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ what passes */

static bool have_heard(void)
{
    return at_agent.controls == 1 && at_coordinator.controls == 1 && at_coordinator.raw == 200000;
}

static void talk(void)
{
    link_turn_until(link_are_open);
    assert_int_equal(coordinator.theirs.host, 3);
    assert_int_equal(coordinator.theirs.side, RUN_SIDE_AGENT);
    assert_true(strlen(coordinator.theirs.name) > 0);
    run_link_send(&coordinator, json_pack("{s:s}", "do", "start"));
    link_send_pattern(&agent, 200000);
    run_link_send(&agent, json_pack("{s:i}", "rank", 2));
    link_turn_until(have_heard);
    assert_string_equal(at_agent.last, "{\"do\":\"start\"}");
    assert_string_equal(at_coordinator.last, "{\"rank\":2}");
    assert_int_equal(at_coordinator.tag, 7);
    assert_false(at_coordinator.wrong);
    run_link_farewell(&agent);
    link_turn_until(link_has_coordinator_ended);
    link_expect_end(&coordinator, RUN_LINK_FAREWELL, "it has ended as it should");
    link_close();
}

static void frames_pass_over_a_socket(void **state)
{
    (void)state;
    link_begin(&plain_agent, &plain_coordinator);
    talk();
}

static void frames_pass_over_two_pipes(void **state)
{
    (void)state;
    int up[2], down[2];
    at_agent = at_coordinator = (struct link_inbox){.controls = 0};
    assert_int_equal(pipe(up) || pipe(down), 0);
    assert_int_equal(run_link_begin(&agent, down[0], up[1], &plain_agent, NULL), ZERO_OK);
    assert_int_equal(run_link_begin(&coordinator, up[0], down[1], &plain_coordinator, NULL),
                     ZERO_OK);
    talk();
}

static void a_message_may_be_long(void **state)
{
    (void)state;
    static char text[2 << 20];
    link_open();
    memset(text, 'x', sizeof text - 1);
    run_link_send(&agent, json_pack("{s:s}", "text", text));
    link_turn_until(link_has_heard_one);
    json_t *many = json_array();
    for (int i = 0; i < 3; i++)
        json_array_append_new(many, json_string(text));
    run_link_send(&agent, json_pack("{s:o}", "texts", many));
    link_expect_end(&agent, RUN_LINK_FAILED, "a message of 6291");
    link_close();
    link_open();
    run_link_send(&agent, NULL);
    link_expect_end(&agent, RUN_LINK_FAILED, "no memory for a message");
    link_close();
}

// Bytes of the agent arrive one by one.
static void frames_may_come_in_pieces(void **state)
{
    (void)state;
    int near[2], far[2], moved = 0;
    char byte;
    at_agent = at_coordinator = (struct link_inbox){.controls = 0};
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM, 0, near) || socketpair(AF_UNIX, SOCK_STREAM, 0, far), 0);
    assert_int_equal(run_link_begin(&agent, near[0], near[0], &plain_agent, NULL), ZERO_OK);
    assert_int_equal(run_link_begin(&coordinator, far[0], far[0], &plain_coordinator, NULL),
                     ZERO_OK);
    agent.state = RUN_LINK_OPEN; // it hears nothing
    run_link_send(&agent, json_pack("{s:s}", "a", "b"));
    link_send_pattern(&agent, 100);
    run_link_farewell(&agent);
    run_link_turn(&agent);
    for (; read(near[1], &byte, 1) == 1 && coordinator.state != RUN_LINK_ENDED; moved++) {
        assert_int_equal(write(far[1], &byte, 1), 1);
        run_link_turn(&coordinator);
        link_take(&coordinator, &at_coordinator);
        if (moved == 300)
            run_link_close(&agent);
    }
    link_expect_end(&coordinator, RUN_LINK_FAREWELL, "");
    assert_int_equal(at_coordinator.controls, 1);
    assert_int_equal(at_coordinator.raw, 100);
    assert_false(at_coordinator.wrong);
    close(near[1]);
    close(far[1]);
    link_close();
}

/* ------------------------------------------------------------------ ends */

static void what_was_sent_comes_before_the_end(void **state)
{
    (void)state;
    link_open();
    link_send_pattern(&agent, 100000);
    run_link_send(&agent, json_pack("{s:i}", "last", 1));
    run_link_turn(&agent);
    run_link_close(&agent);
    link_turn_until(link_has_coordinator_ended);
    link_expect_end(&coordinator, RUN_LINK_EOF, "it has closed its connection");
    assert_int_equal(at_coordinator.raw, 100000);
    assert_int_equal(at_coordinator.controls, 1);
    link_close();
}

static void beats_keep_a_link(void **state)
{
    (void)state;
    link_open();
    agent.beat_ns = coordinator.beat_ns = 10 * MS;
    agent.silence_ns = coordinator.silence_ns = 500 * MS;
    const double end = base_clock_s() + 1;
    while (base_clock_s() < end)
        link_turn();
    assert_true(link_are_open());
    // This process was stopped for a while; what the other side said meanwhile is there.
    coordinator.silence_ns = 1;
    link_send_pattern(&agent, 100);
    run_link_turn(&agent);
    usleep(1000);
    coordinator.silence_ns = 500 * MS;
    coordinator.heard_ns = base_clock_ns() - 1000 * MS;
    run_link_turn(&coordinator);
    assert_int_equal(coordinator.state, RUN_LINK_OPEN);
    assert_true(run_link_due(&coordinator) <= base_clock_ns() + 500 * MS);
    link_close();
    assert_int_equal(run_link_due(&coordinator), UINT64_MAX);
}

static bool is_relieved(void)
{
    return !run_link_full(&agent);
}

static void a_held_side_gets_controls_only(void **state)
{
    (void)state;
    size_t sent = 0;
    link_open();
    run_link_hold(&coordinator, true);
    for (; !run_link_full(&agent); sent += 30000) {
        link_send_pattern(&agent, 30000);
        link_turn();
    }
    for (int i = 0; i < 20; i++)
        link_turn();
    assert_true(run_link_full(&agent));
    assert_true(sent >= RUN_LINK_WINDOW && sent < RUN_LINK_WINDOW + 30000);
    run_link_send(&agent, json_pack("{s:i}", "rank", 2));
    link_turn_until(link_has_heard_one);
    assert_true(run_link_full(&agent));
    run_link_hold(&coordinator, false);
    link_turn_until(is_relieved);
    for (; sent < 10 << 20; sent += 30000) {
        link_send_pattern(&agent, 30000);
        link_turn();
    }
    while (at_coordinator.raw < sent)
        link_turn();
    assert_int_equal(at_coordinator.raw, sent);
    assert_false(at_coordinator.wrong);
    link_close();
}

static void a_side_that_reads_nothing_is_given_up(void **state)
{
    (void)state;
    link_open();
    size_t sent = 0;
    for (; agent.state == RUN_LINK_OPEN && sent < 2 * (size_t)RUN_LINK_MOST; sent += 200000) {
        link_send_pattern(&agent, 200000);
        run_link_turn(&agent);
    }
    link_expect_end(&agent, RUN_LINK_WRONG, "it does not take what it is sent");
    link_close();
    // The other way round: it sends, and waits for no confirmation.
    link_open();
    run_link_hold(&coordinator, true);
    for (sent = 0; coordinator.state == RUN_LINK_OPEN && sent < 2 * (size_t)RUN_LINK_MOST;
         sent += 200000) {
        link_send_pattern(&agent, 200000);
        link_turn();
    }
    link_expect_end(&coordinator, RUN_LINK_WRONG, "and waits for no confirmation");
    link_close();
}

// A child that sends a megabyte, finishes and ends, while this side reads slowly.
static void a_finish_loses_nothing(void **state)
{
    (void)state;
    int ends[2], status;
    at_coordinator = (struct link_inbox){.controls = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct run_frame frame;
        close(ends[0]);
        if (run_link_begin(&agent, ends[1], ends[1], &plain_agent, NULL))
            _exit(1);
        while (agent.state == RUN_LINK_MEETING) {
            run_link_turn(&agent);
            usleep(1000);
        }
        for (int i = 0; i < 5; i++)
            link_send_pattern(&agent, 200000);
        while (run_link_next(&agent, &frame))
            ;
        run_link_finish(&agent, base_clock_ns() + LINK_PATIENCE_S * UINT64_C(1000000000));
        _exit(agent.end == RUN_LINK_EOF ? 0 : 2);
    }
    close(ends[1]);
    assert_int_equal(run_link_begin(&coordinator, ends[0], ends[0], &plain_coordinator, NULL),
                     ZERO_OK);
    const double deadline = base_clock_s() + LINK_PATIENCE_S;
    while (coordinator.state != RUN_LINK_ENDED && base_clock_s() < deadline) {
        usleep(2000);
        run_link_turn(&coordinator);
        if (coordinator.state == RUN_LINK_OPEN)
            coordinator.beat_ns = 1; // bytes that the child has not read when it ends
        link_take(&coordinator, &at_coordinator);
    }
    link_expect_end(&coordinator, RUN_LINK_FAREWELL, "");
    assert_int_equal(at_coordinator.raw, 1000000);
    run_link_close(&coordinator);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ------------------------------------------------------------------ a remote shell's noise */

static void begin_noisy(int *writer)
{
    struct run_self self = plain_coordinator;
    int ends[2];
    self.noisy = true;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(run_link_begin(&coordinator, ends[0], ends[0], &self, NULL), ZERO_OK);
    *writer = ends[1];
}

static void a_shell_may_greet_first(void **state)
{
    (void)state;
    int fd;
    at_agent = at_coordinator = (struct link_inbox){.controls = 0};
    begin_noisy(&fd);
    assert_int_equal(write(fd, "Welcome to zero\nzerol", 21), 21);
    assert_int_equal(run_link_begin(&agent, fd, fd, &plain_agent, NULL), ZERO_OK);
    link_turn_until(link_are_open);
    assert_string_equal(coordinator.noise, "Welcome to zero\nzerol");
    link_close();

    begin_noisy(&fd);
    assert_int_equal(write(fd, "no such program\n", 16), 16);
    close(fd);
    run_link_turn(&coordinator);
    link_expect_end(&coordinator, RUN_LINK_EOF, "it has closed its connection");
    assert_string_equal(coordinator.noise, "no such program\n");
    run_link_close(&coordinator);

    begin_noisy(&fd);
    static char much[RUN_LINK_NOISE + 1];
    memset(much, 'x', sizeof much);
    for (size_t sent = 0; sent < sizeof much; sent += 1 + (size_t)RUN_LINK_NOISE / 8) {
        const size_t rest = sizeof much - sent;
        const size_t piece = rest < 1 + RUN_LINK_NOISE / 8 ? rest : 1 + RUN_LINK_NOISE / 8;
        assert_int_equal(write(fd, much, piece), piece);
        run_link_turn(&coordinator);
    }
    link_expect_end(&coordinator, RUN_LINK_WRONG, "its shell writes more than 65536 bytes");
    close(fd);
    run_link_close(&coordinator);
}

/* ------------------------------------------------------------------ standard input and output */

static void an_agent_takes_over_its_standard_streams(void **state)
{
    (void)state;
    int ends[2], status;
    at_coordinator = (struct link_inbox){.controls = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte;
        dup2(ends[1], STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (run_link_adopt(&agent, &plain_agent, NULL) || read(STDIN_FILENO, &byte, 1) != 0)
            _exit(1);
        if (write(STDOUT_FILENO, "", 0) != 0)
            _exit(2);
        while (agent.state == RUN_LINK_MEETING)
            run_link_turn(&agent);
        run_link_send(&agent, json_pack("{s:s}", "I", "agent"));
        run_link_finish(&agent, base_clock_ns() + LINK_PATIENCE_S * UINT64_C(1000000000));
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(run_link_begin(&coordinator, ends[0], ends[0], &plain_coordinator, NULL),
                     ZERO_OK);
    const double deadline = base_clock_s() + LINK_PATIENCE_S;
    while (coordinator.state != RUN_LINK_ENDED && base_clock_s() < deadline) {
        run_link_turn(&coordinator);
        link_take(&coordinator, &at_coordinator);
    }
    assert_string_equal(at_coordinator.last, "{\"I\":\"agent\"}");
    run_link_close(&coordinator);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_pass_over_a_socket),
        cmocka_unit_test(frames_pass_over_two_pipes),
        cmocka_unit_test(a_message_may_be_long),
        cmocka_unit_test(frames_may_come_in_pieces),
        cmocka_unit_test(what_was_sent_comes_before_the_end),
        cmocka_unit_test(beats_keep_a_link),
        cmocka_unit_test(a_held_side_gets_controls_only),
        cmocka_unit_test(a_side_that_reads_nothing_is_given_up),
        cmocka_unit_test(a_finish_loses_nothing),
        cmocka_unit_test(a_shell_may_greet_first),
        cmocka_unit_test(an_agent_takes_over_its_standard_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
