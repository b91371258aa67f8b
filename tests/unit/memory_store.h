/**
 * tests/unit/memory_store.h: a store (checkpoint/files/ckpt_store.h) whose files are in memory,
 * for tests that damage them by the thousand. It has files only, no directories, locks or renames.
 */
#ifndef TESTS_UNIT_MEMORY_STORE_H
#define TESTS_UNIT_MEMORY_STORE_H

#include "checkpoint/files/ckpt_store.h"

enum { MEMORY_FILES = 64 };

/** All zero is an empty one, but for the table, which memory_store_init() fills. */
struct memory_store {
    struct ckpt_store store;
    struct memory_file {
        char path[64];
        unsigned char *data; /**< NULL: no such file */
        size_t bytes;
    } files[MEMORY_FILES];
    int open; /**< how many are, now */
};

void memory_store_init(struct memory_store *memory);

/** Frees all files. */
void memory_store_free(struct memory_store *memory);

/** The file of that name, NULL if there is none. */
struct memory_file *memory_store_find(struct memory_store *memory, const char *path);

/** Makes or replaces a file. */
void memory_store_put(struct memory_store *memory, const char *path, const void *data,
                      size_t bytes);

#endif
