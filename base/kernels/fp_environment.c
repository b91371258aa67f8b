#include "base/kernels/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

// Rounding to nearest, all exceptions masked, neither flush-to-zero nor denormals-are-zero; the
// rest are flags of what has happened.
#define MXCSR_DEFAULT 0x1f80u
#define MXCSR_FLAGS 0x3fu

// Writing the register takes several times as long as reading it: mostly there is nothing to write.
void base_fp_enter(struct base_fp_state *saved)
{
    saved->control = _mm_getcsr();
    if ((saved->control & ~MXCSR_FLAGS) != MXCSR_DEFAULT)
        _mm_setcsr(MXCSR_DEFAULT);
}

void base_fp_leave(const struct base_fp_state *saved)
{
    if (_mm_getcsr() != saved->control)
        _mm_setcsr(saved->control);
}

#else

#include <fenv.h>

// Rounding is all that standard C can set; denormals are kept wherever a program does not turn
// them off by means of its own.
void base_fp_enter(struct base_fp_state *saved)
{
    saved->control = (uint32_t)fegetround();
    fesetround(FE_TONEAREST);
}

void base_fp_leave(const struct base_fp_state *saved)
{
    fesetround((int)saved->control);
}

#endif
