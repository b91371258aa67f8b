#include "offload/pages.h"

#include "base/fault.h"

#include <assert.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// Of Linux 5.14 and 6.1; older headers lack them.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static const size_t huge_page = (size_t)2 << 20;

static size_t round_up(size_t bytes)
{
    return (bytes + huge_page - 1) & ~(huge_page - 1);
}

static void *map(void *address, size_t bytes, int flags)
{
    void *memory =
        mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

// Pages that an administrator has set aside; NULL if there are not enough.
static void *map_reserved(size_t bytes)
{
    if (base_fault("pages.reserved") != 0)
        return NULL;
    return map(NULL, bytes, MAP_HUGETLB | MAP_POPULATE | (21 << MAP_HUGE_SHIFT));
}

// Addresses that begin at a huge page.
static unsigned char *map_aligned(size_t bytes)
{
    assert(bytes % huge_page == 0);
    const int errnum = base_fault("pages.map");
    if (errnum != 0) {
        errno = errnum;
        return NULL;
    }
    unsigned char *memory = map(NULL, bytes + huge_page, MAP_NORESERVE);
    if (!memory)
        return NULL;
    const size_t gap = round_up((uintptr_t)memory) - (uintptr_t)memory;
    if (gap > 0)
        munmap(memory, gap);
    munmap(memory + gap + bytes, huge_page - gap);
    return memory + gap;
}

// Touches every page; 0, or what is wrong.
static int populate(unsigned char *memory, size_t bytes)
{
    assert((uintptr_t)memory % huge_page == 0);
    int failed;
    do
        failed = madvise(memory, bytes, MADV_POPULATE_WRITE) != 0 ? errno : 0;
    while (failed == EINTR || failed == EAGAIN);
    if (failed == EINVAL) {
        memset(memory, 0, bytes);
        failed = 0;
    }
    return failed;
}

// How much of the mapping at `memory` lies in transparent huge pages, as the kernel tells it.
static size_t count_huge(const void *memory, size_t bytes)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    size_t huge = 0, kib;
    bool inside = false;
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (sscanf(line, "%zx-%zx ", &from, &to) == 2)
            inside = from < (uintptr_t)memory + bytes && to > (uintptr_t)memory;
        else if (inside && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1)
            huge += kib << 10;
    }
    if (maps)
        fclose(maps);
    return huge < bytes ? huge : bytes;
}

zero_result off_pages_create(struct off_pages *pages, size_t bytes, struct base_error *error)
{
    *pages = (struct off_pages){.memory = NULL};
    if (bytes > SIZE_MAX / 2)
        return zero_fail(error, ZERO_E_NOMEM, "%zu bytes of memory for reads and writes", bytes);
    pages->bytes = round_up(bytes);
    if (bytes == 0)
        return ZERO_OK;
    pages->memory = map_reserved(pages->bytes);
    if (pages->memory) {
        pages->kind = OFF_PAGES_RESERVED;
        pages->huge_bytes = pages->bytes;
        return ZERO_OK;
    }
    unsigned char *memory = map_aligned(pages->bytes);
    pages->memory = memory;
    const bool wanted = memory && base_fault("pages.transparent") == 0;
    if (wanted)
        madvise(memory, pages->bytes, MADV_HUGEPAGE);
    const int failed = memory ? populate(memory, pages->bytes) : errno;
    if (failed != 0) {
        const size_t refused = pages->bytes;
        off_pages_destroy(pages);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "%zu bytes of memory for reads and writes", refused);
    }
    if (wanted) {
        madvise(memory, pages->bytes, MADV_COLLAPSE);
        pages->huge_bytes = count_huge(memory, pages->bytes);
    }
    assert(pages->huge_bytes <= pages->bytes);
    pages->kind = pages->huge_bytes == pages->bytes ? OFF_PAGES_TRANSPARENT : OFF_PAGES_PLAIN;
    return ZERO_OK;
}

uint64_t off_lock_limit(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{.effective = 0}};
    struct rlimit limit;
    if (syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_IPC_LOCK & 1) != 0)
        return UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

const char *off_pages_text(enum off_page_kind kind)
{
    assert(kind <= OFF_PAGES_PLAIN);
    static const char *const texts[] = {
        [OFF_PAGES_RESERVED] = "2 MiB pages (reserved)",
        [OFF_PAGES_TRANSPARENT] = "2 MiB pages (transparent)",
        [OFF_PAGES_PLAIN] = "4 KiB pages",
    };
    return texts[kind];
}

void off_pages_destroy(struct off_pages *pages)
{
    if (pages->memory)
        munmap(pages->memory, pages->bytes);
    *pages = (struct off_pages){.memory = NULL};
}
