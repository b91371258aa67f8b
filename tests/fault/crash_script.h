/**
 * tests/fault/crash_script.h: scripts of saves, prunes and restarts through
 * checkpoint/directory/directory.h, what has been promised on the way, and whether it is kept.
 *
 * A checkpoint that was acknowledged, and not pruned, loads; what is taken for a checkpoint is
 * whole; and the process that opens the directory next can go on.
 */
#ifndef TESTS_FAULT_CRASH_SCRIPT_H
#define TESTS_FAULT_CRASH_SCRIPT_H

#include "checkpoint/directory/directory.h"

enum { SCRIPT_STEPS = 64, SCRIPT_EVENTS = 1024 };

enum promise {
    BEGUN,     /**< may be there */
    PROMISED,  /**< must be there, this version or a later one */
    RETRACTED, /**< need not be there any more */
};

struct script_event {
    enum promise promise;
    uint64_t step, version;
};

struct expectation {
    uint64_t step;
    uint64_t oldest, newest; /**< versions; oldest 0: need not be there */
};

/** What a step's name stands for. */
struct script_found {
    uint64_t step;
    uint64_t version; /**< 0: it isn't whole; UINT64_MAX: it is no checkpoint */
    uint64_t sequence;
};

/** One script. `store`, `path` and `mark` are the test's. */
struct script {
    const struct ckpt_store *store;
    const char *path;
    void (*mark)(void *user, uint32_t event); /**< event number so-and-so belongs here */
    void *mark_user;
    struct ckpt_directory *directory;
    uint32_t world;
    uint64_t random, version, step, last;
    uint64_t promised; /**< the version that was acknowledged last */
    struct script_event events[SCRIPT_EVENTS];
    uint32_t event_count;
    struct expectation expected[SCRIPT_STEPS]; /**< as of the events that were heard */
    int expected_count;
    bool calm;   /**< no step is saved again or before others */
    bool greedy; /**< a bug: writes over shards of the oldest checkpoint while it is one */
    char problem[640];
};

/** A script is opening its directory. */
extern bool script_is_opening;

uint64_t script_draw(struct script *script, uint64_t below);
void script_draw_world(struct script *script);

/** Opens and closes the directory. What an owner finds it builds upon: it must stay. */
bool script_open(struct script *script);
void script_close(struct script *script);

/** Saves, prunes, or opens the directory again. False: that failed. */
bool script_act(struct script *script);

/** An event is in the past now. */
void script_hear(struct script *script, uint32_t event);

/** Reads a checkpoint as a program would. *parsed: its manifest is whole. */
struct script_found script_read(const struct ckpt_store *store, const char *path, uint64_t step,
                                bool *parsed);

/** Whether a state is as it must be in which these are found: all whole, none of another save, none
 * lost, in the order in which they were saved. False: `problem` says what is wrong. */
bool script_accepts(struct script *script, const struct script_found *found, int count);

/** The same of what the store has. */
bool script_accepts_store(struct script *script);

/** The next job's life, from what is there: it opens, saves, prunes and harms nothing. */
bool script_go_on(struct script *script);

#endif
