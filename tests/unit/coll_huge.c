// Counts beyond 4 GiB: each operation once, between two processes. Sources are sparse: they take no
// memory but where they hold something.

#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { WORLD = 2, MARKS = 6 };

#define GIB (UINT64_C(1) << 30)

/** Bytes, and elements of four bytes, a little more than 4 GiB of both. */
static const size_t bytes = 4 * GIB + 12345 * 4, words = (4 * GIB + 12345 * 4) / 4;

/** Elements of two bytes, so many that their number needs more than 32 bits. */
static const size_t halves = 4 * GIB + 4099;

/** What the ranks need at once: a result each. */
static const size_t needed = (size_t)(10 * GIB);

/** Bytes of memory that is zero and not there yet; NULL without address space. */
static void *sparse(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/** Where words are not zero: at both ends, and where 32 bits of bytes, or of words' bytes, end. */
static size_t marked(int mark)
{
    const size_t places[MARKS] = {0, GIB / 2, GIB - 1, GIB, GIB + 1, words - 1};
    return places[mark];
}

static void write_marks(float *vector, int rank)
{
    for (int m = 0; m < MARKS; m++)
        vector[marked(m)] = (float)(1 + m + 10 * rank);
}

/** Whether the marks of ranks 0 .. ranks-1 are summed there, and nothing else. */
static bool check_marks(const float *vector, int ranks)
{
    size_t not_zero = 0;
    for (size_t i = 0; i < words; i++)
        not_zero += vector[i] != 0.0F;
    CHECK(not_zero == MARKS);
    for (int m = 0; m < MARKS; m++) {
        float expected = 0.0F;
        for (int r = 0; r < ranks; r++)
            expected += (float)(1 + m + 10 * r);
        CHECK(vector[marked(m)] == expected);
    }
    return true;
}

static bool finish(struct coll_comm *comm, struct coll_request *request)
{
    CHECK_OK(comm, coll_drain(comm, request));
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static bool copying_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    const int rank = coll_rank(comm);
    const struct coll_span spans[WORLD] = {{0, bytes}, {0, 0}};
    float *data = sparse(bytes), *gathered = sparse(bytes);
    CHECK(data && gathered);
    if (rank == 0)
        write_marks(data, 0);

    struct coll_request request = {0};
    const struct coll_bulk_broadcast broadcast = {.data = data, .bytes = bytes};
    CHECK_OK(comm, coll_broadcast_start(comm, &broadcast, &request));
    CHECK(finish(comm, &request));
    CHECK(rank == 0 || check_marks(data, 1));
    munmap(rank == 0 ? gathered : data, bytes);

    const struct coll_all_gather gather = {
        .source = rank == 0 ? data : NULL, .recv = rank == 0 ? data : gathered, .spans = spans};
    CHECK_OK(comm, coll_all_gather_start(comm, &gather, &request));
    CHECK(finish(comm, &request));
    CHECK(rank == 0 || check_marks(gathered, 1));
    munmap(rank == 0 ? data : gathered, bytes);
    return true;
}

/** All of it belongs to rank 1. */
static bool reducing_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    const int rank = coll_rank(comm);
    const struct coll_span spans[WORLD] = {{0, 0}, {0, words}};
    float *source = sparse(bytes), *sum = sparse(bytes);
    CHECK(source && sum);
    write_marks(source, rank);
    struct coll_request request = {0};
    const struct coll_reduce_scatter scatter = {.source = source,
                                                .dtype = ZERO_F32,
                                                .spans = spans,
                                                .accumulator = sum,
                                                .contributors = WORLD,
                                                .store = true};
    CHECK_OK(comm, coll_reduce_scatter_start(comm, &scatter, &request));
    CHECK(finish(comm, &request));
    CHECK(rank == 0 || check_marks(sum, WORLD));

    const struct coll_all_reduce reduce = {
        .source = source, .result = sum, .count = words, .dtype = ZERO_F32, .op = BASE_SUM};
    CHECK_OK(comm, coll_all_reduce_start(comm, &reduce, &request));
    CHECK(finish(comm, &request));
    CHECK(check_marks(sum, WORLD));
    munmap(source, bytes);
    munmap(sum, bytes);
    return true;
}

/** Each rank owns a few elements, rank 1 the last of so many that their number takes 33 bits. */
static bool far_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    enum { FEW = 77 };
    const int rank = coll_rank(comm);
    const struct coll_span spans[WORLD] = {{3, FEW}, {halves - FEW, FEW}};
    uint16_t *source = sparse(halves * sizeof *source);
    float sum[FEW];
    CHECK(source);
    for (int r = 0; r < WORLD; r++)
        for (size_t i = 0; i < FEW; i++)
            source[spans[r].offset + i] = (uint16_t)(0x3f80 + 16 * rank + r); // bf16, from 1 on
    struct coll_request request = {0};
    const struct coll_reduce_scatter op = {.source = source,
                                           .dtype = ZERO_BF16,
                                           .spans = spans,
                                           .accumulator = sum,
                                           .contributors = WORLD,
                                           .store = true};
    CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, &request));
    CHECK(finish(comm, &request));
    const float unit = 0x1p-7F; // of a bf16 between 1 and 2
    for (size_t i = 0; i < FEW; i++)
        CHECK(sum[i] == 2.0F + (16.0F + 2.0F * (float)rank) * unit);
    munmap(source, halves * sizeof *source);
    return true;
}

static void beyond_4_gib(void **state)
{
    (void)state;
    const uint64_t minutes = UINT64_C(300000000000);
    assert_true(run_ranks("shm", WORLD, minutes, copying_rank, NULL));
    assert_true(run_ranks("shm", WORLD, minutes, reducing_rank, NULL));
    assert_true(run_ranks("shm", WORLD, minutes, far_rank, NULL));
}

/** A number after `key` in a file of the kernel's; SIZE_MAX if there is none. */
static size_t read_number(const char *path, const char *key)
{
    char line[128];
    size_t number = SIZE_MAX;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%zu", &number) == 1)
            break;
    if (file)
        fclose(file);
    return number;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beyond_4_gib),
    };
    const size_t available = read_number("/proc/meminfo", "MemAvailable:");
    const size_t allowed = read_number("/sys/fs/cgroup/memory.max", "");
    if (available < needed / 1024 || allowed < needed) {
        fprintf(stderr, "unit.coll_huge: takes %zu MiB of memory, of which %zu are free\n",
                needed >> 20, allowed < needed ? allowed >> 20 : available >> 10);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
