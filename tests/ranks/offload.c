// State in files: a job that ended badly comes back at its last step, a job that ended well leaves
// nothing; what is attached; checkpoints beside it; and what can't be had, or is damaged.
#include "base/arena.h"
#include "base/fault.h"
#include "checkpoint/manifest.h"
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, MOST_RANKS = 4, TILES_AT = 160000 };

static struct temporary directory; // of state, and in it "saved" of checkpoints

struct job {
    zero_dtype dtype;
    int stage;
    int steps;                  // of this job
    bool in_memory;             // nothing is in files
    bool params, no_sums;       // working copies are, too; sums are not
    bool dies;                  // ends without a clean end
    bool comes_back;            // goes on from what is there
    bool saves;                 // after its second step
    uint64_t seed;              // 0: the default
    int64_t persist, tile;      // 0: defaults, that of tests
    uint64_t expected;          // the step it comes back at
    int32_t recovered, damaged; // and how
    uint8_t digest[16];         // at the end
};

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) && temporary_folder(&directory, "saved") ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&directory);
    return 0;
}

static void put_state_into_files(zero_config *config)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    config->name = "offload"; // another one would be another job
    config->offload_optimizer = "nvme";
    config->offload_grads = config->stage > 1 ? "nvme" : "host";
    config->nvme_dir = directory.directory;
    config->io = engines[config->stage % 3];
    config->tile_bytes = 65536;
    config->compress = config->stage == 1 ? "off" : "on";
}

// Files of ranks; beside them there is only the directory of checkpoints.
static int files_left(void)
{
    return temporary_entries(&directory) - 1;
}

static struct toy toy_of(const struct job *job)
{
    struct toy toy = toy_odd;
    toy.dtype = job->dtype;
    toy.frozen = 1u << 4; // one tensor
    return toy;
}

// A call that fails on all ranks at once, so that none of them ends well.
static bool die(struct team_rank *rank)
{
    TEAM_OK(rank, zero_barrier(rank->z));
    zero_abort(rank->z, "for a test");
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

static bool come_back(struct team_rank *rank, const struct job *job)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, temporary_path(&directory, "saved"), NULL, &loaded));
    TEAM_CHECK(loaded.step == job->expected && loaded.recovered == job->recovered);
    TEAM_CHECK(loaded.damaged == job->damaged);
    zero_step_result info = {.struct_size = sizeof info};
    TEAM_OK(rank, zero_step_info(rank->z, &info));
    TEAM_CHECK(info.step == job->expected && info.updates == job->expected);
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const struct toy toy = toy_of(job);
    uint8_t digest[16];
    rank->config.stage = job->stage;
    rank->config.micro_batches = toy.micro_batches;
    rank->config.seed = job->seed;
    rank->config.persist_numel = job->persist;
    if (!job->in_memory) {
        put_state_into_files(&rank->config);
        rank->config.offload_params = job->params ? "nvme" : "host";
        rank->config.compress = (rank->world + job->comes_back) % 2 ? "on" : "off";
        rank->config.offload_grads = job->no_sums ? "host" : rank->config.offload_grads;
    }
    if (job->tile > 0)
        rank->config.tile_bytes = job->tile;
    if (!team_open(rank) || !toy_register(rank, &toy))
        return false;
    TEAM_OK(rank, zero_commit(rank->z));
    if (job->comes_back && !come_back(rank, job))
        return false;
    const int before = job->saves ? 2 : 0;
    if (!toy_train(rank, &toy, before))
        return false;
    zero_save_options roomy = zero_save_options_default();
    roomy.room_bytes = 1 << 20;
    if (job->saves && !job->in_memory)
        TEAM_FAILS(rank, zero_save(rank->z, temporary_path(&directory, "saved"), &roomy),
                   ZERO_E_INVALID, "room_bytes 1048576 has no effect");
    if (job->saves)
        TEAM_OK(rank, zero_save(rank->z, temporary_path(&directory, "saved"), NULL));
    if (!toy_train(rank, &toy, job->steps - before))
        return false;
    TEAM_OK(rank, zero_save_wait(rank->z));
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return !job->dies || die(rank);
}

static void run(int world, struct job *job)
{
    if (team_run(team_threads(world), world, work, job))
        return;
    fail_msg("%d ranks, stage %d, dtype %d", world, job->stage, job->dtype);
}

// And ends with the bits of the whole one.
static void run_to(const struct job *whole, int world, struct job *job)
{
    run(world, job);
    assert_memory_equal(whole->digest, job->digest, sizeof whole->digest);
}

/* ------------------------------------------------------------------ what works */

// At any stage, with masters in files or weights in memory, and wherever working copies and sums
// were before.
static void a_job_comes_back_at_its_last_step(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_RANKS; world++)
        for (int stage = 0; stage <= 3; stage++) {
            const zero_dtype dtype = (world + stage) % 2 ? ZERO_BF16 : ZERO_F32;
            struct job whole = {.dtype = dtype, .stage = stage, .steps = 2 * STEPS};
            struct job first = {.dtype = dtype, .stage = stage, .steps = STEPS, .dies = true};
            struct job again = first;
            first.params = (world + stage / 2) % 2;
            first.no_sums = world % 2;
            whole.in_memory = true;
            again.params = world / 2 % 2;
            again.no_sums = !first.no_sums;
            again.dies = false;
            again.comes_back = true;
            again.expected = STEPS;
            again.recovered = 1;
            run(world, &whole);
            run(world, &first);
            assert_int_equal(files_left(), world);
            run_to(&whole, world, &again);
            assert_int_equal(files_left(), 0);
        }
}

// And a job that does not want to come back takes no notice of it.
static void a_new_job_begins_anew(void **state)
{
    (void)state;
    struct job first = {.stage = 2, .steps = STEPS, .dies = true}, again = first;
    run(2, &first);
    memset(first.digest, 0, sizeof first.digest);
    run(2, &first);
    struct job memory = {.stage = 1, .steps = STEPS, .in_memory = true};
    run_to(&first, 2, &memory);
    again.dies = false;
    run(2, &again);
    assert_memory_equal(again.digest, memory.digest, sizeof memory.digest);
    assert_int_equal(files_left(), 0);
}

// Checkpoints are written behind steps that change what they are made of; whoever comes back takes
// the newer one of both.
static void the_newer_of_point_and_checkpoint_is_taken(void **state)
{
    (void)state;
    struct job whole = {.stage = 3, .steps = 2 * STEPS, .in_memory = true};
    run(3, &whole);
    struct job first = {.stage = 3, .steps = STEPS, .saves = true, .dies = true, .params = true};
    run(3, &first);
    struct job point = {.stage = 3, .steps = STEPS, .comes_back = true, .recovered = 1};
    point.expected = STEPS;
    run_to(&whole, 3, &point);
    // Without it, and in memory, where the first one saved.
    struct job checkpoint = {.stage = 1, .steps = STEPS + 1, .comes_back = true, .expected = 2};
    checkpoint.in_memory = true;
    run_to(&whole, 2, &checkpoint);
    checkpoint.in_memory = false;
    run_to(&whole, 2, &checkpoint);
    // A point that is older.
    struct job older = {.stage = 3, .steps = 1, .dies = true};
    struct job newer = {.stage = 3, .steps = STEPS + 1, .comes_back = true, .expected = 2};
    newer.params = true;
    run(3, &older);
    run_to(&whole, 3, &newer);
}

// A checkpoint brings its seed with it, and so do recovery points behind it.
static void the_seed_of_a_checkpoint_comes_back(void **state)
{
    (void)state;
    struct job whole = {.stage = 2, .steps = 2 * STEPS, .in_memory = true, .seed = 7};
    struct job first = {.stage = 2, .steps = STEPS, .in_memory = true, .seed = 7, .saves = true};
    struct job loads = {.stage = 2, .steps = 1, .comes_back = true, .expected = 2, .dies = true};
    struct job again = {.stage = 2, .steps = STEPS, .comes_back = true, .expected = STEPS};
    again.recovered = 1;
    run(2, &whole);
    run(2, &first);
    run(2, &loads);
    run_to(&whole, 2, &again);
}

// One that aborts has not ended well, though no call of its own has told it so.
static bool abort_and_close(struct team_rank *rank, void *user)
{
    const struct toy toy = toy_of(&(struct job){.stage = 2});
    (void)user;
    rank->config.stage = 2;
    put_state_into_files(&rank->config);
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS))
        return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        zero_abort(rank->z, "for a test");
    else
        while (zero_barrier(rank->z) == ZERO_OK)
            ;
    return true;
}

static void a_job_that_aborts_leaves_its_last_step(void **state)
{
    (void)state;
    struct job whole = {.stage = 2, .steps = STEPS + 1, .in_memory = true};
    struct job again = {.stage = 2, .steps = 1, .comes_back = true, .expected = STEPS};
    again.recovered = 1;
    assert_true(team_run("threads", 2, abort_and_close, NULL));
    assert_int_equal(files_left(), 2);
    run(2, &again);
    run(2, &whole);
    assert_memory_equal(whole.digest, again.digest, sizeof whole.digest);
}

struct attached {
    uint64_t global, own;
};

static bool attach_and_go(struct team_rank *rank, void *user)
{
    const int run_number = *(int *)user;
    struct attached attached = {17, (uint64_t)rank->rank + 100};
    static char large[1 << 20];
    rank->config.stage = 2;
    put_state_into_files(&rank->config);
    if (run_number == 1)
        attached = (struct attached){0, 0};
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "global", &attached.global, 8, ZERO_GLOBAL));
    if (run_number == 2) // without the other one
        TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_E_INVALID, "2 attached");
    TEAM_OK(rank, zero_attach(rank->z, "own", &attached.own, 8, ZERO_OF_RANK));
    TEAM_FAILS(rank, zero_attach(rank->z, "large", large, sizeof large, ZERO_GLOBAL), ZERO_E_LIMIT,
               "before zero_commit()");
    if (run_number == 0) {
        attached.global++;
        return toy_train(rank, &toy_odd, 1) && die(rank);
    }
    zero_load_result loaded = {.struct_size = sizeof loaded};
    TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
    TEAM_CHECK(loaded.recovered == 1 && loaded.rank_blobs == 1 && loaded.step == 1);
    TEAM_CHECK(attached.global == 18 && attached.own == (uint64_t)rank->rank + 100);
    // There is nothing to come back at once it has been left.
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return run_number == 2 || die(rank);
}

static void what_was_attached_comes_back(void **state)
{
    (void)state;
    int number = 0;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    number = 1;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    number = 0;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    number = 2;
    assert_true(team_run("threads", 3, attach_and_go, &number));
    assert_int_equal(files_left(), 0);
}

// Attached again a blob takes no other room, and there is no more of it than there is.
static bool fill_the_room(struct team_rank *rank, void *user)
{
    static char before[100000], later[65536];
    uint64_t most = sizeof later;
    (void)user;
    rank->config.stage = 1;
    rank->config.micro_batches = toy_odd.micro_batches;
    put_state_into_files(&rank->config);
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_attach(rank->z, "before", before, sizeof before, ZERO_GLOBAL));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_OK(rank, zero_attach(rank->z, "before", before, sizeof before, ZERO_GLOBAL));
    while (zero_attach(rank->z, "later", later, most, ZERO_GLOBAL) == ZERO_E_LIMIT)
        most--;
    TEAM_CHECK(most > sizeof later - 256);
    TEAM_FAILS(rank, zero_attach(rank->z, "more", later, 8, ZERO_GLOBAL), ZERO_E_LIMIT,
               "room for 0 more");
    TEAM_FAILS(rank, zero_attach(rank->z, "later", later, most + 1, ZERO_GLOBAL), ZERO_E_LIMIT,
               "before zero_commit()");
    TEAM_OK(rank, zero_attach(rank->z, "later", later, most, ZERO_GLOBAL));
    return toy_train(rank, &toy_odd, 1);
}

static void what_is_attached_later_has_its_room(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, fill_the_room, NULL));
}

/* ------------------------------------------------------------------ what fails */

static _Atomic int files_told;

static void take_warning(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    (void)user;
    (void)level;
    (void)component;
    files_told += strstr(message, "1 file,") != NULL;
}

static bool find_nothing(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct toy toy = toy_of(job);
    rank->config.stage = job->stage;
    rank->config.persist_numel = job->persist;
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    put_state_into_files(&rank->config);
    if (job->tile > 0)
        rank->config.tile_bytes = job->tile;
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return true;
}

// Where tensors lie elsewhere in tiles of the same sizes, they are not taken for each other, and it
// is told that there is something to come back at.
static void another_layout_is_another_job(void **state)
{
    (void)state;
    struct job first = {.stage = 3, .steps = STEPS, .dies = true, .tile = 1 << 20};
    struct job other = first;
    first.persist = 1023;
    other.persist = ZERO_OFF;
    files_told = 0;
    run(1, &first);
    assert_true(team_run("self", 1, find_nothing, &other));
    assert_int_equal(files_told, 1);
}

// A step is not lost because the job begins with other tiles.
static bool commit_with_other_tiles(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct toy toy = toy_of(job);
    rank->config.stage = job->stage;
    rank->config.micro_batches = toy.micro_batches;
    put_state_into_files(&rank->config);
    rank->config.tile_bytes = 2 * 65536;
    if (!team_open(rank) || !toy_register(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_commit(rank->z), ZERO_E_STATE, "a step of the same job, cut into");
    return true;
}

static void other_tiles_are_refused(void **state)
{
    (void)state;
    struct job job = {.stage = 2, .steps = STEPS, .dies = true};
    run(2, &job);
    assert_true(team_run(team_threads(2), 2, commit_with_other_tiles, &job));
    job.dies = false;
    job.comes_back = true;
    job.steps = 0;
    job.expected = STEPS;
    job.recovered = 1;
    run(2, &job);
}

// A job that begins anew writes over what the one before has left: where it ends in the middle of
// that, neither of them has left anything.
static bool fail_in_the_first_step(struct team_rank *rank, void *user)
{
    const struct toy toy = toy_of(user);
    rank->config.stage = 1;
    put_state_into_files(&rank->config);
    if (!toy_open(rank, &toy) || !saved_fault(rank, "offload.write@3"))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            return false;
    TEAM_CHECK(toy_update(rank, &toy) == ZERO_E_IO);
    return true;
}

static void what_is_half_written_over_is_not_found(void **state)
{
    (void)state;
    struct job first = {.stage = 1, .steps = STEPS, .dies = true};
    run(1, &first);
    assert_true(team_run("self", 1, fail_in_the_first_step, &first));
    base_fault_set(NULL, NULL);
    assert_true(team_run("self", 1, find_nothing, &first));
    assert_int_equal(files_left(), 0);
}

// Changes a byte of every page of rank 0's tiles.
static void damage(void)
{
    DIR *entries = opendir(directory.directory);
    struct dirent *entry;
    char path[512] = "";
    while ((entry = readdir(entries)))
        if (strstr(entry->d_name, "-rank-0.slots"))
            snprintf(path, sizeof path, "%s/%s", directory.directory, entry->d_name);
    closedir(entries);
    const int fd = open(path, O_RDWR);
    const off_t end = lseek(fd, 0, SEEK_END);
    assert_true(fd >= 0 && end > TILES_AT);
    for (off_t at = TILES_AT; at < end; at += 4096)
        assert_int_equal(pwrite(fd, "?", 1, at + 1000), 1);
    close(fd);
}

// A checkpoint takes the place of a point that is damaged; without one the damage is named.
static void damage_is_found(void **state)
{
    (void)state;
    struct job whole = {.stage = 1, .steps = 2 * STEPS, .in_memory = true};
    struct job first = {.stage = 1, .steps = STEPS, .saves = true, .dies = true};
    struct job again = {.stage = 1, .steps = STEPS + 1, .comes_back = true, .expected = 2};
    again.damaged = 1;
    again.params = true; // some of which were made of the point, and are of the checkpoint then
    run(1, &whole);
    run(1, &first);
    damage();
    run_to(&whole, 1, &again);
}

static bool resume_damaged(struct team_rank *rank, void *user)
{
    (void)user;
    rank->config.stage = 1;
    put_state_into_files(&rank->config);
    const struct toy toy = toy_of(&(struct job){.stage = 1});
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_E_CORRUPT,
               "is not what was written there");
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_CORRUPT); // values have changed
    return true;
}

static void damage_without_a_checkpoint_is_named(void **state)
{
    (void)state;
    struct job first = {.stage = 1, .steps = STEPS, .dies = true};
    run(1, &first);
    damage();
    assert_true(team_run("self", 1, resume_damaged, NULL));
}

// Makes the sum of the first tensor of what was saved at step 2 another one.
static void change_a_sum(void)
{
    char path[512], *text;
    struct ckpt_manifest manifest;
    struct base_error error = {.result = ZERO_OK};
    static char old[1 << 16];
    size_t length;
    snprintf(path, sizeof path, "%s/saved/step-00000002/manifest.json", directory.directory);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    length = fread(old, 1, sizeof old, file);
    assert_int_equal(ckpt_manifest_parse(&manifest, old, length, path, &error), ZERO_OK);
    manifest.tensors[0].sum.low ^= 1;
    assert_int_equal(ckpt_manifest_format(&manifest, &text, &length, &error), ZERO_OK);
    rewind(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    base_free(text);
    ckpt_manifest_free(&manifest);
}

static bool load_another_sum(struct team_rank *rank, void *user)
{
    const struct toy toy = toy_of(&(struct job){.stage = 1});
    (void)user;
    rank->config.stage = 1;
    put_state_into_files(&rank->config);
    if (!toy_open(rank, &toy))
        return false;
    const char *path = temporary_path(&directory, "saved/step-00000002");
    TEAM_FAILS(rank, zero_load(rank->z, path, NULL, NULL), ZERO_E_CORRUPT, "is not what was saved");
    team_close(rank);
    if (!toy_open(rank, &toy))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery point");
    return true;
}

// What was loaded and is found to be something else is nothing to come back at.
static void a_wrong_state_is_no_point(void **state)
{
    (void)state;
    struct job saves = {.stage = 1, .steps = STEPS, .saves = true, .in_memory = true};
    run(1, &saves);
    change_a_sum();
    assert_true(team_run("self", 1, load_another_sum, NULL));
}

/** How a disk fails in a step, and what the error says. */
struct failing_disk {
    int stage;
    const char *fault, *says;
};

// All ranks are told, wherever in the step they meet it, and the step before is there.
static bool fail_in_a_step(struct team_rank *rank, void *user)
{
    const struct failing_disk *disk = user;
    const struct toy toy = toy_of(&(struct job){.stage = disk->stage});
    rank->config.stage = disk->stage;
    put_state_into_files(&rank->config);
    rank->config.host_bytes = disk->stage < 2 ? 2 << 20 : 0;
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS) || !saved_fault(rank, disk->fault))
        return false;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            r = zero_barrier(rank->z);
    if (!r)
        r = toy_update(rank, &toy);
    TEAM_CHECK(r == ZERO_E_IO || r == ZERO_E_PEER || r == ZERO_OK);
    // Whoever has not met it in the step does in the next call.
    TEAM_CHECK(zero_barrier(rank->z) == ZERO_E_IO);
    TEAM_CHECK(strstr(zero_last_error(rank->z), disk->says));
    return true;
}

// The same of the file of working copies: a read behind a micro-batch, and in a step the n-th
// write, of state or of what was made of it.
struct failure {
    int stage, write; // 0: a read
    bool failed;
};

static bool fail_with_params(struct team_rank *rank, void *user)
{
    struct failure *failure = user;
    const struct toy toy = toy_of(&(struct job){.stage = failure->stage});
    char fault[64] = "offload.read@2";
    rank->config.stage = failure->stage;
    put_state_into_files(&rank->config);
    rank->config.offload_params = "nvme";
    rank->config.offload_grads = "host";
    if (failure->write)
        snprintf(fault, sizeof fault, "offload.write@%d", failure->write);
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, STEPS) || !saved_fault(rank, fault))
        return false;
    zero_result r = ZERO_OK;
    if (!failure->write)
        for (zero_unit unit = 0; !r && unit < toy.unit_count; unit++)
            r = zero_gather(rank->z, unit, NULL) ? ZERO_E_IO : zero_release(rank->z, unit, NULL);
    for (int i = 0; failure->write && i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy, i, NULL, NULL))
            return false;
    r = failure->write ? toy_update(rank, &toy) : r;
    const zero_result told = zero_barrier(rank->z);
    if (!failure->write || told)
        TEAM_CHECK(told == ZERO_E_IO && strstr(zero_last_error(rank->z), ": tile "));
    if (rank->rank == 0)
        failure->failed = told != ZERO_OK;
    return told != ZERO_OK || die(rank);
}

static void a_failing_file_of_parameters_does_too(void **state)
{
    (void)state;
    struct job whole = {.stage = 2, .steps = 2 * STEPS, .in_memory = true};
    run(2, &whole);
    struct failure failure = {.stage = 2, .failed = true};
    for (; failure.failed; failure.write += 1 + failure.write / 3) {
        struct job again = {.stage = failure.stage, .comes_back = true, .params = true};
        assert_true(team_run("threads", 2, fail_with_params, &failure));
        base_fault_set(NULL, NULL);
        again.expected = STEPS + !failure.failed;
        again.steps = 2 * STEPS - (int)again.expected;
        again.recovered = 1;
        run_to(&whole, 2, &again);
    }
    assert_true(failure.write > 3);
}

static void a_failing_disk_leaves_the_step_before(void **state)
{
    (void)state;
    // The state's tiles; sums of the first micro-batch, and in the next ones; and for the update.
    static const struct failing_disk disks[] = {
        {.stage = 1, .fault = "offload.write@1", .says = "-rank-"},
        {.stage = 2, .fault = "offload.write@1", .says = "gradient sums of unit"},
        {.stage = 3, .fault = "offload.read@1", .says = "gradient sums of unit"},
        {.stage = 2, .fault = "offload.read@16", .says = ": tile "},
    };
    for (size_t i = 0; i < sizeof disks / sizeof *disks; i++) {
        struct failing_disk disk = disks[i];
        struct job whole = {.stage = disk.stage, .steps = 2 * STEPS, .in_memory = true};
        struct job again = {.stage = disk.stage, .steps = STEPS, .comes_back = true};
        again.expected = STEPS;
        again.recovered = 1;
        run(2, &whole);
        assert_true(team_run("threads", 2, fail_in_a_step, &disk));
        base_fault_set(NULL, NULL);
        run_to(&whole, 2, &again);
    }
}

static bool stop_and_go(struct team_rank *rank, void *user)
{
    const struct toy toy = toy_of(&(struct job){.stage = 2});
    const bool again = *(const bool *)user;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    rank->config.stage = 2;
    put_state_into_files(&rank->config);
    if (!toy_open(rank, &toy))
        return false;
    if (again) {
        TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
        TEAM_CHECK(loaded.recovered == 1 && loaded.step == 1);
        return toy_train(rank, &toy, 1) && die(rank);
    }
    if (rank->rank == 1)
        zero_request_stop(rank->z);
    if (!toy_train(rank, &toy, 1))
        return false;
    TEAM_CHECK(zero_stop_requested(rank->z));
    return true;
}

// A job that leaves because it was asked to goes on where it was, without a checkpoint.
static void a_stop_is_no_end(void **state)
{
    (void)state;
    bool again = false;
    assert_true(team_run("threads", 2, stop_and_go, &again));
    assert_int_equal(files_left(), 2);
    again = true;
    assert_true(team_run("threads", 2, stop_and_go, &again));
    struct job whole = {.stage = 2, .steps = 3, .in_memory = true};
    struct job last = {.stage = 2, .steps = 1, .comes_back = true, .expected = 2, .recovered = 1};
    run(2, &whole);
    run_to(&whole, 2, &last);
    assert_int_equal(files_left(), 0);
}

/** What is wrong with a configuration, and what the error says. */
struct wrong {
    int world;
    const char *directory;
    int64_t host_bytes;
    const char *fault;
    zero_result result;
    const char *says;
};

static bool commit_wrong(struct team_rank *rank, void *user)
{
    const struct wrong *wrong = user;
    rank->config.stage = 1;
    put_state_into_files(&rank->config);
    if (wrong->directory)
        rank->config.nvme_dir = wrong->directory;
    rank->config.host_bytes = wrong->host_bytes;
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    TEAM_FAILS(rank, zero_commit(rank->z), wrong->result, wrong->says);
    return true;
}

static void what_cannot_be_had_is_an_error(void **state)
{
    (void)state;
    static const struct wrong wrongs[] = {
        {.world = 2,
         .directory = "/nonexistent/x",
         .result = ZERO_E_IO,
         .says = "/nonexistent/x/zero-"},
        {.world = 1,
         .host_bytes = 100000,
         .result = ZERO_E_INVALID,
         .says = "2 tiles, with compress=off, take 2097152 bytes"},
        {.world = 2,
         .fault = "slots.allocate:enospc@1",
         .result = ZERO_E_LIMIT,
         .says = "bytes are needed"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct wrong wrong = wrongs[i];
        base_fault_set(wrong.fault, NULL);
        assert_true(team_run(team_threads(wrong.world), wrong.world, commit_wrong, &wrong));
        base_fault_set(NULL, NULL);
        assert_int_equal(files_left(), 0);
    }
}

// Two jobs of one kind in one directory: the second is refused, and the first knows nothing of it.
static bool hold_and_train(struct team_rank *rank, void *user)
{
    (void)user;
    rank->config.stage = 1;
    put_state_into_files(&rank->config);
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 1))
        return false;
    struct team_rank second = {.rank = 0, .world = 1, .config = rank->config};
    if (!team_open(&second) || !toy_register(&second, &toy_odd))
        return false;
    TEAM_FAILS(&second, zero_commit(second.z), ZERO_E_STATE, "another process keeps its state");
    team_close(&second);
    return toy_train(rank, &toy_odd, 1);
}

static void a_second_job_is_refused(void **state)
{
    (void)state;
    assert_true(team_run("self", 1, hold_and_train, NULL));
    assert_int_equal(files_left(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_comes_back_at_its_last_step),
        TEST(a_new_job_begins_anew),
        TEST(the_newer_of_point_and_checkpoint_is_taken),
        TEST(the_seed_of_a_checkpoint_comes_back),
        TEST(a_job_that_aborts_leaves_its_last_step),
        TEST(what_was_attached_comes_back),
        TEST(what_is_attached_later_has_its_room),
        TEST(another_layout_is_another_job),
        TEST(other_tiles_are_refused),
        TEST(what_is_half_written_over_is_not_found),
        TEST(damage_is_found),
        TEST(a_wrong_state_is_no_point),
        TEST(damage_without_a_checkpoint_is_named),
        TEST(a_failing_disk_leaves_the_step_before),
        TEST(a_failing_file_of_parameters_does_too),
        TEST(a_stop_is_no_end),
        TEST(what_cannot_be_had_is_an_error),
        TEST(a_second_job_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
