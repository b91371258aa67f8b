// make.c: made the files beside it, with the library of commit a449ca1 (make.sh, README.md). Ranks
// of zero-run:
//
//     make KIND whole                 trains in memory.
//     make KIND first DIRECTORY       state in files; saves and exports, trains on, and is killed.
//     make KIND recovered DIRECTORY   comes back at the recovery point, trains on, and is killed.
//     make KIND loaded CHECKPOINT     loads, trains on.
//     make KIND imported FILE         begins with imported weights.
//
// Rank 0 prints a line "KIND WHAT STEP FINGERPRINT" of each moment that is compared.
#include "job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    enum old_kind kind;
    const char *what, *path;
    zero_ctx *z;
    struct old_blobs blobs;
};

static void check(const struct run *run, zero_result result)
{
    if (result == ZERO_OK)
        return;
    fprintf(stderr, "make: %s\n", zero_last_error(run->z));
    exit(1);
}

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "make: %s\n", what);
    exit(1);
}

static bool is(const struct run *run, const char *what)
{
    return strcmp(run->what, what) == 0;
}

static void begin(struct run *run)
{
    zero_config config = zero_config_default();
    old_configure(run->kind, &config);
    if (is(run, "first") || is(run, "recovered"))
        old_offload(run->kind, &config, run->path);
    check(run, zero_open(&run->z, &config));
    const bool begins = is(run, "whole") || is(run, "first");
    check(run, old_commit(run->z, run->kind, !begins, &run->blobs));
}

static void tell(struct run *run, unsigned step)
{
    char text[33];
    check(run, old_fingerprint(run->z, text));
    if (zero_rank(run->z) == 0)
        printf("%s %s %u %s\n", old_names[run->kind], run->what, step, text);
    fflush(stdout);
}

static void train(struct run *run, unsigned from, unsigned to)
{
    check(run, old_train(run->z, run->kind, &run->blobs, from, to));
    tell(run, to);
}

static void die(struct run *run)
{
    check(run, zero_barrier(run->z));
    raise(SIGKILL);
}

static void train_first(struct run *run)
{
    char path[4096];
    train(run, 0, OLD_SAVED_STEP);
    snprintf(path, sizeof path, "%s/saved", run->path);
    check(run, zero_save(run->z, path, NULL));
    check(run, zero_save_wait(run->z));
    snprintf(path, sizeof path, "%s/weights.safetensors", run->path);
    check(run, zero_export(run->z, path));
    train(run, OLD_SAVED_STEP, OLD_RECORDED_STEP);
    die(run);
}

static void come_back(struct run *run)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    check(run, zero_resume(run->z, NULL, NULL, &loaded));
    require(loaded.recovered && loaded.step == OLD_RECORDED_STEP, "another point was found");
    require(old_blobs_are(&run->blobs, OLD_RECORDED_STEP, zero_rank(run->z), true), "blobs differ");
    tell(run, OLD_RECORDED_STEP);
    train(run, OLD_RECORDED_STEP, OLD_LAST_STEP);
    die(run);
}

static void load(struct run *run)
{
    check(run, zero_load(run->z, run->path, NULL, NULL));
    require(old_blobs_are(&run->blobs, OLD_SAVED_STEP, zero_rank(run->z), true), "blobs differ");
    tell(run, OLD_SAVED_STEP);
    train(run, OLD_SAVED_STEP, OLD_LAST_STEP);
}

int main(int argc, char **argv)
{
    require(argc >= 3, "make KIND WHAT [PATH]");
    struct run run = {.kind = strcmp(argv[1], "adamw") == 0 ? OLD_ADAMW : OLD_OTHERS,
                      .what = argv[2],
                      .path = argc > 3 ? argv[3] : ""};
    begin(&run);
    if (is(&run, "whole")) {
        train(&run, 0, OLD_SAVED_STEP);
        train(&run, OLD_SAVED_STEP, OLD_RECORDED_STEP);
        train(&run, OLD_RECORDED_STEP, OLD_LAST_STEP);
    } else if (is(&run, "first")) {
        train_first(&run);
    } else if (is(&run, "recovered")) {
        come_back(&run);
    } else if (is(&run, "loaded")) {
        load(&run);
    } else {
        check(&run, zero_import(run.z, run.path, NULL));
        tell(&run, 0);
        train(&run, 0, OLD_SAVED_STEP);
    }
    zero_close(run.z);
    return 0;
}
