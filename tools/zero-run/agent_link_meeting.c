#include "tools/zero-run/agent_link_parts.h"

#include "base/clock.h"
#include "collectives/rendezvous/meeting.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x6b6e696c6f72657a) // "zerolink"

_Static_assert(sizeof(struct run_hello) == 184, "a hello has no padding");

// What a meeting waits for. Without a secret it is over after the hello.
enum step { STEP_HELLO, STEP_PROOF, STEP_ANSWER };

// The coordinator's answer to an agent's proof. What its hello has left out is here.
struct answer {
    uint32_t is_good, zero;
    char job[RUN_LINK_NAME], name[RUN_LINK_NAME];
    unsigned char proof[BASE_HMAC_BYTES];
};

// What both have said, as both sides prove it.
struct said {
    struct run_hello agent, coordinator;
};

static bool is_agent(const struct run_link *link)
{
    return link->self.side == RUN_SIDE_AGENT;
}

static const char *name_of(enum run_side side)
{
    return side == RUN_SIDE_AGENT ? "zero-run agent" : "zero-run coordinator";
}

static bool has_secret(const struct run_link *link)
{
    return link->self.secret && *link->self.secret;
}

static enum run_side other_side(const struct run_link *link)
{
    return is_agent(link) ? RUN_SIDE_COORDINATOR : RUN_SIDE_AGENT;
}

// Both sides clean names: proofs are made of what they say.
static void add_names(const struct run_link *link, struct run_hello *ours)
{
    const size_t length = link->self.job ? strnlen(link->self.job, sizeof ours->job) : 0;
    assert(length < sizeof ours->job);
    if (length > 0)
        memcpy(ours->job, link->self.job, length);
    if (gethostname(ours->name, sizeof ours->name - 1))
        memcpy(ours->name, "?", 2);
    boot_clean(ours->job, sizeof ours->job);
    boot_clean(ours->name, sizeof ours->name);
}

static void say_hello(struct run_link *link)
{
    if (!link->said_hello)
        run_link_add(link, &link->ours, sizeof link->ours);
    link->said_hello = true;
}

zero_result run_link_greet(struct run_link *link, struct base_error *error)
{
    struct run_hello *ours = &link->ours;
    *ours = (struct run_hello){.magic = MAGIC,
                               .protocol = RUN_LINK_PROTOCOL,
                               .side = link->self.side,
                               .has_secret = has_secret(link),
                               .host = link->self.host};
    if (is_agent(link) || !has_secret(link))
        add_names(link, ours);
    zero_result result = base_nonce(ours->nonce, error);
    if (!result && has_secret(link))
        result = base_hmac_load(error);
    if (!result && !link->self.called)
        say_hello(link);
    return result;
}

/* ------------------------------------------------------------------ hellos */

// Where the magic number begins in what has been received, or how much of that is none of it.
static size_t find_magic(const struct run_link *link)
{
    const char *data = link->received.data + link->received.start;
    const uint64_t magic = MAGIC;
    for (size_t at = 0; at < link->received.used; at++) {
        const size_t rest = link->received.used - at;
        if (!memcmp(data + at, &magic, rest < sizeof magic ? rest : sizeof magic))
            return at;
    }
    return link->received.used;
}

// A login shell may print a greeting of its own before the agent does.
static void pass_noise(struct run_link *link)
{
    const size_t count = find_magic(link);
    const size_t kept =
        link->noise_all < sizeof link->noise - 1 ? link->noise_all : sizeof link->noise - 1;
    const size_t room = sizeof link->noise - 1 - kept;
    if (count == 0)
        return;
    memcpy(link->noise + kept, link->received.data + link->received.start,
           count < room ? count : room);
    link->noise_all += count;
    run_bytes_drop(&link->received, count);
    if (link->noise_all > RUN_LINK_NOISE)
        run_link_fail(link, RUN_LINK_WRONG, "its shell writes more than %d bytes before zero-run's",
                      RUN_LINK_NOISE);
}

// A hello of another protocol may have another length.
static void check_beginning(struct run_link *link)
{
    const struct run_bytes *received = &link->received;
    struct run_hello begun = {.magic = MAGIC, .protocol = RUN_LINK_PROTOCOL};
    const size_t fixed = offsetof(struct run_hello, side);
    const size_t count = received->used < fixed ? received->used : fixed;
    const size_t first = count < sizeof begun.magic ? count : sizeof begun.magic;
    if (count == 0)
        return;
    if (memcmp(received->data + received->start, &begun, first) != 0) {
        run_link_fail(link, RUN_LINK_WRONG, "it is no zero-run");
        return;
    }
    memcpy(&begun, received->data + received->start, count);
    if (count < fixed)
        return;
    // The other side is to find out as well what this one may refuse next.
    say_hello(link);
    run_link_write(link);
    if (begun.protocol == RUN_LINK_PROTOCOL)
        return;
    run_link_fail(link, RUN_LINK_REFUSED,
                  "its zero-run speaks version %u of the protocol between hosts, this one version "
                  "%d: install the same zero-run on all hosts",
                  begun.protocol, RUN_LINK_PROTOCOL);
}

static void check_jobs(struct run_link *link)
{
    const char *theirs = link->theirs.job, *ours = link->ours.job;
    if (strcmp(theirs, ours))
        run_link_fail(
            link, RUN_LINK_REFUSED,
            "it is of job %s, and this is job %s: hosts of one job have one ZERO_JOB, and "
            "each job has a port of its own",
            *theirs ? theirs : "\"\"", *ours ? ours : "\"\"");
}

static void check_hello(struct run_link *link)
{
    struct run_hello *theirs = &link->theirs;
    boot_clean(theirs->name, sizeof theirs->name);
    boot_clean(theirs->job, sizeof theirs->job);
    if (theirs->side != (uint32_t)other_side(link))
        run_link_fail(link, RUN_LINK_WRONG, "it is %s as well",
                      is_agent(link) ? "an agent" : "a coordinator");
    else if (theirs->has_secret > 1)
        run_link_fail(link, RUN_LINK_WRONG, "its hello is damaged");
    else if (theirs->has_secret != has_secret(link))
        run_link_fail(link, RUN_LINK_REFUSED, "ZERO_SECRET is set %s: give all hosts the same one",
                      has_secret(link) ? "here and not there" : "there and not here");
    else if (!has_secret(link))
        check_jobs(link);
}

/* ------------------------------------------------------------------ proofs */

static struct base_proof link_proof(const struct run_link *link, struct said *said)
{
    said->agent = is_agent(link) ? link->ours : link->theirs;
    said->coordinator = is_agent(link) ? link->theirs : link->ours;
    return (struct base_proof){.secret = link->self.secret,
                               .nonces = {said->agent.nonce, said->coordinator.nonce},
                               .said = said,
                               .said_bytes = sizeof *said};
}

static bool make_proof(struct run_link *link, unsigned char proof[BASE_HMAC_BYTES])
{
    struct said said;
    struct base_error error = {.result = ZERO_OK};
    const struct base_proof about = link_proof(link, &said);
    if (base_proof_make(proof, &about, name_of(link->self.side), &error))
        run_link_fail(link, RUN_LINK_FAILED, "%s", error.message);
    return !error.result;
}

static bool check_proof(struct run_link *link, const unsigned char proof[BASE_HMAC_BYTES])
{
    struct said said;
    const struct base_proof about = link_proof(link, &said);
    return base_proof_check(proof, &about, name_of(other_side(link)), NULL) == ZERO_OK;
}

static void refuse_secret(struct run_link *link)
{
    run_link_fail(link, RUN_LINK_REFUSED,
                  "its ZERO_SECRET is another one: give all hosts the same");
}

// The side that was called proves last, and names itself and the job then: a stranger that calls
// learns nothing, and has nothing to try guesses on.
static void take_hello(struct run_link *link)
{
    unsigned char proof[BASE_HMAC_BYTES];
    memcpy(&link->theirs, link->received.data + link->received.start, sizeof link->theirs);
    run_bytes_drop(&link->received, sizeof link->theirs);
    check_hello(link);
    link->greeted = true;
    if (link->state == RUN_LINK_ENDED)
        return;
    if (!has_secret(link))
        link->state = RUN_LINK_OPEN;
    else if (!is_agent(link))
        link->step = STEP_PROOF;
    else if (make_proof(link, proof)) {
        run_link_add(link, proof, sizeof proof);
        link->step = STEP_ANSWER;
    }
}

// Each side knows the other's job now.
static void open_proved(struct run_link *link)
{
    check_jobs(link);
    if (link->state != RUN_LINK_ENDED)
        link->state = RUN_LINK_OPEN;
}

static void take_proof(struct run_link *link)
{
    struct answer answer = {.is_good = 0};
    unsigned char proof[BASE_HMAC_BYTES];
    memcpy(proof, link->received.data + link->received.start, sizeof proof);
    run_bytes_drop(&link->received, sizeof proof);
    answer.is_good = check_proof(link, proof);
    if (answer.is_good) {
        add_names(link, &link->ours);
        memcpy(answer.job, link->ours.job, sizeof answer.job);
        memcpy(answer.name, link->ours.name, sizeof answer.name);
        if (!make_proof(link, answer.proof))
            return;
    }
    run_link_add(link, &answer, sizeof answer);
    run_link_write(link); // the agent is to hear why, if it is refused
    if (answer.is_good)
        open_proved(link);
    else
        refuse_secret(link);
}

static void take_answer(struct run_link *link)
{
    struct answer answer;
    memcpy(&answer, link->received.data + link->received.start, sizeof answer);
    run_bytes_drop(&link->received, sizeof answer);
    memcpy(link->theirs.job, answer.job, sizeof answer.job);
    memcpy(link->theirs.name, answer.name, sizeof answer.name);
    boot_clean(link->theirs.job, sizeof link->theirs.job);
    boot_clean(link->theirs.name, sizeof link->theirs.name);
    if (answer.is_good && check_proof(link, answer.proof))
        open_proved(link);
    else
        refuse_secret(link);
}

void run_link_meet(struct run_link *link)
{
    static const struct {
        size_t bytes;
        void (*take)(struct run_link *link);
    } steps[] = {
        [STEP_HELLO] = {sizeof(struct run_hello), take_hello},
        [STEP_PROOF] = {BASE_HMAC_BYTES, take_proof},
        [STEP_ANSWER] = {sizeof(struct answer), take_answer},
    };
    if (link->step == STEP_HELLO && link->self.noisy)
        pass_noise(link);
    if (link->step == STEP_HELLO)
        check_beginning(link);
    while (link->state == RUN_LINK_MEETING && link->received.used >= steps[link->step].bytes)
        steps[link->step].take(link);
}
