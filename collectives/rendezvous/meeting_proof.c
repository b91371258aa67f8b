// The secret of a job never travels: both sides of a call prove that they know it (base/hmac.h).
// The side that is called proves last, so a stranger that calls learns nothing by which it could
// try guesses.

#include "collectives/rendezvous/meeting.h"

#include <assert.h>

_Static_assert(sizeof(struct boot_hello) <= BASE_SAID_BYTES &&
                   sizeof(struct boot_peer) <= BASE_SAID_BYTES,
               "a proof is about all that a caller says of itself");
_Static_assert(sizeof(struct boot_claim) == 8 + BASE_NONCE_BYTES &&
                   sizeof(struct boot_peer) == sizeof(struct boot_claim) + 16 &&
                   sizeof(struct boot_hello) == sizeof(struct boot_claim) + 16 + BOOT_JOB_BYTES +
                                                    BOOT_NAME_BYTES + BOOT_HOST_BYTES +
                                                    BOOT_HOST_ID_BYTES,
               "what introduces a caller has no padding");

const struct boot_sides boot_sides_of_rank_0 = {"zero rank", "zero rank 0"};
const struct boot_sides boot_sides_of_host = {"zero rank of a host", "zero speaker of a host"};
const struct boot_sides boot_sides_of_peers = {"zero peer that calls", "zero peer"};

zero_result boot_claim_make(struct boot_claim *claim, const char *secret, struct base_error *error)
{
    *claim = (struct boot_claim){.proves = *secret != '\0'};
    return *secret ? base_nonce(claim->nonce, error) : ZERO_OK;
}

zero_result boot_claim_check(const struct boot_claim *claim, const char *secret,
                             struct base_error *error)
{
    static const char advice[] = "set ZERO_SECRET to the same on all ranks, or on none";
    if (claim->proves == (*secret != '\0') && claim->zero == 0)
        return ZERO_OK;
    if (*secret)
        return zero_fail(error, ZERO_E_INVALID,
                         "it has no secret, and the rank that it calls has one: %s", advice);
    return zero_fail(error, ZERO_E_INVALID,
                     "it has a secret, and the rank that it calls has none: %s", advice);
}

static struct base_proof proof_of(const struct boot_call *call)
{
    return (struct base_proof){.secret = call->secret,
                               .nonces = {call->claim->nonce, call->nonce},
                               .said = call->claim,
                               .said_bytes = call->length};
}

zero_result boot_call_answer(struct boot_call *call, const struct boot_header *header,
                             struct base_error *error)
{
    unsigned char mac[BASE_HMAC_BYTES];
    const struct base_proof proof = proof_of(call);
    assert(call->claim->proves == (*call->secret != '\0'));
    if (!*call->secret)
        return zero_fail(error, ZERO_E_INVALID,
                         "it asks for a proof of a secret, and this rank has none (ZERO_SECRET)");
    if (header->length != sizeof call->nonce || call->proved)
        return zero_fail(error, ZERO_E_INVALID, "it asks for a proof as no rank does");
    zero_result result =
        boot_receive_bytes(call->fd, call->nonce, sizeof call->nonce, call->deadline_ns, error);
    if (!result)
        result = base_proof_make(mac, &proof, call->sides->caller, error);
    call->proved = !result;
    return result ? result
                  : boot_send(call->fd, BOOT_PROOF, mac, sizeof mac, call->deadline_ns, error);
}

zero_result boot_call_known(const struct boot_call *call, const struct boot_header *header,
                            struct base_error *error)
{
    static const char unknown[] =
        "what listens there has not proved that it knows the job's secret (ZERO_SECRET)";
    unsigned char mac[BASE_HMAC_BYTES];
    const struct base_proof proof = proof_of(call);
    assert(header->type == BOOT_KNOWN);
    if (!*call->secret)
        return boot_check(header, 0, error);
    if (!call->proved || header->length != sizeof mac)
        return zero_fail(error, ZERO_E_INVALID, "%s", unknown);
    zero_result result = boot_receive_bytes(call->fd, mac, sizeof mac, call->deadline_ns, error);
    if (!result)
        result = base_proof_check(mac, &proof, call->sides->called, error);
    return result == ZERO_E_INVALID ? zero_fail(error, result, "%s", unknown) : result;
}
