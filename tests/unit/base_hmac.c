// base/hmac.h: HMAC-SHA256 as RFC 4231 has it, proofs that hold for one connection only, and what
// is said where no library computes them.
#include "base/hmac.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ the library */

/** Which of the two libraries the next dlopen() does not find. */
static bool hide_newer, hide_older;
static int opened;

/** Takes the place of the C library's. */
void *dlopen(const char *name, int flags)
{
    void *(*real)(const char *, int);
    void *found = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&real, &found, sizeof real);
    const bool newer = strcmp(name, "libcrypto.so.3") == 0;
    const bool older = strcmp(name, "libcrypto.so.1.1") == 0;
    opened++;
    if ((newer && hide_newer) || (older && hide_older))
        return NULL;
    return real(older && hide_newer ? "libcrypto.so.3" : name, flags); // which is like it
}

/** What base_hmac_load() says in a process that has not loaded anything. */
static zero_result load_elsewhere(bool without_newer, bool without_older)
{
    const pid_t child = fork();
    if (child == 0) {
        struct base_error error = {.result = ZERO_OK};
        unsigned char mac[BASE_HMAC_BYTES];
        hide_newer = without_newer;
        hide_older = without_older;
        const zero_result result = base_hmac(mac, "k", 1, "m", 1, &error);
        if (result &&
            (!strstr(error.message, "libcrypto.so.3") ||
             !strstr(error.message, "libcrypto.so.1.1") || !strstr(error.message, "install it")))
            _exit(99);
        _exit(result ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_newer_or_the_older_library_will_do(void **state)
{
    (void)state;
    assert_int_equal(load_elsewhere(false, true), 0);
    assert_int_equal(load_elsewhere(true, false), 0);
}

static void a_missing_library_is_named(void **state)
{
    (void)state;
    assert_int_equal(load_elsewhere(true, true), 1);
}

static void it_is_loaded_once_and_after_a_failure_again(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    hide_newer = hide_older = true;
    assert_int_equal(base_hmac_load(&error), ZERO_E_UNSUPPORTED);
    hide_newer = hide_older = false;
    opened = 0;
    assert_int_equal(base_hmac_load(NULL), ZERO_OK);
    assert_int_equal(base_hmac_load(NULL), ZERO_OK);
    assert_int_equal(opened, 1);
}

/* ------------------------------------------------------------------ its values */

static void fill(unsigned char *bytes, int byte, size_t count)
{
    memset(bytes, byte, count);
}

static void expect_mac(const void *key, size_t key_bytes, const void *message, size_t bytes,
                       const char *hex)
{
    unsigned char mac[BASE_HMAC_BYTES];
    char text[2 * BASE_HMAC_BYTES + 1];
    assert_int_equal(base_hmac(mac, key, key_bytes, message, bytes, NULL), ZERO_OK);
    for (int i = 0; i < BASE_HMAC_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(text, hex);
}

/** RFC 4231, sections 4.2 to 4.8 (4.6 truncates). */
static void values_are_those_of_the_standard(void **state)
{
    (void)state;
    unsigned char key[131], message[64];
    static const char long_key[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    static const char long_both[] =
        "This is a test using a larger than block-size key and a larger than block-size data. The "
        "key needs to be hashed before being used by the HMAC algorithm.";
    fill(key, 0x0b, 20);
    expect_mac(key, 20, "Hi There", 8,
               "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    expect_mac("Jefe", 4, "what do ya want for nothing?", 28,
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    fill(key, 0xaa, 20);
    fill(message, 0xdd, 50);
    expect_mac(key, 20, message, 50,
               "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (int i = 0; i < 25; i++)
        key[i] = (unsigned char)(i + 1);
    fill(message, 0xcd, 50);
    expect_mac(key, 25, message, 50,
               "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    fill(key, 0xaa, 131);
    expect_mac(key, 131, long_key, sizeof long_key - 1,
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    expect_mac(key, 131, long_both, sizeof long_both - 1,
               "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

static void every_bit_is_compared(void **state)
{
    (void)state;
    unsigned char a[BASE_HMAC_BYTES] = {1, 2, 3}, b[BASE_HMAC_BYTES] = {1, 2, 3};
    assert_true(base_hmac_equal(a, b));
    for (int bit = 0; bit < 8 * BASE_HMAC_BYTES; bit++) {
        b[bit / 8] ^= (unsigned char)(1U << bit % 8);
        assert_false(base_hmac_equal(a, b));
        b[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
}

static void nonces_differ(void **state)
{
    (void)state;
    unsigned char nonces[64][BASE_NONCE_BYTES];
    memset(nonces, 0, sizeof nonces);
    for (int i = 0; i < 64; i++)
        assert_int_equal(base_nonce(nonces[i], NULL), ZERO_OK);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(nonces[i], nonces[j], BASE_NONCE_BYTES);
}

/* ------------------------------------------------------------------ proofs */

struct said {
    int rank;
    char words[60];
};

/** Everything that a proof is about. */
struct talk {
    char secret[16];
    unsigned char nonces[2][BASE_NONCE_BYTES];
    struct said said;
    const char *side;
};

static zero_result make(unsigned char mac[BASE_HMAC_BYTES], const struct talk *talk)
{
    const struct base_proof proof = {.secret = talk->secret,
                                     .nonces = {talk->nonces[0], talk->nonces[1]},
                                     .said = &talk->said,
                                     .said_bytes = sizeof talk->said};
    return base_proof_make(mac, &proof, talk->side, NULL);
}

static zero_result check(const unsigned char mac[BASE_HMAC_BYTES], const struct talk *talk)
{
    const struct base_proof proof = {.secret = talk->secret,
                                     .nonces = {talk->nonces[0], talk->nonces[1]},
                                     .said = &talk->said,
                                     .said_bytes = sizeof talk->said};
    return base_proof_check(mac, &proof, talk->side, NULL);
}

static void another_secret(struct talk *talk)
{
    talk->secret[4] ^= 1;
}
static void a_shorter_secret(struct talk *talk)
{
    talk->secret[strlen(talk->secret) - 1] = '\0';
}
static void a_callers_nonce_of_before(struct talk *talk)
{
    talk->nonces[0][31] ^= 0x80;
}
static void a_nonce_of_before(struct talk *talk)
{
    talk->nonces[1][0] ^= 1;
}
static void nonces_exchanged(struct talk *talk)
{
    const struct talk before = *talk;
    memcpy(talk->nonces[0], before.nonces[1], BASE_NONCE_BYTES);
    memcpy(talk->nonces[1], before.nonces[0], BASE_NONCE_BYTES);
}
static void another_rank(struct talk *talk)
{
    talk->said.rank++;
}
static void other_words(struct talk *talk)
{
    talk->said.words[59] ^= 1;
}
static void the_other_side(struct talk *talk)
{
    talk->side = "test callee";
}
static void a_longer_name_of_the_side(struct talk *talk)
{
    talk->side = "test callers";
}

static void a_proof_holds_for_one_connection_and_side(void **state)
{
    (void)state;
    static void (*const changes[])(struct talk * talk) = {
        another_secret,    a_shorter_secret, a_callers_nonce_of_before,
        a_nonce_of_before, nonces_exchanged, another_rank,
        other_words,       the_other_side,   a_longer_name_of_the_side};
    struct talk talk = {.secret = "open sesame", .said = {7, "hello"}, .side = "test caller"};
    unsigned char mac[BASE_HMAC_BYTES];
    assert_int_equal(base_nonce(talk.nonces[0], NULL), ZERO_OK);
    assert_int_equal(base_nonce(talk.nonces[1], NULL), ZERO_OK);
    assert_int_equal(make(mac, &talk), ZERO_OK);
    assert_int_equal(check(mac, &talk), ZERO_OK);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct talk other = talk;
        changes[i](&other);
        assert_int_equal(check(mac, &other), ZERO_E_INVALID);
    }
    mac[17] ^= 4;
    assert_int_equal(check(mac, &talk), ZERO_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newer_or_the_older_library_will_do),
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(it_is_loaded_once_and_after_a_failure_again),
        cmocka_unit_test(values_are_those_of_the_standard),
        cmocka_unit_test(every_bit_is_compared),
        cmocka_unit_test(nonces_differ),
        cmocka_unit_test(a_proof_holds_for_one_connection_and_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
