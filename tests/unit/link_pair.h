/**
 * tests/unit/link_pair.h: an agent and a coordinator in one process, with a link between them.
 */
#ifndef TESTS_UNIT_LINK_PAIR_H
#define TESTS_UNIT_LINK_PAIR_H

#include "tools/zero-run/agent_link.h"

enum { LINK_PATIENCE_S = 20 };

#define MS UINT64_C(1000000)

/** What a side has received. */
struct link_inbox {
    int controls;
    size_t raw;
    char last[256]; /**< the last control frame, as JSON */
    uint32_t tag;
    bool wrong; /**< raw bytes that are not those of the pattern */
};

extern struct run_link agent, coordinator;
extern struct link_inbox at_agent, at_coordinator;
extern const struct run_self plain_agent, plain_coordinator;

/** Connects both by a socketpair, empties the inboxes. */
void link_begin(const struct run_self *one, const struct run_self *other);
/** And goes on until both links are open. */
void link_open(void);
void link_close(void);

/** Takes all frames that have come. */
void link_take(struct run_link *link, struct link_inbox *inbox);
/** Waits for a moment, and lets both sides do what they can. */
void link_turn(void);
/** Until `done`; fails the test after LINK_PATIENCE_S. */
void link_turn_until(bool (*done)(void));
bool link_are_open(void);
bool link_have_ended(void);
bool link_has_coordinator_ended(void);
bool link_has_heard_one(void);

/** Fails unless the link has ended so, for a reason that has these words. */
void link_expect_end(const struct run_link *link, enum run_link_end end, const char *why);
/** Sends raw bytes that link_take() knows. */
void link_send_pattern(struct run_link *link, size_t count);
/** Sends bytes behind the agent's back. */
void link_send_raw(const void *bytes, size_t count);

#endif
