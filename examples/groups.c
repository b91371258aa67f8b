// groups.c: a model cut both ways. Rows of ranks share each layer (tensor parallelism), and hand
// over to the next row, which has the next layers (pipeline parallelism):
//
//     zero-run -n 4 -- groups         2 rows of 2 ranks; any other number gives the same result
#include <math.h>
#include <stdio.h>
#include <zero/collectives.h>

enum { LAYERS = 4, WIDTH = 64, HIDDEN = 256, BATCHES = 6 };

// An element of a matrix: small integers, whose sums are the same in every order.
static float weight(int layer, int matrix, int i, int j)
{
    return (float)((layer * 5 + matrix * 3 + i * 7 + j * 11) % 5 - 2);
}

// x += B relu(A x), of which each rank of the row computes a share of the hidden units.
static zero_result run_layer(zero_comm *row, int layer, float *x, float *sum)
{
    const int rank = zero_comm_rank(row), ranks = zero_comm_world(row);
    for (int i = 0; i < WIDTH; i++)
        sum[i] = 0;
    for (int h = HIDDEN * rank / ranks; h < HIDDEN * (rank + 1) / ranks; h++) {
        float hidden = 0;
        for (int i = 0; i < WIDTH; i++)
            hidden += weight(layer, 0, h, i) * x[i];
        for (int i = 0; i < WIDTH && hidden > 0; i++)
            sum[i] += weight(layer, 1, i, h) * hidden;
    }
    const zero_result r = zero_comm_all_reduce(row, sum, sum, WIDTH, ZERO_F32, ZERO_SUM);
    for (int i = 0; i < WIDTH; i++)
        x[i] = fmodf(x[i] + sum[i], 8);
    return r;
}

static zero_result run(zero_comm *job, int across, double *total)
{
    const int rank = zero_comm_rank(job), rows = zero_comm_world(job) / across, me = rank / across;
    zero_comm *row = NULL, *column = NULL;
    void *memory = NULL; // the other ranks read it where it lies
    zero_result r = zero_comm_split(job, me, 0, &row);
    if (r || (r = zero_comm_split(job, rank % across, 0, &column)) ||
        (r = zero_comm_alloc(job, 3 * WIDTH * sizeof(float), &memory)))
        return r;
    zero_request sent[2] = {{{0}}, {{0}}};
    for (int batch = 0; batch < BATCHES && !r; batch++) {
        float *x = (float *)memory + batch % 2 * WIDTH, *sum = (float *)memory + 2 * WIDTH;
        // The next row may still read what this half of the memory held before.
        if ((r = zero_comm_wait(column, &sent[batch % 2])) ||
            (me > 0 && (r = zero_comm_receive(column, x, WIDTH * sizeof *x, me - 1))))
            break;
        for (int i = 0; i < WIDTH && me == 0; i++)
            x[i] = (float)((batch + i) % 8);
        for (int layer = LAYERS * me / rows; layer < LAYERS * (me + 1) / rows && !r; layer++)
            r = run_layer(row, layer, x, sum);
        if (!r && me < rows - 1)
            r = zero_comm_send_start(column, x, WIDTH * sizeof *x, me + 1, &sent[batch % 2]);
        for (int i = 0; i < WIDTH && me == rows - 1; i++)
            *total += (double)x[i] * (batch + 1);
    }
    for (int i = 0; i < 2 && !r; i++)
        r = zero_comm_wait(column, &sent[i]);
    return r ? r : zero_comm_barrier(job);
}

int main(void)
{
    zero_comm *job;
    double total = 0;
    zero_result r = zero_comm_open(&job, NULL);
    const int world = zero_comm_world(job), across = world % 2 ? 1 : 2;
    if (!r && !(r = run(job, across, &total)) && zero_comm_rank(job) == world - 1)
        printf("%d rows of %d ranks: %.0f\n", world / across, across, total);
    if (r < 0)
        fprintf(stderr, "groups: %s\n", zero_comm_error(job));
    zero_comm_close(job);
    return r < 0;
}
