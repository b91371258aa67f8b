/**
 * base/kernels/vector_words.h: what words have of C's own operators, for processors and GPUs. A
 * file of vectors includes it behind its types.
 */
#ifndef BASE_KERNELS_VECTOR_WORDS_H
#define BASE_KERNELS_VECTOR_WORDS_H

INLINE words sum(words a, words b)
{
    return (words)((counts)a + (counts)b);
}

INLINE words difference(words a, words b)
{
    return (words)((counts)a - (counts)b);
}

INLINE words both(words a, words b)
{
    return a & b;
}

INLINE words either(words a, words b)
{
    return a | b;
}

INLINE words odd(words a, words b)
{
    return a ^ b;
}

#endif
