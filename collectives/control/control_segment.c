#include "collectives/control/control.h"

#include "base/size_limit.h"
#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/rendezvous.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define VARIABLE "ZERO_CONTROL_FD"

enum { PAGE_BYTES = 4096 };

size_t control_bytes(int world)
{
    assert(world >= 1);
    return sizeof(struct control_segment) + (size_t)world * sizeof(struct control_rank);
}

static zero_result map(struct control_segment **segment, int fd, size_t bytes, int protection,
                       struct base_error *error)
{
    assert(fd >= 0 && bytes > 0);
    void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return zero_fail_errno(error, ZERO_E_NOMEM, errno, "mapping the %zu bytes of " VARIABLE,
                               bytes);
    *segment = mapped;
    return ZERO_OK;
}

zero_result control_create(struct control_segment **segment, int *fd, int world, bool trace,
                           struct base_error *error)
{
    assert(world <= BOOT_WORLD_MAX);
    const size_t bytes = control_bytes(world);
    zero_result result = ZERO_OK;
    *segment = NULL;
    const struct base_size_limit limit = base_size_limit_begin();
    *fd = memfd_create("zero-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    // Sealed, because a process that reads behind the end of a file that has shrunk is killed.
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes) ||
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        result = zero_fail_errno(error, ZERO_E_NOMEM, errno,
                                 "a control segment of %zu bytes for %d ranks", bytes, world);
    else
        result = map(segment, *fd, bytes, PROT_READ | PROT_WRITE, error);
    base_size_limit_end(&limit);
    if (!*segment) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        return result;
    }
    (*segment)->magic = CONTROL_MAGIC;
    (*segment)->version = CONTROL_VERSION;
    (*segment)->world = (uint32_t)world;
    (*segment)->bytes = bytes;
    atomic_store_explicit(&(*segment)->trace, trace, memory_order_relaxed);
    for (int rank = 0; rank < world && trace; rank++)
        atomic_store_explicit(&(*segment)->ranks[rank].trace, 1, memory_order_relaxed);
    return ZERO_OK;
}

/** Whether the descriptor is a segment, of any number of ranks. */
static zero_result check(int fd, struct control_segment *head, struct base_error *error)
{
    struct stat file;
    if (fstat(fd, &file))
        return zero_fail_errno(error, ZERO_E_INVALID, errno, VARIABLE "=%d", fd);
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) ||
        pread(fd, head, sizeof *head, 0) != (ssize_t)sizeof *head)
        return zero_fail(error, ZERO_E_INVALID, VARIABLE "=%d is no control segment of zero-run",
                         fd);
    if (head->magic != CONTROL_MAGIC)
        return zero_fail(error, ZERO_E_INVALID,
                         VARIABLE
                         "=%d is no control segment of zero-run: it begins with %016" PRIx64
                         ", not with %016" PRIx64,
                         fd, head->magic, CONTROL_MAGIC);
    if (head->version != CONTROL_VERSION)
        return zero_fail(error, ZERO_E_VERSION,
                         VARIABLE "=%d: zero-run has version %u of the control segment, this "
                                  "library %u",
                         fd, head->version, CONTROL_VERSION);
    if (head->world < 1 || head->world > BOOT_WORLD_MAX)
        return zero_fail(error, ZERO_E_INVALID, VARIABLE "=%d: a control segment of %u ranks", fd,
                         head->world);
    const size_t bytes = control_bytes((int)head->world);
    if (head->bytes != bytes || (uint64_t)file.st_size != bytes)
        return zero_fail(error, ZERO_E_INVALID,
                         VARIABLE
                         "=%d: a control segment of %u ranks has %zu bytes; it says %" PRIu64
                         " and has %" PRIu64,
                         fd, head->world, bytes, head->bytes, (uint64_t)file.st_size);
    return ZERO_OK;
}

/** Recording later on is to find every page in place. */
static void touch(struct control_rank *area)
{
    unsigned char *bytes = (unsigned char *)area;
    for (size_t at = 0; at < sizeof *area; at += PAGE_BYTES)
        __atomic_fetch_or(bytes + at, 0, __ATOMIC_RELAXED);
}

/** Maps the whole for reading, and this rank's area for writing too. */
static zero_result map_rank(struct control_segment **segment, int fd, size_t bytes, int rank,
                            struct base_error *error)
{
    const zero_result result = map(segment, fd, bytes, PROT_READ, error);
    if (result != ZERO_OK)
        return result;
    struct control_rank *area = &(*segment)->ranks[rank];
    if (mprotect(area, sizeof *area, PROT_READ | PROT_WRITE)) {
        zero_fail_errno(error, ZERO_E_NOMEM, errno, "mapping the part of rank %d in " VARIABLE,
                        rank);
        munmap(*segment, bytes);
        *segment = NULL;
        return ZERO_E_NOMEM;
    }
    touch(area);
    return ZERO_OK;
}

zero_result control_map(struct control_segment **segment, int rank, int world,
                        struct base_error *error)
{
    *segment = NULL;
    const char *text = getenv(VARIABLE);
    if (!text)
        return ZERO_OK;
    struct control_segment head = {.magic = 0};
    int fd = -1;
    zero_result result = boot_number(&fd, VARIABLE, text, 0, INT_MAX, error);
    if (result == ZERO_OK && fcntl(fd, F_GETFD) < 0)
        result = zero_fail(error, ZERO_E_INVALID, VARIABLE "=%d is no open descriptor", fd);
    if (result == ZERO_OK)
        result = check(fd, &head, error);
    if (result == ZERO_OK && (rank < 0 || rank >= world))
        result = zero_fail(error, ZERO_E_INVALID, VARIABLE ": rank %d of %d", rank, world);
    if (result != ZERO_OK || head.world != (uint32_t)world)
        return result;
    result = map_rank(segment, fd, head.bytes, rank, error);
    if (result == ZERO_OK)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    return result;
}

zero_result control_attach(struct control_segment **segment, int rank, int world,
                           struct base_error *error)
{
    const zero_result result = control_map(segment, rank, world, error);
    if (*segment)
        atomic_store_explicit(&(*segment)->ranks[rank].pid, (uint32_t)getpid(),
                              memory_order_relaxed);
    return result;
}

void control_detach(struct control_segment *segment)
{
    if (segment)
        munmap(segment, segment->bytes);
}
