// What is done on a GPU against that GPU's memory bandwidth: the update, the ordered sum, the norm
// where there is nothing to add, the fingerprint, and copies from and to the host; and the update
// against PyTorch's. bench_device [ELEMENTS [PYTHON]]: of the arrays (default: 128 Mi, 5 GiB of the
// GPU); a python3 with torch, for the last row. Without a GPU that is a skip.
#include "base/arena.h"
#include "base/device.h"
#include "base/kernels/device_kernels.h"
#include "tests/bench/bench.h"
#include "tests/bench/other_program.h"
#include "tests/unit/kernel_inputs.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    SKIPPED = 77,
    ELEMENTS = 128 * 1024 * 1024,
    REPEAT = 20, // of what one round does: what starting and waiting cost disappears in it
    RANKS = 8,   // whose contributions are added
    HOST_BYTES = 256 * 1024 * 1024,
};

struct work {
    const struct base_device *device;
    const struct base_device_kernels *kernels;
    void *state, *stream;
    size_t count;                                // elements
    unsigned char *narrow, *weight, *moments[2]; // bf16, fp32, fp32: count of each
    unsigned char *work;                         // bf16
    unsigned char *received;                     // bf16, of RANKS
    unsigned char *host[2], *there[2];           // HOST_BYTES of each, one for each direction
    void *streams[2];
    struct base_device_segment *segments;
    struct base_device_granules *hashed;
    void *scalars, *squares, *bad, *digest;
    struct other_program torch;
};

static void must(zero_result result, const struct base_error *error)
{
    if (!result)
        return;
    fprintf(stderr, "bench_device: %s\n", error->message);
    exit(result == ZERO_E_UNSUPPORTED ? SKIPPED : 1);
}

/* ------------------------------------------------------------------ memory */

static void *memory(const struct work *work, size_t bytes)
{
    struct base_error error = {0};
    void *there;
    must(work->device->alloc(&there, bytes, &error), &error);
    must(work->device->zero(there, bytes, work->stream, &error), &error);
    return there;
}

static void *put(const struct work *work, const void *bytes, size_t size)
{
    struct base_error error = {0};
    void *there = memory(work, size);
    must(work->device->copy(there, bytes, size, work->stream, &error), &error);
    must(work->device->stream_sync(work->stream, &error), &error);
    return there;
}

static void make_runs(struct work *work)
{
    const size_t segments = (work->count + BASE_DEVICE_SEGMENT - 1) / BASE_DEVICE_SEGMENT;
    struct base_device_segment *list = base_calloc(segments, sizeof *list);
    if (!list)
        exit(1);
    for (size_t r = 0; r < segments; r++) {
        const size_t first = r * BASE_DEVICE_SEGMENT, left = work->count - first;
        list[r] = (struct base_device_segment){
            .gradient = work->narrow + 2 * first,
            .weight = work->weight + 4 * first,
            .moment = {work->moments[0] + 4 * first, work->moments[1] + 4 * first},
            .work = (uint16_t *)(void *)(work->work + 2 * first),
            .first = first,
            .count = (uint32_t)(left < BASE_DEVICE_SEGMENT ? left : BASE_DEVICE_SEGMENT),
            .gradient_dtype = ZERO_BF16,
            .weight_dtype = ZERO_F32,
            .moment_dtype = ZERO_F32,
            .work_dtype = ZERO_BF16,
        };
    }
    work->segments = put(work, list, segments * sizeof *list);
    base_free(list);
}

static size_t hashed_parts(const struct work *work)
{
    const size_t part = BASE_DEVICE_GRANULES * BASE_GRANULE;
    return (work->count + part - 1) / part;
}

// Of the weights.
static void make_hashed(struct work *work)
{
    const size_t part = BASE_DEVICE_GRANULES * BASE_GRANULE, parts = hashed_parts(work);
    struct base_device_granules *list = base_calloc(parts, sizeof *list);
    if (!list)
        exit(1);
    for (size_t r = 0; r < parts; r++) {
        const size_t first = r * part, left = work->count - first;
        list[r] = (struct base_device_granules){
            .elements = work->weight + 4 * first,
            .first = first / BASE_GRANULE,
            .count = (uint32_t)(left < part ? left : part),
            .element_bytes = 4,
        };
    }
    work->hashed = put(work, list, parts * sizeof *list);
    base_free(list);
}

static void make_host(struct work *work)
{
    struct base_error error = {0};
    for (int i = 0; i < 2; i++) {
        work->host[i] = base_aligned_alloc(4096, HOST_BYTES);
        if (!work->host[i])
            exit(1);
        for (size_t at = 0; at < HOST_BYTES; at += 4096)
            work->host[i][at] = 1;
        must(work->device->pin(work->host[i], HOST_BYTES, &error), &error);
        work->there[i] = memory(work, HOST_BYTES);
        must(work->device->stream_create(&work->streams[i], false, &error), &error);
    }
}

static void make(struct work *work)
{
    struct base_error error = {0};
    const uint64_t none = UINT64_MAX;
    const struct base_rule_scalars scalars = input_scalars(BASE_RULE_ADAM, false, false);
    must(work->device->enter(0, &error), &error);
    must(work->device->stream_create(&work->stream, false, &error), &error);
    must(work->kernels->open(&work->state, &error), &error);
    work->narrow = memory(work, 2 * work->count);
    work->weight = memory(work, 4 * work->count);
    work->moments[0] = memory(work, 4 * work->count);
    work->moments[1] = memory(work, 4 * work->count);
    work->work = memory(work, 2 * work->count);
    work->received = memory(work, 2 * RANKS * work->count);
    work->squares = memory(work, work->count / BASE_GRANULE * sizeof(double));
    work->scalars = put(work, &scalars, sizeof scalars);
    work->bad = put(work, &none, sizeof none);
    work->digest = memory(work, 2 * sizeof(uint64_t));
    make_runs(work);
    make_hashed(work);
    make_host(work);
}

/* ------------------------------------------------------------------ what is measured */

// Gives the work REPEAT times and waits for it.
static double timed(struct work *work, zero_result (*give)(struct work *, struct base_error *))
{
    struct base_error error = {0};
    const double begin = bench_now();
    for (int i = 0; i < REPEAT; i++)
        must(give(work, &error), &error);
    must(work->device->stream_sync(work->stream, &error), &error);
    return bench_now() - begin;
}

static zero_result give_update(struct work *work, struct base_error *error)
{
    const struct base_device_update update = {
        .segments = work->segments,
        .count = (work->count + BASE_DEVICE_SEGMENT - 1) / BASE_DEVICE_SEGMENT,
        .scalars = work->scalars,
    };
    return work->kernels->update(work->state, &update, work->stream, error);
}

// A micro-batch of `ranks` ranks, not the step's first: added to what is there.
static zero_result give_sum(struct work *work, int ranks, struct base_error *error)
{
    const struct base_device_sum sum = {
        .received = work->received,
        .stride = 2 * work->count,
        .own_index = -1,
        .dtype = ZERO_BF16,
        .count = ranks,
        .granules = work->count / BASE_GRANULE,
        .accumulator = (float *)(void *)work->weight,
        .number = (uint64_t)ranks,
        .sum_group = 1,
        .squares = work->squares,
        .bad = work->bad,
    };
    return work->kernels->sum(work->state, &sum, work->stream, error);
}

static zero_result give_sum_of_one(struct work *work, struct base_error *error)
{
    return give_sum(work, 1, error);
}

static zero_result give_sum_of_all(struct work *work, struct base_error *error)
{
    return give_sum(work, RANKS, error);
}

// The step's only contribution: the update reads it where it is.
static zero_result give_look(struct work *work, struct base_error *error)
{
    const struct base_device_sum sum = {
        .own = work->received,
        .own_index = 0,
        .dtype = ZERO_BF16,
        .count = 1,
        .granules = work->count / BASE_GRANULE,
        .sum_group = 1,
        .store = true,
        .last = true,
        .squares = work->squares,
        .bad = work->bad,
    };
    return work->kernels->sum(work->state, &sum, work->stream, error);
}

static zero_result give_digest(struct work *work, struct base_error *error)
{
    const struct base_device_digest digest = {
        .parts = work->hashed, .count = hashed_parts(work), .sums = work->digest};
    return work->kernels->digest(work->state, &digest, work->stream, error);
}

static zero_result give_copy(struct work *work, struct base_error *error)
{
    return work->device->copy(work->moments[0], work->weight, 4 * work->count, work->stream, error);
}

static double update(void *user)
{
    return timed(user, give_update);
}

static double sum_of_one(void *user)
{
    return timed(user, give_sum_of_one);
}

static double sum_of_all(void *user)
{
    return timed(user, give_sum_of_all);
}

static double look(void *user)
{
    return timed(user, give_look);
}

static double digest(void *user)
{
    return timed(user, give_digest);
}

static double copy(void *user)
{
    return timed(user, give_copy);
}

// Copies to the GPU (bit 0 of `ways`) and from it (bit 1), at the same time.
static double transfer(const struct work *work, int ways)
{
    struct base_error error = {0};
    const double begin = bench_now();
    if (ways & 1)
        must(
            work->device->copy(work->there[0], work->host[0], HOST_BYTES, work->streams[0], &error),
            &error);
    if (ways & 2)
        must(
            work->device->copy(work->host[1], work->there[1], HOST_BYTES, work->streams[1], &error),
            &error);
    for (int i = 0; i < 2; i++)
        must(work->device->stream_sync(work->streams[i], &error), &error);
    return bench_now() - begin;
}

static double down(void *user)
{
    return transfer(user, 1);
}

static double up(void *user)
{
    return transfer(user, 2);
}

static double both(void *user)
{
    return transfer(user, 3);
}

static double torch_update(void *user)
{
    struct work *work = user;
    return other_program_time(&work->torch) * REPEAT;
}

/* ------------------------------------------------------------------ rows */

// Bytes an element of ours; a copy of 4 has 8.
static void row(struct work *work, const char *name, double bytes, bench_fn ours, double target)
{
    const double billions = 1e-9 * REPEAT * (double)work->count;
    bench_run(&(struct bench_row){
        .name = name,
        .reference_name = "copy on the GPU",
        .unit = "GB/s",
        .ours_amount = billions * bytes,
        .reference_amount = billions * 8,
        .ours = ours,
        .reference = copy,
        .user = work,
        .target = target,
    });
}

static void transfer_row(struct work *work, const char *name, bench_fn ours, double ways)
{
    bench_run(&(struct bench_row){
        .name = name,
        .reference_name = "to the GPU",
        .unit = "GB/s",
        .ours_amount = 1e-9 * ways * HOST_BYTES,
        .reference_amount = 1e-9 * HOST_BYTES,
        .ours = ours,
        .reference = down,
        .user = work,
    });
}

static void torch_row(struct work *work, char *python)
{
    char count[32];
    snprintf(count, sizeof count, "%zu", work->count);
    if (!other_program_start(&work->torch,
                             (char *[]){python, (char *)BENCH_SOURCES "/adamw.py", count, NULL}))
        exit(1);
    bench_run(&(struct bench_row){
        .name = "AdamW over PyTorch's",
        .reference_name = "cast, fused AdamW, copy",
        .unit = "G/s",
        .ours_amount = 1e-9 * REPEAT * (double)work->count,
        .reference_amount = 1e-9 * REPEAT * (double)work->count,
        .ours = update,
        .reference = torch_update,
        .user = work,
        .target = 1.3,
    });
    other_program_stop(&work->torch);
}

static void unmake(struct work *work)
{
    const struct base_device *device = work->device;
    void *const all[] = {work->narrow,   work->weight,   work->moments[0], work->moments[1],
                         work->work,     work->received, work->squares,    work->scalars,
                         work->bad,      work->segments, work->hashed,     work->digest,
                         work->there[0], work->there[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device->free(all[i]);
    for (int i = 0; i < 2; i++) {
        device->unpin(work->host[i]);
        base_free(work->host[i]);
        device->stream_destroy(work->streams[i]);
    }
    work->kernels->close(work->state);
    device->stream_destroy(work->stream);
    device->leave();
}

int main(int argc, char **argv)
{
    struct work work = {
        .device = &base_device_cuda,
        .kernels = &base_device_kernels_cuda,
        .count = argc > 1 ? strtoul(argv[1], NULL, 10) / BASE_GRANULE * BASE_GRANULE : ELEMENTS,
    };
    if (argc > 3 || work.count == 0) {
        fprintf(stderr, "usage: %s [elements, from %d on [python with torch]]\n", argv[0],
                BASE_GRANULE);
        return 2;
    }
    make(&work);
    bench_print_header();
    row(&work, "AdamW, bf16 gradient and weight", 28, update, 0.92);
    row(&work, "ordered sum, 1 rank", 2 + 8, sum_of_one, 0.90);
    row(&work, "ordered sum, 8 ranks", 2 * RANKS + 8, sum_of_all, 0.90);
    row(&work, "norm of one contribution", 2, look, 0);
    row(&work, "fingerprint of fp32", 4, digest, 0);
    transfer_row(&work, "from the GPU", up, 1);
    transfer_row(&work, "both ways", both, 2);
    if (argc > 2)
        torch_row(&work, argv[2]);
    unmake(&work);
    return 0;
}
