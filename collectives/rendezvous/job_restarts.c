// How often others than zero-run have started a job again.

#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/rendezvous.h"

static const struct {
    const char *name;
    int first; // its value in a first start
} counts[] = {
    {"TORCHELASTIC_RESTART_COUNT", 0},
    {"SLURM_RESTART_COUNT", 0},
    {"JOBSET_RESTART_ATTEMPT", 0},
    {"AWS_BATCH_JOB_ATTEMPT", 1},
};
enum { COUNTS = sizeof counts / sizeof *counts };

zero_result boot_restarts(int *restarts, char *const *environment, struct base_error *error)
{
    *restarts = 0;
    for (size_t i = 0; i < COUNTS; i++) {
        const char *value = boot_variable(environment, counts[i].name);
        int number = counts[i].first;
        if (!value || !*value) // Kubernetes has "" for an annotation that isn't there
            continue;
        const zero_result result =
            boot_number(&number, counts[i].name, value, counts[i].first, BOOT_NUMBER_MAX, error);
        if (result)
            return result;
        *restarts += number - counts[i].first;
    }
    return ZERO_OK;
}
