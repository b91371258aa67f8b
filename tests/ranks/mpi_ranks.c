// A rank of an MPI program that lends its communicators to zero: all of its ranks are a job, and so
// are the odd and the even ones, in reverse order, at the same time. Rank 0 prints what was wrong.
#include <stdbool.h>
#include <zero/mpi.h>
#include <zero/zero.h>

static int failures;

static void check(bool right, const char *what, int rank)
{
    if (!right) {
        fprintf(stderr, "mpi_ranks: rank %d: %s\n", rank, what);
        failures++;
    }
}

// Every rank is where MPI has it, and the ranks of the job are those of the communicator.
static void check_job(zero_ctx *z, int rank, int world, int sum)
{
    double value = rank;
    int number;
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    check(zero_rank(z) == rank && zero_world(z) == world, "another rank than MPI says", number);
    value = number;
    check(zero_allreduce(z, &value, 1, ZERO_SUM) == ZERO_OK, zero_last_error(z), number);
    check((int)value == sum, "the sum is of other ranks", number);
}

static zero_ctx *open_job(MPI_Comm comm)
{
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.timeout_s = 20;
    config.stage = 1; // other fields stay
    check(zero_config_from_mpi(&config, comm) == ZERO_OK && config.stage == 1,
          "no address that all ranks reach", config.rank);
    if (comm != MPI_COMM_WORLD)
        MPI_Comm_free(&comm); // nothing of it is kept
    const zero_result result = zero_open(&z, &config);
    check(result == ZERO_OK, zero_last_error(NULL), config.rank);
    const zero_param_desc desc = zero_param_vector("w", 8192, NULL);
    if (!result &&
        (zero_add_group(z, NULL, NULL) || zero_add_param(z, NULL, &desc) || zero_commit(z)))
        check(false, zero_last_error(z), config.rank);
    return z;
}

static void check_refusals(int rank)
{
    zero_config config = zero_config_default(), before;
    memset(&before, 0, sizeof before);
    check(zero_config_from_mpi(&config, MPI_COMM_NULL) == ZERO_E_INVALID, "no communicator", rank);
    config.struct_size = rank == 1 ? 8 : config.struct_size;
    before = config;
    const zero_result result = zero_config_from_mpi(&config, MPI_COMM_WORLD);
    int world;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world > 1) {
        check(result == (rank == 1 ? ZERO_E_INVALID : ZERO_E_IO), "rank 1 has no config", rank);
        check(!memcmp(&config, &before, sizeof config), "a failure left its mark", rank);
    }
}

int main(int argc, char **argv)
{
    int rank, world, part_rank, part_world, sum = 0;
    MPI_Comm part;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
    MPI_Comm_rank(part, &part_rank);
    MPI_Comm_size(part, &part_world);
    for (int other = rank % 2; other < world; other += 2)
        sum += other;
    check_refusals(rank);
    zero_ctx *all = open_job(MPI_COMM_WORLD), *some = open_job(part);
    if (!failures)
        check_job(some, part_rank, part_world, sum);
    if (!failures)
        check_job(all, rank, world, world * (world - 1) / 2);
    zero_close(some);
    zero_close(all);
    MPI_Finalize();
    return failures > 0;
}
