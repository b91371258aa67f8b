#include "tests/bench/mpi_reference.h"

#include <mpi.h>

enum {
    CHUNK = 1 << 18, /**< elements: 1 MiB */
    TILE = 4096,     /**< elements added at a time */
    MOST_WORLD = 16,
};

static int rank, world;

bool mpi_reference_open(int *argc, char ***argv, int *my_rank, int *ranks, const char **library)
{
    if (MPI_Init(argc, argv) != MPI_SUCCESS)
        return false;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    *my_rank = rank;
    *ranks = world;
#if defined(OPEN_MPI)
    *library = "Open MPI";
#else
    *library = "MPICH";
#endif
    return world <= MOST_WORLD;
}

void mpi_reference_close(void)
{
    MPI_Finalize();
}

int mpi_reference_agree(int number)
{
    MPI_Bcast(&number, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return number;
}

bool mpi_reference_reduce_scatter(const float *vector, float *sum, size_t count)
{
    return MPI_Reduce_scatter_block(vector, sum, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) ==
           MPI_SUCCESS;
}

/* ------------------------------------------------------------------ by hand */

/** One chunk on its way: what every peer sends is in the half of the area that is its turn's. */
struct turn {
    float *area;
    size_t first, count;
    MPI_Request requests[2 * MOST_WORLD];
    int under_way;
};

size_t mpi_reference_area(int ranks)
{
    return 2 * (size_t)ranks * CHUNK * sizeof(float);
}

static bool begin(struct turn *turn, const float *vector, size_t block, size_t first)
{
    turn->first = first;
    turn->count = block - first < CHUNK ? block - first : CHUNK;
    turn->under_way = 0;
    for (int step = 1; step < world; step++) {
        const int from = (rank + world - step) % world, to = (rank + step) % world;
        if (MPI_Irecv(turn->area + (size_t)from * CHUNK, (int)turn->count, MPI_FLOAT, from, 0,
                      MPI_COMM_WORLD, &turn->requests[turn->under_way++]) != MPI_SUCCESS ||
            MPI_Isend(vector + (size_t)to * block + first, (int)turn->count, MPI_FLOAT, to, 0,
                      MPI_COMM_WORLD, &turn->requests[turn->under_way++]) != MPI_SUCCESS)
            return false;
    }
    return true;
}

/** out = sum of what all sources have from `at` on. */
static void add(float *restrict out, const float *const *sources, size_t at, size_t count)
{
    const float *restrict first = sources[0] + at;
    const float *restrict second = sources[world > 1] + at;
    for (size_t i = 0; i < count; i++)
        out[i] = world > 1 ? first[i] + second[i] : first[i];
    for (int r = 2; r < world; r++) {
        const float *restrict source = sources[r] + at;
        for (size_t i = 0; i < count; i++)
            out[i] += source[i];
    }
}

static bool finish(struct turn *turn, const float *vector, size_t block, float *sum)
{
    MPI_Status statuses[2 * MOST_WORLD];
    if (MPI_Waitall(turn->under_way, turn->requests, statuses) != MPI_SUCCESS)
        return false;
    const float *sources[MOST_WORLD];
    for (int r = 0; r < world; r++)
        sources[r] = r == rank ? vector + (size_t)rank * block + turn->first
                               : turn->area + (size_t)r * CHUNK;
    for (size_t at = 0; at < turn->count; at += TILE)
        add(sum + turn->first + at, sources, at, turn->count - at < TILE ? turn->count - at : TILE);
    return true;
}

bool mpi_reference_exchange(const float *vector, float *sum, size_t count, float *area)
{
    struct turn turns[2] = {{.area = area}, {.area = area + (size_t)world * CHUNK}};
    bool good = count == 0 || begin(&turns[0], vector, count, 0);
    for (size_t first = 0, turn = 0; first < count && good; first += CHUNK, turn ^= 1) {
        if (count - first > CHUNK)
            good = begin(&turns[turn ^ 1], vector, count, first + CHUNK);
        good = good && finish(&turns[turn], vector, count, sum);
    }
    return good;
}

/* ------------------------------------------------------------------ the others */

bool mpi_reference_all_gather(float *vector, size_t count)
{
    return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, vector, (int)count, MPI_FLOAT,
                         MPI_COMM_WORLD) == MPI_SUCCESS;
}

bool mpi_reference_all_reduce(const float *vector, float *result, size_t count)
{
    return MPI_Allreduce(vector, result, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) ==
           MPI_SUCCESS;
}

bool mpi_reference_barrier(void)
{
    return MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS;
}

bool mpi_reference_all_reduce_8(double values[8])
{
    return MPI_Allreduce(MPI_IN_PLACE, values, 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD) ==
           MPI_SUCCESS;
}
