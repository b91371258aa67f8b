#include "collectives/transport/shared_memory.h"

#include "base/fault.h"
#include "base/size_limit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Of Linux 5.14 and 6.1; older headers lack them.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/** What a peer may rely on: the memory is there and stays. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

enum { PAGE = 4096 };

static const size_t huge_page = (size_t)2 << 20;

/** Huge pages asked for at a time: what one that is not to be had costs the rest. */
static const size_t huge_piece = (size_t)32 << 20;

static size_t round_up(size_t value, size_t alignment)
{
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    return (value + alignment - 1) & ~(alignment - 1);
}

zero_result coll_memory_create(const char *name, size_t bytes, int *memory,
                               struct base_error *error)
{
    assert(bytes > 0);
    const int fd = memfd_create("zero", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, errno, "communicator %s: memfd_create", name);
    const struct base_size_limit limit = base_size_limit_begin();
    const int failed = bytes > INT64_MAX                         ? EFBIG
                       : ftruncate(fd, (off_t)bytes) != 0        ? errno
                       : fcntl(fd, F_ADD_SEALS, (int)SEALS) != 0 ? errno
                                                                 : 0;
    base_size_limit_end(&limit);
    if (failed != 0) {
        close(fd);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "communicator %s: %zu bytes of shared memory", name, bytes);
    }
    *memory = fd;
    return ZERO_OK;
}

zero_result coll_memory_check(const char *name, int rank, int memory, size_t bytes,
                              struct base_error *error)
{
    struct stat status;
    const int seals = fcntl(memory, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(memory, &status) != 0 ||
        (size_t)status.st_size != bytes)
        return zero_fail(error, ZERO_E_PEER,
                         "communicator %s: rank %d gave no sealed memory of %zu bytes", name, rank,
                         bytes);
    return ZERO_OK;
}

/** Reserves addresses of which the first is a multiple of a huge page; NULL if there are none. */
static unsigned char *reserve(size_t bytes)
{
    const size_t most = bytes + huge_page;
    unsigned char *reserved =
        most < bytes
            ? MAP_FAILED
            : mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return NULL;
    const size_t gap = round_up((uintptr_t)reserved, huge_page) - (uintptr_t)reserved;
    const size_t used = round_up(bytes, PAGE);
    if (gap > 0)
        munmap(reserved, gap);
    if (most > gap + used)
        munmap(reserved + gap + used, most - gap - used);
    return reserved + gap;
}

zero_result coll_memory_map(const char *name, int memory, size_t bytes, bool writable,
                            void **address, struct base_error *error)
{
    assert(memory >= 0 && bytes > 0);
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    unsigned char *place = bytes >= huge_page ? reserve(bytes) : NULL;
    errno = base_fault("shm.map");
    void *mapped = errno != 0 ? MAP_FAILED
                              : mmap(place, bytes, protection, MAP_SHARED | (place ? MAP_FIXED : 0),
                                     memory, 0);
    if (mapped == MAP_FAILED) {
        const int failed = errno;
        coll_memory_unmap(place, bytes);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "communicator %s: mapping %zu bytes of shared memory", name, bytes);
    }
    *address = mapped;
    return ZERO_OK;
}

void coll_memory_unmap(const void *address, size_t bytes)
{
    if (address)
        munmap((void *)(uintptr_t)address, bytes);
}

static int allocate_pages(int memory, size_t offset, size_t bytes)
{
    int failed;
    do
        failed = fallocate(memory, 0, (off_t)offset, (off_t)bytes) != 0 ? errno : 0;
    while (failed == EINTR);
    return failed;
}

/**
 * Puts whole huge pages into the range; returns how many of its bytes lie in some. Collapsing a
 * range that has but its first page costs a third of allocating it in small pages; that page says
 * where the huge one is to be. Measured: 49 ms for 256 MiB, 150 ms in small pages, and 0.2 instead
 * of 20 ms for each further mapping.
 */
static size_t allocate_huge(int memory, unsigned char *base, size_t offset, size_t bytes)
{
    const size_t first = round_up(offset, huge_page);
    const size_t end = (offset + bytes) & ~(huge_page - 1);
    size_t huge = 0;
    for (size_t at = first, size; at < end; at += size) {
        size = end - at < huge_piece ? end - at : huge_piece;
        for (size_t page = at; page < at + size; page += huge_page)
            if (allocate_pages(memory, page, PAGE) != 0)
                return huge;
        errno = base_fault("shm.huge");
        if (errno == 0 && madvise(base + at, size, MADV_COLLAPSE) == 0)
            huge += size;
        else if (errno == EINVAL && huge == 0)
            return 0; // a kernel that has none
    }
    return huge;
}

/** Touches a page, as a peer may be doing too. Compilers leave out an addition of nothing: clang.
 */
static void touch(volatile _Atomic unsigned char *byte, bool writable)
{
    unsigned char value = atomic_load(byte);
    if (writable)
        atomic_compare_exchange_strong(byte, &value, value);
}

/** Fills in page tables, which older kernels do on a touch only; 0, or what is wrong. */
static int populate(unsigned char *address, size_t bytes, bool writable)
{
    const int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    int failed;
    do {
        failed = base_fault("shm.populate");
        if (failed == 0 && madvise(address, bytes, advice) != 0)
            failed = errno;
    } while (failed == EINTR || failed == EAGAIN);
    if (failed != EINVAL)
        return failed;
    for (size_t at = 0; at < bytes; at += PAGE)
        touch((volatile _Atomic unsigned char *)(address + at), writable);
    return 0;
}

zero_result coll_memory_allocate(const char *name, int memory, void *base, size_t offset,
                                 size_t bytes, size_t *huge_bytes, struct base_error *error)
{
    assert(offset % PAGE == 0 && (uintptr_t)base % PAGE == 0);
    unsigned char *start = base;
    int failed = base_fault("shm.allocate");
    if (failed == 0 && bytes > 0) {
        *huge_bytes += allocate_huge(memory, start, offset, bytes);
        failed = allocate_pages(memory, offset, bytes);
    }
    if (failed == 0 && bytes > 0)
        failed = populate(start + offset, bytes, true);
    if (failed != 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "communicator %s: %zu bytes of shared memory", name, bytes);
    return ZERO_OK;
}

zero_result coll_memory_populate(const char *name, void *address, size_t bytes, bool writable,
                                 struct base_error *error)
{
    const int failed = populate(address, bytes, writable);
    if (failed != 0)
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "communicator %s: touching %zu bytes of shared memory", name, bytes);
    return ZERO_OK;
}

size_t coll_memory_allocated(int memory)
{
    struct stat status;
    return fstat(memory, &status) == 0 ? (size_t)status.st_blocks * 512 : 0;
}

size_t coll_memory_granule(size_t bytes)
{
    return bytes >= huge_page ? huge_page : PAGE;
}
