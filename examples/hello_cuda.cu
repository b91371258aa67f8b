// hello_cuda.cu: the same as hello.c with kernels of the program's own, in a stream of its own:
//
//     nvcc hello_cuda.cu -lzero -o hello_cuda          zero-run -n 2 -o stage=3 -- ./hello_cuda
#include <cstdio>
#include <zero/zero.h>

enum { INS = 32, OUTS = 256, SAMPLES = 32, MICRO_BATCHES = 4, STEPS = 200 };

__device__ float error[SAMPLES * OUTS], loss;

// Input i of a sample, between -1 and 1: a function of the micro-batch alone.
__device__ float input(uint64_t micro, int sample, int i)
{
    uint32_t hash = ((uint32_t)micro * SAMPLES + sample) * INS + i;
    hash = (hash ^ hash >> 16) * 0x7feb352du;
    hash = (hash ^ hash >> 15) * 0x846ca68bu;
    return (float)(hash >> 8) / 8388608.0f - 1.0f;
}

// A block for each sample, a thread for each output; the map to be found is 3 where i == j, else 0.
__global__ void forward(const float *weight, uint64_t micro)
{
    float sum = 0;
    for (int i = 0; i < INS; i++)
        sum += input(micro, blockIdx.x, i) *
               (weight[i * OUTS + threadIdx.x] - (i == threadIdx.x ? 3.0f : 0.0f));
    error[blockIdx.x * OUTS + threadIdx.x] = sum;
}

// A block for each input. No atomics: the same sum in the same order every time.
__global__ void backward(float *gradient, uint64_t micro)
{
    float sum = 0;
    for (int s = 0; s < SAMPLES; s++)
        sum += 2 * input(micro, s, blockIdx.x) * error[s * OUTS + threadIdx.x];
    gradient[blockIdx.x * OUTS + threadIdx.x] += sum / (SAMPLES * OUTS);
}

__global__ void mean_square()
{
    float sum = 0;
    for (int k = 0; k < SAMPLES * OUTS; k++)
        sum += error[k] * error[k];
    loss = sum / (SAMPLES * OUTS);
}

// Queues a step, and waits for nothing.
static zero_result run_step(zero_ctx *z, zero_param weight, const float *there, cudaStream_t stream)
{
    zero_micro micro = {sizeof micro};
    for (int i = 0; i < zero_micro_count(z); i++) {
        zero_micro_begin(z, i, &micro); // should one of these fail, zero_step() says so
        zero_gather(z, 0, stream);
        zero_grad_open(z, 0, stream);
        const uint64_t number = micro.step * MICRO_BATCHES + micro.index;
        const float *values = (const float *)zero_param_ptr(z, weight, 0);
        forward<<<SAMPLES, OUTS, 0, stream>>>(values, number);
        backward<<<INS, OUTS, 0, stream>>>((float *)zero_grad_ptr(z, weight, 0), number);
        mean_square<<<1, 1, 0, stream>>>();
        zero_metric_from(z, "loss", there, stream);
        zero_grad_done(z, 0, stream);
        zero_release(z, 0, stream);
    }
    const zero_hyper adamw = {0.05, 0.9, 0.99, 1e-8, 0};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &adamw;
    args.scale = 1.0 / MICRO_BATCHES;
    return zero_step(z, &args, stream);
}

int main()
{
    zero_ctx *z;
    zero_param weight;
    zero_param_desc desc = {sizeof desc};
    zero_config config = zero_config_default();
    desc.name = "weight", desc.ndim = 2, desc.shape[0] = INS, desc.shape[1] = OUTS;
    config.micro_batches = MICRO_BATCHES;
    config.device = "cuda";
    cudaStream_t stream = NULL;
    void *there = NULL; // the address of `loss`
    cudaError_t status = cudaSuccess;
    zero_result result = zero_open(&z, &config);
    if (!result && !(result = zero_add_group(z, NULL, NULL)) &&
        !(result = zero_add_param(z, &weight, &desc)) && !(result = zero_commit(z)) &&
        ((status = cudaSetDevice(zero_device(z))) || (status = cudaStreamCreate(&stream)) ||
         (status = cudaGetSymbolAddress(&there, loss))))
        result = ZERO_E_DEVICE;
    for (int n = 0; !result && n < STEPS; n++)
        result = run_step(z, weight, (const float *)there, stream);
    double mean = 1;
    result = result ? result : zero_step_wait(z);
    if (!result && !(result = zero_metric_mean(z, "loss", &mean)) && zero_rank(z) == 0)
        printf("after %d steps loss %.6f\n", STEPS, mean);
    if (result < 0)
        fprintf(stderr, "hello_cuda: %s\n",
                status ? cudaGetErrorString(status) : zero_last_error(z));
    zero_close(z);
    return result < 0 || mean > 1e-3;
}
