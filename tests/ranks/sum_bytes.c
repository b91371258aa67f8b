// Sums of gradients in a file: a rank moves those it adds to, once a micro-batch, and at stage 0
// what others have added to once a step, when it is whole; the plan says how much, and the bits are
// those of sums in memory.
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"
#include "zero/store/nvme_tier.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { STEPS = 2, UNITS = 6, ELEMENTS = 400000, MICROS = 6, STRIP_BYTES = 60 * 4096 };

static struct temporary directory;

struct job {
    int stage;
    bool in_memory;
    uint8_t digest[16];
};

static const struct toy_tensor tensors[] = {{.name = "w", .slices = UNITS, .numel = ELEMENTS}};
static const struct toy toy = {.tensors = tensors,
                               .tensor_count = 1,
                               .unit_count = UNITS,
                               .micro_batches = MICROS,
                               .dtype = ZERO_F32};

/** Of a rank's sums of a unit: those it adds to, and all. */
static void bytes_of(const zero_ctx *z, size_t *own, size_t *all)
{
    const struct eng_bucket_place *place = &z->placement.buckets[0];
    *own = place->own_granules * BASE_GRANULE * sizeof(float);
    *all = place->state_granules * BASE_GRANULE * sizeof(float);
}

static bool moved_what_it_should(const zero_ctx *z)
{
    const struct off_tile_io_counts counts = off_tile_io_counts(z->tier->sums.file.tile_io);
    const struct off_pipeline_counts update = off_pipeline_counts(z->tier->sums.file.pipeline);
    struct eng_tier_needs needs;
    struct base_error error = {0};
    size_t own, all;
    bytes_of(z, &own, &all);
    TEAM_CHECK(!z->store->needs(z, &z->placement, &needs, &error));
    const uint64_t written = needs.files[ENG_FILE_SUMS].written;
    const uint64_t rounds = (uint64_t)z->micro.count, times = STEPS * UNITS;
    // At either end of what a rank adds to a strip may have more.
    const uint64_t most = own + 2 * STRIP_BYTES < all ? own + 2 * STRIP_BYTES : all;
    TEAM_CHECK(counts.contents[OFF_WRITE] == STEPS * written);
    TEAM_CHECK(counts.contents[OFF_WRITE] >= times * ((rounds - 1) * own + all));
    TEAM_CHECK(counts.contents[OFF_WRITE] <= times * ((rounds - 1) * most + all));
    TEAM_CHECK(counts.contents[OFF_READ] <= times * (rounds - 1) * most);
    TEAM_CHECK(counts.contents[OFF_READ] > 0);
    TEAM_CHECK(update.contents[OFF_WRITE] == 0);
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t digest[16];
    rank->config.stage = job->stage;
    rank->config.micro_batches = MICROS;
    if (!job->in_memory) {
        rank->config.offload_optimizer = rank->config.offload_grads = "nvme";
        rank->config.nvme_dir = directory.directory;
        rank->config.tile_bytes = 65536; // of 5 granules each, 12 in a group
        rank->config.compress = "off";
    }
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS))
        return false;
    if (!job->in_memory && !moved_what_it_should(rank->z))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return true;
}

static void ranks_move_what_they_add_to(void **state)
{
    (void)state;
    static const struct {
        int world, stage;
    } cases[] = {{1, 0}, {2, 0}, {3, 0}, {2, 2}};
    struct job whole = {.in_memory = true};
    assert_true(temporary_make(&directory));
    assert_true(team_run("self", 1, work, &whole));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job = {.stage = cases[i].stage};
        assert_true(team_run(team_threads(cases[i].world), cases[i].world, work, &job));
        assert_memory_equal(job.digest, whole.digest, sizeof job.digest);
    }
    temporary_remove(&directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_move_what_they_add_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
