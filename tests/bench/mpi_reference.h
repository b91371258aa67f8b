/**
 * tests/bench/mpi_reference.h: what MPI programs do instead of our collectives.
 *
 * All functions are collective over MPI_COMM_WORLD; vectors are floats. False: MPI failed.
 */
#ifndef TESTS_BENCH_MPI_REFERENCE_H
#define TESTS_BENCH_MPI_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

/** Starts MPI; the name of its library, a short one. */
bool mpi_reference_open(int *argc, char ***argv, int *rank, int *world, const char **library);
void mpi_reference_close(void);

/** A number that all ranks have from rank 0. */
int mpi_reference_agree(int number);

/** sum = this rank's block, `count` floats, of the sum of all ranks' vectors of world * count. */
bool mpi_reference_reduce_scatter(const float *vector, float *sum, size_t count);

/**
 * The same by hand, as well as MPI can: chunks of 1 MiB are exchanged without blocking, the next
 * ones on their way while these are added, in the order of ranks, in cache. Bytes of `area`:
 * mpi_reference_area(world), touched before.
 */
bool mpi_reference_exchange(const float *vector, float *sum, size_t count, float *area);
size_t mpi_reference_area(int world);

/** Every rank's block of `count` floats into all vectors, in place. */
bool mpi_reference_all_gather(float *vector, size_t count);

/** result = sum of all ranks' vectors. */
bool mpi_reference_all_reduce(const float *vector, float *result, size_t count);

bool mpi_reference_barrier(void);
bool mpi_reference_all_reduce_8(double values[8]);

#endif
