#include "zero/scale.h"

bool eng_scale_clean(struct eng_scale *scale)
{
    if (!scale->dynamic || ++scale->clean < scale->window)
        return false;
    scale->clean = 0;
    if (scale->value * 2 > ENG_SCALE_MOST)
        return false;
    scale->value *= 2;
    return true;
}

bool eng_scale_overflow(struct eng_scale *scale)
{
    if (!scale->dynamic)
        return true;
    if (scale->value <= scale->least)
        return false;
    const double half = scale->value / 2;
    scale->value = half < scale->least ? scale->least : half;
    scale->clean = 0;
    return true;
}
