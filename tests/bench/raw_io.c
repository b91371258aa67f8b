#include "tests/bench/raw_io.h"

#include "offload/pages.h"
#include "tests/bench/bench.h"

#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 512 << 20 };

struct raw_io {
    struct raw_io_config config;
    struct io_uring ring;
    struct off_pages pages;
    unsigned char *memory;
    size_t places; // for a block each
    bool registered;
};

struct raw_io *raw_io_create(const struct raw_io_config *config)
{
    struct raw_io *raw = calloc(1, sizeof *raw);
    if (!raw)
        return NULL;
    raw->config = *config;
    const size_t places = config->memory / config->block;
    raw->places = places > config->depth ? places : config->depth;
    const size_t bytes = config->block * raw->places;
    bool good = io_uring_queue_init(2 * config->depth, &raw->ring, 0) == 0;
    if (config->huge_pages) {
        good = good && off_pages_create(&raw->pages, bytes, NULL) == ZERO_OK;
        raw->memory = raw->pages.memory;
        const struct iovec memory = {.iov_base = raw->memory, .iov_len = bytes};
        good = good && bytes <= PIECE && io_uring_register_buffers(&raw->ring, &memory, 1) == 0;
        raw->registered = good;
    } else {
        raw->memory = aligned_alloc(4096, bytes);
        if (raw->memory)
            memset(raw->memory, 1, bytes);
    }
    if (good && raw->memory && io_uring_register_files(&raw->ring, &config->fd, 1) == 0)
        return raw;
    fprintf(stderr, "raw I/O: %zu bytes x %u cannot be set up\n", config->block, config->depth);
    raw_io_destroy(raw);
    return NULL;
}

const struct raw_io_config *raw_io_config(const struct raw_io *raw)
{
    return &raw->config;
}

// Where a block is read to, or written from, that begins so many bytes behind the first one.
static unsigned char *place_of(const struct raw_io *raw, unsigned slot, bool write, size_t behind)
{
    const size_t number = behind / raw->config.block + (write ? raw->places / 2 : 0);
    const size_t place = raw->config.memory > 0 ? number % raw->places : slot;
    return raw->memory + place * raw->config.block;
}

// Block that begins so many bytes behind the first one.
static void submit(struct raw_io *raw, unsigned slot, bool write, size_t behind)
{
    const struct raw_io_config *config = &raw->config;
    const size_t run = config->run > 0 ? config->run : SIZE_MAX;
    const size_t offset =
        (write ? config->write_at : config->read_at) + behind / run * config->stride + behind % run;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&raw->ring);
    unsigned char *memory = place_of(raw, slot, write, behind);
    const unsigned bytes = (unsigned)raw->config.block;
    if (raw->registered && write)
        io_uring_prep_write_fixed(sqe, 0, memory, bytes, offset, 0);
    else if (raw->registered)
        io_uring_prep_read_fixed(sqe, 0, memory, bytes, offset, 0);
    else if (write)
        io_uring_prep_write(sqe, 0, memory, bytes, offset);
    else
        io_uring_prep_read(sqe, 0, memory, bytes, offset);
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, slot);
}

// Waits for a transfer; its slot, or -1 if it was not whole.
static int complete(struct raw_io *raw)
{
    struct io_uring_cqe *cqe;
    if (io_uring_submit_and_wait(&raw->ring, 1) < 0 || io_uring_peek_cqe(&raw->ring, &cqe) != 0)
        return -1;
    const int slot = cqe->res == (int)raw->config.block ? (int)io_uring_cqe_get_data64(cqe) : -1;
    io_uring_cqe_seen(&raw->ring, cqe);
    return slot;
}

// Begins the next transfer of a slot, of its own kind if there is one left, so that both kinds go
// on together; false: there is none of either.
static bool submit_next(struct raw_io *raw, unsigned slot, size_t left[2])
{
    const struct raw_io_config *config = &raw->config;
    const bool write = left[slot % 2] > 0 ? slot % 2 : !(slot % 2);
    if (left[write] == 0)
        return false;
    submit(raw, slot, write, (write ? config->writes : config->reads) - left[write]);
    left[write] -= config->block;
    return true;
}

double raw_io_mix(struct raw_io *raw)
{
    size_t left[2] = {raw->config.reads, raw->config.writes};
    unsigned under_way = 0;
    const double begin = bench_now();
    for (unsigned slot = 0; slot < raw->config.depth; slot++)
        under_way += submit_next(raw, slot, left);
    while (under_way > 0) {
        const int slot = complete(raw);
        if (slot < 0)
            return 0;
        under_way--;
        under_way += submit_next(raw, (unsigned)slot, left);
    }
    return bench_now() - begin;
}

double raw_io_serial(struct raw_io *raw)
{
    const size_t block = raw->config.block;
    const double begin = bench_now();
    for (size_t at = 0; at < raw->config.writes; at += block)
        for (int write = 0; write < 2; write++) {
            submit(raw, 0, write, at);
            if (complete(raw) < 0)
                return 0;
        }
    return bench_now() - begin;
}

void raw_io_destroy(struct raw_io *raw)
{
    if (!raw)
        return;
    io_uring_queue_exit(&raw->ring);
    if (raw->config.huge_pages)
        off_pages_destroy(&raw->pages);
    else
        free(raw->memory);
    free(raw);
}
