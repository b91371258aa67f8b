#include "tests/fault/crash_block.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MOST_OPS = 1 << 17,
    MOST_WRITE = 128 << 10,
    REQUEST = MOST_WRITE + 4096 + 8192, // with its heads
};
#define MOST_DATA ((size_t)512 << 20) // taken as it is used

struct block_record {
    pthread_mutex_t mutex;
    size_t count;
    uint64_t used; // of data
    struct block_op ops[MOST_OPS];
    unsigned char data[];
};

static size_t record_bytes(void)
{
    return sizeof(struct block_record) + MOST_DATA;
}

static void *share(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* ------------------------------------------------------------------ the record */

static void enter(struct block_record *record, struct block_op op, const void *data)
{
    pthread_mutex_lock(&record->mutex);
    if (record->count == MOST_OPS || op.size > MOST_DATA - record->used)
        abort();
    if (op.kind == BLOCK_WRITE) {
        op.data = record->used;
        memcpy(record->data + record->used, data, op.size);
        record->used += op.size;
    }
    record->ops[record->count++] = op;
    pthread_mutex_unlock(&record->mutex);
}

void block_mark(struct block_device *device, uint32_t mark)
{
    enter(device->record, (struct block_op){.kind = BLOCK_MARK, .offset = mark}, NULL);
}

size_t block_count(const struct block_device *device)
{
    return device->record->count;
}

const struct block_op *block_op(const struct block_device *device, size_t number)
{
    return &device->record->ops[number];
}

const unsigned char *block_data(const struct block_device *device, const struct block_op *op)
{
    return device->record->data + op->data;
}

/* ------------------------------------------------------------------ the server */

struct server {
    int fd;
    struct block_device *device;
};

static void answer(const struct server *server, const struct fuse_in_header *in, int errnum,
                   const void *data, size_t bytes)
{
    struct fuse_out_header out = {
        .len = (uint32_t)(sizeof out + bytes), .error = -errnum, .unique = in->unique};
    const struct iovec parts[] = {{&out, sizeof out}, {(void *)(uintptr_t)data, bytes}};
    // ENOENT: the process that asked has gone.
    if (writev(server->fd, parts, 2) < 0 && errno != ENOENT)
        _exit(1);
}

static void introduce(const struct server *server, const struct fuse_in_header *in,
                      const struct fuse_init_in *wish)
{
    const struct fuse_init_out out = {
        .major = FUSE_KERNEL_VERSION,
        .minor = wish->minor < FUSE_KERNEL_MINOR_VERSION ? wish->minor : FUSE_KERNEL_MINOR_VERSION,
        .flags = FUSE_BIG_WRITES | (wish->flags & FUSE_MAX_PAGES),
        .max_background = 16,
        .congestion_threshold = 12,
        .max_write = MOST_WRITE,
        .max_pages = MOST_WRITE / 4096,
        .time_gran = 1,
    };
    answer(server, in, 0, &out, sizeof out);
}

static void describe(const struct server *server, const struct fuse_in_header *in)
{
    const struct fuse_attr_out out = {
        .attr_valid = 3600,
        .attr = {.ino = FUSE_ROOT_ID,
                 .size = server->device->bytes,
                 .blocks = server->device->bytes / 512,
                 .mode = S_IFREG | 0600,
                 .nlink = 1,
                 .blksize = 4096},
    };
    answer(server, in, 0, &out, sizeof out);
}

static void give(const struct server *server, const struct fuse_in_header *in,
                 const struct fuse_read_in *wanted)
{
    const size_t bytes = server->device->bytes;
    const size_t from = wanted->offset < bytes ? (size_t)wanted->offset : bytes;
    const size_t count = wanted->size < bytes - from ? wanted->size : bytes - from;
    answer(server, in, 0, server->device->image + from, count);
}

static void take(const struct server *server, const struct fuse_in_header *in,
                 const struct fuse_write_in *given)
{
    const struct block_device *device = server->device;
    const struct fuse_write_out out = {.size = given->size};
    if (given->offset > device->bytes || given->size > device->bytes - given->offset) {
        answer(server, in, EFBIG, NULL, 0);
        return;
    }
    memcpy(device->image + given->offset, given + 1, given->size);
    enter(device->record,
          (struct block_op){.kind = BLOCK_WRITE, .offset = given->offset, .size = given->size},
          given + 1);
    answer(server, in, 0, &out, sizeof out);
}

static void handle(const struct server *server, const struct fuse_in_header *in)
{
    const struct fuse_open_out opened = {.open_flags = FOPEN_DIRECT_IO};
    const void *argument = in + 1;
    switch (in->opcode) {
    case FUSE_INIT:
        introduce(server, in, argument);
        break;
    case FUSE_GETATTR:
    case FUSE_SETATTR:
        describe(server, in);
        break;
    case FUSE_OPEN:
        answer(server, in, 0, &opened, sizeof opened);
        break;
    case FUSE_READ:
        give(server, in, argument);
        break;
    case FUSE_WRITE:
        take(server, in, argument);
        break;
    case FUSE_FSYNC:
        enter(server->device->record, (struct block_op){.kind = BLOCK_FLUSH}, NULL);
        answer(server, in, 0, NULL, 0);
        break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_DESTROY:
        answer(server, in, 0, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break; // want no answer
    default:
        answer(server, in, ENOSYS, NULL, 0);
    }
}

static void serve(const struct server *server)
{
    static union {
        struct fuse_in_header header;
        unsigned char bytes[REQUEST];
    } request;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        const ssize_t count = read(server->fd, &request, sizeof request);
        if (count >= (ssize_t)sizeof request.header)
            handle(server, &request.header);
        else if (count >= 0 || (errno != EINTR && errno != ENOENT && errno != EAGAIN))
            _exit(0); // it is mounted no more
    }
}

/* ------------------------------------------------------------------ life */

static bool mount_file(struct block_device *device, char why[MOUNTS_WHY])
{
    char options[128];
    const int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=100600,user_id=0,group_id=0", fd);
    if (fd < 0 || mount("zero-test", device->file, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        snprintf(why, MOUNTS_WHY, "no fuse: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    const struct server server = {fd, device};
    device->server = fork();
    if (device->server == 0)
        serve(&server);
    close(fd);
    return true;
}

bool block_begin(struct block_device *device, const unsigned char *image, size_t bytes,
                 const char *file, char why[MOUNTS_WHY])
{
    *device = (struct block_device){.bytes = bytes, .loop = -1};
    snprintf(device->file, sizeof device->file, "%s", file);
    device->image = share(bytes);
    device->record = share(record_bytes());
    pthread_mutexattr_t shared;
    if (!device->image || !device->record || pthread_mutexattr_init(&shared) != 0)
        abort();
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&device->record->mutex, &shared);
    memcpy(device->image, image, bytes);
    if (!mount_file(device, why))
        return false;
    device->loop = mounts_loop(device->file, device->name, why);
    if (device->loop < 0)
        block_stop(device);
    return device->loop >= 0;
}

void block_stop(struct block_device *device)
{
    if (device->loop >= 0)
        close(device->loop);
    device->loop = -1;
    umount2(device->file, MNT_DETACH);
    if (device->server > 0) {
        kill(device->server, SIGKILL);
        waitpid(device->server, NULL, 0);
    }
    device->server = 0;
}

void block_free(struct block_device *device)
{
    munmap(device->image, device->bytes);
    munmap(device->record, record_bytes());
}
