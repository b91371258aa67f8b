// The kernels of examples/gpt2/cuda, compiled for the processor, beside those of the library. A
// block's threads are fibers, which go on from one place where they wait for each other to the
// next. A kernel's launches differ: threads go on in turns, or a warp goes as far as it can before
// the next one does; copies to shared memory are done at once, or as late as they may be. So who
// reads too early or writes too soon is found.
#include "tests/cuda/on_host.h"
#include "tests/cuda/fiber.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <vector_functions.h>

enum { MOST_THREADS = 512, LANES = 32, STACK_BYTES = 64 << 10, SLOT_BYTES = 32 };

/* ------------------------------------------------------------------ what nvcc has built in */

struct place {
    unsigned x;
};

static place threadIdx, blockIdx, blockDim;

/* ------------------------------------------------------------------ fibers */

struct copy {
    void *to;
    const void *from;
    bool there;
    unsigned group;
};

struct fiber {
    context state;
    bool done;
    std::vector<copy> copies;
    unsigned group;
};

// What a warp's threads give each other; the two halves take turns.
struct exchange {
    unsigned arrived, generation;
    const char *operation;
    alignas(16) unsigned char slot[2][LANES][SLOT_BYTES];
};

static fiber fibers[MOST_THREADS];
alignas(64) static char stacks[MOST_THREADS][STACK_BYTES];
static exchange warps[MOST_THREADS / LANES];
static unsigned block_arrived, block_generation;
static bool copies_at_once, warps_run_ahead; // in this launch
static context scheduler;
static void (*current_kernel)(const void *argument);
static const void *current_argument;
static bool moved; // somebody got further in this round

[[noreturn]] static void broken(const char *what)
{
    fprintf(stderr, "kernel on the host: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    abort();
}

static void go_to_scheduler(void)
{
    go_to(&fibers[threadIdx.x].state, &scheduler);
}

// A fiber lives for all blocks of a launch.
static void live(void)
{
    for (;;) {
        current_kernel(current_argument);
        if (!fibers[threadIdx.x].copies.empty())
            broken("it ends with copies nobody has waited for");
        fibers[threadIdx.x].done = moved = true;
        go_to_scheduler();
    }
}

static void make_fibers(unsigned count)
{
    for (unsigned t = 0; t < count; t++)
        begin_context(&fibers[t].state, stacks[t], STACK_BYTES, live);
}

// Lets each of a warp's threads go on once; how many of them are done.
static unsigned run_warp(unsigned first, bool backwards)
{
    unsigned done = 0;
    for (unsigned i = 0; i < LANES; i++) {
        const unsigned t = first + (backwards ? LANES - 1 - i : i);
        if (fibers[t].done)
            continue;
        threadIdx.x = t;
        go_to(&scheduler, &fibers[t].state);
        done += fibers[t].done;
    }
    return done;
}

static void run_block(unsigned count)
{
    unsigned left = count;
    for (unsigned t = 0; t < count; t++) {
        fibers[t].done = false;
        fibers[t].group = 0;
    }
    block_arrived = 0;
    for (exchange &warp : warps)
        warp.arrived = 0;
    for (unsigned round = 0; left > 0; round++) {
        bool further = false;
        for (unsigned warp = 0; warp < count; warp += LANES)
            do {
                moved = false;
                left -= run_warp(round % 2 ? count - LANES - warp : warp, round % 2);
                further = further || moved;
            } while (warps_run_ahead && moved);
        if (!further)
            broken("threads wait for others that don't come");
    }
}

// `turn` is how often the kernel has run before.
static void run_blocks(unsigned threads, size_t blocks, const void *argument,
                       void (*kernel)(const void *argument), unsigned turn)
{
    copies_at_once = turn % 2 == 0;
    warps_run_ahead = turn / 2 % 2 == 0;
    current_kernel = kernel;
    current_argument = argument;
    blockDim.x = threads;
    make_fibers(threads);
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        run_block(threads);
}

/* ------------------------------------------------------------------ warp.h */

static void block_sync(void)
{
    const unsigned generation = block_generation;
    moved = true;
    if (++block_arrived == blockDim.x) {
        block_arrived = 0;
        block_generation++;
    }
    while (block_generation == generation)
        go_to_scheduler();
}

// Gives the warp's threads `mine` and returns what all of them gave.
static const unsigned char (*meet(const char *operation, const void *mine,
                                  size_t bytes))[SLOT_BYTES]
{
    exchange *warp = &warps[threadIdx.x / LANES];
    const unsigned generation = warp->generation;
    moved = true;
    if (warp->arrived > 0 && strcmp(warp->operation, operation) != 0)
        broken("a warp's threads do different things together");
    warp->operation = operation;
    memcpy(warp->slot[generation % 2][threadIdx.x % LANES], mine, bytes);
    if (++warp->arrived == LANES) {
        warp->arrived = 0;
        warp->generation++;
    }
    while (warp->generation == generation)
        go_to_scheduler();
    return warp->slot[generation % 2];
}

static float shuffle_xor(float x, int mask)
{
    const unsigned char(*all)[SLOT_BYTES] = meet("shuffle_xor", &x, sizeof x);
    float other;
    memcpy(&other, all[threadIdx.x % LANES ^ (unsigned)mask], sizeof other);
    return other;
}

static float exp2_fast(float x)
{
    return exp2f(x);
}

static float __uint_as_float(uint32_t x)
{
    float value;
    memcpy(&value, &x, sizeof value);
    return value;
}

static uint32_t round_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static uint32_t pack_bf16(float low, float high)
{
    return round_bf16(low) | round_bf16(high) << 16;
}

static float half_of(uint32_t word, unsigned half)
{
    return __uint_as_float(half ? word & 0xffff0000 : word << 16);
}

// Element (row, k) of the left side, from what the lanes hold of it; and (k, column) of the right.
static float left_at(const uint32_t (*given)[8], unsigned row, unsigned k)
{
    return half_of(given[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
}

static float right_at(const uint32_t (*given)[8], unsigned k, unsigned column)
{
    return half_of(given[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
}

static void multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const uint32_t mine[8] = {a[0], a[1], a[2], a[3], b0, b1, 0, 0};
    const unsigned lane = threadIdx.x % LANES;
    uint32_t given[LANES][8];
    memcpy(given, meet("multiply_add", mine, sizeof mine), sizeof given);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 16; k++)
            c[i] +=
                left_at(given, lane / 4 + i / 2 * 8, k) * right_at(given, k, lane % 4 * 2 + i % 2);
}

static void load_any(uint32_t r[4], const void *row, bool transposed)
{
    const unsigned lane = threadIdx.x % LANES;
    const uint16_t *rows[LANES];
    if ((uintptr_t)row % 16 != 0)
        broken("a matrix's row is not at a multiple of 16 bytes");
    const unsigned char(*all)[SLOT_BYTES] =
        meet(transposed ? "load_transposed" : "load_matrices", &row, sizeof row);
    for (unsigned l = 0; l < LANES; l++)
        memcpy(&rows[l], all[l], sizeof rows[l]);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned at = lane / 4, next = lane % 4 * 2;
        const uint32_t low = transposed ? rows[8 * i + next][at] : rows[8 * i + at][next];
        const uint32_t high = transposed ? rows[8 * i + next + 1][at] : rows[8 * i + at][next + 1];
        r[i] = low | high << 16;
    }
}

static void load_matrices(uint32_t r[4], const void *row)
{
    load_any(r, row, false);
}

static void load_transposed(uint32_t r[4], const void *row)
{
    load_any(r, row, true);
}

static void do_copy(const copy &copy)
{
    if (copy.there)
        memcpy(copy.to, copy.from, 16);
    else
        memset(copy.to, 0, 16);
}

static void copy_begin(void *shared, const void *global, bool there)
{
    fiber *self = &fibers[threadIdx.x];
    const copy copy = {shared, global, there, self->group};
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0)
        broken("a copy is not at a multiple of 16 bytes");
    if (copies_at_once)
        do_copy(copy);
    self->copies.push_back(copy);
}

static void copy_commit(void)
{
    fibers[threadIdx.x].group++;
}

template <int left> static void copy_wait(void)
{
    fiber *self = &fibers[threadIdx.x];
    std::vector<copy> later;
    for (const copy &copy : self->copies)
        if (copy.group + left >= self->group)
            later.push_back(copy);
        else if (!copies_at_once)
            do_copy(copy);
    self->copies.swap(later);
}

/* ------------------------------------------------------------------ the kernels */

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(threads)

#include "examples/gpt2/cuda/gpt2_kernels.cu"

#define FORMS(name, threads)                                                                       \
    {"gpt2_" #name "_f32", sizeof(struct gpt2_##name), threads,                                    \
     run<struct gpt2_##name, gpt2_##name##_f32, threads>},                                         \
        FORM(name, threads)
#define FORM(name, threads)                                                                        \
    {"gpt2_" #name "_bf16", sizeof(struct gpt2_##name), threads,                                   \
     run<struct gpt2_##name, gpt2_##name##_bf16, threads>},

template <typename Argument, void (*kernel)(Argument)> static void call(const void *argument)
{
    kernel(*(const Argument *)argument);
}

template <typename Argument, void (*kernel)(Argument), unsigned threads>
static void run(size_t blocks, const void *argument)
{
    static unsigned turn;
    run_blocks(threads, blocks, argument, call<Argument, kernel>, turn++);
}

static const struct on_host_kernel kernels[] = {GPT2_KERNELS(FORMS) GPT2_TILE_KERNELS(FORM)};

const struct on_host_kernel *on_host_more(const char *name)
{
    for (const struct on_host_kernel &kernel : kernels)
        if (strcmp(kernel.name, name) == 0)
            return &kernel;
    return nullptr;
}
