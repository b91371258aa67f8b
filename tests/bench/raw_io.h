/**
 * tests/bench/raw_io.h: reads and writes of a file by io_uring and nothing else: what the disk
 * gives.
 */
#ifndef TESTS_BENCH_RAW_IO_H
#define TESTS_BENCH_RAW_IO_H

#include <stdbool.h>
#include <stddef.h>

struct raw_io;

struct raw_io_config {
    int fd;          /**< with O_DIRECT, fully written */
    size_t bytes;    /**< of each half of the file: the second is written, */
    size_t reads;    /**< and so much of the first is read */
    size_t block;    /**< bytes of a transfer */
    unsigned depth;  /**< transfers under way, half of them reads */
    bool huge_pages; /**< registered ones, too; else memory as malloc() gives it */
};

/** NULL, and a message on stderr, if something failed. */
struct raw_io *raw_io_create(const struct raw_io_config *config);

/** Reads the first half and writes the second, alternately; seconds, or 0 if something failed. */
double raw_io_mix(struct raw_io *raw);

/** One block after the other: reads it, writes it back; seconds, or 0. */
double raw_io_serial(struct raw_io *raw);

void raw_io_destroy(struct raw_io *raw);

#endif
