#include "sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <zero/random.h>

// Below 1 likely tokens are preferred.
#define TEMPERATURE 0.8

// GPT-2's token between texts, and its vocabulary.
#define END_OF_TEXT 50256

static uint16_t first_token(const struct options *o)
{
    if (o->binary)
        return o->dims.vocab > END_OF_TEXT ? END_OF_TEXT : 0;
    return o->dims.vocab > '\n' ? '\n' : 0;
}

// Draws a token: the first at which the sum of probabilities passes `uniform`.
static uint16_t draw(const float *logits, double *weight, int vocab, double uniform)
{
    float largest = logits[0];
    for (int i = 1; i < vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    double sum = 0;
    for (int i = 0; i < vocab; i++)
        sum += weight[i] = exp(((double)logits[i] - (double)largest) / TEMPERATURE);
    double left = uniform * sum;
    int token = 0;
    while (token < vocab - 1 && left >= weight[token])
        left -= weight[token++];
    return (uint16_t)token;
}

static void print_token(uint16_t token, bool binary)
{
    if (binary)
        printf("%u ", token);
    else if ((token >= ' ' && token <= '~') || token == '\n' || token == '\t')
        putchar(token);
    else
        printf("\\x%02x", token);
}

static zero_result generate(struct trainer *t, uint16_t *window, float *logits, double *weight)
{
    const struct options *o = t->options;
    const int vocab = o->dims.vocab, context = o->dims.context;
    const uint64_t stream = zero_random_stream("gpt2.sample");
    int length = 1;
    window[0] = first_token(o);
    for (int i = 0; i < o->sample; i++) {
        const zero_result result = trainer_logits(t, window, length, logits);
        if (result)
            return result;
        const double uniform = zero_random_uniform(o->seed, stream, (uint64_t)i);
        const uint16_t token = draw(logits, weight, vocab, uniform);
        if (zero_rank(t->z) == 0)
            print_token(token, o->binary);
        if (length == context)
            memmove(window, window + 1, (size_t)--length * sizeof *window);
        window[length++] = token;
    }
    return ZERO_OK;
}

zero_result sample_print(struct trainer *trainer)
{
    const struct dims *dims = &trainer->options->dims;
    if (trainer->options->sample == 0)
        return ZERO_OK;
    if (zero_rank(trainer->z) == 0)
        printf("sample:\n");
    zero_result result = ZERO_E_NOMEM;
    uint16_t *window = calloc((size_t)dims->context + 1, sizeof *window);
    float *logits = calloc((size_t)dims->vocab, sizeof *logits);
    double *weight = calloc((size_t)dims->vocab, sizeof *weight);
    if (window && logits && weight) {
        result = generate(trainer, window, logits, weight);
    } else {
        refuse(&trainer->failure, "rank %d: no memory for a sample", zero_rank(trainer->z));
        zero_abort(trainer->z, trainer->failure.text);
    }
    free(weight);
    free(logits);
    free(window);
    if (zero_rank(trainer->z) == 0)
        printf("\n");
    return result;
}
