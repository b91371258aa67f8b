// A training program by <zero/trainer.h>, as C and as C++: trainer [FAULT]. FAULT: refused, a
// tensor that is refused; metric, a metric that is not there; alone, an error of the last rank
// only.
#include <zero/trainer.h>

#include <string.h>

enum { V = 2, STEPS = 2, NUMEL = 5000 };

struct arrays {
    float *first, *second;
};

int main(int argc, char **argv)
{
    const char *fault = argc > 1 ? argv[1] : "";
    zero_ctx *z = zero_trainer_open(V);
    printf("rank 0 prints\n");
    zero_add_tensor(z, "first", 7, 0, 1, NULL);
    zero_add_tensor(z, strcmp(fault, "refused") == 0 ? "first" : "second", 2 * NUMEL, 0, 2, NULL);
    zero_check(z, zero_commit(z));
    const zero_result none = zero_check(z, zero_resume(z, "/nowhere", NULL, NULL));
    if (none != ZERO_NOT_FOUND)
        return 2;
    for (int step = 0; step < STEPS; step++) {
        zero_micro micro = zero_micro_default();
        for (int i = 0; i < zero_micro_count(z); i++) {
            zero_check(z, zero_micro_begin(z, i, &micro));
            for (int32_t unit = 0; unit < 2; unit++) {
                struct arrays weight = {NULL, NULL}, gradient = {NULL, NULL};
                zero_unit_ptrs(z, unit, &weight, &gradient, NULL);
                for (int k = unit * NUMEL; k < (unit + 1) * NUMEL; k++)
                    gradient.second[k] += weight.second[k] + (float)(1 + micro.index);
                zero_unit_done(z, unit, NULL);
            }
            zero_metric(z, "loss", (double)micro.index);
        }
        if (strcmp(fault, "alone") == 0 && zero_rank(z) == zero_world(z) - 1)
            zero_check(z, zero_release(z, 1, NULL)); // which is not gathered
        zero_trainer_step(z, zero_hyper_default(), 1.0 / V, 0);
    }
    printf("loss %g norm %.4f\n", zero_trainer_mean(z, "loss"), zero_trainer_norm(z));
    if (strcmp(fault, "metric") == 0)
        zero_trainer_mean(z, "speed");
    zero_trainer_close(z);
    return 0;
}
