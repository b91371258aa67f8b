/**
 * base/kernels/update_loop.h: the loops of updates, over vectors of any length (vector_ref.h): of a
 * gradient that is there, and of contributions that are added up on the way. rules.h has the
 * arithmetic. What does not fill a vector is updated in one of its own: nothing past `count` is
 * read or written.
 */
#ifndef BASE_KERNELS_UPDATE_LOOP_H
#define BASE_KERNELS_UPDATE_LOOP_H

#include "base/kernels/ordered.h"
#include "base/kernels/rounding.h"
#include "base/kernels/rules.h"

#include <assert.h>
#include <string.h>

/* ------------------------------------------------------------------ loops */

INLINE void store_work(const struct base_update *run, size_t i, vector weight, bool stream)
{
    const halves narrow = run->work_dtype == ZERO_F16 ? f16_of(weight) : bf16_of(weight);
    if (stream)
        stream_halves(run->work + i, narrow);
    else
        store_halves(run->work + i, narrow);
}

INLINE struct constants constants_of(const struct base_rule_scalars *scalars)
{
    return (struct constants){
        .gradient_scale = spread(scalars->gradient_scale),
        .beta1 = spread(scalars->beta1),
        .one_minus_beta1 = spread(scalars->one_minus_beta1),
        .beta2 = spread(scalars->beta2),
        .one_minus_beta2 = spread(scalars->one_minus_beta2),
        .decay = spread(scalars->decay),
        .step_size = spread(scalars->step_size),
        .inverse_sqrt_correction = spread(scalars->inverse_sqrt_correction),
        .eps = spread(scalars->eps),
        .l2 = scalars->l2,
        .nesterov = scalars->nesterov,
    };
}

/** Whether the working copy is stored past the caches. */
INLINE bool streams(const struct base_update *run)
{
    return run->past_caches && run->work && (uintptr_t)run->work % sizeof(halves) == 0;
}

/** An optimizer's arithmetic and what it works with. */
struct rule {
    void (*apply)(const struct constants *c, struct elements *x);
    int moments;       /**< at least 1 */
    bool weight_tells; /**< it is infinite when the moment is: struct peaks */
};

static const struct rule rule_adam = {adam, 2, false};
static const struct rule rule_sgd = {sgd, 1, true};
static const struct rule rule_lion = {lion, 1, false};
static const struct rule rule_adagrad = {adagrad, 1, false};

/** Stores what rule->apply() has made of the vector at element i. */
INLINE void keep_vector(const struct rule *rule, const struct base_update *u, size_t i,
                        const struct elements *x, bool stream)
{
    for (int k = 0; k < rule->moments; k++)
        store(u->moment[k] + i, x->moment[k]);
    store(u->weight + i, x->weight);
    if (u->work)
        store_work(u, i, x->weight, stream);
}

INLINE struct elements load_elements(const struct rule *rule, const struct base_update *u, size_t i,
                                     vector gradient)
{
    struct elements x = {.gradient = gradient, .weight = load(u->weight + i)};
    for (int k = 0; k < rule->moments; k++)
        x.moment[k] = load(u->moment[k] + i);
    return x;
}

/** `products` is finite as long as everything is that an update has stored. It adds up products of
 * a weight and the last moment: one factor that is not finite makes it infinite or a NaN. Where the
 * weight tells, it adds up squares of weights. The first of two moments makes the weight infinite
 * when it is. f16: the largest magnitude of a weight that goes to such a type, as bits. */
struct peaks {
    vector products;
    words f16;
};

INLINE struct peaks no_peaks(void)
{
    return (struct peaks){spread(0), word(0)};
}

INLINE void raise_peaks(const struct rule *rule, const struct base_update *u,
                        const struct elements *x, struct peaks *peaks)
{
    const vector last = x->moment[rule->moments - 1];
    const vector factor = rule->weight_tells ? x->weight : last;
    peaks->products = raised(peaks->products, x->weight, factor);
    if (u->work_dtype == ZERO_F16)
        peaks->f16 = larger(peaks->f16, both(bits_of(x->weight), word(0x7fffffff)));
}

/** Whether something is not finite, or large. */
INLINE bool are_high(const struct peaks *peaks)
{
    return !all_finite(peaks->products);
}

/** Tells the caller of the update. */
INLINE void tell_alarm(const struct base_update *u, const struct peaks *peaks)
{
    if (u->alarm && (are_high(peaks) || any_above(peaks->f16, BASE_ALARM_F16)))
        *u->alarm = true;
}

INLINE void make_canonical(const struct rule *rule, struct elements *x)
{
    for (int k = 0; k < rule->moments; k++)
        x->moment[k] = canonical(x->moment[k]);
    x->weight = canonical(x->weight);
}

/** Updates the vector at element i. */
INLINE void update_vector(const struct rule *rule, const struct constants *c,
                          const struct base_update *u, size_t i, vector gradient, bool stream,
                          struct peaks *peaks)
{
    struct elements x = load_elements(rule, u, i, gradient);
    rule->apply(c, &x);
    make_canonical(rule, &x);
    raise_peaks(rule, u, &x, peaks);
    keep_vector(rule, u, i, &x, stream);
}

/** Does what update_vector() does, but a NaN may be any: the peaks show it, and mend_vectors()
 * makes all of them one. Saves three instructions, all of them for the port that divides. */
INLINE void update_numbers(const struct rule *rule, const struct constants *c,
                           const struct base_update *u, size_t i, vector gradient,
                           struct peaks *peaks)
{
    struct elements x = load_elements(rule, u, i, gradient);
    rule->apply(c, &x);
    raise_peaks(rule, u, &x, peaks);
    keep_vector(rule, u, i, &x, false);
}

static __attribute__((noinline)) void
mend_vectors(const struct rule *rule, const struct base_update *u, size_t i, size_t end)
{
    for (; i < end; i += WIDTH) {
        struct elements x = load_elements(rule, u, i, spread(0));
        make_canonical(rule, &x);
        keep_vector(rule, u, i, &x, false);
    }
}

/** Updates the elements from i on, less than a vector of them, which end a run: in a vector of
 * their own. */
INLINE void update_end(const struct rule *rule, const struct constants *c,
                       const struct base_update *u, size_t i, const float *gradients,
                       struct peaks *peaks)
{
    assert(i <= u->count && u->count - i < WIDTH);
    const size_t bytes = (u->count - i) * sizeof(float);
    float gradient[WIDTH] = {0}, weight[WIDTH] = {0}, moment[BASE_MAX_MOMENTS][WIDTH] = {{0}};
    uint16_t work[WIDTH];
    struct base_update end = *u;
    end.weight = weight;
    end.work = u->work ? work : NULL;
    memcpy(gradient, gradients, bytes);
    memcpy(weight, u->weight + i, bytes);
    for (int k = 0; k < rule->moments; k++) {
        end.moment[k] = moment[k];
        memcpy(moment[k], u->moment[k] + i, bytes);
    }
    update_vector(rule, c, &end, 0, load(gradient), false, peaks);
    memcpy(u->weight + i, weight, bytes);
    for (int k = 0; k < rule->moments; k++)
        memcpy(u->moment[k] + i, moment[k], bytes);
    if (u->work)
        memcpy(u->work + i, work, bytes / 2);
}

INLINE void update(const struct rule *rule, const struct base_rule_scalars *scalars,
                   const struct base_update *run)
{
    const struct constants c = constants_of(scalars);
    const struct base_update u = *run; // a copy that no store can change
    const bool stream = streams(&u);
    const size_t end = u.count - u.count % WIDTH;
    assert(!u.work || u.work_dtype == ZERO_BF16 || u.work_dtype == ZERO_F16);
    assert(end <= u.count && u.count - end < WIDTH);
    struct peaks peaks = no_peaks();
    for (size_t i = 0; i < end; i += WIDTH)
        update_vector(rule, &c, &u, i, load(u.gradient + i), stream, &peaks);
    if (stream)
        fence();
    if (end < u.count)
        update_end(rule, &c, &u, end, u.gradient + end, &peaks);
    tell_alarm(&u, &peaks);
}

/* ------------------------------------------------------------------ updates with a sum */

INLINE vector contributed(const struct base_contributions *from, zero_dtype dtype, size_t i)
{
    return sum_in_order(dtype, from->before, i, from->sources[0], from->sources, from->count,
                        from->first + i);
}

/** Takes the vector's sum; false, and nothing is touched, if it is not finite. lane may be NULL,
 * here and below: then the caller needs no squares, and all sums are finite. */
INLINE bool update_total(const struct rule *rule, const struct constants *c,
                         const struct base_update *u, size_t i, vector total, bool stream,
                         double lane[BASE_SUM_LANES], struct peaks *peaks)
{
    if (lane) {
        if (__builtin_expect(!all_finite(total), false))
            return false;
        add_squares(lane + i % BASE_SUM_LANES, total);
    }
    update_vector(rule, c, u, i, total, stream, peaks);
    return true;
}

/** The vectors at i .. end-1, with a lane all of one granule, as far as they are finite: returns
 * how far. All streams of memory are read side by side, which no two passes over a tile in cache
 * come near to (tests/bench/bench_step.c). */
INLINE size_t update_vectors(const struct rule *rule, const struct constants *c,
                             const struct base_update *u, const struct base_contributions *from,
                             zero_dtype dtype, size_t i, size_t end, double lane[BASE_SUM_LANES],
                             struct peaks *peaks)
{
    const bool stream = streams(u);
    while (i < end && update_total(rule, c, u, i, contributed(from, dtype, i), stream, lane, peaks))
        i += WIDTH;
    return i;
}

/** update_vectors() of two contributions and nothing before them, whose addresses stay in
 * registers: in cache that saves a tenth of the time, and more where the core is shared. */
INLINE size_t update_pairs(const struct rule *rule, const struct constants *c,
                           const struct base_update *u, const struct base_contributions *from,
                           zero_dtype dtype, size_t i, size_t end, double lane[BASE_SUM_LANES],
                           struct peaks *peaks)
{
    const bool stream = streams(u);
    const void *const one = from->sources[0], *const other = from->sources[1];
    for (const size_t first = from->first; i < end; i += WIDTH) {
        const vector total = add(widened(dtype, one, first + i), widened(dtype, other, first + i));
        if (!update_total(rule, c, u, i, total, stream, lane, peaks))
            break;
    }
    return i;
}

/** The sum of two contributions; only every second vector of narrow ones asks ahead. */
INLINE vector sum_of_two(const void *const pair[2], zero_dtype dtype, size_t i, bool ask)
{
    const bool asks = ask || dtype == ZERO_F32;
    return add(floats_in(load_source(dtype, asks, pair[0], i)),
               floats_in(load_source(dtype, asks, pair[1], i)));
}

/** Adds the squares of two vectors, at i and behind it, of a granule that begins with lane 0;
 * false, and nothing is added, if they are not finite. */
INLINE bool square_pair(struct squares *lanes, size_t i, vector one, vector other)
{
    // Addresses of registers are constants.
    const size_t lane = 2 * WIDTH % BASE_SUM_LANES == 0 ? 0 : i % BASE_SUM_LANES;
    if (__builtin_expect(!all_finite(one) || !all_finite(other), false))
        return false;
    add_to_squares(lanes, lane, one);
    add_to_squares(lanes, (lane + WIDTH) % BASE_SUM_LANES, other);
    return true;
}

/** The vectors at i .. end-1, in pairs, of what most steps consist of: two contributions and
 * nothing before them, the working copy of the dtype in which gradients travel and in the caches,
 * decay that is not L2, sums that are finite: returns where a pair begins that has another, or that
 * is none. squares may be NULL. A loop that asks for none of it has two thirds of the instructions,
 * which tells where another thread has the core's other half. */
INLINE size_t usual_pairs(const struct rule *rule, const struct constants *usual,
                          const struct base_update *u, const struct base_contributions *from,
                          zero_dtype dtype, size_t i, size_t end, struct squares *squares,
                          struct peaks *peaks)
{
    const void *const pair[] = {from->sources[0], from->sources[1]};
    for (const size_t first = from->first; end - i >= 2 * WIDTH; i += 2 * WIDTH) {
        const vector one = sum_of_two(pair, dtype, first + i, true);
        const vector other = sum_of_two(pair, dtype, first + i + WIDTH, false);
        if (squares && !square_pair(squares, i, one, other))
            break;
        update_numbers(rule, usual, u, i, one, peaks);
        update_numbers(rule, usual, u, i + WIDTH, other, peaks);
    }
    return i;
}

/** usual_pairs() of granule after granule, whose sums of squares are left at `squares`, if it is
 * not NULL; those of a granule that it does not get through are left in its lanes. From memory it
 * tells that this is one loop (tests/bench/bench_step.c). */
INLINE size_t usual_granules(const struct rule *rule, const struct constants *usual,
                             const struct base_update *u, const struct base_contributions *from,
                             zero_dtype dtype, double *squares, double lane[BASE_SUM_LANES],
                             struct peaks *peaks)
{
    const size_t all = u->count - u->count % BASE_GRANULE;
    size_t i = 0;
    if (!squares)
        i = usual_pairs(rule, usual, u, from, dtype, 0, u->count, NULL, peaks);
    while (squares && i < all) {
        struct squares lanes = no_squares();
        const size_t end = i + BASE_GRANULE;
        i = usual_pairs(rule, usual, u, from, dtype, i, end, &lanes, peaks);
        if (i < end) {
            store_squares(lane, &lanes);
            break;
        }
        *squares++ = add_lanes(&lanes);
    }
    if (__builtin_expect(are_high(peaks), false))
        mend_vectors(rule, u, 0, i);
    return i;
}

/** Whether usual_granules() does it. */
INLINE bool is_usual(const struct constants *c, const struct base_update *u,
                     const struct base_contributions *from)
{
    const bool work = from->dtype == ZERO_F32 ? !u->work : u->work && u->work_dtype == from->dtype;
    return from->count == 2 && !from->before && work && !c->l2 && !streams(u);
}

/** usual_granules() with a loop for each dtype. */
INLINE size_t update_usual(const struct rule *rule, const struct constants *c,
                           const struct base_update *u, const struct base_contributions *from,
                           double *squares, double lane[BASE_SUM_LANES], struct peaks *peaks)
{
    struct constants usual = *c;
    struct base_update run = *u;
    if (!is_usual(c, u, from))
        return 0;
    usual.l2 = false; // what is known, for the loops
    switch (from->dtype) {
    case ZERO_BF16:
        run.work_dtype = ZERO_BF16;
        return usual_granules(rule, &usual, &run, from, ZERO_BF16, squares, lane, peaks);
    case ZERO_F16:
        run.work_dtype = ZERO_F16;
        return usual_granules(rule, &usual, &run, from, ZERO_F16, squares, lane, peaks);
    default:
        run.work = NULL;
        return usual_granules(rule, &usual, &run, from, ZERO_F32, squares, lane, peaks);
    }
}

/** Whichever of them fits. */
INLINE size_t update_some(const struct rule *rule, const struct constants *c,
                          const struct base_update *u, const struct base_contributions *from,
                          zero_dtype dtype, size_t i, size_t end, double lane[BASE_SUM_LANES],
                          struct peaks *peaks)
{
    if (from->count != 2 || from->before)
        return update_vectors(rule, c, u, from, dtype, i, end, lane, peaks);
    return update_pairs(rule, c, u, from, dtype, i, end, lane, peaks);
}

/** Updates a whole run, with a loop for each dtype. */
INLINE size_t update_whole(const struct rule *rule, const struct constants *c,
                           const struct base_update *u, const struct base_contributions *from,
                           size_t i, size_t end, double lane[BASE_SUM_LANES], struct peaks *peaks)
{
    switch (from->dtype) {
    case ZERO_BF16:
        return update_some(rule, c, u, from, ZERO_BF16, i, end, lane, peaks);
    case ZERO_F16:
        return update_some(rule, c, u, from, ZERO_F16, i, end, lane, peaks);
    default:
        return update_some(rule, c, u, from, ZERO_F32, i, end, lane, peaks);
    }
}

/** The elements from i on, which end a run and don't fill a vector: returns how far. */
INLINE size_t update_rest(const struct rule *rule, const struct constants *c,
                          const struct base_update *u, const struct base_contributions *from,
                          size_t i, double lane[BASE_SUM_LANES], struct peaks *peaks)
{
    float total[BASE_SUM_LANES];
    const size_t at = i % BASE_SUM_LANES;
    struct base_update rest = *u;
    rest.count = i + base_add_contributions(from, i, u->count - i, total + at);
    assert(rest.count <= u->count && rest.count - i < WIDTH);
    if (lane)
        base_add_squares(lane, at, at + rest.count - i, total);
    update_end(rule, c, &rest, i, total + at, peaks);
    return rest.count;
}

INLINE size_t update_sum(const struct rule *rule, const struct base_rule_scalars *scalars,
                         const struct base_update *run, const struct base_contributions *from,
                         double *squares)
{
    const struct constants c = constants_of(scalars);
    const struct base_update u = *run;
    const struct base_contributions parts = *from;
    double lanes[BASE_SUM_LANES] = {0}, *lane = squares ? lanes : NULL;
    struct peaks peaks = no_peaks();
    assert(from->count >= 1);
    size_t i = update_usual(rule, &c, &u, &parts, squares, lanes, &peaks);
    for (size_t granule = i / BASE_GRANULE; i < u.count; granule++) {
        const size_t end =
            squares && u.count / BASE_GRANULE > granule ? (granule + 1) * BASE_GRANULE : u.count;
        const size_t whole = end - end % WIDTH;
        i = update_whole(rule, &c, &u, &parts, i, whole, lane, &peaks);
        if (i == whole && whole < end)
            i = update_rest(rule, &c, &u, &parts, whole, lane, &peaks);
        if (i < end)
            break;
        if (squares)
            squares[granule] = base_add_lanes(lanes);
        memset(lanes, 0, sizeof lanes);
    }
    assert(i <= u.count);
    if (streams(&u))
        fence();
    tell_alarm(&u, &peaks);
    return i;
}

#endif
