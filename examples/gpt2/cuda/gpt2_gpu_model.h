// A GPT-2 on a GPU: what it has there, for gpt2_gpu_model.c and gpt2_gpu_memory.c.
#ifndef GPT2_GPU_MODEL_H
#define GPT2_GPU_MODEL_H

#include "compute.h"
#include "gpu_layers.h"

// Tokens are sent from buffers of the host that take turns.
#define SENDERS 2

// What forward keeps of a block beside its input, as in gpt2_model.c.
struct kept {
    struct normed norm_1, norm_2;
    void *qkv;      // rows x 3 width
    float *weight;  // of attention, heads a row
    void *attended; // rows x width
    void *middle;   // rows x width: the residual stream after attention
    void *hidden;   // rows x 4 width, before GELU
};

// A batch's tokens, with the rows of every token: order[first[token]] and on.
struct tokens {
    uint16_t *token, *target;
    int32_t *order, *first;
};

struct sender {
    void *bytes;
    void *mark; // behind the copy of them
};

struct cuda_model {
    struct compute_options options;
    enum gpu_dtype dtype;
    struct layers layers;
    struct batch batch; // the current one, its windows filled up to the context
    int rows, logit_rows, logit_stride;
    size_t bytes;
    void *arena;

    struct sender senders[SENDERS];
    unsigned sent;
    size_t token_bytes;
    struct tokens tokens; // in `sent_bytes`
    void *sent_bytes;

    struct kept *kept; // a block each, or one for all with recompute
    void **stream;     // layers + 1: the input of every block, and the output of the last
    struct normed norm_f;
    void *d_stream, *normed, *d_normed, *d_attended; // rows x width
    void *active, *d_hidden;                         // rows x 4 width; d_qkv as well
    float *delta;                                    // of attention, heads a row
    void *logits;                                    // logit_rows x logit_stride
    float *token_sums;                               // at bf16: of wte's gradient
    float *loss, *mean;                              // a row each, and theirs
};

// Makes the memory for a batch, on the GPU and on the host; false: gpu_failure() says why.
// cuda_release() in either case. Operations of compute.h.
bool cuda_allocate(void *compute);
void cuda_release(void *compute);

// Where a batch's tokens are in `bytes`, of the GPU or of the host.
struct tokens cuda_tokens(const struct cuda_model *m, void *bytes);

#endif
