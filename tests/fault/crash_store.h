/**
 * tests/fault/crash_store.h: a file system in memory that records everything done to it, for
 * checkpoint/files/ckpt_store.h. crash_states.h makes of the record what a power cut may leave.
 */
#ifndef TESTS_FAULT_CRASH_STORE_H
#define TESTS_FAULT_CRASH_STORE_H

#include "checkpoint/files/ckpt_store.h"

enum {
    CRASH_NAME = 40,
    CRASH_LOCKS = 3,
    CRASH_ROOT = 0,       /**< the number of the directory "/", which is always there */
    CRASH_FILE = 1 << 16, /**< longest file */
};

struct crash_entry {
    char name[CRASH_NAME];
    uint64_t hash; /**< of the name */
    uint32_t inode;
};

/** A file's bytes or a directory's entries. */
struct crash_inode {
    bool directory;
    unsigned char *bytes;
    size_t size, room;
    struct crash_entry *entries;
    size_t count;
};

enum crash_kind {
    CRASH_WRITE,    /**< `size` bytes of data at `offset` */
    CRASH_TRUNCATE, /**< to `size` bytes */
    CRASH_LINK,     /**< name becomes target */
    CRASH_UNLINK,   /**< name goes */
    CRASH_MOVE,     /**< target, which was name, becomes other, all at once */
    CRASH_SWAP,     /**< name becomes target and other becomes second, all at once */
    CRASH_SYNC,     /**< all that was done to the inode before is durable */
    CRASH_MARK,     /**< `target`: the test's own */
};

/** Something done to one file or directory. */
struct crash_op {
    enum crash_kind kind;
    uint32_t inode, target, second;
    uint64_t offset;
    size_t size;
    unsigned char *data;
    char name[CRASH_NAME], other[CRASH_NAME];
};

/** What becomes of a flush: the planted bugs. */
enum crash_fate { CRASH_DO, CRASH_DROP, CRASH_LATE /**< only before the next mark */ };
typedef enum crash_fate (*crash_fate_fn)(const char *path);

struct crash_disk {
    struct ckpt_store store;
    struct crash_inode *inodes; /**< as processes see them */
    uint32_t inode_count;
    struct crash_inode *base; /**< as they were, durably, when the record began */
    uint32_t base_count;
    struct crash_op *ops;
    size_t op_count, op_room;
    struct {
        uint32_t inode;
        int shared, exclusive;
    } locks[CRASH_LOCKS];
    crash_fate_fn fate; /**< NULL: every flush is done */
    uint32_t late[16];
    int late_count;
    int open_files;
    uint64_t calls;   /**< of functions that change something or flush */
    uint64_t dies_at; /**< the process dies in place of this one, from 1: all calls fail then */
};

/** An empty one. Fails only by ending the test. */
struct crash_disk *crash_disk_make(void);

/** One that begins with these files and directories, which are copied. */
struct crash_disk *crash_disk_copy(const struct crash_inode *inodes, uint32_t count);

void crash_disk_free(struct crash_disk *disk);

/** Puts a mark into the record. */
void crash_disk_mark(struct crash_disk *disk, uint32_t mark);

/** Another process takes over after the one before has died: it sees all that was done. */
void crash_disk_revive(struct crash_disk *disk);

/** The inode that a directory has under a name; 0 if none (the root is in no directory). */
uint32_t crash_inode_find(const struct crash_inode *directory, const char *name);

/** Does an operation to the inode it is of, all of it. */
void crash_inode_apply(struct crash_inode *inode, const struct crash_op *op);

/** A copy with memory of its own; and the end of it. */
struct crash_inode crash_inode_copy(const struct crash_inode *inode);
void crash_inode_free(struct crash_inode *inode);

#endif
