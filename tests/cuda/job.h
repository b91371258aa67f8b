/**
 * tests/cuda/job.h: training whose work is queued on a GPU and done late, and the same on the host:
 * work is functions of this program, which the driver calls, with what they read and write of a
 * real GPU in memory of the host (staged.h). Only the engine waits for it: code that reads
 * or writes too early ends in other bits.
 */
#ifndef TESTS_CUDA_JOB_H
#define TESTS_CUDA_JOB_H

#include "base/device.h"
#include "tests/cuda/staged.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"
#include "zero/core/context.h"

enum { JOB_SKIPPED = 77, JOB_STEPS = 3, JOB_RANKS = 4, JOB_LOOKS = 1000, JOB_EVALUATED = 3 };

struct place;

struct job {
    struct toy toy;
    bool (*act)(struct place *place); /**< what is done; NULL: some steps */
    int stage;
    const char *gather;
    int64_t persist;
    bool local, verify, nvme, params_nvme, sums_nvme;
    bool resident;       /**< all state is on the GPU, too, */
    bool streamed;       /**< but for what passes through it, */
    const char *moves;   /**< which move bytes this way; NULL: by "host" */
    bool releases_first; /**< before gradients are handed over, and one may be on its way */
    const char *master, *moments;           /**< of the configuration */
    void (*configure)(zero_config *config); /**< what else is set; NULL: nothing */
    bool looks_elsewhere; /**< on the host it looks less often at weights: sums are not compared */
    uint64_t poisoned;    /**< a bit a step: one of its gradients is not finite */
    _Atomic int met;      /**< how often a rank has come to a meeting */
    /** Filled in: the fingerprint, the metric's mean of a step and of an evaluation, the last step,
     * and the sums of all weights that work has looked at. */
    uint8_t digest[16];
    double means[4], sums[JOB_RANKS][JOB_LOOKS];
    zero_step_result last;
};

/** A rank's place on its GPU. */
struct place {
    struct team_rank *rank;
    struct job *job;
    void *streams[2]; /**< used in turns, by units, micro-batches and steps */
    float *metric;    /**< two, memory of the GPU */
    int looks, steps; /**< so far */
    int meetings;     /**< of all ranks, outside of the engine */
    struct staged staged;
};

/** Directory of files, from a group's setup to its teardown. */
extern struct temporary job_directory;
int job_set_up(void **state);
int job_tear_down(void **state);

/** Work of a stream. */
struct work {
    const struct toy *toy;
    const struct toy_tensor *tensor;
    zero_micro micro;
    float factor;
    const void *weights;
    void *gradient; /**< without a tensor: a float */
    double *sum;
};
typedef void (*work_fn)(struct work *work);
/** What is done for a unit at once: as many as a job has tensors at most. */
enum { JOB_WORKS = 16 };
/** Queues a call for each of these, up to JOB_WORKS, which are copied; without a stream they are
 * made at once. All are one call of the driver's, whose queues take far fewer of those than of
 * anything else. */
bool job_queue(struct place *place, void *stream, work_fn call, const struct work *works,
               int count);
/** Holds a stream; on the host, where streams are NULL, there is nothing to hold. */
bool job_hold(void *stream);
/** Holds a stream before the n-th launch of this kernel that the calling thread makes from here on,
 * 0: before none. Returns how many it has made since it asked last: 0 on the host, and of a real
 * GPU, where nothing is held. */
unsigned job_hold_launch(const struct place *place, const char *kernel, unsigned number);
/** Whether it holds any, and counts them: neither on the host nor on a real GPU. */
bool job_holds_launches(const struct place *place);
/** Lets all streams go on that are held, after so long: what should have waited for one has had the
 * time not to. A rank that ends lets them go, too. */
void job_let_go(const struct place *place, unsigned after_us);
/** Whether a stream ends what it was given, whatever others wait for. */
bool job_gets_on(void *stream);
/** Work that takes 0.1 s. */
void job_take_time(struct work *work);
/** Work of a metric: a number for each micro-batch and step. */
void job_write_metric(struct work *work);
/** Adds the weights of a slice up; and those of a unit. */
bool job_queue_look(struct place *place, zero_param param, int slice, void *stream);
bool job_queue_looks(struct place *place, zero_unit unit, void *stream);
/** Opens a unit's gradient, of a unit that is gathered, and computes it. */
bool job_queue_gradients(struct place *place, zero_unit unit, const zero_micro *micro,
                         void *stream);
/** Micro-batches of a step, without its end; and whole steps. */
bool job_micro_batches(struct place *place);
bool job_train(struct place *place, int steps);
/** Two steps that are queued behind work which is not done before they have returned, and four more
 * in which no rank waits. */
bool job_train_held(struct place *place);
/** `train`s for so many steps, in which no rank waits in a call of the driver; on the host, and of
 * NVIDIA's, it is not known. */
bool job_train_queued(struct place *place, bool (*train)(struct place *, int), int steps);
/** Steps until a gradient that is not finite is told, and fills in the last step. */
bool job_train_badly(struct place *place);
/** Fills in the fingerprint and the last step, when all verdicts are known. */
bool job_conclude(const struct place *place);
/** Runs the job on the host, or on GPUs. */
void job_run_on_host(int world, struct job *job);
void job_run_on_gpus(int world, struct job *job);
/** Both: the same bits, or the test fails. */
void job_compare(int world, const struct job *job);
/** A job like others of that world and stage. */
struct job job_of(int world, int stage);
/** Has few micro-batches in each step: a thread that gives NVIDIA's driver more than about
 * a thousand works that a stream has not begun waits, also for one that is held. */
void job_shorten(struct job *job, int world);

/** Finds GPUs, the stand-in driver's or real ones; false, and why it is a skip: there is none. */
bool job_begin(void);
/** How many. */
int job_gpus(void);
/** Whether there is one for each of so many ranks, which NCCL wants of those of one process; if
 * not, it says what is left out. */
bool job_gpu_each(int ranks);
/** The most ranks of a job for which there is, and the same. */
int job_most_gpus(void);

#endif
