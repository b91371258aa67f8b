/**
 * cuda/attention.h: attention for heads of any width, both types: a warp a row, whose lanes share
 * its elements. Part of gpt2_kernels.cu.
 */
#ifndef GPT2_CUDA_ATTENTION_H
#define GPT2_CUDA_ATTENTION_H

#include "gpt2_numbers.h"

/** Elements of a head that a lane may have: lane, lane + 32, ... */
#define LANE_ELEMENTS (GPT2_HEAD_MAX / GPT2_WARP)

/** A head of a window. */
struct head {
    size_t first_row; /**< of the window */
    int column;       /**< of its first element in a row of `width` */
    int width;        /**< of the head */
};

/** The head that number `index` of windows x heads x length is in. */
INLINE struct head head_of(const struct gpt2_attention *a, size_t index)
{
    struct head head;
    head.first_row = index / a->length / a->heads * a->length;
    head.width = a->width / a->heads;
    head.column = (int)(index / a->length % a->heads) * head.width;
    return head;
}

/** A lane's elements of row `row` of the window; rows have `stride` elements. */
template <typename T>
INLINE void load_row(const struct head *head, const void *from, int stride, int column, int row,
                     float x[LANE_ELEMENTS])
{
    const T *at = (const T *)from + (head->first_row + row) * stride + column + head->column;
    for (int i = 0; i < LANE_ELEMENTS; i++) {
        const int element = i * GPT2_WARP + lane();
        x[i] = element < head->width ? load_one(at + element) : 0;
    }
}

template <typename T>
INLINE void store_row(const struct head *head, void *to, int stride, int column, int row,
                      const float x[LANE_ELEMENTS], float factor)
{
    T *at = (T *)to + (head->first_row + row) * stride + column + head->column;
    for (int i = 0; i < LANE_ELEMENTS; i++) {
        const int element = i * GPT2_WARP + lane();
        if (element < head->width)
            store_one(at + element, x[i] * factor);
    }
}

INLINE float dot(const float x[LANE_ELEMENTS], const float y[LANE_ELEMENTS])
{
    float sum = 0;
    for (int i = 0; i < LANE_ELEMENTS; i++)
        sum += x[i] * y[i];
    return warp_sum(sum);
}

INLINE void add_scaled(float to[LANE_ELEMENTS], float factor, const float x[LANE_ELEMENTS])
{
    for (int i = 0; i < LANE_ELEMENTS; i++)
        to[i] += factor * x[i];
}

INLINE size_t attention_rows(const struct gpt2_attention *a)
{
    return (size_t)a->windows * a->heads * a->length;
}

/** Online softmax (Milakov, Gimelshein 2018): the sums so far are rescaled when a larger score
 * comes. */
template <typename T> INLINE void attend(const struct gpt2_attention *a)
{
    const size_t index = warp_of_grid();
    if (index >= attention_rows(a))
        return;
    const struct head head = head_of(a, index);
    const int row = (int)(index % a->length), stride = 3 * a->width;
    float query[LANE_ELEMENTS], x[LANE_ELEMENTS], out[LANE_ELEMENTS] = {0};
    float largest = -FLOAT_MAX, sum = 0;
    load_row<T>(&head, a->qkv, stride, 0, row, query);
    for (int key = 0; key <= row; key++) {
        load_row<T>(&head, a->qkv, stride, a->width, key, x);
        const float score = dot(query, x) * a->scale * LOG2_E;
        const float above = fmaxf(largest, score);
        const float shrink = exp2f(largest - above), p = exp2f(score - above);
        largest = above;
        sum = sum * shrink + p;
        load_row<T>(&head, a->qkv, stride, 2 * a->width, key, x);
        for (int i = 0; i < LANE_ELEMENTS; i++)
            out[i] = out[i] * shrink + p * x[i];
    }
    store_row<T>(&head, a->out, a->width, 0, row, out, 1 / sum);
    if (lane() == 0)
        a->weight[index] = largest + log2f(sum);
}

template <typename T> INLINE void attend_delta(const struct gpt2_attention *a)
{
    const size_t index = warp_of_grid();
    if (index >= attention_rows(a))
        return;
    const struct head head = head_of(a, index);
    const int row = (int)(index % a->length);
    float out[LANE_ELEMENTS], d_out[LANE_ELEMENTS];
    load_row<T>(&head, a->out, a->width, 0, row, out);
    load_row<T>(&head, a->d_out, a->width, 0, row, d_out);
    const float delta = dot(out, d_out);
    if (lane() == 0)
        a->delta[index] = delta;
}

template <typename T> INLINE void attend_back_query(const struct gpt2_attention *a)
{
    const size_t index = warp_of_grid();
    if (index >= attention_rows(a))
        return;
    const struct head head = head_of(a, index);
    const int row = (int)(index % a->length), stride = 3 * a->width;
    float query[LANE_ELEMENTS], d_out[LANE_ELEMENTS], key[LANE_ELEMENTS], value[LANE_ELEMENTS];
    float d_query[LANE_ELEMENTS] = {0};
    load_row<T>(&head, a->qkv, stride, 0, row, query);
    load_row<T>(&head, a->d_out, a->width, 0, row, d_out);
    for (int k = 0; k <= row; k++) {
        load_row<T>(&head, a->qkv, stride, a->width, k, key);
        load_row<T>(&head, a->qkv, stride, 2 * a->width, k, value);
        const float p = exp2f(dot(query, key) * a->scale * LOG2_E - a->weight[index]);
        add_scaled(d_query, p * (dot(d_out, value) - a->delta[index]), key);
    }
    store_row<T>(&head, a->d_qkv, stride, 0, row, d_query, a->scale);
}

template <typename T> INLINE void attend_back_key(const struct gpt2_attention *a)
{
    const size_t index = warp_of_grid();
    if (index >= attention_rows(a))
        return;
    const struct head head = head_of(a, index);
    const int row = (int)(index % a->length), stride = 3 * a->width;
    float query[LANE_ELEMENTS], d_out[LANE_ELEMENTS], key[LANE_ELEMENTS], value[LANE_ELEMENTS];
    float d_key[LANE_ELEMENTS] = {0}, d_value[LANE_ELEMENTS] = {0};
    load_row<T>(&head, a->qkv, stride, a->width, row, key);
    load_row<T>(&head, a->qkv, stride, 2 * a->width, row, value);
    for (int q = row; q < a->length; q++) {
        const size_t other = index - row + q;
        load_row<T>(&head, a->qkv, stride, 0, q, query);
        load_row<T>(&head, a->d_out, a->width, 0, q, d_out);
        const float p = exp2f(dot(query, key) * a->scale * LOG2_E - a->weight[other]);
        add_scaled(d_value, p, d_out);
        add_scaled(d_key, p * (dot(d_out, value) - a->delta[other]), query);
    }
    store_row<T>(&head, a->d_qkv, stride, a->width, row, d_key, a->scale);
    store_row<T>(&head, a->d_qkv, stride, 2 * a->width, row, d_value, 1);
}

#endif
