#include "base/hmac.h"

#include "base/library.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

// Of OpenSSL 1.1.1 and 3, which have these functions alike.
struct libcrypto {
    const void *(*sha256)(void);
    unsigned char *(*hmac)(const void *hash, const void *key, int key_bytes,
                           const unsigned char *message, size_t bytes, unsigned char *mac,
                           unsigned *mac_bytes);
};

#define NEWER "libcrypto.so.3"
#define OLDER "libcrypto.so.1.1"

static struct libcrypto loaded;

static zero_result load(struct base_error *error)
{
    struct libcrypto library;
    const struct base_symbol functions[] = {{"EVP_sha256", &library.sha256},
                                            {"HMAC", &library.hmac}};
    const char *name = NEWER;
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!file)
        file = dlopen(name = OLDER, RTLD_NOW | RTLD_LOCAL);
    if (!file)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "a secret takes OpenSSL's libcrypto, and this system has neither " NEWER
                         " nor " OLDER ": install it (Debian: libssl3), or set no secret");
    const char *missing = base_library_find(file, functions, sizeof functions / sizeof *functions);
    if (missing) {
        dlclose(file);
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "a secret takes OpenSSL's libcrypto, and %s has no %s", name, missing);
    }
    loaded = library;
    return ZERO_OK;
}

zero_result base_hmac_load(struct base_error *error)
{
    static struct base_load once = BASE_LOAD_ONCE;
    return base_load_once(&once, load, error);
}

zero_result base_hmac(unsigned char mac[BASE_HMAC_BYTES], const void *key, size_t key_bytes,
                      const void *message, size_t bytes, struct base_error *error)
{
    unsigned char made[64]; // as many as any hash of the library has
    unsigned made_bytes = 0;
    assert(key && key_bytes > 0 && key_bytes <= BASE_SAID_BYTES && (message || bytes == 0));
    const zero_result result = base_hmac_load(error);
    if (result)
        return result;
    if (!loaded.hmac(loaded.sha256(), key, (int)key_bytes, message, bytes, made, &made_bytes) ||
        made_bytes != BASE_HMAC_BYTES)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "OpenSSL's libcrypto refuses HMAC-SHA256 with a secret of %zu bytes: its "
                         "configuration may demand a longer one",
                         key_bytes);
    memcpy(mac, made, BASE_HMAC_BYTES);
    return ZERO_OK;
}

bool base_hmac_equal(const unsigned char a[BASE_HMAC_BYTES], const unsigned char b[BASE_HMAC_BYTES])
{
    volatile unsigned char differ = 0; // no compiler is to leave the loop early
    for (size_t i = 0; i < BASE_HMAC_BYTES; i++)
        differ |= (unsigned char)(a[i] ^ b[i]);
    return differ == 0;
}

zero_result base_nonce(unsigned char nonce[BASE_NONCE_BYTES], struct base_error *error)
{
    ssize_t filled;
    do
        filled = getrandom(nonce, BASE_NONCE_BYTES, 0);
    while (filled < 0 && errno == EINTR);
    if (filled != BASE_NONCE_BYTES) // the kernel gives up to 256 bytes at once
        return zero_fail_errno(error, ZERO_E_IO, errno, "a random number");
    return ZERO_OK;
}

// What a proof is the HMAC of: only the last part may be shorter.
struct proven {
    char side[BASE_SIDE_BYTES];
    unsigned char nonces[2][BASE_NONCE_BYTES];
    unsigned char said[BASE_SAID_BYTES];
};

zero_result base_proof_make(unsigned char mac[BASE_HMAC_BYTES], const struct base_proof *proof,
                            const char *side, struct base_error *error)
{
    struct proven message = {.side = ""};
    assert(strlen(side) < sizeof message.side && proof->said_bytes <= sizeof message.said);
    memcpy(message.side, side, strlen(side));
    memcpy(message.nonces[0], proof->nonces[0], sizeof message.nonces[0]);
    memcpy(message.nonces[1], proof->nonces[1], sizeof message.nonces[1]);
    if (proof->said_bytes)
        memcpy(message.said, proof->said, proof->said_bytes);
    return base_hmac(mac, proof->secret, strlen(proof->secret), &message,
                     offsetof(struct proven, said) + proof->said_bytes, error);
}

zero_result base_proof_check(const unsigned char mac[BASE_HMAC_BYTES],
                             const struct base_proof *proof, const char *side,
                             struct base_error *error)
{
    unsigned char right[BASE_HMAC_BYTES] = {0};
    const zero_result result = base_proof_make(right, proof, side, error);
    return result || base_hmac_equal(mac, right) ? result : ZERO_E_INVALID;
}
