/**
 * tests/fault/mounts.h: file systems of a test's own, where only it sees them and which go with it.
 *
 * What this machine lacks for them is no failure: `why` names it, for a skip.
 */
#ifndef TESTS_FAULT_MOUNTS_H
#define TESTS_FAULT_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

/** Room for a reason. */
enum { MOUNTS_WHY = 160 };

/** Gives this process, which has one thread, namespaces of its own, `kinds` as of unshare(2); as
 * root of a user namespace if it is an ordinary user. */
bool mounts_namespace(int kinds, char why[MOUNTS_WHY]);

/** Gives this process, which has one thread, a place for mounts of its own; as root of a user
 * namespace if it is an ordinary user. */
bool mounts_begin(char why[MOUNTS_WHY]);

/** Mounts memory on a directory: `options` as of tmpfs(5), "size=1m" for one. */
bool mounts_memory(const char *directory, const char *options, char why[MOUNTS_WHY]);

/** Makes an ext4 of `bytes` in the file `image`; nothing of it is kept back for root. */
bool mounts_make_ext4(const char *image, size_t bytes, char why[MOUNTS_WHY]);

/** Makes a file a block device, until the returned descriptor and its mounts are closed; its name
 * is left in `name`. -1: it can't. */
int mounts_loop(const char *image, char name[32], char why[MOUNTS_WHY]);

/** Mounts a block device that has an ext4. */
bool mounts_ext4(const char *device, const char *directory, char why[MOUNTS_WHY]);

/** Whether something can be written there from now on, or nothing. */
bool mounts_allow(const char *directory, bool writing);

/** Takes a mount away, at once; whether that was possible. */
bool mounts_end(const char *directory);

#endif
