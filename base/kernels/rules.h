/**
 * base/kernels/rules.h: the arithmetic of every optimizer, once, over vectors of any length: for
 * processors (vector_ref.h says what a file has to have before it includes this) and for GPUs
 * (kernels_cuda.cu). C, and C++ too.
 */
#ifndef BASE_KERNELS_RULES_H
#define BASE_KERNELS_RULES_H

/** The scalars of an update, each in all elements of a vector. */
struct constants {
    vector gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
    vector decay, step_size, inverse_sqrt_correction, eps;
    bool l2, nesterov;
};

/** What an update reads and writes of a vector of elements. */
struct elements {
    vector gradient, moment[BASE_MAX_MOMENTS], weight;
};

/** The gradient an optimizer works with. */
INLINE vector scaled(const struct constants *c, const struct elements *x)
{
    const vector g = mul(x->gradient, c->gradient_scale);
    return c->l2 ? madd(c->decay, x->weight, g) : g;
}

/** The weight it takes its step from. */
INLINE vector decayed(const struct constants *c, const struct elements *x)
{
    return c->l2 ? x->weight : nmadd(c->decay, x->weight, x->weight);
}

INLINE void adam(const struct constants *c, struct elements *x)
{
    const vector g = scaled(c, x);
    const vector m = madd(c->beta1, x->moment[0], mul(c->one_minus_beta1, g));
    const vector v = madd(c->beta2, x->moment[1], mul(mul(c->one_minus_beta2, g), g));
    const vector d = madd(root(v), c->inverse_sqrt_correction, c->eps);
    x->weight = nmadd(c->step_size, quotient(m, d), decayed(c, x));
    x->moment[0] = m;
    x->moment[1] = v;
}

INLINE void sgd(const struct constants *c, struct elements *x)
{
    const vector g = scaled(c, x);
    const vector m = madd(c->beta1, x->moment[0], g);
    const vector direction = c->nesterov ? madd(c->beta1, m, g) : m;
    x->weight = nmadd(c->step_size, direction, decayed(c, x));
    x->moment[0] = m;
}

INLINE void lion(const struct constants *c, struct elements *x)
{
    const vector g = scaled(c, x), m = x->moment[0];
    const vector direction = sign(madd(c->beta1, m, mul(c->one_minus_beta1, g)));
    x->weight = nmadd(c->step_size, direction, decayed(c, x));
    x->moment[0] = madd(c->beta2, m, mul(c->one_minus_beta2, g));
}

INLINE void adagrad(const struct constants *c, struct elements *x)
{
    const vector g = scaled(c, x);
    const vector m = madd(g, g, x->moment[0]);
    x->weight = nmadd(c->step_size, quotient(g, add(root(m), c->eps)), decayed(c, x));
    x->moment[0] = m;
}

#endif
