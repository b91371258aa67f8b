#include "tests/fault/crash_store.h"

#include "base/hash.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ckpt_file {
    struct crash_disk *disk;
    uint32_t inode;
    bool writable;
    int shared, exclusive; // what it is of a lock
    char path[128];
};

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

/* ------------------------------------------------------------------ inodes */

struct crash_inode crash_inode_copy(const struct crash_inode *inode)
{
    struct crash_inode copy = *inode;
    copy.bytes = need(malloc(inode->room + 1));
    copy.entries = need(malloc((inode->count + 1) * sizeof *copy.entries));
    if (inode->size)
        memcpy(copy.bytes, inode->bytes, inode->size);
    if (inode->count)
        memcpy(copy.entries, inode->entries, inode->count * sizeof *copy.entries);
    return copy;
}

void crash_inode_free(struct crash_inode *inode)
{
    free(inode->bytes);
    free(inode->entries);
    *inode = (struct crash_inode){0};
}

static struct crash_entry *find_entry(const struct crash_inode *directory, const char *name)
{
    for (size_t i = 0; i < directory->count; i++)
        if (strcmp(directory->entries[i].name, name) == 0)
            return &directory->entries[i];
    return NULL;
}

uint32_t crash_inode_find(const struct crash_inode *directory, const char *name)
{
    const struct crash_entry *entry = find_entry(directory, name);
    return entry ? entry->inode : 0;
}

static void set_entry(struct crash_inode *directory, const char *name, uint32_t inode)
{
    struct crash_entry *entry = find_entry(directory, name);
    if (!entry) {
        directory->entries =
            need(realloc(directory->entries, (directory->count + 1) * sizeof *directory->entries));
        entry = &directory->entries[directory->count++];
        strcpy(entry->name, name);
        entry->hash = base_hash64(name, strlen(name), 0);
    }
    entry->inode = inode;
}

static void clear_entry(struct crash_inode *directory, const char *name)
{
    struct crash_entry *entry = find_entry(directory, name);
    if (entry)
        *entry = directory->entries[--directory->count];
}

static void resize(struct crash_inode *file, size_t size)
{
    if (size > CRASH_FILE)
        abort();
    if (size > file->room) {
        file->bytes = need(realloc(file->bytes, size));
        file->room = size;
    }
    if (size > file->size)
        memset(file->bytes + file->size, 0, size - file->size);
    file->size = size;
}

void crash_inode_apply(struct crash_inode *inode, const struct crash_op *op)
{
    switch (op->kind) {
    case CRASH_WRITE:
        if (op->offset + op->size > inode->size)
            resize(inode, op->offset + op->size);
        memcpy(inode->bytes + op->offset, op->data, op->size);
        break;
    case CRASH_TRUNCATE:
        resize(inode, op->size);
        break;
    case CRASH_LINK:
        set_entry(inode, op->name, op->target);
        break;
    case CRASH_UNLINK:
        clear_entry(inode, op->name);
        break;
    case CRASH_MOVE:
        if (crash_inode_find(inode, op->name) == op->target)
            clear_entry(inode, op->name);
        set_entry(inode, op->other, op->target);
        break;
    case CRASH_SWAP:
        set_entry(inode, op->name, op->target);
        set_entry(inode, op->other, op->second);
        break;
    default:
        break;
    }
}

/* ------------------------------------------------------------------ the record */

// Does it to what processes see, and records it.
static void perform(struct crash_disk *disk, struct crash_op op)
{
    if (disk->op_count == disk->op_room) {
        disk->op_room = disk->op_room ? 2 * disk->op_room : 64;
        disk->ops = need(realloc(disk->ops, disk->op_room * sizeof *disk->ops));
    }
    if (op.data)
        op.data = memcpy(need(malloc(op.size)), op.data, op.size);
    disk->ops[disk->op_count++] = op;
    if (op.kind < CRASH_SYNC)
        crash_inode_apply(&disk->inodes[op.inode], &op);
}

static void perform_names(struct crash_disk *disk, enum crash_kind kind, uint32_t directory,
                          const char *name, const char *other, uint32_t target, uint32_t second)
{
    struct crash_op op = {.kind = kind, .inode = directory, .target = target, .second = second};
    strcpy(op.name, name);
    strcpy(op.other, other);
    perform(disk, op);
}

static void flush(struct crash_disk *disk, uint32_t inode, const char *path)
{
    const enum crash_fate fate = disk->fate ? disk->fate(path) : CRASH_DO;
    if (fate == CRASH_LATE)
        disk->late[disk->late_count++] = inode;
    if (fate == CRASH_DO)
        perform(disk, (struct crash_op){.kind = CRASH_SYNC, .inode = inode});
}

void crash_disk_mark(struct crash_disk *disk, uint32_t mark)
{
    for (int i = 0; i < disk->late_count; i++)
        perform(disk, (struct crash_op){.kind = CRASH_SYNC, .inode = disk->late[i]});
    disk->late_count = 0;
    perform(disk, (struct crash_op){.kind = CRASH_MARK, .target = mark});
}

static uint32_t new_inode(struct crash_disk *disk, bool directory)
{
    disk->inodes = need(realloc(disk->inodes, (disk->inode_count + 1) * sizeof *disk->inodes));
    disk->inodes[disk->inode_count] = (struct crash_inode){.directory = directory};
    return disk->inode_count++;
}

/* ------------------------------------------------------------------ paths */

struct place {
    uint32_t directory;
    char name[CRASH_NAME];
    uint32_t inode; // 0: nothing has the name
};

// Finds what a path names. "..", at the end, is the directory above the one before it.
static zero_result walk(const struct crash_disk *disk, const char *path, struct place *place,
                        struct base_error *error)
{
    *place = (struct place){.directory = CRASH_ROOT};
    uint32_t above = CRASH_ROOT;
    for (const char *part = path; *part;) {
        const size_t length = strcspn(part, "/");
        if (length >= CRASH_NAME)
            return zero_fail_errno(error, ZERO_E_IO, ENAMETOOLONG, "cannot open '%s'", path);
        if (length) {
            if (place->name[0] && !place->inode)
                return zero_fail_errno(error, ZERO_NOT_FOUND, ENOENT, "cannot open '%s'", path);
            if (place->name[0]) {
                above = place->directory;
                place->directory = place->inode;
            }
            memcpy(place->name, part, length);
            place->name[length] = '\0';
            place->inode = crash_inode_find(&disk->inodes[place->directory], place->name);
            if (strcmp(place->name, "..") == 0)
                place->inode = above;
        }
        part += length + (part[length] == '/');
    }
    return ZERO_OK;
}

static zero_result missing(const char *path, struct base_error *error)
{
    return zero_fail_errno(error, ZERO_NOT_FOUND, ENOENT, "cannot open '%s'", path);
}

static zero_result find(const struct crash_disk *disk, const char *path, struct place *place,
                        struct base_error *error)
{
    const zero_result result = walk(disk, path, place, error);
    if (result)
        return result;
    return place->inode || strcmp(place->name, "..") == 0 ? ZERO_OK : missing(path, error);
}

// Whether the process lives on to make a call.
static zero_result call(struct crash_disk *disk, const char *path, struct base_error *error)
{
    disk->calls++;
    return disk->dies_at && disk->calls >= disk->dies_at
               ? zero_fail_errno(error, ZERO_E_IO, EIO, "no process is left to use '%s'", path)
               : ZERO_OK;
}

/* ------------------------------------------------------------------ files */

static struct ckpt_file *open_inode(struct crash_disk *disk, uint32_t inode, const char *path)
{
    struct ckpt_file *file = need(calloc(1, sizeof *file));
    file->disk = disk;
    file->inode = inode;
    snprintf(file->path, sizeof file->path, "%s", path);
    disk->open_files++;
    return file;
}

static zero_result create_file(void *user, struct ckpt_file **file, const char *path, bool over,
                               struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place place;
    *file = NULL;
    zero_result result = call(disk, path, error);
    if (!result)
        result = walk(disk, path, &place, error);
    if (result)
        return result;
    if (over && !place.inode)
        return missing(path, error);
    if (!over && place.inode)
        return zero_fail_errno(error, ZERO_E_IO, EEXIST, "cannot open '%s'", path);
    if (!over) {
        place.inode = new_inode(disk, false);
        perform_names(disk, CRASH_LINK, place.directory, place.name, "", place.inode, 0);
    }
    *file = open_inode(disk, place.inode, path);
    (*file)->writable = true;
    return ZERO_OK;
}

static zero_result open_file(void *user, struct ckpt_file **file, const char *path,
                             struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place place;
    *file = NULL;
    const zero_result result = find(disk, path, &place, error);
    if (result)
        return result;
    if (disk->inodes[place.inode].directory)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s' is no regular file", path);
    *file = open_inode(disk, place.inode, path);
    return ZERO_OK;
}

static zero_result write_file(struct ckpt_file *file, const void *data, size_t bytes,
                              uint64_t offset, struct base_error *error)
{
    if (!file->writable || (uintptr_t)data % CKPT_STORE_UNIT || bytes % CKPT_STORE_UNIT ||
        offset % CKPT_STORE_UNIT)
        abort();
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // of writes of different threads
    pthread_mutex_lock(&mutex);
    const zero_result result = call(file->disk, file->path, error);
    if (!result)
        perform(file->disk, (struct crash_op){.kind = CRASH_WRITE,
                                              .inode = file->inode,
                                              .offset = offset,
                                              .size = bytes,
                                              .data = (unsigned char *)(uintptr_t)data});
    pthread_mutex_unlock(&mutex);
    return result;
}

static zero_result read_file(struct ckpt_file *file, void *data, size_t bytes, uint64_t offset,
                             struct base_error *error)
{
    const struct crash_inode *inode = &file->disk->inodes[file->inode];
    if (offset > inode->size || bytes > inode->size - offset)
        return zero_fail(error, ZERO_E_CORRUPT, "'%s' ends too early", file->path);
    if (bytes)
        memcpy(data, inode->bytes + offset, bytes);
    return ZERO_OK;
}

static zero_result file_bytes(struct ckpt_file *file, uint64_t *bytes, struct base_error *error)
{
    (void)error;
    *bytes = file->disk->inodes[file->inode].size;
    return ZERO_OK;
}

static zero_result truncate_file(struct ckpt_file *file, uint64_t bytes, struct base_error *error)
{
    const zero_result result = call(file->disk, file->path, error);
    if (!result && !file->writable)
        abort();
    if (!result)
        perform(file->disk,
                (struct crash_op){.kind = CRASH_TRUNCATE, .inode = file->inode, .size = bytes});
    return result;
}

static zero_result sync_file(struct ckpt_file *file, struct base_error *error)
{
    const zero_result result = call(file->disk, file->path, error);
    if (!result)
        flush(file->disk, file->inode, file->path);
    return result;
}

static zero_result close_file(struct ckpt_file **file, struct base_error *error)
{
    (void)error;
    if (*file)
        (*file)->disk->open_files--;
    free(*file);
    *file = NULL;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ names */

static zero_result make_directory(void *user, const char *path, struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place place;
    zero_result result = call(disk, path, error);
    if (!result)
        result = walk(disk, path, &place, error);
    if (result)
        return result;
    if (place.inode)
        return disk->inodes[place.inode].directory
                   ? ZERO_OK
                   : zero_fail(error, ZERO_E_INVALID, "'%s' is no directory", path);
    place.inode = new_inode(disk, true);
    perform_names(disk, CRASH_LINK, place.directory, place.name, "", place.inode, 0);
    return ZERO_OK;
}

static zero_result unlink_entry(struct crash_disk *disk, const char *path, bool directory,
                                struct base_error *error)
{
    struct place place;
    zero_result result = call(disk, path, error);
    if (!result)
        result = find(disk, path, &place, error);
    if (result)
        return result;
    const struct crash_inode *inode = &disk->inodes[place.inode];
    if (inode->directory != directory || inode->count > 0)
        return zero_fail_errno(error, ZERO_E_IO, directory ? ENOTEMPTY : EISDIR,
                               "cannot remove '%s'", path);
    perform_names(disk, CRASH_UNLINK, place.directory, place.name, "", 0, 0);
    return ZERO_OK;
}

static zero_result remove_directory(void *user, const char *path, struct base_error *error)
{
    return unlink_entry(user, path, true, error);
}

static zero_result remove_file(void *user, const char *path, struct base_error *error)
{
    return unlink_entry(user, path, false, error);
}

// Within a directory at once; between two of them each half can be lost.
static zero_result rename_entry(void *user, const char *path, const char *to,
                                struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place from, target;
    zero_result result = call(disk, path, error);
    if (!result)
        result = find(disk, path, &from, error);
    if (!result)
        result = walk(disk, to, &target, error);
    if (result)
        return result;
    if (target.inode && disk->inodes[target.inode].directory)
        return zero_fail_errno(error, ZERO_E_IO, ENOTEMPTY, "cannot rename '%s' to '%s'", path, to);
    if (from.directory == target.directory) {
        perform_names(disk, CRASH_MOVE, from.directory, from.name, target.name, from.inode, 0);
        return ZERO_OK;
    }
    perform_names(disk, CRASH_LINK, target.directory, target.name, "", from.inode, 0);
    perform_names(disk, CRASH_UNLINK, from.directory, from.name, "", 0, 0);
    return ZERO_OK;
}

static zero_result exchange_entries(void *user, const char *one, const char *other,
                                    struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place a, b;
    zero_result result = call(disk, one, error);
    if (!result)
        result = find(disk, one, &a, error);
    if (!result)
        result = find(disk, other, &b, error);
    if (result)
        return result;
    if (a.directory != b.directory)
        abort();
    perform_names(disk, CRASH_SWAP, a.directory, a.name, b.name, b.inode, a.inode);
    return ZERO_OK;
}

static zero_result sync_directory(void *user, const char *path, struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place place;
    zero_result result = call(disk, path, error);
    if (!result)
        result = find(disk, path, &place, error);
    if (!result)
        flush(disk, place.inode, path);
    return result;
}

static zero_result list_directory(void *user, const char *path, base_entry_fn entry,
                                  void *entry_user, struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place place;
    zero_result result = find(disk, path, &place, error);
    if (result)
        return result;
    // Of a copy, because entries may be removed.
    struct crash_inode copy = crash_inode_copy(&disk->inodes[place.inode]);
    for (size_t i = 0; i < copy.count && !result; i++)
        result = entry(entry_user, copy.entries[i].name,
                       disk->inodes[copy.entries[i].inode].directory ? BASE_ENTRY_DIRECTORY
                                                                     : BASE_ENTRY_FILE,
                       error);
    crash_inode_free(&copy);
    return result;
}

/* ------------------------------------------------------------------ locks */

static zero_result take_lock(void *user, struct ckpt_file **lock, const char *path, bool exclusive,
                             struct base_error *error)
{
    struct crash_disk *disk = user;
    struct place place;
    *lock = NULL;
    zero_result result = exclusive ? call(disk, path, error) : ZERO_OK;
    if (!result)
        result = walk(disk, path, &place, error);
    if (result)
        return result;
    if (!place.inode && !exclusive)
        return missing(path, error);
    if (!place.inode) {
        place.inode = new_inode(disk, false);
        perform_names(disk, CRASH_LINK, place.directory, place.name, "", place.inode, 0);
    }
    int slot = 0;
    while (disk->locks[slot].inode && disk->locks[slot].inode != place.inode)
        slot++;
    disk->locks[slot].inode = place.inode;
    if (disk->locks[slot].exclusive || (exclusive && disk->locks[slot].shared))
        return ZERO_AGAIN;
    disk->locks[slot].exclusive += exclusive;
    disk->locks[slot].shared += !exclusive;
    *lock = open_inode(disk, place.inode, path);
    (*lock)->exclusive = exclusive;
    (*lock)->shared = !exclusive;
    return ZERO_OK;
}

static bool holds_lock(struct ckpt_file *lock)
{
    struct place place;
    return walk(lock->disk, lock->path, &place, NULL) == ZERO_OK && place.inode == lock->inode;
}

static void release_lock(struct ckpt_file **lock)
{
    if (!*lock)
        return;
    struct crash_disk *disk = (*lock)->disk;
    for (int slot = 0; slot < CRASH_LOCKS; slot++)
        if (disk->locks[slot].inode == (*lock)->inode) {
            disk->locks[slot].exclusive -= (*lock)->exclusive;
            disk->locks[slot].shared -= (*lock)->shared;
        }
    close_file(lock, NULL);
}

/* ------------------------------------------------------------------ disks */

static const struct ckpt_store functions = {
    .create = create_file,
    .open = open_file,
    .write = write_file,
    .read = read_file,
    .bytes = file_bytes,
    .truncate = truncate_file,
    .sync = sync_file,
    .close = close_file,
    .make_directory = make_directory,
    .remove_directory = remove_directory,
    .remove = remove_file,
    .rename = rename_entry,
    .exchange = exchange_entries,
    .sync_directory = sync_directory,
    .list = list_directory,
    .lock = take_lock,
    .holds = holds_lock,
    .unlock = release_lock,
};

static struct crash_inode *copy_all(const struct crash_inode *inodes, uint32_t count)
{
    struct crash_inode *copy = need(calloc(count, sizeof *copy));
    for (uint32_t i = 0; i < count; i++)
        copy[i] = crash_inode_copy(&inodes[i]);
    return copy;
}

static void free_all(struct crash_inode *inodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        crash_inode_free(&inodes[i]);
    free(inodes);
}

struct crash_disk *crash_disk_copy(const struct crash_inode *inodes, uint32_t count)
{
    struct crash_disk *disk = need(calloc(1, sizeof *disk));
    disk->store = functions;
    disk->store.user = disk;
    disk->inodes = copy_all(inodes, count);
    disk->base = copy_all(inodes, count);
    disk->inode_count = disk->base_count = count;
    return disk;
}

struct crash_disk *crash_disk_make(void)
{
    const struct crash_inode root = {.directory = true};
    return crash_disk_copy(&root, 1);
}

void crash_disk_free(struct crash_disk *disk)
{
    free_all(disk->inodes, disk->inode_count);
    free_all(disk->base, disk->base_count);
    for (size_t i = 0; i < disk->op_count; i++)
        free(disk->ops[i].data);
    free(disk->ops);
    free(disk);
}

void crash_disk_revive(struct crash_disk *disk)
{
    memset(disk->locks, 0, sizeof disk->locks);
    disk->dies_at = 0;
    disk->late_count = 0;
}
