// What the engine adds to a training step on a GPU: steps of gpt2's trainer over a bare loop, in
// which the same layers do the same work on the same stream, with weights and gradients of its own,
// and the update is one launch of the library's own kernel: neither norm nor verdict.
// bench_share_gpu [OPTIONS]: of gpt2, beside those of GPT-2 124M. Without a GPU that is a skip.
#include "base/arena.h"
#include "base/device.h"
#include "base/kernels/device_kernels.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpu_trainer.h"
#include "zero/optim/optim.h"

#include <stdio.h>

enum {
    ALIGNED = 128,            // elements: each tensor begins at a multiple of so many
    ROUND_TOKENS = 80 * 1024, // of a round, in not more than
    MOST_STEPS = 20,          // steps
    PAGE = 4096,
};

// All tensors one behind the other in each of five arrays.
struct bare {
    const struct base_device *device;
    const struct base_device_kernels *kernels;
    void *state, *stream;
    size_t count; // elements
    unsigned char *work, *gradient, *weight, *moment[2];
    struct unit_weights *weights; // a unit each
    struct unit_gradients *gradients;
    struct base_device_segment *segments;
    size_t segment_count;
    void *scalars;
    float *loss; // of the host
    void *seen;  // event behind its way there
};

struct work {
    struct gpu_trainer gpt2;
    struct bare bare;
    uint64_t samples; // that the bare loop has seen
    int steps;        // of a round
};

/* ------------------------------------------------------------------ memory of the bare loop */

static void *memory(const struct bare *b, size_t bytes)
{
    struct base_error error = {0};
    void *there;
    gpu_must(b->device->alloc(&there, bytes, &error), error.message);
    gpu_must(b->device->zero(there, bytes, b->stream, &error), error.message);
    return there;
}

static void send(const struct bare *b, void *to, const void *from, size_t bytes)
{
    struct base_error error = {0};
    gpu_must(b->device->copy(to, from, bytes, b->stream, &error), error.message);
    gpu_must(b->device->stream_sync(b->stream, &error), error.message);
}

static size_t segments_of(size_t elements)
{
    return (elements + BASE_DEVICE_SEGMENT - 1) / BASE_DEVICE_SEGMENT;
}

static size_t aligned(size_t elements)
{
    return (elements + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static struct base_device_segment segment_at(const struct bare *b, size_t at, size_t left)
{
    return (struct base_device_segment){
        .gradient = b->gradient + 2 * at,
        .weight = b->weight + 4 * at,
        .moment = {b->moment[0] + 4 * at, b->moment[1] + 4 * at},
        .work = (uint16_t *)(void *)(b->work + 2 * at),
        .count = (uint32_t)(left < BASE_DEVICE_SEGMENT ? left : BASE_DEVICE_SEGMENT),
        .gradient_dtype = ZERO_BF16,
        .weight_dtype = ZERO_F32,
        .moment_dtype = ZERO_F32,
        .work_dtype = ZERO_BF16,
    };
}

// A tensor's first values, and its segments, from element `at` on.
static void make_tensor(const struct work *work, const struct tensor *tensor, size_t at,
                        struct base_device_segment *segments)
{
    const struct bare *b = &work->bare;
    const size_t elements = tensor_numel(tensor);
    float *values = gpu_room(elements, sizeof *values);
    tensor_fill(tensor, &work->gpt2.options.dims, work->gpt2.options.seed, 0, elements, values);
    send(b, b->weight + 4 * at, values, elements * sizeof *values);
    base_free(values);
    for (size_t done = 0; done < elements; done += BASE_DEVICE_SEGMENT)
        *segments++ = segment_at(b, at + done, elements - done);
}

static void count_tensors(struct bare *b, const struct dims *dims)
{
    for (int u = 0; u < unit_count(dims); u++)
        for (int i = 0; i < unit_tensors(dims, u); i++) {
            const struct tensor tensor = unit_tensor(dims, u, i);
            b->count += aligned(tensor_numel(&tensor));
            b->segment_count += segments_of(tensor_numel(&tensor));
        }
}

static void make_tensors(struct work *work)
{
    struct bare *b = &work->bare;
    const struct dims *dims = &work->gpt2.options.dims;
    struct base_device_segment *segments = gpu_room(b->segment_count, sizeof *segments),
                               *end = segments;
    size_t at = 0;
    for (int u = 0; u < unit_count(dims); u++)
        for (int i = 0; i < unit_tensors(dims, u); i++) {
            const struct tensor tensor = unit_tensor(dims, u, i);
            make_tensor(work, &tensor, at, end);
            b->weights[u].tensor[i] = b->work + 2 * at;
            b->gradients[u].tensor[i] = b->gradient + 2 * at;
            end += segments_of(tensor_numel(&tensor));
            at += aligned(tensor_numel(&tensor));
        }
    b->segments = memory(b, b->segment_count * sizeof *segments);
    send(b, b->segments, segments, b->segment_count * sizeof *segments);
    base_free(segments);
}

static void make_scalars(struct bare *b)
{
    const struct eng_choice choice = {.decay = ZERO_DECAY_DECOUPLED};
    const zero_hyper hyper = {1e-4, 0.9, 0.95, 1e-8, 0.1};
    union eng_scalars scalars;
    eng_optimizer_adamw.prepare(&choice, &hyper, 10, 1, &scalars);
    b->scalars = memory(b, sizeof scalars.built_in);
    send(b, b->scalars, &scalars.built_in, sizeof scalars.built_in);
}

static void make_bare(struct work *work)
{
    struct bare *b = &work->bare;
    const struct dims *dims = &work->gpt2.options.dims;
    struct base_error error = {0};
    b->stream = work->gpt2.trainer.ops->stream(work->gpt2.trainer.compute);
    gpu_must(b->device->enter(zero_device(work->gpt2.trainer.z), &error), error.message);
    gpu_must(b->kernels->open(&b->state, &error), error.message);
    gpu_must(b->device->event_create(&b->seen, &error), error.message);
    count_tensors(b, dims);
    b->work = memory(b, 2 * b->count);
    b->gradient = memory(b, 2 * b->count);
    b->weight = memory(b, 4 * b->count);
    for (int k = 0; k < 2; k++)
        b->moment[k] = memory(b, 4 * b->count);
    b->weights = gpu_room((size_t)unit_count(dims), sizeof *b->weights);
    b->gradients = gpu_room((size_t)unit_count(dims), sizeof *b->gradients);
    make_tensors(work);
    make_scalars(b);
    const struct base_device_conversion round = {b->weight, b->work, ZERO_F32, ZERO_BF16, b->count};
    gpu_must(b->kernels->convert(b->state, &round, b->stream, &error), error.message);
    b->loss = base_aligned_alloc(PAGE, PAGE);
    gpu_must(b->loss ? ZERO_OK : ZERO_E_NOMEM, "no memory");
    *b->loss = 0;
    gpu_must(b->device->pin(b->loss, PAGE, &error), error.message);
}

static void free_bare(struct bare *b)
{
    void *const all[] = {b->work,      b->gradient, b->weight, b->moment[0],
                         b->moment[1], b->segments, b->scalars};
    gpu_must(b->device->stream_sync(b->stream, NULL), "the stream has failed");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        b->device->free(all[i]);
    b->device->unpin(b->loss);
    base_free(b->loss);
    base_free(b->weights);
    base_free(b->gradients);
    b->device->event_destroy(b->seen);
    b->kernels->close(b->state);
    b->device->leave();
}

/* ------------------------------------------------------------------ steps */

static void take_samples(struct work *work)
{
    const struct options *o = &work->gpt2.options;
    const struct trainer *t = &work->gpt2.trainer;
    const size_t context = (size_t)o->dims.context;
    for (size_t b = 0; b < (size_t)o->batch; b++)
        data_sample(&work->gpt2.data, o->dims.context, o->order == ORDER_SHUFFLED, o->seed,
                    work->samples++, t->token + b * context, t->target + b * context);
}

// Queues forward and backward; where the loss will be.
static const float *pass(struct work *work)
{
    const struct compute_ops *ops = work->gpt2.trainer.ops;
    const struct bare *b = &work->bare;
    const struct options *o = &work->gpt2.options;
    void *compute = work->gpt2.trainer.compute;
    const int last = o->dims.layers + 1;
    ops->begin(compute, work->gpt2.trainer.token, work->gpt2.trainer.target,
               (struct batch){.windows = o->batch, .length = o->dims.context});
    ops->embed(compute, &b->weights[0]);
    for (int layer = 0; layer < o->dims.layers; layer++)
        ops->block(compute, layer, &b->weights[1 + layer]);
    const struct mean_loss loss = ops->head(compute, 1, &b->weights[last], &b->weights[0],
                                            &b->gradients[last], &b->gradients[0]);
    for (int layer = o->dims.layers - 1; layer >= 0; layer--)
        ops->block_backward(compute, layer, &b->weights[1 + layer], &b->gradients[1 + layer]);
    ops->embed_backward(compute, &b->gradients[0]);
    return loss.there;
}

// The loss is waited for, as by the trainer, and the update is not.
static void bare_step(struct work *work)
{
    const struct bare *b = &work->bare;
    struct base_error error = {0};
    take_samples(work);
    const float *loss = pass(work);
    gpu_must(b->device->copy(b->loss, loss, sizeof *loss, b->stream, &error), error.message);
    gpu_must(b->device->event_record(b->seen, b->stream, &error), error.message);
    const struct base_device_update update = {
        .segments = b->segments, .count = b->segment_count, .scalars = b->scalars};
    gpu_must(b->kernels->update(b->state, &update, b->stream, &error), error.message);
    gpu_must(b->device->event_sync(b->seen, &error), error.message);
}

static double reference(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    for (int i = 0; i < work->steps; i++)
        bare_step(work);
    gpu_trainer_wait(&work->gpt2);
    return bench_now() - begin;
}

static double ours(void *user)
{
    struct work *work = user;
    const double begin = bench_now();
    gpu_trainer_steps(&work->gpt2, work->steps);
    return bench_now() - begin;
}

/* ------------------------------------------------------------------ rows */

static void measure(struct work *work)
{
    char name[64];
    const int tokens = gpu_trainer_tokens(&work->gpt2);
    snprintf(name, sizeof name, "gpt2 step, %d tokens, stage %d", tokens, work->gpt2.options.stage);
    work->steps = 1 + (ROUND_TOKENS - 1) / tokens;
    work->steps = work->steps < MOST_STEPS ? work->steps : MOST_STEPS;
    bench_run(&(struct bench_row){
        .name = name,
        .reference_name = "bare loop",
        .unit = "tok/s",
        .ours_amount = (double)work->steps * tokens,
        .reference_amount = (double)work->steps * tokens,
        .ours = ours,
        .reference = reference,
        .user = work,
        .target = 1 / 1.02,
    });
}

static void rows(const char *batch, int more, char **options)
{
    static const char *const stages[] = {"0", "1", "2", "3"};
    for (int i = 0; i < 4; i++) {
        struct work work = {
            .bare = {.device = &base_device_cuda, .kernels = &base_device_kernels_cuda}};
        gpu_trainer_open(&work.gpt2, batch, stages[i], more, options);
        make_bare(&work);
        measure(&work);
        free_bare(&work.bare);
        gpu_trainer_close(&work.gpt2);
    }
}

int main(int argc, char **argv)
{
    blas_prepare(argv);
    bench_print_header();
    rows("1", argc - 1, argv + 1);
    rows("16", argc - 1, argv + 1);
    return 0;
}
