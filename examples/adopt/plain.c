// plain.c: learns to write as a text does, character by character. One process, nothing but libm:
//
//     plain FILE [STEPS [EVERY]]          prints loss and gradient norm of every EVERY-th step
//
// The model predicts a character from the CONTEXT before it (Bengio et al. 2003): their embeddings,
// side by side, go through a linear map, LAYERS layers h + tanh(h W + b), and a softmax.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VOCAB = 128, // ASCII
    CONTEXT = 12,
    EMBED = 16,
    INPUT = CONTEXT * EMBED,
    WIDTH = 64,
    LAYERS = 4,
    BATCH = 16,        // windows of text in a micro-batch
    MICRO_BATCHES = 4, // their gradients make a step
};

static const double peak_lr = 3e-3, beta1 = 0.9, beta2 = 0.99, eps = 1e-8, decay = 0.01;
static const double max_norm = 1.0;

// The tensors of the model. Those of the hidden layers have a slice for each of them.
enum { EMBEDDING, IN_WEIGHT, IN_BIAS, HIDDEN_WEIGHT, HIDDEN_BIAS, OUT_WEIGHT, OUT_BIAS, TENSORS };

static const struct {
    const char *name;
    int slices, rows, columns;
    float scale; // first values lie in [-scale, scale)
} tensors[TENSORS] = {
    [EMBEDDING] = {"embedding", 1, VOCAB, EMBED, 0.5f},
    [IN_WEIGHT] = {"in.weight", 1, INPUT, WIDTH, 0.1f},
    [IN_BIAS] = {"in.bias", 1, 1, WIDTH, 0},
    [HIDDEN_WEIGHT] = {"hidden.weight", LAYERS, WIDTH, WIDTH, 0.1f},
    [HIDDEN_BIAS] = {"hidden.bias", LAYERS, 1, WIDTH, 0},
    [OUT_WEIGHT] = {"out.weight", 1, WIDTH, VOCAB, 0.1f},
    [OUT_BIAS] = {"out.bias", 1, 1, VOCAB, 0},
};

static size_t numel(int t)
{
    return (size_t)tensors[t].slices * (size_t)tensors[t].rows * (size_t)tensors[t].columns;
}

struct text {
    unsigned char *character;
    size_t length;
};

// One micro-batch: what is read, and what comes next.
struct batch {
    unsigned char context[BATCH][CONTEXT];
    unsigned char next[BATCH];
};

struct model {
    float *weight[TENSORS], *gradient[TENSORS];
    float *m[TENSORS], *v[TENSORS]; // AdamW's
    // Activations of one micro-batch:
    float input[BATCH * INPUT];
    float hidden[LAYERS + 1][BATCH * WIDTH]; // what a layer reads, and what the last one gives
    float bent[LAYERS][BATCH * WIDTH];       // the tanh of a layer
    float probability[BATCH * VOCAB];
};

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

// ------------------------------------------------------------------ data

static struct text load_text(const char *path)
{
    struct text text = {0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        fail("cannot open the text");
    const long size = ftell(file);
    if (size < 2 * CONTEXT)
        fail("the text is too short");
    text.length = (size_t)size;
    text.character = malloc(text.length);
    rewind(file);
    if (!text.character || fread(text.character, 1, text.length, file) != text.length)
        fail("cannot read the text");
    for (size_t i = 0; i < text.length; i++)
        text.character[i] &= VOCAB - 1;
    fclose(file);
    return text;
}

// Micro-batch `number` of the training: windows from all over the text.
static void load_batch(struct batch *batch, const struct text *text, unsigned long number)
{
    for (unsigned long b = 0; b < BATCH; b++) {
        const unsigned long long scattered = (number * BATCH + b) * 0x9e3779b97f4a7c15;
        const size_t start = (size_t)(scattered >> 20) % (text->length - CONTEXT);
        memcpy(batch->context[b], text->character + start, CONTEXT);
        batch->next[b] = text->character[start + CONTEXT];
    }
}

// ------------------------------------------------------------------ model

// y = x w + bias, in each of BATCH rows.
static void linear(float *y, const float *x, const float *w, const float *bias, int ins, int outs)
{
    for (int b = 0; b < BATCH; b++) {
        memcpy(y + b * outs, bias, (size_t)outs * sizeof *y);
        for (int i = 0; i < ins; i++)
            for (int o = 0; o < outs; o++)
                y[b * outs + o] += x[b * ins + i] * w[i * outs + o];
    }
}

// From dy, the gradient of y: adds those of w and bias to dw and dbias, and writes that of x.
static void linear_backward(float *dx, float *dw, float *dbias, const float *dy, const float *x,
                            const float *w, int ins, int outs)
{
    for (int b = 0; b < BATCH; b++) {
        for (int o = 0; o < outs; o++)
            dbias[o] += dy[b * outs + o];
        for (int i = 0; i < ins; i++) {
            float sum = 0;
            for (int o = 0; o < outs; o++) {
                dw[i * outs + o] += x[b * ins + i] * dy[b * outs + o];
                sum += dy[b * outs + o] * w[i * outs + o];
            }
            dx[b * ins + i] = sum;
        }
    }
}

// Makes probabilities of the logits in p; the mean cross-entropy.
static double softmax(float *p, const unsigned char *next)
{
    double loss = 0;
    for (int b = 0; b < BATCH; b++, p += VOCAB) {
        float most = p[0], sum = 0;
        for (int o = 1; o < VOCAB; o++)
            most = fmaxf(most, p[o]);
        for (int o = 0; o < VOCAB; o++)
            sum += p[o] = expf(p[o] - most);
        for (int o = 0; o < VOCAB; o++)
            p[o] /= sum;
        loss -= log((double)p[next[b]]) / BATCH;
    }
    return loss;
}

static double forward(struct model *model, const struct batch *batch)
{
    float *const *weight = model->weight;
    for (int b = 0; b < BATCH; b++)
        for (int c = 0; c < CONTEXT; c++)
            memcpy(model->input + b * INPUT + c * EMBED,
                   weight[EMBEDDING] + batch->context[b][c] * EMBED, EMBED * sizeof(float));
    linear(model->hidden[0], model->input, weight[IN_WEIGHT], weight[IN_BIAS], INPUT, WIDTH);
    for (int l = 0; l < LAYERS; l++) {
        const float *w = weight[HIDDEN_WEIGHT] + l * WIDTH * WIDTH;
        const float *bias = weight[HIDDEN_BIAS] + l * WIDTH;
        linear(model->bent[l], model->hidden[l], w, bias, WIDTH, WIDTH);
        for (int i = 0; i < BATCH * WIDTH; i++) {
            model->bent[l][i] = tanhf(model->bent[l][i]);
            model->hidden[l + 1][i] = model->hidden[l][i] + model->bent[l][i];
        }
    }
    linear(model->probability, model->hidden[LAYERS], weight[OUT_WEIGHT], weight[OUT_BIAS], WIDTH,
           VOCAB);
    return softmax(model->probability, batch->next);
}

// Adds the micro-batch's share of the step's gradient to model->gradient.
static void backward(struct model *model, const struct batch *batch)
{
    float *const *weight = model->weight, *const *gradient = model->gradient;
    float d_logits[BATCH * VOCAB], d_hidden[BATCH * WIDTH], d_bent[BATCH * WIDTH];
    float d_through[BATCH * WIDTH], d_input[BATCH * INPUT];
    for (int i = 0; i < BATCH * VOCAB; i++)
        d_logits[i] = (model->probability[i] - (i % VOCAB == batch->next[i / VOCAB])) /
                      (BATCH * MICRO_BATCHES);
    linear_backward(d_hidden, gradient[OUT_WEIGHT], gradient[OUT_BIAS], d_logits,
                    model->hidden[LAYERS], weight[OUT_WEIGHT], WIDTH, VOCAB);
    for (int l = LAYERS - 1; l >= 0; l--) {
        const float *w = weight[HIDDEN_WEIGHT] + l * WIDTH * WIDTH;
        float *dw = gradient[HIDDEN_WEIGHT] + l * WIDTH * WIDTH;
        float *dbias = gradient[HIDDEN_BIAS] + l * WIDTH;
        for (int i = 0; i < BATCH * WIDTH; i++)
            d_bent[i] = d_hidden[i] * (1 - model->bent[l][i] * model->bent[l][i]);
        linear_backward(d_through, dw, dbias, d_bent, model->hidden[l], w, WIDTH, WIDTH);
        for (int i = 0; i < BATCH * WIDTH; i++)
            d_hidden[i] += d_through[i];
    }
    linear_backward(d_input, gradient[IN_WEIGHT], gradient[IN_BIAS], d_hidden, model->input,
                    weight[IN_WEIGHT], INPUT, WIDTH);
    for (int b = 0; b < BATCH; b++)
        for (int c = 0; c < CONTEXT; c++)
            for (int e = 0; e < EMBED; e++)
                gradient[EMBEDDING][batch->context[b][c] * EMBED + e] +=
                    d_input[b * INPUT + c * EMBED + e];
}

// ------------------------------------------------------------------ training

static float *allocate(int t)
{
    float *values = calloc(numel(t), sizeof *values);
    if (!values)
        fail("out of memory");
    return values;
}

static void first_weights(struct model *model)
{
    unsigned long long state = 1;
    for (int t = 0; t < TENSORS; t++) {
        model->weight[t] = allocate(t);
        for (size_t i = 0; i < numel(t); i++) {
            state = state * 6364136223846793005 + 1442695040888963407;
            const float uniform = (float)(state >> 40) * 0x1p-23f - 1;
            model->weight[t][i] = tensors[t].scale * uniform;
        }
    }
}

// Scales a gradient that is longer than max_norm down to it; returns how long it was.
static double clip(struct model *model)
{
    double squares = 0;
    for (int t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < numel(t); i++)
            squares += (double)model->gradient[t][i] * (double)model->gradient[t][i];
    const double norm = sqrt(squares), scale = fmin(1, max_norm / (norm + 1e-6));
    for (int t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < numel(t); i++)
            model->gradient[t][i] *= (float)scale;
    return norm;
}

// One update by AdamW (Loshchilov, Hutter 2019).
static void adamw(struct model *model, int step, double lr)
{
    const double correction1 = 1 - pow(beta1, step), correction2 = 1 - pow(beta2, step);
    for (int t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < numel(t); i++) {
            const double g = (double)model->gradient[t][i];
            const double m = beta1 * (double)model->m[t][i] + (1 - beta1) * g;
            const double v = beta2 * (double)model->v[t][i] + (1 - beta2) * g * g;
            const double w = (double)model->weight[t][i];
            const double ratio = m / correction1 / (sqrt(v / correction2) + eps);
            model->m[t][i] = (float)m;
            model->v[t][i] = (float)v;
            model->weight[t][i] = (float)(w - lr * (ratio + decay * w));
        }
}

static void train(struct model *model, const struct text *text, int steps, int every)
{
    struct batch batch;
    for (int step = 1; step <= steps; step++) {
        const double lr = peak_lr * fmin(1, step / 10.0);
        double loss = 0;
        for (int t = 0; t < TENSORS; t++)
            memset(model->gradient[t], 0, numel(t) * sizeof(float));
        for (unsigned long i = 0; i < MICRO_BATCHES; i++) {
            load_batch(&batch, text, (unsigned long)(step - 1) * MICRO_BATCHES + i);
            loss += forward(model, &batch) / MICRO_BATCHES;
            backward(model, &batch);
        }
        const double norm = clip(model);
        adamw(model, step, lr);
        if (step % every == 0)
            printf("step %d loss %.12f norm %.9f\n", step, loss, norm);
    }
}

int main(int argc, char **argv)
{
    static struct model model;
    if (argc < 2)
        fail("usage: FILE [STEPS [EVERY]]");
    const struct text text = load_text(argv[1]);
    const int steps = argc > 2 ? atoi(argv[2]) : 1000, every = argc > 3 ? atoi(argv[3]) : 100;
    first_weights(&model);
    for (int t = 0; t < TENSORS; t++) {
        model.gradient[t] = allocate(t);
        model.m[t] = allocate(t);
        model.v[t] = allocate(t);
    }
    train(&model, &text, steps, every);
    free(text.character);
    return 0;
}
