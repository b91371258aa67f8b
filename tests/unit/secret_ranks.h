/**
 * tests/unit/secret_ranks.h: ranks of a job with a secret, and the other side of a call played by
 * the test, message by message.
 */
#ifndef TESTS_UNIT_SECRET_RANKS_H
#define TESTS_UNIT_SECRET_RANKS_H

#include "collectives/rendezvous/mesh_internal.h"
#include "tests/unit/mesh_ranks.h"

/** The job's, and another one. */
static const char secret[] = "a secret of 31 random characters", wrong[] = "another one";

/** The deadline of whatever the test does next. */
uint64_t secret_soon(void);

/** Begins a set at loopback's address. */
void secret_begin(struct mesh_ranks *ranks, int timeout_ms);

/** Starts a rank that knows the word; NULL: none. */
void secret_start(struct mesh_ranks *ranks, int rank, int world, const char *word);

/** What a rank on host elsewhere says of itself, with a claim. */
struct boot_hello secret_hello(const struct mesh_ranks *ranks, int rank, int world);

/** The proof of one side of a call of rank 0. */
void secret_prove(unsigned char mac[BASE_HMAC_BYTES], const struct boot_hello *hello,
                  const unsigned char nonce[BASE_NONCE_BYTES], const char *word, const char *side);

/** A call of rank 0 up to its challenge. */
struct secret_call {
    int fd;
    struct boot_hello hello;
    unsigned char nonce[BASE_NONCE_BYTES]; /**< that it has been sent */
    const unsigned char *heard;            /**< an earlier proof of the same words */
};

/** Calls rank 0, of 3 ranks, as `rank` that listens at `port`. */
struct secret_call secret_call(const struct mesh_ranks *ranks, int rank, uint32_t port);

void secret_send_proof(const struct secret_call *call, const unsigned char *mac);

/** Receives a message of this type, and its payload. */
void secret_receive(int fd, enum boot_message_type type, void *payload, size_t length);

#endif
