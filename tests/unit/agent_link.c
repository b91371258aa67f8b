// The link between a coordinator and an agent: what passes, how it ends, and what hostile or slow
// peers come to.
#include "tools/zero-run/agent_link.h"

#include "base/arena.h"
#include "base/clock.h"
#include "tests/unit/port.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { PATIENCE_S = 20 };

#define MS UINT64_C(1000000)

static struct run_link agent, coordinator;

/** What a side has received. */
struct inbox {
    int controls;
    size_t raw;
    char last[256]; /**< the last control frame, as JSON */
    uint32_t tag;
    bool wrong; /**< raw bytes that are not those of the pattern */
};

static struct inbox at_agent, at_coordinator;

static void take(struct run_link *link, struct inbox *inbox)
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

static void turn(void)
{
    struct pollfd polls[2 * RUN_LINK_POLLS];
    run_link_poll(&agent, polls);
    run_link_poll(&coordinator, polls + RUN_LINK_POLLS);
    poll(polls, 2 * RUN_LINK_POLLS, 5);
    run_link_turn(&agent);
    run_link_turn(&coordinator);
    take(&agent, &at_agent);
    take(&coordinator, &at_coordinator);
}

static bool are_open(void)
{
    return agent.state == RUN_LINK_OPEN && coordinator.state == RUN_LINK_OPEN;
}

static bool have_ended(void)
{
    return agent.state == RUN_LINK_ENDED && coordinator.state == RUN_LINK_ENDED;
}

static bool has_coordinator_ended(void)
{
    return coordinator.state == RUN_LINK_ENDED;
}

static void turn_until(bool (*done)(void))
{
    const double deadline = base_clock_s() + PATIENCE_S;
    while (!done()) {
        turn();
        if (base_clock_s() > deadline)
            fail_msg("agent: state %d, \"%s\"; coordinator: state %d, \"%s\"", agent.state,
                     agent.why.message, coordinator.state, coordinator.why.message);
    }
}

static const struct run_self plain_agent = {.side = RUN_SIDE_AGENT, .host = 3},
                             plain_coordinator = {.side = RUN_SIDE_COORDINATOR, .host = -1};

static void begin(const struct run_self *one, const struct run_self *other)
{
    int ends[2];
    struct base_error error = {.result = ZERO_OK};
    at_agent = at_coordinator = (struct inbox){.controls = 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    if (run_link_begin(&agent, ends[0], ends[0], one, &error) ||
        run_link_begin(&coordinator, ends[1], ends[1], other, &error))
        fail_msg("%s", error.message);
}

static void open_links(void)
{
    begin(&plain_agent, &plain_coordinator);
    turn_until(are_open);
}

static void close_links(void)
{
    run_link_close(&agent);
    run_link_close(&coordinator);
}

static void expect_end(const struct run_link *link, enum run_link_end end, const char *why)
{
    if (link->end != end || !strstr(link->why.message, why))
        fail_msg("end %d instead of %d, \"%s\" instead of \"%s\"", link->end, end,
                 link->why.message, why);
}

// Sends bytes behind the agent's back.
static void send_raw(const void *bytes, size_t count)
{
    assert_int_equal(send(agent.out, bytes, count, MSG_NOSIGNAL), count);
}

static void send_pattern(struct run_link *link, size_t count)
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

/* ------------------------------------------------------------------ what passes */

static bool have_heard(void)
{
    return at_agent.controls == 1 && at_coordinator.controls == 1 && at_coordinator.raw == 200000;
}

static void talk(void)
{
    turn_until(are_open);
    assert_int_equal(coordinator.theirs.host, 3);
    assert_int_equal(coordinator.theirs.side, RUN_SIDE_AGENT);
    assert_true(strlen(coordinator.theirs.name) > 0);
    run_link_send(&coordinator, json_pack("{s:s}", "do", "start"));
    send_pattern(&agent, 200000);
    run_link_send(&agent, json_pack("{s:i}", "rank", 2));
    turn_until(have_heard);
    assert_string_equal(at_agent.last, "{\"do\":\"start\"}");
    assert_string_equal(at_coordinator.last, "{\"rank\":2}");
    assert_int_equal(at_coordinator.tag, 7);
    assert_false(at_coordinator.wrong);
    run_link_farewell(&agent);
    turn_until(has_coordinator_ended);
    expect_end(&coordinator, RUN_LINK_FAREWELL, "it has ended as it should");
    close_links();
}

static void frames_pass_over_a_socket(void **state)
{
    (void)state;
    begin(&plain_agent, &plain_coordinator);
    talk();
}

static void frames_pass_over_two_pipes(void **state)
{
    (void)state;
    int up[2], down[2];
    at_agent = at_coordinator = (struct inbox){.controls = 0};
    assert_int_equal(pipe(up) || pipe(down), 0);
    assert_int_equal(run_link_begin(&agent, down[0], up[1], &plain_agent, NULL), ZERO_OK);
    assert_int_equal(run_link_begin(&coordinator, up[0], down[1], &plain_coordinator, NULL),
                     ZERO_OK);
    talk();
}

static bool has_heard_one(void)
{
    return at_coordinator.controls == 1;
}

static void a_message_may_be_long(void **state)
{
    (void)state;
    static char text[2 << 20];
    open_links();
    memset(text, 'x', sizeof text - 1);
    run_link_send(&agent, json_pack("{s:s}", "text", text));
    turn_until(has_heard_one);
    json_t *many = json_array();
    for (int i = 0; i < 3; i++)
        json_array_append_new(many, json_string(text));
    run_link_send(&agent, json_pack("{s:o}", "texts", many));
    expect_end(&agent, RUN_LINK_FAILED, "a message of 6291");
    close_links();
    open_links();
    run_link_send(&agent, NULL);
    expect_end(&agent, RUN_LINK_FAILED, "no memory for a message");
    close_links();
}

// Bytes of the agent arrive one by one.
static void frames_may_come_in_pieces(void **state)
{
    (void)state;
    int near[2], far[2], moved = 0;
    char byte;
    at_agent = at_coordinator = (struct inbox){.controls = 0};
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM, 0, near) || socketpair(AF_UNIX, SOCK_STREAM, 0, far), 0);
    assert_int_equal(run_link_begin(&agent, near[0], near[0], &plain_agent, NULL), ZERO_OK);
    assert_int_equal(run_link_begin(&coordinator, far[0], far[0], &plain_coordinator, NULL),
                     ZERO_OK);
    agent.state = RUN_LINK_OPEN; // it hears nothing
    run_link_send(&agent, json_pack("{s:s}", "a", "b"));
    send_pattern(&agent, 100);
    run_link_farewell(&agent);
    run_link_turn(&agent);
    for (; read(near[1], &byte, 1) == 1 && coordinator.state != RUN_LINK_ENDED; moved++) {
        assert_int_equal(write(far[1], &byte, 1), 1);
        run_link_turn(&coordinator);
        take(&coordinator, &at_coordinator);
        if (moved == 300)
            run_link_close(&agent);
    }
    expect_end(&coordinator, RUN_LINK_FAREWELL, "");
    assert_int_equal(at_coordinator.controls, 1);
    assert_int_equal(at_coordinator.raw, 100);
    assert_false(at_coordinator.wrong);
    close(near[1]);
    close(far[1]);
    close_links();
}

/* ------------------------------------------------------------------ secrets */

static void expect_meeting(const struct run_self *one, const struct run_self *other,
                           const char *agents, const char *coordinators)
{
    begin(one, other);
    turn_until(agents ? have_ended : are_open);
    if (agents) {
        expect_end(&agent, RUN_LINK_REFUSED, agents);
        expect_end(&coordinator, RUN_LINK_REFUSED, coordinators);
    }
    close_links();
}

static void both_sides_prove_the_secret(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    if (base_hmac_load(NULL))
        skip();
    one.job = other.job = "job-7";
    one.secret = other.secret = "a secret";
    begin(&one, &other);
    talk();
    one.secret = "another secret";
    expect_meeting(&one, &other, "its ZERO_SECRET is another one", "its ZERO_SECRET is another");
    one.secret = "";
    expect_meeting(&one, &other, "set there and not here", "set here and not there");
    one.secret = "a secret";
    other.secret = NULL;
    expect_meeting(&one, &other, "set here and not there", "set there and not here");
    other.secret = "a secret";
    other.job = NULL;
    expect_meeting(&one, &other, "it is of job \"\", and this is job job-7",
                   "it is of job job-7, and this is job \"\"");
}

// What an agent has proved on one connection is no proof on another one, nor for other words.
static void a_proof_holds_once(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    unsigned char before[BASE_HMAC_BYTES], proof[BASE_HMAC_BYTES + 1];
    if (base_hmac_load(NULL))
        skip();
    one.secret = other.secret = "a secret";
    for (int attempt = 0; attempt < 3; attempt++) {
        begin(&one, &other);
        run_link_turn(&agent);
        run_link_turn(&coordinator);
        run_link_turn(&agent);
        // The agent's proof, taken from where the coordinator would read it.
        assert_int_equal(recv(coordinator.in, proof, sizeof proof, 0), BASE_HMAC_BYTES);
        if (attempt == 0)
            memcpy(before, proof, sizeof before);
        else if (attempt == 1)
            memcpy(proof, before, sizeof before);
        else
            coordinator.theirs.host++; // the agent has said another number
        send_raw(proof, BASE_HMAC_BYTES);
        run_link_turn(&coordinator);
        if (attempt == 0)
            assert_int_equal(coordinator.state, RUN_LINK_OPEN);
        else
            expect_end(&coordinator, RUN_LINK_REFUSED, "its ZERO_SECRET is another one");
        close_links();
    }
}

// A stranger at the coordinator's port may say that an agent's proof was good.
static void an_agent_asks_for_a_proof_too(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    const unsigned char answer[8 + BASE_HMAC_BYTES] = {1};
    if (base_hmac_load(NULL))
        skip();
    one.secret = "a secret";
    other.secret = "a guess";
    begin(&one, &other);
    run_link_turn(&agent);
    run_link_turn(&coordinator);
    run_link_turn(&agent);
    assert_int_equal(send(coordinator.out, answer, sizeof answer, 0), sizeof answer);
    run_link_turn(&agent);
    expect_end(&agent, RUN_LINK_REFUSED, "its ZERO_SECRET is another one");
    close_links();
}

static void two_of_one_side_do_not_meet(void **state)
{
    (void)state;
    begin(&plain_agent, &plain_agent);
    turn_until(have_ended);
    expect_end(&agent, RUN_LINK_WRONG, "it is an agent as well");
    close_links();
    begin(&plain_coordinator, &plain_coordinator);
    turn_until(have_ended);
    expect_end(&agent, RUN_LINK_WRONG, "it is a coordinator as well");
    close_links();
}

/* ------------------------------------------------------------------ hostile peers */

struct header {
    uint32_t magic, type, tag, length;
};

enum { MAGIC = 0x6d617266, BEAT = 16, CONFIRM, FAREWELL };

static void wrong_frames_end_a_link(void **state)
{
    (void)state;
    static const struct {
        struct header header;
        const char *bytes, *why;
    } rows[] = {
        {{0x12345678, 1, 0, 2}, "{}", "what it sends is no message of zero-run's"},
        {{MAGIC, 0, 0, 0}, "", "a message of a type that is none: 0"},
        {{MAGIC, 5, 0, 0}, "", "a message of a type that is none: 5"},
        {{MAGIC, 19, 0, 0}, "", "a message of a type that is none: 19"},
        {{MAGIC, UINT32_MAX, 0, 0}, "", "a message of a type that is none: 4294967295"},
        {{MAGIC, 1, 0, UINT32_MAX},
         "",
         "it announces 4294967295 bytes, where there can be 4194304"},
        {{MAGIC, 2, 0, 65537}, "", "it announces 65537 bytes, where there can be 65536"},
        {{MAGIC, BEAT, 0, 1}, "x", "it announces 1 bytes, where there can be 0"},
        {{MAGIC, 1, 0, 0}, "", "it sends a message that cannot be read"},
        {{MAGIC, 1, 0, 2}, "[]", "it sends a message that cannot be read"},
        {{MAGIC, 1, 0, 1}, "{", "it sends a message that cannot be read"},
        {{MAGIC, 1, 0, 13}, "{\"a\":1,\"a\":2}", "it sends a message that cannot be read"},
        {{MAGIC, 1, 0, 3}, "{}\0", "it sends a message that cannot be read"},
        {{MAGIC, CONFIRM, 1, 0}, "", "it confirms 1 bytes, but has got 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_links();
        send_raw(&rows[i].header, sizeof rows[i].header);
        if (rows[i].header.length < 100)
            send_raw(rows[i].bytes, rows[i].header.length);
        turn_until(has_coordinator_ended);
        expect_end(&coordinator, RUN_LINK_WRONG, rows[i].why);
        close_links();
    }
}

static void wrong_hellos_end_a_link(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint32_t value;
        enum run_link_end end;
        const char *why;
    } rows[] = {
        {0, 0x20485353, RUN_LINK_WRONG, "it is no zero-run"},
        {offsetof(struct run_hello, protocol), 2, RUN_LINK_REFUSED,
         "its zero-run speaks version 2 of the protocol between hosts, this one version 1"},
        {offsetof(struct run_hello, side), 7, RUN_LINK_WRONG, "it is a coordinator as well"},
        {offsetof(struct run_hello, has_secret), 2, RUN_LINK_WRONG, "its hello is damaged"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin(&plain_agent, &plain_coordinator);
        memcpy(agent.waiting.data + rows[i].at, &rows[i].value, sizeof rows[i].value);
        turn_until(has_coordinator_ended);
        expect_end(&coordinator, rows[i].end, rows[i].why);
        close_links();
    }
    // Names without an end, and such as no terminal should get.
    begin(&plain_agent, &plain_coordinator);
    memset(agent.waiting.data + offsetof(struct run_hello, name), '\033', RUN_LINK_NAME);
    turn_until(are_open);
    assert_int_equal(strspn(coordinator.theirs.name, "?"), RUN_LINK_NAME - 1);
    close_links();
}

static void half_a_frame_is_an_end(void **state)
{
    (void)state;
    const struct header header = {MAGIC, 1, 0, 100};
    open_links();
    send_raw(&header, 7);
    turn();
    assert_int_equal(coordinator.state, RUN_LINK_OPEN);
    run_link_close(&agent);
    turn_until(has_coordinator_ended);
    expect_end(&coordinator, RUN_LINK_EOF, "it has closed its connection in the middle of");
    close_links();
    open_links();
    send_raw(&header, sizeof header);
    send_raw("{", 1);
    coordinator.silence_ns = 50 * MS;
    agent.silence_ns = 0;
    agent.beat_ns = UINT64_MAX / 2;
    turn_until(has_coordinator_ended);
    expect_end(&coordinator, RUN_LINK_SILENT, "it has not been heard for 0.05");
    close_links();
}

/* ------------------------------------------------------------------ ends */

static void what_was_sent_comes_before_the_end(void **state)
{
    (void)state;
    open_links();
    send_pattern(&agent, 100000);
    run_link_send(&agent, json_pack("{s:i}", "last", 1));
    run_link_turn(&agent);
    run_link_close(&agent);
    turn_until(has_coordinator_ended);
    expect_end(&coordinator, RUN_LINK_EOF, "it has closed its connection");
    assert_int_equal(at_coordinator.raw, 100000);
    assert_int_equal(at_coordinator.controls, 1);
    close_links();
}

static void beats_keep_a_link(void **state)
{
    (void)state;
    open_links();
    agent.beat_ns = coordinator.beat_ns = 10 * MS;
    agent.silence_ns = coordinator.silence_ns = 500 * MS;
    const double end = base_clock_s() + 1;
    while (base_clock_s() < end)
        turn();
    assert_true(are_open());
    // This process was stopped for a while; what the other side said meanwhile is there.
    coordinator.silence_ns = 1;
    send_pattern(&agent, 100);
    run_link_turn(&agent);
    usleep(1000);
    coordinator.silence_ns = 500 * MS;
    coordinator.heard_ns = base_clock_ns() - 1000 * MS;
    run_link_turn(&coordinator);
    assert_int_equal(coordinator.state, RUN_LINK_OPEN);
    assert_true(run_link_due(&coordinator) <= base_clock_ns() + 500 * MS);
    close_links();
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
    open_links();
    run_link_hold(&coordinator, true);
    for (; !run_link_full(&agent); sent += 30000) {
        send_pattern(&agent, 30000);
        turn();
    }
    for (int i = 0; i < 20; i++)
        turn();
    assert_true(run_link_full(&agent));
    assert_true(sent >= RUN_LINK_WINDOW && sent < RUN_LINK_WINDOW + 30000);
    run_link_send(&agent, json_pack("{s:i}", "rank", 2));
    turn_until(has_heard_one);
    assert_true(run_link_full(&agent));
    run_link_hold(&coordinator, false);
    turn_until(is_relieved);
    for (; sent < 10 << 20; sent += 30000) {
        send_pattern(&agent, 30000);
        turn();
    }
    while (at_coordinator.raw < sent)
        turn();
    assert_int_equal(at_coordinator.raw, sent);
    assert_false(at_coordinator.wrong);
    close_links();
}

static void a_side_that_reads_nothing_is_given_up(void **state)
{
    (void)state;
    open_links();
    size_t sent = 0;
    for (; agent.state == RUN_LINK_OPEN && sent < 2 * (size_t)RUN_LINK_MOST; sent += 200000) {
        send_pattern(&agent, 200000);
        run_link_turn(&agent);
    }
    expect_end(&agent, RUN_LINK_WRONG, "it does not take what it is sent");
    close_links();
    // The other way round: it sends, and waits for no confirmation.
    open_links();
    run_link_hold(&coordinator, true);
    for (sent = 0; coordinator.state == RUN_LINK_OPEN && sent < 2 * (size_t)RUN_LINK_MOST;
         sent += 200000) {
        send_pattern(&agent, 200000);
        turn();
    }
    expect_end(&coordinator, RUN_LINK_WRONG, "and waits for no confirmation");
    close_links();
}

// A child that sends a megabyte, finishes and ends, while this side reads slowly.
static void a_finish_loses_nothing(void **state)
{
    (void)state;
    int ends[2], status;
    at_coordinator = (struct inbox){.controls = 0};
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
            send_pattern(&agent, 200000);
        while (run_link_next(&agent, &frame))
            ;
        run_link_finish(&agent, base_clock_ns() + PATIENCE_S * UINT64_C(1000000000));
        _exit(agent.end == RUN_LINK_EOF ? 0 : 2);
    }
    close(ends[1]);
    assert_int_equal(run_link_begin(&coordinator, ends[0], ends[0], &plain_coordinator, NULL),
                     ZERO_OK);
    const double deadline = base_clock_s() + PATIENCE_S;
    while (coordinator.state != RUN_LINK_ENDED && base_clock_s() < deadline) {
        usleep(2000);
        run_link_turn(&coordinator);
        if (coordinator.state == RUN_LINK_OPEN)
            coordinator.beat_ns = 1; // bytes that the child has not read when it ends
        take(&coordinator, &at_coordinator);
    }
    expect_end(&coordinator, RUN_LINK_FAREWELL, "");
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
    at_agent = at_coordinator = (struct inbox){.controls = 0};
    begin_noisy(&fd);
    assert_int_equal(write(fd, "Welcome to zero\nzerol", 21), 21);
    assert_int_equal(run_link_begin(&agent, fd, fd, &plain_agent, NULL), ZERO_OK);
    turn_until(are_open);
    assert_string_equal(coordinator.noise, "Welcome to zero\nzerol");
    close_links();

    begin_noisy(&fd);
    assert_int_equal(write(fd, "no such program\n", 16), 16);
    close(fd);
    run_link_turn(&coordinator);
    expect_end(&coordinator, RUN_LINK_EOF, "it has closed its connection");
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
    expect_end(&coordinator, RUN_LINK_WRONG, "its shell writes more than 65536 bytes");
    close(fd);
    run_link_close(&coordinator);
}

/* ------------------------------------------------------------------ calls */

static struct run_listener listener;
static char refusal[512];

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
    run_listener_refusals(&listener, refusal, sizeof refusal);
    return run_listener_next(&listener);
}

static int call_listener(void)
{
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)listener.port)};
    const struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = to.sin6_port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)to;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&v4, sizeof v4), 0);
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
    const double deadline = base_clock_s() + PATIENCE_S;
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
    const pid_t child = start_caller(&one, listener.port, PATIENCE_S * 1000, &out);
    struct run_link *link = await_agent();
    assert_int_equal(link->theirs.host, 3);
    assert_non_null(strstr(refusal, "127.0.0.1: it has not introduced itself in time"));
    release(link);
    assert_int_equal(end_caller(child, out, text), ZERO_OK);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        close(fds[i]);
    run_listener_close(&listener);

    open_listener(&other);
    fds[0] = call_listener();
    assert_int_equal(write(fds[0], "GET / HTTP/1.1\r\n", 16), 16);
    const double deadline = base_clock_s() + PATIENCE_S;
    for (refusal[0] = '\0'; !refusal[0] && base_clock_s() < deadline;)
        assert_null(listen_once(10));
    assert_string_equal(refusal, "a caller was refused, 127.0.0.1: it is no zero-run");
    close(fds[0]);
    run_listener_close(&listener);
}

static void wrong_secrets_are_told_at_once(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    char text[512];
    int out;
    if (base_hmac_load(NULL))
        skip();
    one.secret = "mine";
    other.secret = "yours";
    open_listener(&other);
    const double began = base_clock_s();
    const pid_t child = start_caller(&one, listener.port, 60000, &out);
    for (refusal[0] = '\0'; !refusal[0] && base_clock_s() < began + PATIENCE_S;)
        assert_null(listen_once(10));
    assert_non_null(strstr(refusal, "its ZERO_SECRET is another one"));
    assert_int_equal(end_caller(child, out, text), ZERO_E_INVALID);
    assert_non_null(strstr(text, "of 127.0.0.1: its ZERO_SECRET is another one"));
    assert_true(base_clock_s() < began + PATIENCE_S);
    run_listener_close(&listener);
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

    child = start_caller(&plain_agent, port, PATIENCE_S * 1000, &out);
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

/* ------------------------------------------------------------------ standard input and output */

static void an_agent_takes_over_its_standard_streams(void **state)
{
    (void)state;
    int ends[2], status;
    at_coordinator = (struct inbox){.controls = 0};
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
        run_link_finish(&agent, base_clock_ns() + PATIENCE_S * UINT64_C(1000000000));
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(run_link_begin(&coordinator, ends[0], ends[0], &plain_coordinator, NULL),
                     ZERO_OK);
    const double deadline = base_clock_s() + PATIENCE_S;
    while (coordinator.state != RUN_LINK_ENDED && base_clock_s() < deadline) {
        run_link_turn(&coordinator);
        take(&coordinator, &at_coordinator);
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
        cmocka_unit_test(both_sides_prove_the_secret),
        cmocka_unit_test(a_proof_holds_once),
        cmocka_unit_test(an_agent_asks_for_a_proof_too),
        cmocka_unit_test(two_of_one_side_do_not_meet),
        cmocka_unit_test(wrong_frames_end_a_link),
        cmocka_unit_test(wrong_hellos_end_a_link),
        cmocka_unit_test(half_a_frame_is_an_end),
        cmocka_unit_test(what_was_sent_comes_before_the_end),
        cmocka_unit_test(beats_keep_a_link),
        cmocka_unit_test(a_held_side_gets_controls_only),
        cmocka_unit_test(a_side_that_reads_nothing_is_given_up),
        cmocka_unit_test(a_finish_loses_nothing),
        cmocka_unit_test(a_shell_may_greet_first),
        cmocka_unit_test(agents_come_among_hostile_callers),
        cmocka_unit_test(wrong_secrets_are_told_at_once),
        cmocka_unit_test(an_agent_waits_for_its_coordinator),
        cmocka_unit_test(an_agent_takes_over_its_standard_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
