/*
 * io_uring, as two engines. `uring` registers memory and files with its ring, so that the kernel
 * neither looks up nor pins anything for a transfer; what the kernel has of the flags that leave
 * its work to the thread that waits (SINGLE_ISSUER, DEFER_TASKRUN: Linux 6.0, 6.1) is used.
 * `uring-plain` registers nothing, so the limit of locked memory does not count, and makes no call
 * of io_uring_register(2): Linux 5.6 has all it needs. A read of an eventfd is always under way:
 * writing to it wakes the waiting thread.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/forked.h"
#include "offload/io/io_engine.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WAKE = -1, MOST_PIECES = 256 };

// The kernel takes up to 1 GiB in one registered piece.
static const size_t piece_bytes = (size_t)512 << 20;

struct uring_engine {
    struct io_uring ring;
    bool registers; // memory and files
    bool has_ring;
    bool enabled;  // the thread that uses it has come
    bool watching; // the eventfd is being read
    int wake_fd;
    uint64_t wakes;
    unsigned under_way; // handed to the ring, the read of the eventfd included
    int file_count;
    int first_piece[OFF_MAX_RANGES]; // of each range
    unsigned char *range[OFF_MAX_RANGES];
};

// The rings are the kernel's, which rounds their entries up to a power of two.
static struct off_io_memory uring_memory(unsigned depth)
{
    const size_t page = 4096;
    size_t entries = 1;
    while (entries < depth + 1)
        entries *= 2;
    const size_t submissions = entries * sizeof(struct io_uring_sqe);
    const size_t rings =
        page + entries * sizeof(unsigned) + 2 * entries * sizeof(struct io_uring_cqe);
    return (struct off_io_memory){
        .bytes = sizeof(struct uring_engine) + (submissions + page - 1) / page * page +
                 (rings + page - 1) / page * page,
    };
}

static zero_result broken(int errnum, const char *call, struct base_error *error)
{
    return zero_fail_errno(error, ZERO_E_IO, errnum, "io_uring: %s", call);
}

static zero_result refused(int errnum, const char *call, struct base_error *error)
{
    struct rlimit limit = {.rlim_cur = 0};
    switch (errnum) {
    case EPERM:
    case EACCES:
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, errnum,
                               "io_uring is forbidden here (sysctl kernel.io_uring_disabled, or a "
                               "container's seccomp profile): %s",
                               call);
    case ENOSYS:
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, errnum,
                               "this kernel has no io_uring, or a container's seccomp profile "
                               "hides it: %s",
                               call);
    case ENOMEM:
        getrlimit(RLIMIT_MEMLOCK, &limit);
        return zero_fail_errno(error, ZERO_E_LIMIT, errnum,
                               "io_uring: %s: all processes of a user together may lock %llu KiB "
                               "(ulimit -l; LimitMEMLOCK= of a systemd unit)",
                               call, (unsigned long long)limit.rlim_cur >> 10);
    case EMFILE:
    case ENFILE:
        return zero_fail_errno(error, ZERO_E_LIMIT, errnum, "io_uring: %s", call);
    case EINVAL:
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, errnum,
                               "io_uring: this kernel is too old for it: %s", call);
    default:
        return zero_fail_errno(error, ZERO_E_IO, errnum, "io_uring: %s", call);
    }
}

// With as many of the flags as this kernel knows; 0, or what is wrong.
static int set_up_ring(struct uring_engine *engine, unsigned depth)
{
    // Disabled: it is the thread that enables it that a ring with one issuer belongs to.
    static const unsigned registering[] = {
        IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
            IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER,
        IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL,
        IORING_SETUP_R_DISABLED,
    };
    static const unsigned plain[] = {
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_SUBMIT_ALL,
        0,
    };
    const unsigned *flags = engine->registers ? registering : plain;
    const size_t count = engine->registers ? sizeof registering / sizeof registering[0]
                                           : sizeof plain / sizeof plain[0];
    int failed = base_fault("offload.uring");
    for (size_t i = 0; i < count && (i == 0 || failed == EINVAL); i++) {
        struct io_uring_params params = {.flags = flags[i]};
        if (failed == 0 || i > 0)
            failed = -io_uring_queue_init_params(depth + 1, &engine->ring, &params);
    }
    engine->has_ring = failed == 0;
    return failed;
}

static zero_result open_ring(struct uring_engine *engine, unsigned depth, struct base_error *error)
{
    char call[64];
    snprintf(call, sizeof call, "a ring of %u transfers", depth);
    int failed = set_up_ring(engine, depth);
    // A child made by fork() would keep the ring, and with it the files that it has registered.
    if (failed == 0)
        failed = -io_uring_ring_dontfork(&engine->ring);
    if (failed == 0)
        failed = base_forked_guard(engine->ring.ring_fd);
    if (failed != 0)
        return refused(failed, call, error);
    // The feature that came with reads and writes of a single piece of memory.
    if (!(engine->ring.features & IORING_FEAT_RW_CUR_POS))
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "io_uring: this kernel reads and writes lists of memory only (Linux 5.6 "
                         "is new enough)");
    // A filter of calls may let rings be made and not be used. EBADFD: it is not enabled yet.
    const int entered = -io_uring_get_events(&engine->ring);
    return entered == 0 || entered == EBADFD ? ZERO_OK : refused(entered, "entering it", error);
}

// All memory, in pieces that the kernel takes.
static zero_result register_memory(struct uring_engine *engine,
                                   const struct off_io_engine_config *config,
                                   struct base_error *error)
{
    assert(config->range_count <= OFF_MAX_RANGES);
    struct iovec pieces[MOST_PIECES];
    unsigned count = 0;
    size_t total = 0;
    for (size_t r = 0; r < config->range_count; r++) {
        const struct off_range *range = &config->ranges[r];
        engine->first_piece[r] = (int)count;
        engine->range[r] = range->memory;
        total += range->bytes;
        for (size_t at = 0; at < range->bytes; at += piece_bytes) {
            const size_t left = range->bytes - at;
            if (count == MOST_PIECES)
                return zero_fail(error, ZERO_E_LIMIT, "io_uring: more than %zu bytes of memory",
                                 MOST_PIECES * piece_bytes);
            pieces[count++] = (struct iovec){.iov_base = engine->range[r] + at,
                                             .iov_len = left < piece_bytes ? left : piece_bytes};
        }
    }
    char call[64];
    snprintf(call, sizeof call, "registering %zu bytes of memory", total);
    int failed = base_fault("offload.register");
    if (failed == 0 && count > 0)
        failed = -io_uring_register_buffers(&engine->ring, pieces, count);
    return failed == 0 ? ZERO_OK : refused(failed, call, error);
}

// A table of files to fill in later: Linux 5.19 has such.
static zero_result register_files(struct uring_engine *engine, struct base_error *error)
{
    const int failed = -io_uring_register_files_sparse(&engine->ring, OFF_MAX_FILES);
    return failed == 0 ? ZERO_OK : refused(failed, "registering a table of files", error);
}

static void uring_destroy(void *state);

static zero_result create(void **state, const struct off_io_engine_config *config, bool registers,
                          struct base_error *error)
{
    *state = NULL;
    struct uring_engine *engine = base_calloc(1, sizeof *engine);
    if (!engine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for an io_uring");
    engine->registers = registers;
    engine->enabled = !registers;
    engine->wake_fd = eventfd(0, EFD_CLOEXEC);
    zero_result result = ZERO_OK;
    if (engine->wake_fd < 0)
        result = refused(errno, "eventfd", error);
    if (!result)
        result = open_ring(engine, config->depth, error);
    if (!result && registers)
        result = register_memory(engine, config, error);
    if (!result && registers)
        result = register_files(engine, error);
    if (result) {
        uring_destroy(engine);
        return result;
    }
    *state = engine;
    return ZERO_OK;
}

static zero_result uring_create(void **state, const struct off_io_engine_config *config,
                                struct base_error *error)
{
    return create(state, config, true, error);
}

static zero_result plain_create(void **state, const struct off_io_engine_config *config,
                                struct base_error *error)
{
    return create(state, config, false, error);
}

static zero_result uring_add_file(void *state, int fd, const char *path, struct base_error *error)
{
    struct uring_engine *engine = state;
    if (!engine->registers)
        return ZERO_OK;
    assert(engine->file_count < OFF_MAX_FILES);
    const int changed =
        io_uring_register_files_update(&engine->ring, (unsigned)engine->file_count, &fd, 1);
    if (changed != 1)
        return zero_fail_errno(error, ZERO_E_IO, changed < 0 ? -changed : EIO,
                               "%s: io_uring cannot register it", path);
    engine->file_count++;
    return ZERO_OK;
}

static void prepare_plain(struct io_uring_sqe *sqe, const struct off_transfer *transfer)
{
    if (transfer->direction == OFF_READ)
        io_uring_prep_read(sqe, transfer->fd, transfer->memory, (unsigned)transfer->bytes,
                           transfer->offset);
    else
        io_uring_prep_write(sqe, transfer->fd, transfer->memory, (unsigned)transfer->bytes,
                            transfer->offset);
}

static void prepare_registered(const struct uring_engine *engine, struct io_uring_sqe *sqe,
                               const struct off_transfer *transfer)
{
    const size_t inside =
        (size_t)((unsigned char *)transfer->memory - engine->range[transfer->range]);
    const int piece = engine->first_piece[transfer->range] + (int)(inside / piece_bytes);
    assert(transfer->range < OFF_MAX_RANGES);
    assert(inside / piece_bytes ==
           (inside + transfer->bytes - 1) / piece_bytes); // lies in one piece
    if (transfer->direction == OFF_READ)
        io_uring_prep_read_fixed(sqe, transfer->file, transfer->memory, (unsigned)transfer->bytes,
                                 transfer->offset, piece);
    else
        io_uring_prep_write_fixed(sqe, transfer->file, transfer->memory, (unsigned)transfer->bytes,
                                  transfer->offset, piece);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

static void uring_submit(void *state, unsigned number, const struct off_transfer *transfer)
{
    struct uring_engine *engine = state;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring); // there is one for each number
    assert(sqe);
    if (engine->registers)
        prepare_registered(engine, sqe, transfer);
    else
        prepare_plain(sqe, transfer);
    io_uring_sqe_set_data64(sqe, number);
    engine->under_way++;
}

static void watch(struct uring_engine *engine)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring);
    assert(sqe && !engine->watching);
    io_uring_prep_read(sqe, engine->wake_fd, &engine->wakes, sizeof engine->wakes, 0);
    io_uring_sqe_set_data64(sqe, (uint64_t)WAKE);
    engine->watching = true;
    engine->under_way++;
}

static bool may_pass(int errnum)
{
    return errnum == EINTR || errnum == EAGAIN || errnum == EBUSY;
}

// io_uring_enable_rings(), which the shared liburing 2.3 declares and lacks.
static long enable(const struct io_uring *ring)
{
    return syscall(SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

static zero_result uring_commit(void *state, struct base_error *error)
{
    struct uring_engine *engine = state;
    if (!engine->enabled) {
        if (enable(&engine->ring) != 0)
            return broken(errno, "enabling the ring", error);
        engine->enabled = true;
    }
    if (!engine->watching)
        watch(engine);
    while (io_uring_sq_ready(&engine->ring) > 0) {
        const int refused = base_fault("offload.enter");
        const int begun = refused ? -refused : io_uring_submit(&engine->ring);
        if (begun < 0 && !may_pass(-begun))
            return broken(-begun, "handing over transfers", error);
        if (begun <= 0)
            return zero_fail_errno(error, ZERO_AGAIN, begun < 0 ? -begun : EAGAIN,
                                   "io_uring: the kernel does not begin %u transfers",
                                   io_uring_sq_ready(&engine->ring));
    }
    return ZERO_OK;
}

// Moves what has come back out of the ring; a wake counts for nothing but that there was one.
static size_t collect(struct uring_engine *engine, struct off_completion *done, size_t most,
                      bool *woken)
{
    size_t count = 0;
    struct io_uring_cqe *cqe;
    while (count < most && io_uring_peek_cqe(&engine->ring, &cqe) == 0) {
        const uint64_t data = io_uring_cqe_get_data64(cqe);
        if (data == (uint64_t)WAKE) {
            engine->watching = false;
            *woken = true;
        } else {
            done[count++] = (struct off_completion){.number = (unsigned)data, .result = cqe->res};
        }
        assert(engine->under_way > 0);
        engine->under_way--;
        io_uring_cqe_seen(&engine->ring, cqe);
    }
    return count;
}

static zero_result uring_reap(void *state, uint64_t deadline_ns, struct off_completion *done,
                              size_t most, size_t *count, struct base_error *error)
{
    struct uring_engine *engine = state;
    bool woken = false;
    io_uring_get_events(&engine->ring);
    *count = collect(engine, done, most, &woken);
    while (*count == 0 && !woken) {
        const uint64_t now = base_clock_ns();
        if (now >= deadline_ns)
            break;
        const uint64_t left = deadline_ns - now;
        struct __kernel_timespec patience = {.tv_sec = (long long)(left / 1000000000),
                                             .tv_nsec = (long long)(left % 1000000000)};
        struct io_uring_cqe *cqe;
        const int failed = -io_uring_wait_cqe_timeout(&engine->ring, &cqe, &patience);
        if (failed != 0 && failed != ETIME && !may_pass(failed))
            return broken(failed, "waiting", error);
        *count = collect(engine, done, most, &woken);
    }
    return woken ? uring_commit(engine, error) : ZERO_OK;
}

static void uring_wake(void *state)
{
    const struct uring_engine *engine = state;
    eventfd_write(engine->wake_fd, 1);
}

// Waits for all that the kernel has begun.
static void drain(struct uring_engine *engine)
{
    struct off_completion done[16];
    struct io_uring_cqe *cqe;
    bool woken;
    eventfd_write(engine->wake_fd, 1); // for its read
    while (engine->under_way > io_uring_sq_ready(&engine->ring)) {
        const int failed = -io_uring_wait_cqe(&engine->ring, &cqe);
        if (failed != 0 && !may_pass(failed))
            break;
        collect(engine, done, sizeof done / sizeof done[0], &woken);
    }
}

// Leaving a ring neither ends what is under way in it nor waits for it, and the kernel would go on
// reading into memory that has another use by then. Memory and files are given back at once, not
// when the kernel gets to it: another process may wait for the room, or for a lock on a file.
static void uring_destroy(void *state)
{
    struct uring_engine *engine = state;
    if (!engine)
        return;
    if (engine->has_ring)
        drain(engine);
    if (engine->has_ring && engine->registers) {
        io_uring_unregister_buffers(&engine->ring);
        io_uring_unregister_files(&engine->ring);
    }
    if (engine->has_ring) {
        base_forked_release(engine->ring.ring_fd);
        io_uring_queue_exit(&engine->ring);
    }
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    base_free(engine);
}

const struct off_io_engine off_io_engine_uring = {
    .size = sizeof(struct off_io_engine),
    .name = "uring",
    .memory = uring_memory,
    .create = uring_create,
    .add_file = uring_add_file,
    .submit = uring_submit,
    .commit = uring_commit,
    .reap = uring_reap,
    .wake = uring_wake,
    .destroy = uring_destroy,
};

const struct off_io_engine off_io_engine_uring_plain = {
    .size = sizeof(struct off_io_engine),
    .name = "uring-plain",
    .memory = uring_memory,
    .create = plain_create,
    .add_file = uring_add_file,
    .submit = uring_submit,
    .commit = uring_commit,
    .reap = uring_reap,
    .wake = uring_wake,
    .destroy = uring_destroy,
};
