#include "zero/param/frozen.h"
#include "zero/core/exec_table.h"
#include "zero/core/progress.h"

void eng_frozen_refresh(zero_ctx *z)
{
    eng_trains_refresh(z);
    z->exec->stale(z);
}
