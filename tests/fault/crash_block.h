/**
 * tests/fault/crash_block.h: a block device that records every write and flush, so that each state
 * can be made that a power cut may leave of a real file system.
 *
 * The device is a loop device over a file, which a process of its own serves (fuse(4)); what the
 * kernel sends it is the record.
 */
#ifndef TESTS_FAULT_CRASH_BLOCK_H
#define TESTS_FAULT_CRASH_BLOCK_H

#include "tests/fault/mounts.h"

#include <stdint.h>
#include <sys/types.h>

enum block_kind {
    BLOCK_WRITE, /**< `size` bytes of data at `offset` */
    BLOCK_FLUSH, /**< what was written before is durable */
    BLOCK_MARK,  /**< `offset`: the test's own number */
};

struct block_op {
    enum block_kind kind;
    uint64_t offset, size;
    uint64_t data; /**< where its bytes are in the record */
};

/** The record, and the device while it is served. */
struct block_device {
    size_t bytes;
    unsigned char *image; /**< as it is now */
    struct block_record *record;
    pid_t server;
    int loop;       /**< descriptor of the loop device; -1: none */
    char name[32];  /**< its name */
    char file[128]; /**< what is served */
};

/** Serves a copy of an image of `bytes` as `file`, which is there, and makes it a block device.
 * Needs mounts_begin(). False: this machine can't, `why` says why. */
bool block_begin(struct block_device *device, const unsigned char *image, size_t bytes,
                 const char *file, char why[MOUNTS_WHY]);

/** Puts a mark where the record has come to. */
void block_mark(struct block_device *device, uint32_t mark);

/** Ends the device; the record stays. Nothing of it is mounted. */
void block_stop(struct block_device *device);

/** How many operations there are, and one of them. */
size_t block_count(const struct block_device *device);
const struct block_op *block_op(const struct block_device *device, size_t number);

/** The bytes of a write. */
const unsigned char *block_data(const struct block_device *device, const struct block_op *op);

/** Frees the record. */
void block_free(struct block_device *device);

#endif
