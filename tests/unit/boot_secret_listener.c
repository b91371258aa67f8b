// Hostile listeners in place of rank 0 and of others, and hostile callers of another rank, in a job
// with a secret: no rank believes one that does not prove that it knows it.
#include "tests/unit/secret_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ a hostile rank 0 */

/** A listener in place of rank 0, and a rank that has called it. */
struct impostor {
    struct mesh_ranks ranks;
    int listener, fd;
    struct boot_hello hello;
};

static void listen_as_rank_0(struct impostor *impostor, const char *word, int timeout_ms)
{
    secret_begin(&impostor->ranks, timeout_ms);
    impostor->listener = mesh_ranks_usurp(&impostor->ranks);
    secret_start(&impostor->ranks, 1, 2, word);
    impostor->fd = mesh_ranks_take_call(&impostor->ranks, impostor->listener);
    secret_receive(impostor->fd, BOOT_HELLO, &impostor->hello, sizeof impostor->hello);
    assert_null(memmem(&impostor->hello, sizeof impostor->hello, secret, sizeof secret - 1));
}

static void challenge(const struct impostor *impostor, const unsigned char *nonce, size_t length)
{
    boot_send(impostor->fd, BOOT_CHALLENGE, nonce, length, secret_soon(), NULL);
}

static void take_proof(const struct impostor *impostor, unsigned char mac[BASE_HMAC_BYTES])
{
    secret_receive(impostor->fd, BOOT_PROOF, mac, BASE_HMAC_BYTES);
}

static void welcome(const struct impostor *impostor, const void *mac, size_t length)
{
    boot_send(impostor->fd, BOOT_KNOWN, mac, length, secret_soon(), NULL);
}

static void welcome_at_once(const struct impostor *impostor)
{
    welcome(impostor, NULL, 0);
}
static void welcome_with_the_callers_nonce(const struct impostor *impostor)
{
    welcome(impostor, impostor->hello.claim.nonce, BASE_NONCE_BYTES);
}
static void send_its_proof_back(const struct impostor *impostor)
{
    unsigned char mac[BASE_HMAC_BYTES];
    challenge(impostor, impostor->hello.claim.nonce, BASE_NONCE_BYTES); // and its nonce
    take_proof(impostor, mac);
    welcome(impostor, mac, sizeof mac);
}
static void prove_by_a_guess(const struct impostor *impostor)
{
    unsigned char mac[BASE_HMAC_BYTES];
    static const unsigned char nonce[BASE_NONCE_BYTES];
    challenge(impostor, nonce, sizeof nonce);
    take_proof(impostor, mac);
    secret_prove(mac, &impostor->hello, nonce, wrong, "zero rank 0");
    welcome(impostor, mac, sizeof mac);
}
static void prove_by_half(const struct impostor *impostor)
{
    unsigned char mac[BASE_HMAC_BYTES];
    static const unsigned char nonce[BASE_NONCE_BYTES];
    challenge(impostor, nonce, sizeof nonce);
    take_proof(impostor, mac);
    secret_prove(mac, &impostor->hello, nonce, secret, "zero rank 0");
    welcome(impostor, mac, sizeof mac / 2);
}
static void challenge_by_half(const struct impostor *impostor)
{
    static const unsigned char nonce[BASE_NONCE_BYTES];
    challenge(impostor, nonce, sizeof nonce / 2);
}
static void challenge_twice(const struct impostor *impostor)
{
    unsigned char mac[BASE_HMAC_BYTES];
    static const unsigned char nonce[BASE_NONCE_BYTES];
    challenge(impostor, nonce, sizeof nonce);
    take_proof(impostor, mac);
    challenge(impostor, nonce, sizeof nonce);
}
static void go_on_without(const struct impostor *impostor)
{
    boot_send(impostor->fd, BOOT_GO, NULL, 0, secret_soon(), NULL);
}

static void a_hostile_rank_0_is_not_believed(void **state)
{
    (void)state;
    static const struct {
        void (*answer)(const struct impostor *impostor);
        const char *error;
    } cases[] = {
        {welcome_at_once, "has not proved that it knows the job's secret (ZERO_SECRET)"},
        {welcome_with_the_callers_nonce, "has not proved that it knows the job's secret"},
        {send_its_proof_back, "has not proved that it knows the job's secret"},
        {prove_by_a_guess, "has not proved that it knows the job's secret"},
        {prove_by_half, "has not proved that it knows the job's secret"},
        {challenge_by_half, "it asks for a proof as no rank does"},
        {challenge_twice, "it asks for a proof as no rank does"},
        {go_on_without, "it answered by a message of type 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct impostor impostor;
        listen_as_rank_0(&impostor, secret, 30000);
        cases[i].answer(&impostor);
        mesh_ranks_end(&impostor.ranks);
        boot_ranks_expect(&impostor.ranks.set, 0, ZERO_E_INVALID, cases[i].error, NULL);
        close(impostor.fd);
        close(impostor.listener);
    }
}

// Rank 0 asks for a proof, and says nothing more.
static void only_asks(const char *own, int timeout_ms, zero_result result, const char *text)
{
    struct impostor impostor;
    static const unsigned char nonce[BASE_NONCE_BYTES];
    listen_as_rank_0(&impostor, own, timeout_ms);
    challenge(&impostor, nonce, sizeof nonce);
    mesh_ranks_end(&impostor.ranks);
    boot_ranks_expect(&impostor.ranks.set, 0, result, text, NULL);
    close(impostor.fd);
    close(impostor.listener);
}

static void a_rank_without_a_secret_proves_none(void **state)
{
    (void)state;
    only_asks(NULL, 30000, ZERO_E_INVALID, "asks for a proof of a secret, and this rank has none");
}

static void a_silent_rank_0_costs_no_more_than_the_time(void **state)
{
    (void)state;
    only_asks(secret, 1000, ZERO_E_TIMEOUT, "it does not answer in time");
}

/* ------------------------------------------------------------------ hostile peers */

struct table {
    uint64_t token;
    struct mesh_rank ranks[3];
    struct mesh_entry entries[3];
};

/** Comes to rank 0 as a rank that knows the secret and listens at `port`; returns the connection.
 */
static int come(const struct mesh_ranks *ranks, int rank, uint32_t port)
{
    unsigned char mac[BASE_HMAC_BYTES];
    const struct secret_call call = secret_call(ranks, rank, port);
    secret_prove(mac, &call.hello, call.nonce, secret, "zero rank");
    secret_send_proof(&call, mac);
    secret_receive(call.fd, BOOT_KNOWN, mac, sizeof mac);
    return call.fd;
}

/** Calls rank 1 with what a rank says that has heard of the table, and answers its challenge. */
static int call_rank_1(const struct table *table, const char *word, uint32_t called, bool proves)
{
    struct boot_peer peer = {
        .claim.proves = proves, .token = table->token, .rank = 2, .called = called};
    const struct mesh_entry *entry = &table->entries[1];
    const uint64_t deadline = secret_soon();
    unsigned char nonce[BASE_NONCE_BYTES], mac[BASE_HMAC_BYTES];
    int fd;
    assert_int_equal(mesh_connect(&fd, entry->address, (int)entry->port, deadline, NULL), ZERO_OK);
    assert_int_equal(boot_send(fd, BOOT_PEER, &peer, sizeof peer, deadline, NULL), ZERO_OK);
    if (!proves)
        return fd;
    secret_receive(fd, BOOT_CHALLENGE, nonce, sizeof nonce);
    const struct base_proof proof = {.secret = word,
                                     .nonces = {peer.claim.nonce, nonce},
                                     .said = &peer,
                                     .said_bytes = sizeof peer};
    assert_int_equal(base_proof_make(mac, &proof, "zero peer that calls", NULL), ZERO_OK);
    assert_int_equal(boot_send(fd, BOOT_PROOF, mac, sizeof mac, deadline, NULL), ZERO_OK);
    return fd;
}

static void expect_hung_up(int fd)
{
    char byte;
    assert_int_equal(boot_receive_bytes(fd, &byte, 1, secret_soon(), NULL), ZERO_E_PEER);
    close(fd);
}

/** Rank 1 lets the rank in that proves the secret, and no other, whatever that has heard. */
static void peers_prove_it_too(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    struct table table;
    unsigned char mac[BASE_HMAC_BYTES];
    secret_begin(&ranks, 30000);
    secret_start(&ranks, 0, 3, secret);
    secret_start(&ranks, 1, 3, secret);
    const int fd = come(&ranks, 2, 1);
    secret_receive(fd, BOOT_TABLE, &table, sizeof table);
    expect_hung_up(call_rank_1(&table, wrong, 1, true));
    expect_hung_up(call_rank_1(&table, secret, 1, false));
    expect_hung_up(call_rank_1(&table, secret, 3, true)); // a proof for another rank's ears
    const int peer = call_rank_1(&table, secret, 1, true);
    secret_receive(peer, BOOT_KNOWN, mac, sizeof mac);
    assert_int_equal(boot_send(fd, BOOT_READY, NULL, 0, secret_soon(), NULL), ZERO_OK);
    secret_receive(fd, BOOT_GO, NULL, 0); // as rank 1 is ready, too
    close(fd);
    close(peer);
    mesh_ranks_end(&ranks);
    assert_int_equal(ranks.set.verdicts[1].refusals, 3);
    assert_non_null(strstr(ranks.set.verdicts[1].refused[0], "does not know the job's secret"));
    assert_non_null(strstr(ranks.set.verdicts[1].refused[1], "it has no secret"));
    assert_non_null(strstr(ranks.set.verdicts[1].refused[2], "it is no missing rank's"));
}

/** A process that has taken the place of rank 1: rank 2 finds out, and all hear of it. */
static void a_peer_that_is_called_proves_it(void **state)
{
    (void)state;
    struct mesh_ranks ranks;
    struct boot_peer peer;
    static const unsigned char nonce[BASE_NONCE_BYTES];
    static const unsigned char loopback[MESH_ADDRESS_BYTES] = {
        [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    unsigned char address[MESH_ADDRESS_BYTES], theirs[BASE_HMAC_BYTES];
    int listener, port;
    assert_int_equal(mesh_listen(&listener, loopback, 0, 5, NULL), ZERO_OK);
    assert_true(mesh_address(listener, false, address, &port));
    secret_begin(&ranks, 30000);
    secret_start(&ranks, 0, 3, secret);
    secret_start(&ranks, 2, 3, secret);
    // Rank 2 finds there what does not know the secret.
    const int rank_0 = come(&ranks, 1, (uint32_t)port);
    const int fd = mesh_ranks_take_call(&ranks, listener);
    secret_receive(fd, BOOT_PEER, &peer, sizeof peer);
    assert_int_equal(peer.called, 1);
    boot_send(fd, BOOT_CHALLENGE, nonce, sizeof nonce, secret_soon(), NULL);
    secret_receive(fd, BOOT_PROOF, theirs, sizeof theirs);
    boot_send(fd, BOOT_KNOWN, theirs, sizeof theirs, secret_soon(), NULL);
    mesh_ranks_end(&ranks);
    for (int i = 0; i < 2; i++)
        boot_ranks_expect(&ranks.set, i, ZERO_E_INVALID, "reaching rank 1 (host elsewhere)",
                          "has not proved that it knows the job's secret");
    close(fd);
    close(rank_0);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hostile_rank_0_is_not_believed),
        cmocka_unit_test(a_rank_without_a_secret_proves_none),
        cmocka_unit_test(a_silent_rank_0_costs_no_more_than_the_time),
        cmocka_unit_test(peers_prove_it_too),
        cmocka_unit_test(a_peer_that_is_called_proves_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
