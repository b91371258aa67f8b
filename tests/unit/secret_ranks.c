#include "tests/unit/secret_ranks.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

uint64_t secret_soon(void)
{
    return base_clock_ns() + UINT64_C(20000000000);
}

void secret_begin(struct mesh_ranks *ranks, int timeout_ms)
{
    mesh_ranks_begin(ranks, "127.0.0.1", timeout_ms);
}

void secret_start(struct mesh_ranks *ranks, int rank, int world, const char *word)
{
    mesh_ranks_start(ranks, &(struct mesh_role){.rank = rank, .world = world, .secret = word});
}

struct boot_hello secret_hello(const struct mesh_ranks *ranks, int rank, int world)
{
    struct boot_hello hello = {.rank = rank, .world = world, .pid = 77, .port = 1};
    hello.claim.proves = 1;
    memset(hello.claim.nonce, 0x5a, sizeof hello.claim.nonce);
    snprintf(hello.job, sizeof hello.job, "%s", ranks->set.job);
    snprintf(hello.name, sizeof hello.name, "main");
    snprintf(hello.host, sizeof hello.host, "elsewhere");
    return hello;
}

void secret_prove(unsigned char mac[BASE_HMAC_BYTES], const struct boot_hello *hello,
                  const unsigned char nonce[BASE_NONCE_BYTES], const char *word, const char *side)
{
    const struct base_proof proof = {.secret = word,
                                     .nonces = {hello->claim.nonce, nonce},
                                     .said = hello,
                                     .said_bytes = sizeof *hello};
    assert_int_equal(base_proof_make(mac, &proof, side, NULL), ZERO_OK);
}

struct secret_call secret_call(const struct mesh_ranks *ranks, int rank, uint32_t port)
{
    struct secret_call call = {.fd = mesh_ranks_call(ranks), .hello = secret_hello(ranks, rank, 3)};
    call.hello.port = port;
    assert_int_equal(
        boot_send(call.fd, BOOT_HELLO, &call.hello, sizeof call.hello, secret_soon(), NULL),
        ZERO_OK);
    secret_receive(call.fd, BOOT_CHALLENGE, call.nonce, sizeof call.nonce);
    return call;
}

void secret_send_proof(const struct secret_call *call, const unsigned char *mac)
{
    assert_int_equal(boot_send(call->fd, BOOT_PROOF, mac, BASE_HMAC_BYTES, secret_soon(), NULL),
                     ZERO_OK);
}

void secret_receive(int fd, enum boot_message_type type, void *payload, size_t length)
{
    struct boot_header header;
    assert_int_equal(boot_receive(fd, &header, length, secret_soon(), NULL), ZERO_OK);
    assert_int_equal(header.type, type);
    assert_int_equal(header.length, length);
    assert_int_equal(boot_receive_bytes(fd, payload, length, secret_soon(), NULL), ZERO_OK);
}
