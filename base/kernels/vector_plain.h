/**
 * base/kernels/vector_plain.h: what vectors of processors have of C's own operators: one text for
 * all of them. A file of vectors includes it behind its types, of which `counts` has the numbers of
 * words and `bigs` has numbers of 64 bits.
 */
#ifndef BASE_KERNELS_VECTOR_PLAIN_H
#define BASE_KERNELS_VECTOR_PLAIN_H

#include "base/kernels/vector_words.h"

INLINE vector mul(vector a, vector b)
{
    return a * b;
}

INLINE vector add(vector a, vector b)
{
    return a + b;
}

INLINE vector quotient(vector a, vector b)
{
    return a / b;
}

INLINE doubles add_doubles(doubles a, doubles b)
{
    return a + b;
}

INLINE packet add_i32(packet a, packet b)
{
    return (packet)((counts)a + (counts)b);
}

INLINE packet add_i64(packet a, packet b)
{
    return (packet)((bigs)a + (bigs)b);
}

#endif
