/**
 * tests/fault/crash_states.h: the states that a power cut may leave of what crash_store.h recorded.
 *
 * At every moment, what was done to a file or directory before its last flush is there; of what was
 * done since then anything may be: nothing, all, the first so many operations, any of them; of a
 * write any of its sectors, with or without the length it gives the file; of a rename between two
 * directories either half. Files and directories know nothing of each other.
 */
#ifndef TESTS_FAULT_CRASH_STATES_H
#define TESTS_FAULT_CRASH_STATES_H

#include "tests/fault/crash_store.h"

/** One state. */
struct crash_image;

/** What a file or directory is in it; valid until the next image. */
const struct crash_inode *crash_image_inode(struct crash_image *image, uint32_t inode);

/** A hash of all that is in a file, or below a directory. */
uint64_t crash_image_hash(struct crash_image *image, uint32_t inode);

/** A disk with this contents. */
struct crash_disk *crash_image_mount(struct crash_image *image);

struct crash_watch {
    void *user;
    /** Hears of every mark at its place in the record. */
    void (*mark)(void *user, uint32_t mark);
    /** Looks at a state that was not there since the last mark; false ends the exploration. */
    bool (*check)(void *user, struct crash_image *image);
};

/** A set of 64-bit numbers. All zero is an empty one. */
struct crash_set {
    uint64_t *slots;
    size_t count, room;
};

/** Adds a number; false if it was there. */
bool crash_set_add(struct crash_set *set, uint64_t number);
void crash_set_free(struct crash_set *set);

/**
 * Goes through the record and shows states at every place: systematic ones and `draws` random ones.
 * All states go into *states. Returns false if check did.
 */
bool crash_explore(const struct crash_disk *disk, const struct crash_watch *watch, uint64_t seed,
                   int draws, struct crash_set *states);

#endif
