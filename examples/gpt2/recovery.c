#include "recovery.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Whether there are checkpoints in a directory.
static bool has_checkpoints(DIR *directory)
{
    bool found = false;
    for (const struct dirent *entry; !found && (entry = readdir(directory));)
        found = strncmp(entry->d_name, "step-", 5) == 0;
    return found;
}

// Whether a directory can be made: in the one above it.
static bool can_make(const char *path)
{
    char *parent = strdup(path);
    if (!parent)
        return false;
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/')
        length--;
    while (length > 0 && parent[length - 1] != '/')
        length--;
    parent[length] = '\0';
    const bool can = access(length ? parent : ".", W_OK | X_OK) == 0;
    free(parent);
    return can;
}

// What would go wrong at the first checkpoint is better known before the first step, and what a run
// from the start would write over is another one's. All ranks see the same.
static zero_result check_directory(struct trainer *t)
{
    const struct options *o = t->options;
    if (!o->checkpoint)
        return ZERO_OK;
    DIR *directory = opendir(o->checkpoint);
    const bool usable = directory ? access(o->checkpoint, W_OK | X_OK) == 0
                                  : errno == ENOENT && can_make(o->checkpoint);
    if (!usable)
        refuse(&t->failure, "--checkpoint %s: nothing can be saved there: %s", o->checkpoint,
               strerror(errno));
    const bool taken = directory && strcmp(o->resume, "off") == 0 && !o->beside_other_runs &&
                       has_checkpoints(directory);
    if (taken)
        refuse(&t->failure,
               "--checkpoint %s: there are checkpoints already: --resume auto goes on from them; "
               "or take another directory, or --beside-other-runs",
               o->checkpoint);
    if (directory)
        closedir(directory);
    return taken ? ZERO_E_INVALID : usable ? ZERO_OK : ZERO_E_IO;
}

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
    zero_result result = check_directory(trainer);
    *step = 0;
    if (result)
        return result;
    result = resume(trainer, &loaded);
    if (result == ZERO_NOT_FOUND)
        return trainer_import(trainer);
    if (result)
        return result;
    *step = trainer->step = loaded.step;
    trainer->recovered = loaded.recovered;
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
    options.beside_other_runs = o->beside_other_runs;
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
