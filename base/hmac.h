/**
 * base/hmac.h: how two sides of a connection prove to each other that they know one secret.
 *
 * The secret itself never travels. Each side makes a random number, a nonce, for this connection
 * alone; a proof is the HMAC-SHA256 (RFC 2104), under the secret, of the name of the side that
 * proves, of both nonces, and of what the caller has said of itself. So a proof cannot be sent
 * again on another connection, nor back to the side that made it, nor for other words than those.
 *
 * A proof hides nothing of what is said afterwards, and does not protect it from a machine between
 * both sides that changes it. A secret that can be guessed can be guessed from a proof, by trying:
 * take a random one.
 *
 * OpenSSL's libcrypto computes it, loaded when it is first asked for: libcrypto.so.3, else
 * libcrypto.so.1.1. Without a secret no library is needed.
 */
#ifndef BASE_HMAC_H
#define BASE_HMAC_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    BASE_HMAC_BYTES = 32,
    BASE_NONCE_BYTES = 32,
    BASE_SIDE_BYTES = 32,   /**< of a side's name, with its final zero */
    BASE_SAID_BYTES = 1024, /**< at most, of what a caller has said of itself */
};

/** Loads the library, unless that is done. ZERO_E_UNSUPPORTED: there is none, or it lacks a
 * function; the message names the library and what to install. *Local*, any thread. */
zero_result base_hmac_load(struct base_error *error);

/** HMAC-SHA256 of `bytes` bytes. Loads the library. ZERO_E_UNSUPPORTED: as base_hmac_load(), or
 * the library refuses. *Local*, any thread. */
zero_result base_hmac(unsigned char mac[BASE_HMAC_BYTES], const void *key, size_t key_bytes,
                      const void *message, size_t bytes, struct base_error *error);

/** Whether two are equal, in a time that does not depend on where they differ. */
bool base_hmac_equal(const unsigned char a[BASE_HMAC_BYTES],
                     const unsigned char b[BASE_HMAC_BYTES]);

/** Writes a random number that has never been used, by getrandom(2). ZERO_E_IO. *Local*, any
 * thread. */
zero_result base_nonce(unsigned char nonce[BASE_NONCE_BYTES], struct base_error *error);

/** What the proofs of one connection are about: the same on both sides. The pointers are
 * borrowed. */
struct base_proof {
    const char *secret;             /**< at least one byte, and its final zero */
    const unsigned char *nonces[2]; /**< that of the side that called; of the other one */
    const void *said;               /**< by the caller of itself; every byte counts, those
                                         between the members of a struct too */
    size_t said_bytes;              /**< 0 .. BASE_SAID_BYTES */
};

/** Makes the proof of a side. Its name, below BASE_SIDE_BYTES, tells it from the other side, and
 * what the connection is for from any other use of the secret. Errors: base_hmac(). *Local*, any
 * thread. */
zero_result base_proof_make(unsigned char mac[BASE_HMAC_BYTES], const struct base_proof *proof,
                            const char *side, struct base_error *error);

/** Checks the proof that the other side has sent; `side` is its name. ZERO_E_INVALID, without a
 * message: it does not know the secret, or has proved something else. Other errors: base_hmac().
 * *Local*, any thread. */
zero_result base_proof_check(const unsigned char mac[BASE_HMAC_BYTES],
                             const struct base_proof *proof, const char *side,
                             struct base_error *error);

#endif
