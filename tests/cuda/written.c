// What is written between steps, on GPUs, changes nothing that was queued before: neither what work
// looks at, nor what is being sent. With the argument "streamed" master weights and moments pass
// through the GPU.
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "zero/exec/device_parts.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static bool streams; // masters and moments pass through the GPU

static struct job resident_of(int world, int stage)
{
    struct job job = job_of(world, stage);
    job.resident = true;
    job.streamed = streams;
    job.gather = NULL;
    return job;
}

// Rank 0 looks at a unit's weights late; meanwhile one is written that rank 1 owns.
static bool write_behind_a_look(struct place *place)
{
    const struct toy *toy = &place->job->toy;
    struct team_rank *rank = place->rank;
    const float value = 1000;
    const zero_param large = 6;
    const zero_unit unit = toy->tensors[large].unit;
    if (!job_train(place, 1))
        return false;
    TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
    if (rank->rank == 0 && place->streams[1] &&
        !job_queue(place, place->streams[1], job_take_time, &(struct work){.toy = NULL}, 1))
        return false;
    if (!job_queue_looks(place, unit, place->streams[1]))
        return false;
    TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    TEAM_OK(rank, zero_param_write(rank->z, large, 0, toy->tensors[large].numel - 1, 1, &value));
    return job_train(place, 1) && job_conclude(place);
}

static void what_is_looked_at_is_not_written_over(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        struct job job = resident_of(2, stage);
        job.act = write_behind_a_look;
        job.toy.dtype = ZERO_BF16;
        job_compare(2, &job);
    }
}

static void *let_go_late(void *argument)
{
    job_let_go(argument, 200000);
    return NULL;
}

// Of three values rank 0 looks at the second.
static bool write_three(struct place *place)
{
    static const float values[] = {1000, 2000, 3000};
    const struct toy *toy = &place->job->toy;
    struct team_rank *rank = place->rank;
    const zero_param large = 6;
    const zero_unit unit = toy->tensors[large].unit;
    const uint64_t last = toy->tensors[large].numel - 1;
    for (int i = 0; i < 3; i++) {
        TEAM_OK(rank, zero_param_write(rank->z, large, 0, last, 1, &values[i]));
        if (rank->rank > 0 || i != 1)
            continue;
        TEAM_OK(rank, zero_gather(rank->z, unit, place->streams[1]));
        TEAM_CHECK(job_queue_looks(place, unit, place->streams[1]));
        TEAM_OK(rank, zero_release(rank->z, unit, place->streams[1]));
    }
    return true;
}

// Rank 0 takes late what it is sent. Rank 1 sends from one place, each value when the one before
// has arrived.
static bool write_behind_what_is_sent(struct place *place)
{
    struct team_rank *rank = place->rank;
    const bool holds = rank->rank == 0 && place->streams[0];
    pthread_t thread;
    TEAM_CHECK(job_train(place, 1));
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(!holds || (job_hold(gcomm_stream(rank->z->device->state->peers)) &&
                          pthread_create(&thread, NULL, let_go_late, place) == 0));
    const bool wrote = write_three(place);
    TEAM_CHECK(!holds || pthread_join(thread, NULL) == 0);
    return wrote && job_train(place, 1) && job_conclude(place);
}

static void nor_is_what_is_being_sent(void **state)
{
    (void)state;
    if (!job_gpu_each(2))
        skip(); // by the host it would be waited for
    for (int stage = 1; stage <= 2; stage++) {
        struct job job = resident_of(2, stage);
        job.moves = "nccl";
        job.act = write_behind_what_is_sent;
        job.toy.dtype = ZERO_BF16;
        job.persist = ZERO_OFF;
        job_shorten(&job, 2);
        job_compare(2, &job);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_looked_at_is_not_written_over),
        cmocka_unit_test(nor_is_what_is_being_sent),
    };
    streams = argc > 1 && strcmp(argv[1], "streamed") == 0;
    if (!job_begin())
        return JOB_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
