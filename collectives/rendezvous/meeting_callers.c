#include "collectives/rendezvous/meeting.h"

#include "base/clock.h"

#include <assert.h>
#include <stddef.h>

_Static_assert(offsetof(struct boot_caller, said.peer) ==
                   offsetof(struct boot_caller, said) + sizeof(struct boot_header),
               "what follows the header follows it at once");
_Static_assert(offsetof(struct boot_hello, claim) == 0 && offsetof(struct boot_peer, claim) == 0,
               "what introduces a caller begins with its claim");

// A caller has this long to introduce itself, and again for its proof. The oldest one has less
// where no other can be let in before it leaves; a lost packet is sent again within that.
static const uint64_t hello_ns = UINT64_C(2000000000), hurry_ns = UINT64_C(500000000);

// When the silence of caller i has been too long.
static uint64_t deadline_of(const struct boot_callers *callers, int i)
{
    return callers->all[i].since_ns + (callers->crowded && i == 0 ? hurry_ns : hello_ns);
}

int boot_callers_poll(const struct boot_callers *callers, int listener, struct pollfd *polls)
{
    const bool room = callers->count < BOOT_CALLERS_MAX && !callers->crowded;
    polls[0] = (struct pollfd){.fd = room ? listener : -1, .events = POLLIN};
    for (int i = 0; i < callers->count; i++)
        polls[1 + i] = (struct pollfd){.fd = callers->all[i].fd, .events = POLLIN};
    return 1 + callers->count;
}

int boot_callers_patience(const struct boot_callers *callers)
{
    int left = 1000;
    for (int i = 0; i < callers->count; i++)
        left = boot_time_left(deadline_of(callers, i), left);
    return left > 0 ? left : 1;
}

static const char *silence_text(const struct boot_callers *callers,
                                const struct boot_caller *caller)
{
    if (caller->challenged)
        return "it did not prove within 2 s that it knows the job's secret (ZERO_SECRET)";
    return callers->crowded ? "it did not introduce itself within 0.5 s, and no descriptor is left "
                              "for others that call"
                            : "it did not introduce itself within 2 s";
}

// Whether a header is that of the message that is expected next of a caller.
static zero_result check_next(const struct boot_header *header, enum boot_message_type type,
                              size_t length, struct base_error *error)
{
    const zero_result result = boot_check(header, length, error);
    if (result)
        return result;
    if (header->fds > 0) // the kernel has closed them
        return zero_fail(error, ZERO_E_INVALID, "it sends descriptors that no rank asked for");
    if (header->type == type && header->length == length)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID, "%s",
                     type == BOOT_PROOF
                         ? "its answer proves nothing of the job's secret (ZERO_SECRET)"
                         : "its first message does not introduce it");
}

static struct base_proof proof_of(const struct boot_caller *caller,
                                  const struct boot_reception *reception)
{
    return (struct base_proof){.secret = reception->secret,
                               .nonces = {caller->said.claim.nonce, caller->nonce},
                               .said = &caller->said.claim,
                               .said_bytes = reception->length};
}

// A caller has introduced itself. Where there is a secret it is believed when it has proved that it
// knows it.
static zero_result challenge(struct boot_caller *caller, const struct boot_reception *reception,
                             void *user, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    zero_result result = boot_claim_check(&caller->said.claim, reception->secret, &why);
    if (!result && !*reception->secret)
        return reception->introduce(user, caller, error);
    if (!result)
        result = base_nonce(caller->nonce, &why);
    if (!result &&
        boot_send(caller->fd, BOOT_CHALLENGE, caller->nonce, sizeof caller->nonce, 0, &why))
        result = ZERO_E_PEER; // it has ended already, and may call again
    if (result) {
        reception->refuse(user, caller, result, why.message);
        return ZERO_OK;
    }
    assert(!caller->challenged);
    caller->challenged = true;
    caller->used = 0;
    caller->since_ns = base_clock_ns();
    return ZERO_OK;
}

static zero_result hear_proof(struct boot_caller *caller, const struct boot_reception *reception,
                              void *user, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    const struct base_proof proof = proof_of(caller, reception);
    assert(caller->challenged && *reception->secret);
    const zero_result result =
        base_proof_check(caller->proof.mac, &proof, reception->sides->caller, &why);
    if (!result)
        return reception->introduce(user, caller, error);
    reception->refuse(user, caller, result,
                      why.result ? why.message : "it does not know the job's secret (ZERO_SECRET)");
    return ZERO_OK;
}

zero_result boot_callers_welcome(const struct boot_caller *caller,
                                 const struct boot_reception *reception)
{
    unsigned char mac[BASE_HMAC_BYTES];
    const struct base_proof proof = proof_of(caller, reception);
    if (!*reception->secret)
        return boot_send(caller->fd, BOOT_KNOWN, NULL, 0, 0, NULL);
    const zero_result result = base_proof_make(mac, &proof, reception->sides->called, NULL);
    return result ? result : boot_send(caller->fd, BOOT_KNOWN, mac, sizeof mac, 0, NULL);
}

// Hears what caller i says, if it has said something or has been silent for too long.
static zero_result hear(struct boot_callers *callers, int i, const struct boot_reception *reception,
                        void *user, bool ready, struct base_error *error)
{
    struct base_error heard = {.result = ZERO_OK};
    struct boot_caller *caller = &callers->all[i];
    const bool proves = caller->challenged;
    const size_t length = proves ? sizeof caller->proof.mac : reception->length;
    struct boot_header *header = proves ? &caller->proof.header : &caller->said.header;
    bool whole = false, gone = false;
    // What came while this process had no processor is no silence.
    const bool late = base_clock_ns() >= deadline_of(callers, i);
    if (ready || late)
        whole =
            boot_receive_some(caller->fd, header, sizeof *header + length, &caller->used, &gone);
    if (caller->used >= sizeof *header &&
        check_next(header, proves ? BOOT_PROOF : reception->type, length, &heard))
        reception->refuse(user, caller, heard.result, heard.message);
    else if (whole)
        return (proves ? hear_proof : challenge)(caller, reception, user, error);
    else if (gone)
        reception->refuse(user, caller, ZERO_E_PEER, "it has hung up");
    else if (late)
        reception->refuse(user, caller, ZERO_E_TIMEOUT, silence_text(callers, caller));
    return ZERO_OK;
}

static zero_result hear_all(struct boot_callers *callers, const struct boot_reception *reception,
                            void *user, const struct pollfd *polls, struct base_error *error)
{
    zero_result result = ZERO_OK;
    int kept = 0;
    for (int i = 0; i < callers->count; i++) {
        if (!result)
            result = hear(callers, i, reception, user, polls[1 + i].revents != 0, error);
        if (callers->all[i].fd >= 0)
            callers->all[kept++] = callers->all[i];
    }
    callers->crowded = callers->crowded && kept == callers->count;
    callers->count = kept;
    return result;
}

static zero_result accept_one(struct boot_callers *callers, const struct boot_reception *reception,
                              void *user, int listener, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    assert(callers->count < BOOT_CALLERS_MAX);
    struct boot_caller *caller = &callers->all[callers->count];
    *caller = (struct boot_caller){.since_ns = base_clock_ns()};
    const zero_result result = boot_accept(&caller->fd, listener, &why);
    const char *refusal =
        caller->fd >= 0 && reception->admit ? reception->admit(user, caller) : NULL;
    if (refusal)
        reception->refuse(user, caller, ZERO_E_INVALID, refusal);
    if (caller->fd >= 0)
        callers->count++;
    // A caller that is here leaves, in one way or another, and makes room.
    callers->crowded = result == ZERO_E_LIMIT && callers->count > 0;
    return result && !callers->crowded ? zero_fail(error, ZERO_E_IO, "%s", why.message) : ZERO_OK;
}

zero_result boot_callers_receive(struct boot_callers *callers,
                                 const struct boot_reception *reception, void *user, int listener,
                                 const struct pollfd *polls, struct base_error *error)
{
    const zero_result result = hear_all(callers, reception, user, polls, error);
    return !result && polls[0].revents ? accept_one(callers, reception, user, listener, error)
                                       : result;
}

void boot_callers_close(struct boot_callers *callers)
{
    for (int i = 0; i < callers->count; i++)
        boot_fd_close(&callers->all[i].fd);
    callers->count = 0;
}
