#include "recovery.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static zero_result resume(struct trainer *t, zero_load_result *loaded)
{
    const struct options *o = t->options;
    if (strcmp(o->resume, "off") == 0)
        return ZERO_NOT_FOUND;
    if (strcmp(o->resume, "auto") == 0)
        return zero_resume(t->z, o->checkpoint, NULL, loaded);
    const zero_result result = zero_load(t->z, o->resume, NULL, loaded);
    if (result != ZERO_NOT_FOUND)
        return result;
    refuse(&t->failure, "%s", zero_last_error(t->z));
    return ZERO_E_IO;
}

zero_result recovery_begin(struct trainer *trainer, uint64_t *step)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    zero_result result = resume(trainer, &loaded);
    *step = 0;
    if (result == ZERO_NOT_FOUND)
        return trainer_import(trainer);
    if (result)
        return result;
    *step = trainer->step = loaded.step;
    trainer->micro_total = zero_micro_total(trainer->z);
    return ZERO_OK;
}

zero_result recovery_step(struct trainer *trainer, uint64_t step)
{
    const struct options *o = trainer->options;
    if (!o->checkpoint)
        return ZERO_OK;
    const bool due = o->save_every > 0 && step % (uint64_t)o->save_every == 0;
    if (!due && !zero_stop_requested(trainer->z))
        return ZERO_OK;
    zero_save_options options = zero_save_options_default();
    options.keep = o->keep;
    return zero_save(trainer->z, o->checkpoint, &options);
}

zero_result recovery_end(struct trainer *trainer)
{
    zero_save_info info = {.struct_size = sizeof info};
    zero_result result = zero_save_wait(trainer->z);
    if (!result)
        result = zero_save_poll(trainer->z, &info);
    if (!result && info.phase == ZERO_SAVE_COMPLETE && zero_rank(trainer->z) == 0)
        printf("saved step %" PRIu64 " in %s: %.1f MiB\n", info.step, trainer->options->checkpoint,
               (double)info.file_bytes / 1048576);
    return result;
}
