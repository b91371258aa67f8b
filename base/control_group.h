/**
 * base/control_group.h: where the kernel keeps the files of this process's control group.
 *
 * The memory controller is looked for in both hierarchies (cgroups(7)). `root` stands before every
 * path that is read; "" but in tests. All *local*; none allocates.
 */
#ifndef BASE_CONTROL_GROUP_H
#define BASE_CONTROL_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BASE_GROUP_PATH = 1024 };

/** A group's directory, and where its hierarchy is mounted: no group above that can be seen. */
struct base_control_group {
    bool second; /**< version 2; else version 1's hierarchy of the memory controller */
    char directory[BASE_GROUP_PATH];
    size_t mount; /**< bytes of directory up to the mount's end */
};

/** Finds the group in version 2's hierarchy or version 1's; false: this process is in none. */
bool base_control_group_find(struct base_control_group *group, const char *root, bool second);

/** Reads the start of a small file of the kernel's, ended by a zero; false: it cannot be read. */
bool base_read_text(const char *root, const char *path, char *text, size_t size);

/** The number behind `key` and a blank, or a colon and blanks, at the start of a line. */
bool base_find_number(const char *text, const char *key, uint64_t *number);

#endif
