// A user's program, built against the installed library: one rank, one step.
#include <zero/collectives.h>
#include <zero/random.h>
#include <zero/zero.h>

#include <math.h>
#include <stdio.h>

static zero_result add_up(float *value)
{
    zero_comm *all = NULL, *group = NULL;
    zero_request request = {{0}};
    zero_result r = zero_comm_open(&all, NULL);
    if (!r && !(r = zero_comm_split(all, 7, 0, &group)) &&
        !(r = zero_comm_send_start(group, value, sizeof *value, 0, &request)) &&
        !(r = zero_comm_receive(group, &value[1], sizeof *value, 0)) &&
        !(r = zero_comm_wait(group, &request)))
        r = zero_comm_all_reduce(all, &value[1], &value[2], 1, ZERO_F32, ZERO_SUM);
    zero_comm_close(all);
    return r;
}

int main(void)
{
    float values[3] = {1.5f, 0, 0};
    if (add_up(values) != ZERO_OK || values[2] != 1.5f) {
        fprintf(stderr, "%s\n", zero_comm_error(NULL));
        return 1;
    }

    zero_config config = zero_config_default();
    config.micro_batches = 1;
    zero_ctx *z = NULL;
    if (zero_open(&z, &config) != ZERO_OK) {
        fprintf(stderr, "%s\n", zero_last_error(NULL));
        return 1;
    }

    zero_param_desc desc = zero_param_default();
    desc.name = "w";
    desc.ndim = 1;
    desc.shape[0] = 3;
    zero_param w = -1;
    zero_add_group(z, NULL, NULL);
    zero_add_param(z, &w, &desc);
    zero_commit(z);

    zero_micro_begin(z, 0, NULL);
    zero_gather(z, 0, NULL);
    zero_release(z, 0, NULL);
    zero_grad_open(z, 0, NULL);
    ((float *)zero_grad_ptr(z, w, 0))[1] = (float)fabs(zero_random_normal(1, 2, 3)) + 1.0f;
    zero_grad_done(z, 0, NULL);

    zero_hyper hyper = {.lr = 0.5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &hyper;
    if (zero_step(z, &args, NULL) != ZERO_OK) {
        fprintf(stderr, "%s\n", zero_last_error(z));
        return 1;
    }

    // AdamW's first step moves an element by lr against the sign of its gradient.
    zero_gather(z, 0, NULL);
    const float *value = zero_param_ptr(z, w, 0);
    if (value[0] != 0.0f || value[1] > -0.499f || value[1] < -0.501f || value[2] != 0.0f) {
        fprintf(stderr, "after the step: %g %g %g\n", (double)value[0], (double)value[1],
                (double)value[2]);
        return 1;
    }
    zero_release(z, 0, NULL);
    zero_close(z);
    printf("%s\n", zero_version());
    return 0;
}
