// What a link makes of peers with another secret, of wrong bytes, and of half messages.
#include "tests/unit/link_pair.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ secrets */

static void expect_meeting(const struct run_self *one, const struct run_self *other,
                           const char *agents, const char *coordinators)
{
    link_begin(one, other);
    link_turn_until(agents ? link_have_ended : link_are_open);
    if (agents) {
        link_expect_end(&agent, RUN_LINK_REFUSED, agents);
        link_expect_end(&coordinator, RUN_LINK_REFUSED, coordinators);
    }
    link_close();
}

static void both_sides_prove_the_secret(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    if (base_hmac_load(NULL))
        skip();
    one.job = other.job = "job-7";
    one.secret = other.secret = "a secret";
    expect_meeting(&one, &other, NULL, NULL);
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
        link_begin(&one, &other);
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
        link_send_raw(proof, BASE_HMAC_BYTES);
        run_link_turn(&coordinator);
        if (attempt == 0)
            assert_int_equal(coordinator.state, RUN_LINK_OPEN);
        else
            link_expect_end(&coordinator, RUN_LINK_REFUSED, "its ZERO_SECRET is another one");
        link_close();
    }
}

// A stranger at the coordinator's port may say that an agent's proof was good.
static void an_agent_asks_for_a_proof_too(void **state)
{
    (void)state;
    struct run_self one = plain_agent, other = plain_coordinator;
    const unsigned char answer[8 + 2 * RUN_LINK_NAME + BASE_HMAC_BYTES] = {1};
    if (base_hmac_load(NULL))
        skip();
    one.secret = "a secret";
    other.secret = "a guess";
    link_begin(&one, &other);
    run_link_turn(&agent);
    run_link_turn(&coordinator);
    run_link_turn(&agent);
    assert_int_equal(send(coordinator.out, answer, sizeof answer, 0), sizeof answer);
    run_link_turn(&agent);
    link_expect_end(&agent, RUN_LINK_REFUSED, "its ZERO_SECRET is another one");
    link_close();
}

static void two_of_one_side_do_not_meet(void **state)
{
    (void)state;
    link_begin(&plain_agent, &plain_agent);
    link_turn_until(link_have_ended);
    link_expect_end(&agent, RUN_LINK_WRONG, "it is an agent as well");
    link_close();
    link_begin(&plain_coordinator, &plain_coordinator);
    link_turn_until(link_have_ended);
    link_expect_end(&agent, RUN_LINK_WRONG, "it is a coordinator as well");
    link_close();
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
        link_open();
        link_send_raw(&rows[i].header, sizeof rows[i].header);
        if (rows[i].header.length < 100)
            link_send_raw(rows[i].bytes, rows[i].header.length);
        link_turn_until(link_has_coordinator_ended);
        link_expect_end(&coordinator, RUN_LINK_WRONG, rows[i].why);
        link_close();
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
        {offsetof(struct run_hello, protocol), 1, RUN_LINK_REFUSED,
         "its zero-run speaks version 1 of the protocol between hosts, this one version 2"},
        {offsetof(struct run_hello, side), 7, RUN_LINK_WRONG, "it is a coordinator as well"},
        {offsetof(struct run_hello, has_secret), 2, RUN_LINK_WRONG, "its hello is damaged"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        link_begin(&plain_agent, &plain_coordinator);
        memcpy(agent.waiting.data + rows[i].at, &rows[i].value, sizeof rows[i].value);
        link_turn_until(link_has_coordinator_ended);
        link_expect_end(&coordinator, rows[i].end, rows[i].why);
        link_close();
    }
    // Names without an end, and such as no terminal should get.
    link_begin(&plain_agent, &plain_coordinator);
    memset(agent.waiting.data + offsetof(struct run_hello, name), '\033', RUN_LINK_NAME);
    link_turn_until(link_are_open);
    assert_int_equal(strspn(coordinator.theirs.name, "?"), RUN_LINK_NAME - 1);
    link_close();
}

static void half_a_frame_is_an_end(void **state)
{
    (void)state;
    const struct header header = {MAGIC, 1, 0, 100};
    link_open();
    link_send_raw(&header, 7);
    link_turn();
    assert_int_equal(coordinator.state, RUN_LINK_OPEN);
    run_link_close(&agent);
    link_turn_until(link_has_coordinator_ended);
    link_expect_end(&coordinator, RUN_LINK_EOF, "it has closed its connection in the middle of");
    link_close();
    link_open();
    link_send_raw(&header, sizeof header);
    link_send_raw("{", 1);
    coordinator.silence_ns = 50 * MS;
    agent.silence_ns = 0;
    agent.beat_ns = UINT64_MAX / 2;
    link_turn_until(link_has_coordinator_ended);
    link_expect_end(&coordinator, RUN_LINK_SILENT, "it has not been heard for 0.");
    link_close();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_prove_the_secret),
        cmocka_unit_test(a_proof_holds_once),
        cmocka_unit_test(an_agent_asks_for_a_proof_too),
        cmocka_unit_test(two_of_one_side_do_not_meet),
        cmocka_unit_test(wrong_frames_end_a_link),
        cmocka_unit_test(wrong_hellos_end_a_link),
        cmocka_unit_test(half_a_frame_is_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
