/**
 * checkpoint/files/ckpt_store.h: what a checkpoint asks of a file system, behind one table, so
 * that tests can record every write, flush and rename, and look at each state that a power cut may
 * leave.
 *
 * Paths are the caller's, whole. Nothing is durable before it was flushed: the bytes of a file by
 * sync, its name, as every other change of a directory, by sync_directory. Every function does all
 * of what it was asked or fails, with path, offset and errno in its message: ZERO_NOT_FOUND (the
 * error is set too) if what it names is not there, else ZERO_E_IO unless said otherwise. *Local.*
 * Different files can be used by different threads.
 */
#ifndef CHECKPOINT_FILES_CKPT_STORE_H
#define CHECKPOINT_FILES_CKPT_STORE_H

#include "base/file.h" // base_entry_fn

/** What memory, offsets and sizes of writes are multiples of. */
enum { CKPT_STORE_UNIT = 4096 };

/** An open file; the store's own. */
struct ckpt_file;

struct ckpt_store {
    void *user; /**< first argument of the functions that take a path */

    /** Opens for writing: a new file, which must not be there yet, or (`over`) one that is and is
     * written over. On error *file is NULL. ZERO_E_NOMEM. */
    zero_result (*create)(void *user, struct ckpt_file **file, const char *path, bool over,
                          struct base_error *error);
    /** Opens for reading. On error *file is NULL. ZERO_E_CORRUPT: no regular file; ZERO_E_NOMEM. */
    zero_result (*open)(void *user, struct ckpt_file **file, const char *path,
                        struct base_error *error);
    /** Writes to a file of create; data, bytes and offset are multiples of CKPT_STORE_UNIT. Also by
     * several threads at a time, to different places. */
    zero_result (*write)(struct ckpt_file *file, const void *data, size_t bytes, uint64_t offset,
                         struct base_error *error);
    /** Reads from a file of open, anything. ZERO_E_CORRUPT: the file ends before. */
    zero_result (*read)(struct ckpt_file *file, void *data, size_t bytes, uint64_t offset,
                        struct base_error *error);
    zero_result (*bytes)(struct ckpt_file *file, uint64_t *bytes, struct base_error *error);
    /** Cuts a file of create, or lengthens it by zeros. */
    zero_result (*truncate)(struct ckpt_file *file, uint64_t bytes, struct base_error *error);
    /** Makes bytes and size durable. An error is final: what was written may be lost, and every
     * later call fails too. */
    zero_result (*sync)(struct ckpt_file *file, struct base_error *error);
    /** Closes *file and makes it NULL; NULL is allowed. */
    zero_result (*close)(struct ckpt_file **file, struct base_error *error);

    /** Makes a directory, or finds it there. ZERO_E_INVALID: something else has the name. */
    zero_result (*make_directory)(void *user, const char *path, struct base_error *error);
    /** Removes an empty one. */
    zero_result (*remove_directory)(void *user, const char *path, struct base_error *error);
    /** Removes a file. Who has it open goes on with it. */
    zero_result (*remove)(void *user, const char *path, struct base_error *error);
    /** Renames a file or a directory; a file that has the new name goes, a directory must not have
     * it. */
    zero_result (*rename)(void *user, const char *from, const char *to, struct base_error *error);
    /** Exchanges the names of two directories at once. ZERO_E_UNSUPPORTED: this one can't. */
    zero_result (*exchange)(void *user, const char *one, const char *other,
                            struct base_error *error);
    /** Makes what was created, renamed and removed in a directory durable. */
    zero_result (*sync_directory)(void *user, const char *path, struct base_error *error);
    /** Calls `entry` for everything in a directory, in no order; it may remove what it is told. */
    zero_result (*list)(void *user, const char *path, base_entry_fn entry, void *entry_user,
                        struct base_error *error);
    /** Takes a lock on a file without waiting: ZERO_AGAIN (no message) if another lock is in the
     * way. The file is made for an exclusive one; for a shared one, which needs no right to write,
     * ZERO_NOT_FOUND. Held until unlock, or the end of the process. On error *lock is NULL.
     * ZERO_E_NOMEM. */
    zero_result (*lock)(void *user, struct ckpt_file **lock, const char *path, bool exclusive,
                        struct base_error *error);
    /** Whether the path it was taken under still names the file that is locked. */
    bool (*holds)(struct ckpt_file *lock);
    /** Gives it back and makes *lock NULL; NULL is allowed. */
    void (*unlock)(struct ckpt_file **lock);
};

/** Files of the system. Writes go past its cache (O_DIRECT) where the file system can do that. */
extern const struct ckpt_store ckpt_store_posix;

#endif
