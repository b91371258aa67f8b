// mpi_hello.c: a program that has MPI lends zero its communicator. Every number of ranks, every
// stage and each MPI print the same line:
//
//     mpirun -n 3 mpi_hello                       ZERO_STAGE=3 mpirun -n 3 mpi_hello
#include <zero/mpi.h>
#include <zero/trainer.h>

enum { WEIGHTS = 4096, MICRO_BATCHES = 12, STEPS = 20 };

static void train_step(zero_ctx *z, zero_param weight)
{
    zero_micro micro = zero_micro_default();
    for (int i = 0; i < zero_micro_count(z); i++) { // failures come again from zero_step()
        zero_micro_begin(z, i, &micro);
        zero_gather(z, 0, NULL);
        zero_grad_open(z, 0, NULL);
        const float *w = zero_param_ptr(z, weight, 0);
        float *gradient = zero_grad_ptr(z, weight, 0);
        for (int j = 0; j < WEIGHTS; j++) // towards the mean of the micro-batches' indices
            gradient[j] += w[j] - (float)micro.index;
        zero_grad_done(z, 0, NULL);
        zero_release(z, 0, NULL);
    }
    zero_trainer_step(z, (zero_hyper){0.1, 0.9, 0.99, 1e-8, 0}, 1.0 / MICRO_BATCHES, 1.0);
}

int main(int argc, char **argv)
{
    zero_ctx *z = NULL;
    zero_param weight;
    MPI_Init(&argc, &argv);
    zero_config config = zero_config_default();
    config.micro_batches = MICRO_BATCHES;
    const zero_param_desc desc = zero_param_vector("weight", WEIGHTS, NULL);
    const zero_result lent = zero_config_from_mpi(&config, MPI_COMM_WORLD);
    if (lent)
        return fprintf(stderr, "mpi_hello: %s (zero/mpi.h)\n", zero_result_text(lent)), 1;
    zero_check(NULL, zero_open(&z, &config));
    zero_check(z, zero_add_group(z, NULL, NULL));
    zero_check(z, zero_add_param(z, &weight, &desc));
    zero_check(z, zero_commit(z));
    for (int step = 0; step < STEPS; step++)
        train_step(z, weight);
    zero_trainer_close(z); // prints the fingerprint
    return MPI_Finalize();
}
