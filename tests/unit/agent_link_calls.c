// Agents that call the coordinator's port, among callers that are none.
#include "base/arena.h"
#include "base/clock.h"
#include "tests/unit/link_pair.h"
#include "tests/unit/port.h"

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

/* ------------------------------------------------------------------ calls */

static struct run_listener listener;
static char refusal[512];
static int refusal_lines;

static void open_listener(const struct run_self *self)
{
    struct base_error error = {.result = ZERO_OK};
    if (run_listener_open(&listener, 0, self, &error))
        fail_msg("%s", error.message);
    assert_true(listener.port > 0);
}

static struct run_link *listen_once(int timeout)
{
    struct pollfd polls[1 + RUN_CALLERS_MAX];
    const int count = run_listener_poll(&listener, polls);
    poll(polls, (nfds_t)count, timeout);
    run_listener_turn(&listener);
    if (run_listener_refusals(&listener, false, refusal, sizeof refusal))
        refusal_lines++;
    return run_listener_next(&listener);
}

static int call_listener(void)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)listener.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool stop_asked;

static bool is_stop_asked(void)
{
    return stop_asked;
}

static int words;

static void count_words(void *user, double seconds, const char *why)
{
    (void)user;
    (void)seconds;
    (void)why;
    words++;
}

// Calls as an agent does, in a child that ends with the result, and writes the message.
static pid_t start_caller(const struct run_self *self, int port, uint64_t patience_ms, int *out)
{
    static const char *const addresses[] = {"127.0.0.1"};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct base_error error = {.result = ZERO_OK};
        const struct run_calling calling = {.addresses = addresses,
                                            .count = 1,
                                            .port = port,
                                            .deadline_ns = base_clock_ns() + patience_ms * MS,
                                            .asked = is_stop_asked,
                                            .say = count_words};
        const zero_result result = run_link_call(&agent, &calling, self, &error);
        if (write(ends[1], error.message, strlen(error.message)) < 0)
            _exit(100);
        if (!result)
            run_link_send(&agent, json_pack("{s:i}", "pid", (int)getpid()));
        run_link_finish(&agent, base_clock_ns() + 1000 * MS);
        _exit(-result);
    }
    close(ends[1]);
    *out = ends[0];
    return child;
}

static int end_caller(pid_t child, int out, char text[512])
{
    int status;
    const ssize_t count = read(out, text, 511);
    text[count > 0 ? count : 0] = '\0';
    close(out);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static struct run_link *await_agent(void)
{
    const double deadline = base_clock_s() + LINK_PATIENCE_S;
    struct run_link *link;
    while (!(link = listen_once(10)))
        if (base_clock_s() > deadline)
            fail_msg("no agent has come: %s", refusal);
    return link;
}

static void release(struct run_link *link)
{
    run_link_close(link);
    base_free(link);
}

static void agents_come_among_hostile_callers(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    int fds[RUN_CALLERS_MAX + 10], out;
    char text[512];
    if (!base_hmac_load(NULL))
        one.secret = other.secret = "a secret";
    open_listener(&other);
    listener.prove_ns = 200 * MS;
    refusal[0] = '\0';
    // Silent ones, more than there is room for, and one that speaks another language.
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        fds[i] = call_listener();
    assert_int_equal(write(fds[1], "GET / HTTP/1.1\r\n", 16), 16);
    const pid_t child = start_caller(&one, listener.port, LINK_PATIENCE_S * 1000, &out);
    struct run_link *link = await_agent();
    assert_int_equal(link->theirs.host, 3);
    assert_true(run_listener_refusals(&listener, true, refusal, sizeof refusal));
    assert_non_null(strstr(refusal, "127.0.0.1: it has not introduced itself in time"));
    release(link);
    assert_int_equal(end_caller(child, out, text), ZERO_OK);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        close(fds[i]);
    run_listener_close(&listener);

    open_listener(&other);
    fds[0] = call_listener();
    assert_int_equal(write(fds[0], "GET / HTTP/1.1\r\n", 16), 16);
    const double deadline = base_clock_s() + LINK_PATIENCE_S;
    for (refusal[0] = '\0'; !refusal[0] && base_clock_s() < deadline;)
        assert_null(listen_once(10));
    assert_string_equal(refusal, "a caller was refused, 127.0.0.1: it is no zero-run");
    close(fds[0]);
    run_listener_close(&listener);
}

// All places are taken by callers that say nothing, and have 5 s each to prove themselves.
static void silent_callers_keep_no_agent_waiting(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    int fds[3 * RUN_CALLERS_MAX], out;
    char text[512];
    if (!base_hmac_load(NULL))
        one.secret = other.secret = "a secret";
    open_listener(&other);
    refusal_lines = 0;
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        fds[i] = call_listener();
    listen_once(0);
    const double began = base_clock_s();
    const pid_t child = start_caller(&one, listener.port, LINK_PATIENCE_S * 1000, &out);
    release(await_agent());
    assert_true(base_clock_s() - began < 4);
    assert_int_equal(end_caller(child, out, text), ZERO_OK);
    // More than a hundred were refused: a line said so of the first, and one does at the end.
    assert_int_equal(refusal_lines, 1);
    assert_non_null(strstr(refusal, "127.0.0.1: it has not proved itself in 250 ms, and other "
                                    "callers wait"));
    assert_true(run_listener_due(&listener) > base_clock_ns());
    assert_true(run_listener_refusals(&listener, true, refusal, sizeof refusal));
    assert_non_null(strstr(refusal, " callers were refused, the last one 127.0.0.1: it has not"));
    assert_false(run_listener_refusals(&listener, true, refusal, sizeof refusal));
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        close(fds[i]);
    run_listener_close(&listener);
}

static ssize_t hear(int fd, void *bytes, size_t size)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    for (int turns = 0; turns < 20 && poll(&ready, 1, 0) <= 0; turns++)
        assert_null(listen_once(10));
    return recv(fd, bytes, size, MSG_DONTWAIT);
}

// A stranger hears nothing before it has said hello, and no name of the job or the host then.
static void strangers_learn_no_names(void **state)
{
    (void)state;
    struct run_self other = plain_coordinator;
    struct run_hello hello, mine = {.protocol = RUN_LINK_PROTOCOL, .side = RUN_SIDE_AGENT};
    char byte;
    if (base_hmac_load(NULL))
        skip();
    other.job = "job-7";
    other.secret = "a secret";
    open_listener(&other);
    int fd = call_listener();
    assert_int_equal(hear(fd, &byte, 1), -1);
    assert_int_equal(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    assert_int_equal(hear(fd, &byte, 1), 0); // the connection is closed
    close(fd);
    fd = call_listener();
    memcpy(&mine.magic, "zerolink", 8);
    mine.has_secret = 1;
    mine.host = 1;
    assert_int_equal(write(fd, &mine, sizeof mine), sizeof mine);
    assert_int_equal(hear(fd, &hello, sizeof hello), sizeof hello);
    assert_int_equal(hello.side, RUN_SIDE_COORDINATOR);
    assert_string_equal(hello.job, "");
    assert_string_equal(hello.name, "");
    // It can prove nothing, and hears no more.
    assert_int_equal(write(fd, hello.nonce, sizeof hello.nonce), sizeof hello.nonce);
    char answer[512] = "";
    const ssize_t count = hear(fd, answer, sizeof answer);
    for (ssize_t i = 0; i < count; i++)
        assert_int_equal(answer[i], 0);
    close(fd);
    run_listener_close(&listener);
}

// Each side hears the other's names when both have proved themselves; then jobs are compared.
static void jobs_are_compared_behind_the_proofs(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    char text[512];
    int out;
    if (base_hmac_load(NULL))
        skip();
    one.secret = other.secret = "a secret";
    one.job = "job-7";
    other.job = "job-8 \303\274"; // is cleaned alike on both sides
    open_listener(&other);
    const pid_t child = start_caller(&one, listener.port, 60000, &out);
    const double began = base_clock_s();
    for (refusal[0] = '\0'; !refusal[0] && base_clock_s() < began + LINK_PATIENCE_S;)
        assert_null(listen_once(10));
    assert_non_null(strstr(refusal, "it is of job job-7, and this is job job-8 ??"));
    assert_int_equal(end_caller(child, out, text), ZERO_E_INVALID);
    assert_non_null(strstr(text, "it is of job job-8 ??, and this is job job-7"));
    run_listener_close(&listener);
}

// Both sides hear of it at once: the coordinator's caller is refused, and the agent does not call
// again.
static void wrong_secrets_and_jobs_are_told_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *secrets[2], *jobs[2], *refusal, *why;
    } cases[] = {
        {{"mine", "yours"}, {NULL, NULL}, "its ZERO_SECRET is another one", "its ZERO_SECRET is "},
        {{"mine", NULL}, {NULL, NULL}, "is set there and not here", "is set here and not there"},
        {{NULL, "yours"}, {NULL, NULL}, "is set here and not there", "is set there and not here"},
        {{NULL, NULL}, {"a", "b"}, "of job a, and this is job b", "of job b, and this is job a"},
    };
    if (base_hmac_load(NULL))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run_self one = plain_agent, other = plain_coordinator;
        char text[512];
        int out;
        one.secret = cases[i].secrets[0];
        other.secret = cases[i].secrets[1];
        one.job = cases[i].jobs[0];
        other.job = cases[i].jobs[1];
        open_listener(&other);
        const double began = base_clock_s();
        const pid_t child = start_caller(&one, listener.port, 60000, &out);
        for (refusal[0] = '\0'; !refusal[0] && base_clock_s() < began + LINK_PATIENCE_S;)
            assert_null(listen_once(10));
        assert_non_null(strstr(refusal, cases[i].refusal));
        assert_int_equal(end_caller(child, out, text), ZERO_E_INVALID);
        if (!strstr(text, "of 127.0.0.1: ") || !strstr(text, cases[i].why))
            fail_msg("case %zu: %s", i, text);
        assert_true(base_clock_s() < began + LINK_PATIENCE_S);
        run_listener_close(&listener);
    }
}

static void an_agent_waits_for_its_coordinator(void **state)
{
    (void)state;
    int port, out;
    char text[512];
    struct base_error error = {.result = ZERO_OK};
    const int reserved = port_reserve(&port);
    assert_true(reserved >= 0);
    pid_t child = start_caller(&plain_agent, port, 300, &out);
    assert_int_equal(end_caller(child, out, text), ZERO_E_TIMEOUT);
    assert_non_null(strstr(text, "the coordinator has not answered in 0.3"));
    assert_non_null(strstr(text, "ECONNREFUSED"));
    stop_asked = true;
    child = start_caller(&plain_agent, port, 60000, &out);
    stop_asked = false;
    assert_int_equal(end_caller(child, out, text), ZERO_E_ABORTED);
    assert_non_null(strstr(text, "was asked to stop"));

    child = start_caller(&plain_agent, port, LINK_PATIENCE_S * 1000, &out);
    usleep(200000);
    if (run_listener_open(&listener, port, &plain_coordinator, &error))
        fail_msg("%s", error.message);
    struct run_listener second;
    assert_int_equal(run_listener_open(&second, port, &plain_coordinator, NULL), ZERO_AGAIN);
    struct run_link *link = await_agent();
    release(link);
    assert_int_equal(end_caller(child, out, text), ZERO_OK);
    run_listener_close(&listener);
    close(reserved);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agents_come_among_hostile_callers),
        cmocka_unit_test(silent_callers_keep_no_agent_waiting),
        cmocka_unit_test(strangers_learn_no_names),
        cmocka_unit_test(jobs_are_compared_behind_the_proofs),
        cmocka_unit_test(wrong_secrets_and_jobs_are_told_at_once),
        cmocka_unit_test(an_agent_waits_for_its_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
