/**
 * gpt2_tiles.h: attention on tensor cores for bf16 and heads of GPT2_TILE elements (Dao 2023). A
 * block has a tile of queries or keys, a warp 16 of them. The other side's tiles are in shared
 * memory, two at a time: the block copies one while it uses the other. What a tile's scores are is
 * never in memory. Queries' and keys' gradients have a pass each, so that every sum has one owner.
 * Part of gpt2_kernels.cu.
 */
#ifndef GPT2_CUDA_TILES_H
#define GPT2_CUDA_TILES_H

#include "attention.h"

#define TILE GPT2_TILE
#define TILE_CHUNKS (TILE / GPT2_PACK) /* of 16 bytes, in a row */
#define WARP_ROWS 16
#define STEPS (TILE / WARP_ROWS) /* of 16, across a tile */

/** TILE rows of TILE elements. Chunks change places by their row, so that eight rows of one column
 * lie in different banks. */
struct tile {
    uint4 chunk[TILE * TILE_CHUNKS];
};

INLINE uint4 *chunk_at(struct tile *tile, int row, int chunk)
{
    return &tile->chunk[row * TILE_CHUNKS + (chunk ^ (row % TILE_CHUNKS))];
}

/** Begins to copy rows of `stride` elements; those from `rows` on are zeros. */
INLINE void begin_tile(struct tile *tile, const bf16 *from, int stride, int rows)
{
    for (int i = threadIdx.x; i < TILE * TILE_CHUNKS; i += GPT2_TILE_THREADS) {
        const int row = i / TILE_CHUNKS, chunk = i % TILE_CHUNKS;
        const bool there = row < rows;
        copy_begin(chunk_at(tile, row, chunk),
                   from + (there ? (size_t)row * stride : 0) + chunk * GPT2_PACK, there);
    }
}

/* ------------------------------------------------------------------ parts of a product */

/** Rows first .. first+15 as the left side, k = 16 step and on; or, transposed, rows as k of the
 * right side, with columns 16 step .. +15: two tiles of 8 columns, two words each. */
INLINE const void *left_row(struct tile *tile, int first, int step)
{
    return chunk_at(tile, first + lane() % 16, 2 * step + lane() / 16);
}

/** Rows first .. first+15 as columns of the right side, k = 16 step and on. */
INLINE const void *right_row(struct tile *tile, int first, int step)
{
    return chunk_at(tile, first + lane() / 16 * 8 + lane() % 8, 2 * step + lane() / 8 % 2);
}

/** This warp's 16 rows of a tile, as the left side. */
INLINE void load_left(uint32_t left[STEPS][4], struct tile *tile)
{
    for (int step = 0; step < STEPS; step++)
        load_matrices(left[step], left_row(tile, threadIdx.x / GPT2_WARP * WARP_ROWS, step));
}

/** c (16 x 16) = left times the rows first .. first+15 of a tile, transposed. */
INLINE void multiply_rows(float c[2][4], const uint32_t left[STEPS][4], struct tile *tile,
                          int first)
{
    for (int i = 0; i < 8; i++)
        c[i / 4][i % 4] = 0;
    for (int step = 0; step < STEPS; step++) {
        uint32_t right[4];
        load_matrices(right, right_row(tile, first, step));
        multiply_add(c[0], left[step], right[0], right[1]);
        multiply_add(c[1], left[step], right[2], right[3]);
    }
}

/** sum (16 x TILE) += left (16 x 16) times the rows first .. first+15 of a tile. */
INLINE void add_rows(float sum[TILE / 8][4], const uint32_t left[4], struct tile *tile, int first)
{
    for (int step = 0; step < STEPS; step++) {
        uint32_t right[4];
        load_transposed(right, left_row(tile, first, step));
        multiply_add(sum[2 * step], left, right[0], right[1]);
        multiply_add(sum[2 * step + 1], left, right[2], right[3]);
    }
}

/** A product's result as the left side of the next one. */
INLINE void as_left(uint32_t left[4], const float c[2][4])
{
    left[0] = pack_bf16(c[0][0], c[0][1]);
    left[1] = pack_bf16(c[0][2], c[0][3]);
    left[2] = pack_bf16(c[1][0], c[1][1]);
    left[3] = pack_bf16(c[1][2], c[1][3]);
}

/** Where in a 16 x 16 product a thread's c[i / 4][i % 4] is. */
INLINE int row_of(int i)
{
    return lane() / 4 + i % 4 / 2 * 8;
}

INLINE int column_of(int i)
{
    return i / 4 * 8 + lane() % 4 * 2 + i % 2;
}

/* ------------------------------------------------------------------ a block's place */

struct block_of_tiles {
    struct head head;
    int tile, tiles;                         /**< this one, of its head's */
    int stride, length;                      /**< of a row of qkv; of a window */
    const bf16 *query, *key, *value, *d_out; /**< the head's, in the window's first row */
    size_t index;                            /**< of the head's first row, for weight and delta */
};

INLINE struct block_of_tiles block_of(const struct gpt2_attention *a, bool last_first)
{
    struct block_of_tiles b;
    b.tiles = (a->length + TILE - 1) / TILE;
    b.tile = (int)(blockIdx.x % b.tiles);
    if (last_first) // those with most to do
        b.tile = b.tiles - 1 - b.tile;
    b.index = (size_t)(blockIdx.x / b.tiles) * a->length;
    b.head = head_of(a, b.index);
    b.stride = 3 * a->width;
    b.length = a->length;
    b.query = (const bf16 *)a->qkv + b.head.first_row * b.stride + b.head.column;
    b.key = b.query + a->width;
    b.value = b.key + a->width;
    b.d_out = (const bf16 *)a->d_out + b.head.first_row * a->width + b.head.column;
    return b;
}

/** Begins to copy tile `number` of rows of `stride` elements. */
INLINE void begin_tile_of(const struct block_of_tiles *b, struct tile *tile, const bf16 *from,
                          int stride, int number)
{
    begin_tile(tile, from + (size_t)number * TILE * stride, stride, b->length - number * TILE);
}

/** Stores this warp's 16 x TILE sums: rows of the block's tile in the window. */
INLINE void store_sums(const struct block_of_tiles *b, void *to, int stride, int column,
                       const float sum[TILE / 8][4], const float factor[2])
{
    const int first = b->tile * TILE + threadIdx.x / GPT2_WARP * WARP_ROWS;
    bf16 *at = (bf16 *)to + (b->head.first_row + first) * stride + column + b->head.column;
    for (int n = 0; n < TILE / 8; n++)
        for (int half = 0; half < 2; half++) {
            const int row = row_of(2 * half);
            const float low = sum[n][2 * half], high = sum[n][2 * half + 1];
            if (first + row < b->length)
                *(uint32_t *)(at + (size_t)row * stride + n * 8 + lane() % 4 * 2) =
                    pack_bf16(low * factor[half], high * factor[half]);
        }
}

/** Both buffers of two sides, and how they are filled in turns. */
struct pairs {
    struct tile one[2], other[2];
};

/** The block's own two tiles, through the second buffers, as the left sides of products. */
INLINE void load_own(const struct block_of_tiles *b, struct pairs *pairs, const bf16 *one,
                     int one_stride, uint32_t left_one[STEPS][4], const bf16 *other,
                     int other_stride, uint32_t left_other[STEPS][4])
{
    begin_tile_of(b, &pairs->one[1], one, one_stride, b->tile);
    if (other)
        begin_tile_of(b, &pairs->other[1], other, other_stride, b->tile);
    copy_commit();
    copy_wait<0>();
    block_sync();
    load_left(left_one, &pairs->one[1]);
    if (other)
        load_left(left_other, &pairs->other[1]);
    block_sync();
}

/** Tile `number` is there when this returns, and the next one, unless it is `end`, on its way to
 * where the one before was, which no thread reads any more. */
INLINE void next_pair(const struct block_of_tiles *b, struct pairs *pairs, const bf16 *one,
                      int one_stride, const bf16 *other, int other_stride, int number, int end)
{
    copy_wait<0>();
    block_sync();
    if (number + 1 == end)
        return;
    begin_tile_of(b, &pairs->one[(number + 1) % 2], one, one_stride, number + 1);
    begin_tile_of(b, &pairs->other[(number + 1) % 2], other, other_stride, number + 1);
    copy_commit();
}

INLINE void first_pair(const struct block_of_tiles *b, struct pairs *pairs, const bf16 *one,
                       int one_stride, const bf16 *other, int other_stride, int number)
{
    begin_tile_of(b, &pairs->one[number % 2], one, one_stride, number);
    begin_tile_of(b, &pairs->other[number % 2], other, other_stride, number);
    copy_commit();
}

/** The tile's part that this warp has, in steps of 16. */
INLINE int own_step(void)
{
    return threadIdx.x / GPT2_WARP;
}

/* ------------------------------------------------------------------ forward */

/** Online softmax of 16 x TILE scores, in place, which are times `factor` the logarithms to base 2.
 * For rows g and g + 8 the largest score and the thread's own share of the sum are carried on, and
 * the sums so far shrink. */
INLINE void soften(float score[STEPS][2][4], float factor, float largest[2], float share[2],
                   float out[TILE / 8][4])
{
    for (int half = 0; half < 2; half++) {
        float above = largest[half];
        for (int n = 0; n < TILE / 8; n++)
            for (int j = 2 * half; j < 2 * half + 2; j++)
                above = fmaxf(above, score[n / 2][n % 2][j]);
        above = fmaxf(above, shuffle_xor(above, 1));
        above = fmaxf(above, shuffle_xor(above, 2));
        const float shrink = exp2_fast((largest[half] - above) * factor), from = above * factor;
        largest[half] = above;
        share[half] *= shrink;
        for (int n = 0; n < TILE / 8; n++)
            for (int j = 2 * half; j < 2 * half + 2; j++) {
                score[n / 2][n % 2][j] = exp2_fast(score[n / 2][n % 2][j] * factor - from);
                share[half] += score[n / 2][n % 2][j];
                out[n][j] *= shrink;
            }
    }
}

/** A tile of keys and values; on the diagonal a query sees the keys up to its own row. */
template <bool diagonal>
INLINE void attend_tile(const uint32_t query[STEPS][4], struct tile *keys, struct tile *values,
                        float factor, float largest[2], float share[2], float out[TILE / 8][4])
{
    float score[STEPS][2][4];
    for (int step = 0; step < STEPS; step++) {
        const bool hidden = diagonal && step > own_step();
        if (!hidden)
            multiply_rows(score[step], query, keys, step * WARP_ROWS);
        for (int i = 0; i < 8 && diagonal; i++)
            if (hidden || (step == own_step() && column_of(i) > row_of(i)))
                score[step][i / 4][i % 4] = -FLOAT_MAX;
    }
    soften(score, factor, largest, share, out);
    for (int step = 0; step < STEPS; step++) {
        uint32_t left[4];
        if (diagonal && step > own_step())
            break;
        as_left(left, score[step]);
        add_rows(out, left, values, step * WARP_ROWS);
    }
}

INLINE void tile_attend(const struct gpt2_attention *a)
{
    __shared__ struct pairs pairs; // keys and values
    const struct block_of_tiles b = block_of(a, true);
    const float factor = a->scale * LOG2_E;
    uint32_t query[STEPS][4];
    float out[TILE / 8][4] = {{0}}, largest[2] = {-FLOAT_MAX, -FLOAT_MAX}, share[2] = {0, 0};
    load_own(&b, &pairs, b.query, b.stride, query, NULL, 0, NULL);
    first_pair(&b, &pairs, b.key, b.stride, b.value, b.stride, 0);
    for (int k = 0; k < b.tile; k++) {
        next_pair(&b, &pairs, b.key, b.stride, b.value, b.stride, k, b.tile + 1);
        attend_tile<false>(query, &pairs.one[k % 2], &pairs.other[k % 2], factor, largest, share,
                           out);
    }
    next_pair(&b, &pairs, b.key, b.stride, b.value, b.stride, b.tile, b.tile + 1);
    attend_tile<true>(query, &pairs.one[b.tile % 2], &pairs.other[b.tile % 2], factor, largest,
                      share, out);
    for (int half = 0; half < 2; half++) {
        share[half] += shuffle_xor(share[half], 1);
        share[half] += shuffle_xor(share[half], 2);
        const int row = b.tile * TILE + own_step() * WARP_ROWS + row_of(2 * half);
        if (lane() % 4 == 0 && row < b.length)
            a->weight[b.index + row] = largest[half] * factor + log2f(share[half]);
        share[half] = 1 / share[half];
    }
    store_sums(&b, a->out, a->width, 0, out, share);
}

/* ------------------------------------------------------------------ backward */

/** Of each row its out times d_out, by as many threads as it has chunks. */
INLINE void tile_delta(const struct gpt2_attention *a)
{
    const size_t rows = attention_rows(a), row = thread_of_grid() / TILE_CHUNKS;
    const size_t index = row < rows ? row : rows - 1;
    const struct head head = head_of(a, index);
    const size_t at = (head.first_row + index % a->length) * a->width + head.column +
                      threadIdx.x % TILE_CHUNKS * GPT2_PACK;
    float out[GPT2_PACK], d_out[GPT2_PACK], sum = 0;
    load((const bf16 *)a->out + at, out);
    load((const bf16 *)a->d_out + at, d_out);
    for (int j = 0; j < GPT2_PACK; j++)
        sum += out[j] * d_out[j];
    for (int mask = 1; mask < TILE_CHUNKS; mask *= 2)
        sum += shuffle_xor(sum, mask);
    if (row < rows && threadIdx.x % TILE_CHUNKS == 0)
        a->delta[index] = sum;
}

/** This warp's queries and d_outs, with their weights and deltas, against a tile of keys and
 * values. */
template <bool diagonal>
INLINE void back_query_tile(const uint32_t query[STEPS][4], const uint32_t d_out[STEPS][4],
                            struct tile *keys, struct tile *values, float factor,
                            const float weight[2], const float delta[2], float d_query[TILE / 8][4])
{
    for (int step = 0; step < STEPS; step++) {
        float p[2][4], d[2][4];
        uint32_t left[4];
        if (diagonal && step > own_step())
            break;
        multiply_rows(p, query, keys, step * WARP_ROWS);
        multiply_rows(d, d_out, values, step * WARP_ROWS);
        for (int i = 0; i < 8; i++) {
            const int half = i % 4 / 2;
            const bool hidden = diagonal && step == own_step() && column_of(i) > row_of(i);
            const float x = exp2_fast(p[i / 4][i % 4] * factor - weight[half]);
            d[i / 4][i % 4] = hidden ? 0 : x * (d[i / 4][i % 4] - delta[half]);
        }
        as_left(left, d);
        add_rows(d_query, left, keys, step * WARP_ROWS);
    }
}

INLINE void tile_back_query(const struct gpt2_attention *a)
{
    __shared__ struct pairs pairs; // keys and values
    const struct block_of_tiles b = block_of(a, true);
    const float factor = a->scale * LOG2_E, both[2] = {a->scale, a->scale};
    uint32_t query[STEPS][4], d_out[STEPS][4];
    float d_query[TILE / 8][4] = {{0}}, weight[2], delta[2];
    for (int half = 0; half < 2; half++) {
        const int row = b.tile * TILE + own_step() * WARP_ROWS + row_of(2 * half);
        weight[half] = row < b.length ? a->weight[b.index + row] : 0;
        delta[half] = row < b.length ? a->delta[b.index + row] : 0;
    }
    load_own(&b, &pairs, b.query, b.stride, query, b.d_out, a->width, d_out);
    first_pair(&b, &pairs, b.key, b.stride, b.value, b.stride, 0);
    for (int k = 0; k < b.tile; k++) {
        next_pair(&b, &pairs, b.key, b.stride, b.value, b.stride, k, b.tile + 1);
        back_query_tile<false>(query, d_out, &pairs.one[k % 2], &pairs.other[k % 2], factor, weight,
                               delta, d_query);
    }
    next_pair(&b, &pairs, b.key, b.stride, b.value, b.stride, b.tile, b.tile + 1);
    back_query_tile<true>(query, d_out, &pairs.one[b.tile % 2], &pairs.other[b.tile % 2], factor,
                          weight, delta, d_query);
    store_sums(&b, a->d_qkv, b.stride, 0, d_query, both);
}

/** Weight and delta of each query of a tile. */
struct query_rows {
    float weight[TILE], delta[TILE];
};

/** What this thread fetches of tile `number`: a row's weight or its delta. Rows that are not there
 * have a weight that makes every probability 0. */
INLINE float fetch_row(const struct gpt2_attention *a, const struct block_of_tiles *b, int number)
{
    const int row = number * TILE + (int)threadIdx.x % TILE;
    const bool is_weight = threadIdx.x < TILE;
    if (row >= b->length)
        return is_weight ? FLOAT_MAX : 0;
    return is_weight ? a->weight[b->index + row] : a->delta[b->index + row];
}

INLINE void keep_row(struct query_rows *rows, float fetched)
{
    if (threadIdx.x < TILE)
        rows->weight[threadIdx.x] = fetched;
    else
        rows->delta[threadIdx.x - TILE] = fetched;
}

/** This warp's keys and values against a tile of queries and d_outs. */
template <bool diagonal>
INLINE void back_key_tile(const uint32_t key[STEPS][4], const uint32_t value[STEPS][4],
                          struct tile *queries, struct tile *d_outs, const struct query_rows *rows,
                          float factor, float d_key[TILE / 8][4], float d_value[TILE / 8][4])
{
    for (int step = 0; step < STEPS; step++) {
        float p[2][4], d[2][4];
        uint32_t left[4];
        if (diagonal && step < own_step())
            continue;
        multiply_rows(p, key, queries, step * WARP_ROWS);
        multiply_rows(d, value, d_outs, step * WARP_ROWS);
        for (int i = 0; i < 8; i++) {
            const int query = step * WARP_ROWS + column_of(i);
            const bool hidden = diagonal && step == own_step() && row_of(i) > column_of(i);
            const float x = exp2_fast(p[i / 4][i % 4] * factor - rows->weight[query]);
            p[i / 4][i % 4] = hidden ? 0 : x;
            d[i / 4][i % 4] = p[i / 4][i % 4] * (d[i / 4][i % 4] - rows->delta[query]);
        }
        as_left(left, p);
        add_rows(d_value, left, d_outs, step * WARP_ROWS);
        as_left(left, d);
        add_rows(d_key, left, queries, step * WARP_ROWS);
    }
}

INLINE void tile_back_key(const struct gpt2_attention *a)
{
    static_assert(GPT2_TILE_THREADS == 2 * TILE, "a thread for each row's weight, and its delta");
    __shared__ struct pairs pairs; // queries and d_outs
    __shared__ struct query_rows rows[2];
    const struct block_of_tiles b = block_of(a, false);
    const float factor = a->scale * LOG2_E, both[2] = {a->scale, a->scale}, as_is[2] = {1, 1};
    uint32_t key[STEPS][4], value[STEPS][4];
    float d_key[TILE / 8][4] = {{0}}, d_value[TILE / 8][4] = {{0}};
    load_own(&b, &pairs, b.key, b.stride, key, b.value, b.stride, value);
    first_pair(&b, &pairs, b.query, b.stride, b.d_out, a->width, b.tile);
    keep_row(&rows[b.tile % 2], fetch_row(a, &b, b.tile));
    for (int q = b.tile; q < b.tiles; q++) {
        next_pair(&b, &pairs, b.query, b.stride, b.d_out, a->width, q, b.tiles);
        const float fetched = fetch_row(a, &b, q + 1); // which is on its way meanwhile
        struct tile *queries = &pairs.one[q % 2], *d_outs = &pairs.other[q % 2];
        if (q == b.tile)
            back_key_tile<true>(key, value, queries, d_outs, &rows[q % 2], factor, d_key, d_value);
        else
            back_key_tile<false>(key, value, queries, d_outs, &rows[q % 2], factor, d_key, d_value);
        keep_row(&rows[(q + 1) % 2], fetched);
    }
    store_sums(&b, a->d_qkv, b.stride, a->width, d_key, both);
    store_sums(&b, a->d_qkv, b.stride, 2 * a->width, d_value, as_is);
}

#endif
