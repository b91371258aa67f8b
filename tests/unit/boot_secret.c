// A job's secret at the meeting of several hosts: both sides of every call prove that they know it,
// and hostile callers that do not are refused, whatever they have heard before.
#include "tests/unit/secret_ranks.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ ranks that know it, or not */

static void ranks_with_a_secret_meet(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    secret_begin(&ranks, 30000);
    for (int rank = 0; rank < 6; rank++)
        mesh_ranks_start(&ranks, &(struct mesh_role){.rank = rank,
                                                     .world = 6,
                                                     .secret = secret,
                                                     .names = "ab",
                                                     .pause_ms = 7 * (6 - rank)});
    mesh_ranks_end(&ranks);
    for (int rank = 0; rank < 6; rank++)
        boot_ranks_expect(&ranks.set, rank, ZERO_OK, NULL, NULL);
}

static void one_side_alone_with_a_secret_is_told(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        const char *const says = with ? "it has a secret, and the rank that it calls has none"
                                      : "it has no secret, and the rank that it calls has one";
        struct mesh_ranks ranks;
        secret_begin(&ranks, 30000);
        secret_start(&ranks, 0, 2, with ? NULL : secret);
        secret_start(&ranks, 1, 2, with ? secret : NULL);
        boot_ranks_await_refusals(&ranks.set, 1);
        secret_start(&ranks, 1, 2, with ? NULL : secret);
        mesh_ranks_end(&ranks);
        boot_ranks_expect(&ranks.set, 0, ZERO_OK, NULL, NULL);
        boot_ranks_expect(&ranks.set, 1, ZERO_E_INVALID, says, "ZERO_SECRET");
        boot_ranks_expect(&ranks.set, 2, ZERO_OK, NULL, NULL);
        assert_non_null(strstr(ranks.set.verdicts[0].refused[0], says));
    }
}

/* ------------------------------------------------------------------ hostile callers of rank 0 */

static void guess(struct secret_call *attack)
{
    unsigned char mac[BASE_HMAC_BYTES];
    secret_prove(mac, &attack->hello, attack->nonce, wrong, "zero rank");
    secret_send_proof(attack, mac);
}
static void replay(struct secret_call *attack)
{
    secret_send_proof(attack, attack->heard);
}
static void reflect(struct secret_call *attack)
{
    secret_send_proof(attack, attack->nonce); // as many bytes as a proof
}
static void prove_as_rank_0(struct secret_call *attack)
{
    unsigned char mac[BASE_HMAC_BYTES];
    secret_prove(mac, &attack->hello, attack->nonce, secret, "zero rank 0");
    secret_send_proof(attack, mac);
}
static void prove_as_a_peer(struct secret_call *attack)
{
    unsigned char mac[BASE_HMAC_BYTES];
    secret_prove(mac, &attack->hello, attack->nonce, secret, "zero peer that calls");
    secret_send_proof(attack, mac);
}
static void prove_other_words(struct secret_call *attack)
{
    struct boot_hello other = attack->hello;
    unsigned char mac[BASE_HMAC_BYTES];
    other.rank = 2;
    secret_prove(mac, &other, attack->nonce, secret, "zero rank");
    secret_send_proof(attack, mac);
}
static void cut_the_proof(struct secret_call *attack)
{
    unsigned char mac[BASE_HMAC_BYTES];
    secret_prove(mac, &attack->hello, attack->nonce, secret, "zero rank");
    assert_int_equal(
        boot_send(attack->fd, BOOT_PROOF, mac, BASE_HMAC_BYTES / 2, secret_soon(), NULL), ZERO_OK);
}
static void send_nothing_as_a_proof(struct secret_call *attack)
{
    assert_int_equal(boot_send(attack->fd, BOOT_PROOF, NULL, 0, secret_soon(), NULL), ZERO_OK);
}
static void say_hello_again(struct secret_call *attack)
{
    assert_int_equal(boot_send(attack->fd, BOOT_HELLO, &attack->hello, sizeof attack->hello,
                               secret_soon(), NULL),
                     ZERO_OK);
}
static void challenge_back(struct secret_call *attack)
{
    assert_int_equal(boot_send(attack->fd, BOOT_CHALLENGE, attack->nonce, sizeof attack->nonce,
                               secret_soon(), NULL),
                     ZERO_OK);
}
static void stop_within_the_proof(struct secret_call *attack)
{
    const struct boot_header header = {.magic = BOOT_MAGIC,
                                       .protocol = BOOT_PROTOCOL,
                                       .type = BOOT_PROOF,
                                       .length = BASE_HMAC_BYTES};
    assert_int_equal(send(attack->fd, &header, sizeof header, MSG_NOSIGNAL), sizeof header);
}
static void say_nothing(struct secret_call *attack)
{
    (void)attack;
}

static const struct {
    void (*answer)(struct secret_call *attack);
    const char *refusal;
} answers[] = {
    {guess, "it does not know the job's secret (ZERO_SECRET)"},
    {replay, "it does not know the job's secret"},
    {reflect, "it does not know the job's secret"},
    {prove_as_rank_0, "it does not know the job's secret"},
    {prove_as_a_peer, "it does not know the job's secret"},
    {prove_other_words, "it does not know the job's secret"},
    {cut_the_proof, "its answer proves nothing of the job's secret"},
    {send_nothing_as_a_proof, "its answer proves nothing of the job's secret"},
    {say_hello_again, "it announces "},
    {challenge_back, "its answer proves nothing of the job's secret"},
    {stop_within_the_proof, "it did not prove within 2 s that it knows the job's secret"},
    {say_nothing, "it did not prove within 2 s that it knows the job's secret"},
};

/** Reads what rank 0 answers, which is a refusal and the end. */
static void expect_refusal(int fd, const char *refusal)
{
    struct base_error told = {.result = ZERO_OK};
    struct boot_header header;
    char byte;
    assert_true(boot_receive(fd, &header, 0, secret_soon(), &told) < 0);
    assert_int_equal(header.type, BOOT_FAIL);
    if (!strstr(told.message, refusal))
        fail_msg("no \"%s\" in %s", refusal, told.message);
    assert_int_equal(boot_receive_bytes(fd, &byte, 1, secret_soon(), NULL), ZERO_E_PEER);
    close(fd);
}

/** A rank 1 that rank 0 believes, and its proof. */
static int be_rank_1(const struct mesh_ranks *ranks, unsigned char mac[BASE_HMAC_BYTES])
{
    struct secret_call rank = secret_call(ranks, 1, 1);
    unsigned char theirs[BASE_HMAC_BYTES], right[BASE_HMAC_BYTES];
    struct boot_header header;
    secret_prove(mac, &rank.hello, rank.nonce, secret, "zero rank");
    secret_send_proof(&rank, mac);
    assert_int_equal(boot_receive(rank.fd, &header, sizeof theirs, secret_soon(), NULL), ZERO_OK);
    assert_int_equal(header.type, BOOT_KNOWN);
    assert_int_equal(boot_receive_bytes(rank.fd, theirs, sizeof theirs, secret_soon(), NULL),
                     ZERO_OK);
    secret_prove(right, &rank.hello, rank.nonce, secret, "zero rank 0");
    assert_memory_equal(theirs, right, sizeof right);
    return rank.fd;
}

/** Any caller that does not prove it is refused, and the ranks meet all the same. */
static void hostile_callers_are_refused(void **state)
{
    (void)state;
    unsigned char heard[BASE_HMAC_BYTES];
    struct mesh_ranks before, ranks;
    secret_begin(&before, 2000); // of the same job and words
    secret_start(&before, 0, 3, secret);
    close(be_rank_1(&before, heard));
    mesh_ranks_end(&before);

    secret_begin(&ranks, 60000);
    memcpy(ranks.set.job, before.set.job, sizeof ranks.set.job);
    secret_start(&ranks, 0, 3, secret);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct secret_call attack = secret_call(&ranks, 1, 1);
        attack.heard = heard;
        answers[i].answer(&attack);
        expect_refusal(attack.fd, answers[i].refusal);
    }
    secret_start(&ranks, 2, 3, secret);
    secret_start(&ranks, 1, 3, secret);
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 3; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_OK, NULL, NULL);
    assert_int_equal(ranks.set.verdicts[0].refusals, sizeof answers / sizeof *answers);
}

/** What a caller claims before it is asked. */
static void odd_claims_are_refused(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    secret_begin(&ranks, 30000);
    secret_start(&ranks, 0, 2, secret);
    static const struct {
        uint32_t proves, zero;
        enum boot_message_type type;
        const char *refusal;
    } claims[] = {{0, 0, BOOT_HELLO, "it has no secret"},
                  {2, 0, BOOT_HELLO, "the rank that it calls has one"},
                  {1, 1, BOOT_HELLO, "the rank that it calls has one"},
                  {1, 0, BOOT_PROOF, "its first message does not introduce it"}};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct boot_hello hello = secret_hello(&ranks, 1, 2);
        const int fd = mesh_ranks_call(&ranks);
        hello.claim.proves = claims[i].proves;
        hello.claim.zero = claims[i].zero;
        assert_int_equal(boot_send(fd, claims[i].type, &hello, sizeof hello, secret_soon(), NULL),
                         ZERO_OK);
        expect_refusal(fd, claims[i].refusal);
    }
    secret_start(&ranks, 1, 2, secret);
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_OK, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_a_secret_meet),
        cmocka_unit_test(one_side_alone_with_a_secret_is_told),
        cmocka_unit_test(hostile_callers_are_refused),
        cmocka_unit_test(odd_claims_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
