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
    size_t reads;    /**< so many bytes are read, from */
    size_t read_at;  /**< here on, */
    size_t writes;   /**< and so many are written, */
    size_t write_at; /**< from here on */
    size_t run;      /**< so many lie side by side, a multiple of `block`; 0: all of them */
    size_t stride;   /**< from one run to the next */
    size_t block;    /**< bytes of a transfer */
    unsigned depth;  /**< transfers under way, half of them reads */
    bool huge_pages; /**< registered ones, too; else memory as malloc() gives it */
    /** Bytes that transfers go through in turn, if it is more than those under way: a write takes
     * what was read half of that before, as a swap's does. 0: each takes the same block of memory
     * again and again, which caches may hold. */
    size_t memory;
};

/** NULL, and a message on stderr, if something failed. */
struct raw_io *raw_io_create(const struct raw_io_config *config);

const struct raw_io_config *raw_io_config(const struct raw_io *raw);

/** Reads and writes, alternately; seconds, or 0 if something failed. */
double raw_io_mix(struct raw_io *raw);

/** As many blocks as are written, one after the other: reads it, and writes it where it is written;
 * seconds, or 0. */
double raw_io_serial(struct raw_io *raw);

void raw_io_destroy(struct raw_io *raw);

#endif
