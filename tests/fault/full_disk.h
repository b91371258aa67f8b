/**
 * tests/fault/full_disk.h: a small file system in the folder "full" of a temporary directory, and
 * files that use it up. What goes wrong is told on stderr.
 */
#ifndef TESTS_FAULT_FULL_DISK_H
#define TESTS_FAULT_FULL_DISK_H

#include "tests/fault/mounts.h"

#include <stdint.h>

struct temporary;

enum { FULL_DISK_PAGE = 4096 };

/** Mounts it, of so many bytes, `names` files at most if it is of "memory", else an "ext4". */
bool full_disk_mount(const struct temporary *temporary, const char *kind, size_t bytes, int names,
                     char why[MOUNTS_WHY]);

/** Takes all the room, and gives `left` pages of it back. */
bool full_disk_fill(const struct temporary *temporary, int left);

/** Makes so many files that there can be but `left` more. */
bool full_disk_fill_names(const struct temporary *temporary, int left);

/** Takes all of that away. */
void full_disk_make_room(const struct temporary *temporary);

/** Bytes that are free. */
uint64_t full_disk_free(const struct temporary *temporary);

#endif
