/**
 * tests/bench/fio_mix.h: reads and writes by fio(1), with the buffers that it takes if it is told
 * nothing: pages as malloc() gives them.
 */
#ifndef TESTS_BENCH_FIO_MIX_H
#define TESTS_BENCH_FIO_MIX_H

#include <stdbool.h>
#include <stddef.h>

struct fio_mix {
    int fd;         /**< of this process: a file that fio can open anew, fully written */
    size_t bytes;   /**< of the file, */
    size_t moved;   /**< and so much of it is read and written */
    unsigned reads; /**< of a hundred transfers */
    size_t block;   /**< bytes of a transfer */
    unsigned depth; /**< transfers under way */
};

/** Whether there is one here. */
bool fio_is_there(void);

/** Runs it: seconds that all of it takes by its own clock, or 0, and a message on stderr, if that
 * failed. */
double fio_mix(const struct fio_mix *mix);

#endif
