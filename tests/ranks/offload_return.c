// State in files that a job finds damaged, in part, or beside another's: what is left of a recovery
// point is never written over unsaid, and a job whose disk fails while it comes back can do so
// again.
#include "base/fault.h"
#include "tests/ranks/saved.h"
#include "tests/sweep.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, RANKS = 2 };

static struct temporary directory; // of state, and in it "saved" of checkpoints, and "away"

struct job {
    int stage;
    int steps;
    bool in_memory;
    bool saves;          // before its last step
    bool skips;          // its only step
    bool attaches;       // a blob, after its commit
    bool dies;           // ends without a clean end
    const char *loads;   // a checkpoint, whatever else is there
    bool resumes;        // goes on from what is there,
    uint64_t expected;   // which is this step,
    bool recovered;      // a recovery point's
    zero_result fails;   // or zero_resume() fails so,
    zero_result refused; // or zero_commit() does,
    const char *says;    // and says so
    const char *warns;   // what is told, if anything
    _Atomic int warned;  // how often,
    _Atomic int told;    // and how many warnings of this kind there were at all
    uint8_t digest[16];  // at the end
};

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) && temporary_folder(&directory, "saved") &&
                   temporary_folder(&directory, "away")
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_fault_set(NULL, NULL);
    temporary_remove(&directory);
    return 0;
}

static int files_left(void)
{
    return temporary_entries(&directory) - 2;
}

static void take_warning(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    struct job *job = user;
    if (level != ZERO_LOG_WARN || strcmp(component, "io") != 0)
        return;
    job->told++;
    job->warned += job->warns && strstr(message, job->warns);
}

static void configure(zero_config *config, struct job *job)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    config->name = "return"; // another one would be another job
    config->stage = job->stage;
    config->micro_batches = toy_odd.micro_batches;
    config->log_level = ZERO_LOG_WARN;
    config->log = take_warning;
    config->log_user = job;
    if (job->in_memory)
        return;
    config->offload_optimizer = "nvme";
    config->nvme_dir = directory.directory;
    config->io = engines[job->stage % 3];
    config->tile_bytes = 65536;
    config->compress = "off";
}

static bool come_back(struct team_rank *rank, const struct job *job)
{
    const char *saved = temporary_path(&directory, "saved");
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (job->fails) {
        TEAM_FAILS(rank, zero_resume(rank->z, saved, NULL, NULL), job->fails, job->says);
        TEAM_OK(rank, zero_barrier(rank->z)); // nothing has changed
        return true;
    }
    TEAM_OK(rank, zero_resume(rank->z, saved, NULL, &loaded));
    TEAM_CHECK(loaded.step == job->expected && loaded.recovered == job->recovered);
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    struct job *job = user;
    uint8_t digest[16];
    uint64_t blob = 5;
    configure(&rank->config, job);
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    if (job->refused) {
        TEAM_FAILS(rank, zero_commit(rank->z), job->refused, job->says);
        return true;
    }
    TEAM_OK(rank, zero_commit(rank->z));
    if (job->attaches)
        TEAM_OK(rank, zero_attach(rank->z, "blob", &blob, sizeof blob, ZERO_GLOBAL));
    if (job->loads)
        TEAM_OK(rank, zero_load(rank->z, temporary_path(&directory, job->loads), NULL, NULL));
    if (job->resumes && !come_back(rank, job))
        return false;
    if (job->fails)
        return true;
    for (int i = 0; job->skips && i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy_odd, i, NULL, NULL))
            return false;
    if (job->skips)
        TEAM_OK(rank, zero_skip_step(rank->z));
    for (int step = 0; step < job->steps; step++) {
        if (job->saves && step == job->steps - 1 &&
            !saved_now(rank, temporary_path(&directory, "saved"), NULL))
            return false;
        if (!toy_train(rank, &toy_odd, 1))
            return false;
    }
    if (job->steps > 0 && !job->resumes && !job->in_memory)
        TEAM_FAILS(rank, zero_resume(rank->z, NULL, NULL, NULL), ZERO_NOT_FOUND, "no recovery");
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(job->digest, digest, sizeof digest);
    return !job->dies || team_break_off(rank);
}

static void run(int world, struct job *job)
{
    if (job->saves && !job->resumes) // a run of its own
        assert_true(temporary_empty(temporary_path(&directory, "saved")));
    assert_true(team_run(team_threads(world), world, work, job));
    assert_int_equal(job->warned, job->warns ? 1 : 0);
    if (!job->warns)
        assert_int_equal(job->told, 0);
}

// A job of so many steps that nothing happens to.
static struct job whole_of(int world, int stage, int steps)
{
    struct job whole = {.stage = stage, .steps = steps, .in_memory = true};
    run(world, &whole);
    return whole;
}

static void left_behind(int world, int stage)
{
    struct job first = {.stage = stage, .steps = STEPS, .dies = true};
    run(world, &first);
    assert_int_equal(files_left(), world);
}

// All steps that are left of twice STEPS, and the bits of a job that nothing happened to.
static void goes_on(int world, int stage, uint64_t expected, bool recovered, const char *warns)
{
    const struct job whole = whole_of(world, stage, 2 * STEPS);
    struct job again = {.stage = stage, .resumes = true, .warns = warns};
    again.expected = expected;
    again.recovered = recovered;
    again.steps = 2 * STEPS - (int)expected;
    run(world, &again);
    assert_memory_equal(again.digest, whole.digest, sizeof whole.digest);
    assert_int_equal(files_left(), 0);
}

/* ------------------------------------------------------------------ files */

// Of a rank; false: it has none.
static bool find_file(const char *folder, int rank, char name[NAME_MAX + 1])
{
    char end[32];
    bool found = false;
    snprintf(end, sizeof end, "-rank-%d.slots", rank);
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && !found && (entry = readdir(entries));) {
        found = strstr(entry->d_name, end) != NULL;
        if (found)
            snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    if (entries)
        closedir(entries);
    return found;
}

static const char *path_of(int rank)
{
    char name[NAME_MAX + 1];
    assert_true(find_file(directory.directory, rank, name));
    return temporary_path(&directory, name);
}

static void move_file(int rank, bool away)
{
    char name[NAME_MAX + 1], path[512], place[512];
    const char *folder = temporary_path(&directory, "away");
    assert_true(find_file(away ? directory.directory : folder, rank, name));
    snprintf(path, sizeof path, "%s/%s", directory.directory, name);
    snprintf(place, sizeof place, "%s/%s", folder, name);
    assert_int_equal(away ? rename(path, place) : rename(place, path), 0);
}

// Copies all there is of one file to another.
static void copy_file(const char *from, const char *to)
{
    static char bytes[1 << 20];
    const int in = open(from, O_RDONLY), out = open(to, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ssize_t n;
    assert_true(in >= 0 && out >= 0);
    while ((n = read(in, bytes, sizeof bytes)) > 0)
        assert_int_equal(write(out, bytes, (size_t)n), n);
    close(in);
    close(out);
}

// Offsets of its records, the newer one first, by their counters: as many as there are.
static int records_of(const char *path, off_t offsets[2])
{
    unsigned char page[48];
    uint64_t sequence, newest = 0;
    int count = 0;
    const int fd = open(path, O_RDONLY);
    for (off_t at = 0; count < 2 && pread(fd, page, sizeof page, at) == sizeof page; at += 4096) {
        if (memcmp(page, "zeroslot", 8) != 0)
            continue;
        memcpy(&sequence, page + 40, sizeof sequence);
        offsets[count] = at;
        if (count == 1 && sequence > newest) {
            offsets[1] = offsets[0];
            offsets[0] = at;
        }
        newest = sequence;
        count++;
    }
    close(fd);
    return count;
}

static void change_byte(const char *path, off_t at)
{
    char byte;
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* ------------------------------------------------------------------ what is left */

// Wherever it was cut, of one rank or of two: nothing is touched, so nothing is lost by it.
static void a_file_that_was_cut_is_refused(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS; world++) {
        left_behind(world, 1);
        const char *whole = temporary_path(&directory, "away/whole");
        char path[512];
        struct stat status;
        snprintf(path, sizeof path, "%s", path_of(world - 1));
        assert_int_equal(stat(path, &status), 0);
        copy_file(path, whole);
        const off_t cuts[] = {status.st_size - 1, status.st_size / 2, 8192, status.st_size + 1};
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            char says[64];
            struct job job = {.stage = 1, .refused = ZERO_E_CORRUPT, .says = says};
            copy_file(whole, path);
            assert_int_equal(truncate(path, cuts[i]), 0);
            snprintf(says, sizeof says, "to %jd of %jd bytes", (intmax_t)cuts[i],
                     (intmax_t)status.st_size);
            run(world, &job);
            assert_int_equal(files_left(), world);
            assert_int_equal(stat(path, &status), 0);
            assert_int_equal(status.st_size, cuts[i]);
            status.st_size = cuts[0] + 1;
        }
        copy_file(whole, path);
        goes_on(world, 1, STEPS, true, NULL);
    }
}

// A rank has nothing of it: how often ever the job is started, the others keep what they have, and
// when the file is back so is the job.
static void a_file_that_is_missing_is_told(void **state)
{
    (void)state;
    for (int missing = 0; missing < RANKS; missing++) {
        const char *const warnings[] = {"(rank 0: none, rank 1: step 3)",
                                        "(rank 0: step 3, rank 1: none)"};
        left_behind(RANKS, 2);
        move_file(missing, true);
        for (int start = 0; start < 3; start++) {
            struct job job = {.stage = 2, .resumes = true, .warns = warnings[missing]};
            job.fails = ZERO_E_CORRUPT;
            job.says = warnings[missing];
            run(RANKS, &job);
        }
        move_file(missing, false);
        goes_on(RANKS, 2, STEPS, true, NULL);
    }
}

// Of several ranks some have another step than the others, from a copy of long ago.
static void steps_that_differ_are_told(void **state)
{
    (void)state;
    const char *old = temporary_path(&directory, "away/old");
    struct job first = {.stage = 3, .steps = STEPS, .dies = true};
    struct job later = {.stage = 3, .resumes = true, .expected = STEPS, .recovered = true};
    struct job job = {.stage = 3, .resumes = true, .fails = ZERO_E_CORRUPT};
    later.steps = 3;
    later.dies = true;
    run(3, &first);
    copy_file(path_of(2), old);
    run(3, &later);
    copy_file(old, path_of(2));
    job.warns = "(ranks 0 to 1: step 6, rank 2: step 3)";
    job.says = "ranks 0 to 1: step 6, rank 2: step 3): put back what is missing";
    run(3, &job);
    job.warned = job.told = 0;
    run(3, &job);
    // What is removed by hand is not asked for.
    struct job anew = {
        .stage = 3, .resumes = true, .fails = ZERO_NOT_FOUND, .says = "no checkpoint"};
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(unlink(path_of(rank)), 0);
    run(3, &anew);
    assert_int_equal(files_left(), 0);
}

// A host that is lost for good: there is a checkpoint, and no user has to look after the job.
static void a_checkpoint_takes_the_place_of_a_broken_point(void **state)
{
    (void)state;
    struct job first = {.stage = 2, .steps = STEPS, .saves = true, .dies = true};
    run(RANKS, &first);
    assert_int_equal(unlink(path_of(1)), 0);
    goes_on(RANKS, 2, STEPS - 1, false, "(rank 0: step 3, rank 1: none)");
}

// A program that asks for nothing begins anew, and it is told what that costs; what it leaves is a
// point like any other.
static void a_step_over_a_point_is_told(void **state)
{
    (void)state;
    const struct job whole = whole_of(RANKS, 2, 1);
    for (int broken = 0; broken < 2; broken++) {
        struct job job = {.stage = 2, .steps = 1, .dies = true};
        left_behind(RANKS, 2);
        if (broken)
            assert_int_equal(unlink(path_of(0)), 0);
        job.warns = broken ? "not all ranks have" : "step 3 of the job before, which";
        run(RANKS, &job);
        assert_memory_equal(job.digest, whole.digest, sizeof whole.digest);
        goes_on(RANKS, 2, 1, true, NULL);
    }
    struct job skips = {.stage = 2, .skips = true, .warns = "step 3 of the job before, which"};
    left_behind(RANKS, 2);
    run(RANKS, &skips);
    assert_int_equal(files_left(), 0);
    struct job saves = {.stage = 2, .steps = STEPS, .saves = true, .dies = true};
    struct job loads = {.stage = 2, .loads = "saved/step-00000002", .warns = skips.warns};
    run(RANKS, &saves);
    run(RANKS, &loads);
    assert_int_equal(files_left(), 0);
    // Nothing is said where a checkpoint is newer than the point.
    struct job newer = {.stage = 2, .steps = STEPS + 2, .in_memory = true, .saves = true};
    left_behind(RANKS, 2);
    run(RANKS, &newer);
    goes_on(RANKS, 2, STEPS + 1, false, NULL);
}

// A program that can't come back, says so and ends, or only looks, has not used what was there.
static void who_ends_without_a_step_leaves_the_point(void **state)
{
    (void)state;
    struct job job = {.stage = 2, .resumes = true, .attaches = true};
    struct job looks = {.stage = 2};
    job.fails = ZERO_E_INVALID;
    job.says = "attached";
    left_behind(RANKS, 2);
    run(RANKS, &job);
    assert_int_equal(files_left(), RANKS);
    run(RANKS, &looks);
    assert_int_equal(files_left(), RANKS);
    goes_on(RANKS, 2, STEPS, true, NULL);
}

/* ------------------------------------------------------------------ what was never a step */

// One rank has recorded the first step, and the other died before: nothing is lost with it.
static bool fail_in_the_first_record(struct team_rank *rank, void *user)
{
    const int victim = *(const int *)user % RANKS;
    struct job job = {.stage = 2};
    configure(&rank->config, &job);
    if (!toy_open(rank, &toy_odd))
        return false;
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy_odd, i, NULL, NULL))
            return false;
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == victim)
        TEAM_CHECK(base_fault_set("io.write@1", NULL) == ZERO_OK);
    const zero_result r = toy_update(rank, &toy_odd);
    TEAM_CHECK(rank->rank != victim || r == ZERO_E_IO);
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

// The next one dies in a write, when the rank without that record is ready and the other is not.
static bool fail_to_forget_it(struct team_rank *rank, void *user)
{
    const int number = *(const int *)user, victim = number % RANKS;
    struct job job = {.stage = 2};
    configure(&rank->config, &job);
    rank->config.log_level = ZERO_OFF;
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    if (rank->rank != victim)
        TEAM_CHECK(base_fault_set(number / RANKS ? "io.write@2" : "io.write@1", NULL) == ZERO_OK);
    const zero_result r = zero_commit(rank->z);
    if (!r && number >= RANKS) // the other one, too, had died before
        return team_break_off(rank);
    TEAM_FAILS(rank, r, ZERO_E_IO, "writing ");
    return true;
}

static void who_died_in_the_first_step_begins_anew(void **state)
{
    (void)state;
    for (int number = 0; number < 2 * RANKS; number++) {
        struct job job = {.stage = 2, .resumes = true, .fails = ZERO_NOT_FOUND};
        job.says = "no checkpoint";
        assert_true(team_run("shm", RANKS, fail_in_the_first_record, &number));
        assert_true(team_run("shm", RANKS, fail_to_forget_it, &number));
        assert_int_equal(files_left(), RANKS);
        run(RANKS, &job);
        assert_int_equal(files_left(), 0);
    }
}

/* ------------------------------------------------------------------ damaged records */

// It may have been torn: the step before counts on all ranks, and it is told where.
static void a_damaged_record_is_told(void **state)
{
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        off_t offsets[2];
        char path[512], warns[640];
        left_behind(RANKS, 1);
        snprintf(path, sizeof path, "%s", path_of(rank));
        assert_int_equal(records_of(path, offsets), 2);
        change_byte(path, offsets[0] + 100);
        snprintf(warns, sizeof warns, "%s: what is at offset %jd is no whole record", path,
                 (intmax_t)offsets[0]);
        goes_on(RANKS, 1, STEPS - 1, true, warns);
    }
}

// No death tears both.
static void damaged_records_alone_are_refused(void **state)
{
    (void)state;
    off_t offsets[2];
    char path[512];
    struct job job = {.stage = 1, .refused = ZERO_E_CORRUPT, .says = "there is no other"};
    left_behind(RANKS, 1);
    snprintf(path, sizeof path, "%s", path_of(1));
    assert_int_equal(records_of(path, offsets), 2);
    for (int i = 0; i < 2; i++)
        change_byte(path, offsets[i] + 100);
    run(RANKS, &job);
    for (int i = 0; i < 2; i++)
        change_byte(path, offsets[i] + 100);
    goes_on(RANKS, 1, STEPS, true, NULL);
}

/* ------------------------------------------------------------------ a disk that fails */

/** A point of base/fault.h that fails, by number, and whether something came of it. */
struct failing {
    const char *point;
    int stage, number;
    bool lasts; // and goes on failing
    bool failed;
    uint8_t digest[16];
};

static void fault_of(const struct failing *failing, char fault[64])
{
    snprintf(fault, 64, "%s@%d%s", failing->point, failing->number, failing->lasts ? "+" : "");
}

static bool fail_while_coming_back(struct team_rank *rank, void *user)
{
    const struct failing *failing = user;
    struct job job = {.stage = failing->stage};
    zero_load_result loaded = {.struct_size = sizeof loaded};
    configure(&rank->config, &job);
    rank->config.log_level = ZERO_OFF;
    rank->config.offload_params = "nvme";
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    zero_result r = zero_commit(rank->z);
    if (!r)
        r = zero_resume(rank->z, NULL, NULL, &loaded);
    if (!r)
        TEAM_CHECK(loaded.step == STEPS && loaded.recovered);
    else
        TEAM_CHECK(zero_last_error(rank->z)[0]);
    return r || team_break_off(rank);
}

// Wherever on the way, from zero_commit() to the end of zero_resume(), on whichever rank.
static void who_fails_to_come_back_can_do_so_again(void **state)
{
    (void)state;
    static const char *const points[] = {"offload.read", "offload.write", "io.read", "io.write"};
    const struct job whole = whole_of(RANKS, 1, STEPS);
    int cases = 0;
    left_behind(RANKS, 1);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        struct failing failing = {.point = points[i], .stage = 1};
        for (bool fired = true; fired;) {
            char fault[64];
            struct job again = {.stage = 1, .resumes = true, .expected = STEPS, .dies = true};
            again.recovered = true;
            failing.number++;
            if (!test_takes(cases++))
                continue;
            fault_of(&failing, fault);
            base_fault_set(fault, NULL);
            const bool good = team_run("threads", RANKS, fail_while_coming_back, &failing);
            fired = base_fault_fired() > 0;
            base_fault_set(NULL, NULL);
            if (!good)
                fail_msg("%s", fault);
            run(RANKS, &again);
            assert_memory_equal(again.digest, whole.digest, sizeof whole.digest);
        }
        assert_true(failing.number > 3);
    }
}

// And with a checkpoint: the newer step is not given up for what fails once, and is for what goes
// on failing; the end is the same.
static bool fail_and_go_on(struct team_rank *rank, void *user)
{
    struct failing *failing = user;
    struct job job = {.stage = failing->stage};
    zero_load_result loaded = {.struct_size = sizeof loaded};
    uint8_t digest[16];
    char fault[64];
    configure(&rank->config, &job);
    rank->config.log_level = ZERO_OFF;
    fault_of(failing, fault);
    if (!toy_open(rank, &toy_odd) || !saved_fault(rank, fault))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, temporary_path(&directory, "saved"), NULL, &loaded));
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        failing->failed = base_fault_fired() > 0;
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(loaded.damaged == (failing->lasts && failing->failed));
    TEAM_CHECK(loaded.step == STEPS - (uint64_t)loaded.damaged);
    TEAM_CHECK(loaded.recovered == !loaded.damaged);
    if (!saved_fault(rank, NULL) || !toy_train(rank, &toy_odd, 2 * STEPS - (int)loaded.step))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(failing->digest, digest, sizeof digest);
    return true;
}

static void fails_and_goes_on(struct failing *failing, const struct job *whole)
{
    struct job first = {.stage = failing->stage, .steps = STEPS, .saves = true, .dies = true};
    run(RANKS, &first);
    assert_true(team_run("threads", RANKS, fail_and_go_on, failing));
    base_fault_set(NULL, NULL);
    assert_memory_equal(failing->digest, whole->digest, sizeof whole->digest);
    assert_int_equal(files_left(), 0);
}

static void a_step_is_not_given_up_for_one_failure(void **state)
{
    (void)state;
    static const char *const points[] = {"offload.read", "io.read", "io.write"};
    const struct job whole = whole_of(RANKS, 1, 2 * STEPS);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        struct failing failing = {.point = points[i], .stage = 1, .failed = true};
        while (failing.failed)
            if (test_takes(++failing.number))
                fails_and_goes_on(&failing, &whole);
        assert_true(failing.number > 2);
    }
}

static void who_goes_on_failing_takes_a_checkpoint(void **state)
{
    (void)state;
    const struct job whole = whole_of(RANKS, 1, 2 * STEPS);
    for (int number = 1; number <= 4; number += 3) {
        struct failing failing = {
            .point = "offload.read", .stage = 1, .number = number, .lasts = true};
        fails_and_goes_on(&failing, &whole);
        assert_true(failing.failed);
    }
}

// Without one, or where only the point was asked for, that stays for the next start.
static bool fail_for_long(struct team_rank *rank, void *user)
{
    const struct failing *failing = user;
    struct job job = {.stage = failing->stage};
    const char *saved = failing->number % 2 ? temporary_path(&directory, "saved") : NULL;
    char fault[64];
    configure(&rank->config, &job);
    rank->config.log_level = ZERO_OFF;
    fault_of(failing, fault);
    if (!toy_open(rank, &toy_odd) || !saved_fault(rank, fault))
        return false;
    TEAM_FAILS(rank, zero_resume(rank->z, saved, NULL, NULL), ZERO_E_CORRUPT, "-rank-");
    return true;
}

static void who_goes_on_failing_can_come_back_later(void **state)
{
    (void)state;
    left_behind(RANKS, 1);
    for (int number = 1; number <= 2; number++) {
        struct failing failing = {
            .point = "offload.read", .stage = 1, .number = number, .lasts = true};
        assert_true(team_run("threads", RANKS, fail_for_long, &failing));
        base_fault_set(NULL, NULL);
        assert_int_equal(files_left(), RANKS);
    }
    goes_on(RANKS, 1, STEPS, true, NULL);
}

static bool fail_a_save(struct team_rank *rank, void *user)
{
    struct failing *failing = user;
    struct job job = {.stage = failing->stage};
    const char *saved = temporary_path(&directory, "saved");
    char fault[64];
    uint8_t digest[16];
    configure(&rank->config, &job);
    rank->config.log_level = ZERO_OFF;
    fault_of(failing, fault);
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, 2) || !saved_fault(rank, fault))
        return false;
    zero_result r = zero_save(rank->z, saved, NULL);
    if (!r) // before a step reads, too
        r = zero_save_wait(rank->z);
    TEAM_CHECK(!r || (r == ZERO_E_IO && strstr(zero_last_error(rank->z), "-rank-")));
    if (rank->rank == 0)
        failing->failed = r != ZERO_OK;
    if (!saved_fault(rank, NULL) || !toy_train(rank, &toy_odd, STEPS) ||
        !saved_now(rank, saved, NULL) || !toy_train(rank, &toy_odd, 2 * STEPS - 2 - STEPS))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, digest));
    if (rank->rank == 0)
        memcpy(failing->digest, digest, sizeof digest);
    return true;
}

// Tiles that a save can't read fail it, and nothing else: the next one reads them.
static void a_save_that_cannot_read_fails_alone(void **state)
{
    (void)state;
    const struct job whole = whole_of(RANKS, 2, 2 * STEPS);
    struct failing failing = {.point = "offload.read", .stage = 2, .number = 1, .failed = true};
    for (; failing.failed; failing.number++) {
        assert_true(temporary_empty(temporary_path(&directory, "saved")));
        assert_true(team_run("threads", RANKS, fail_a_save, &failing));
        base_fault_set(NULL, NULL);
        assert_memory_equal(failing.digest, whole.digest, sizeof whole.digest);
        assert_int_equal(files_left(), 0);
    }
    assert_true(failing.number > 3);
}

/* ------------------------------------------------------------------ no io_uring */

struct refusal {
    const char *point;
    zero_result result;
    const char *says;
    bool refused;
};

static bool commit_refused(struct team_rank *rank, void *user)
{
    struct refusal *refusal = user;
    struct job job = {.stage = 3};
    configure(&rank->config, &job);
    rank->config.io = "uring";
    rank->config.offload_params = "nvme";
    rank->config.offload_grads = "nvme";
    if (!team_open(rank) || !toy_register(rank, &toy_odd))
        return false;
    const zero_result r = zero_commit(rank->z);
    if (rank->rank == 0)
        refusal->refused = r != ZERO_OK;
    if (!r)
        return team_break_off(rank);
    TEAM_FAILS(rank, r, refusal->result, refusal->says);
    TEAM_CHECK(!strchr(zero_last_error(rank->z), '\n'));
    return true;
}

// One rank of several has none, for any of its files: all are told, and what there was stays.
static void a_rank_without_io_uring_is_told(void **state)
{
    (void)state;
    static const struct refusal refusals[] = {
        {.point = "offload.uring:eperm", .result = ZERO_E_UNSUPPORTED, .says = "seccomp"},
        {.point = "offload.register:enomem", .result = ZERO_E_LIMIT, .says = "ulimit -l"},
    };
    for (int left = 0; left < 2; left++) {
        if (left)
            left_behind(RANKS, 3);
        for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
            struct refusal refusal = refusals[i];
            char fault[64];
            refusal.refused = true;
            for (int n = 1; refusal.refused; n++) {
                if (!test_takes(n + left))
                    continue;
                snprintf(fault, sizeof fault, "%s@%d", refusal.point, n);
                base_fault_set(fault, NULL);
                assert_true(team_run("threads", RANKS, commit_refused, &refusal));
                base_fault_set(NULL, NULL);
                assert_int_equal(files_left(), left || !refusal.refused ? RANKS : 0);
                assert_true(refusal.refused || n > RANKS);
            }
            for (int rank = 0; !left && rank < RANKS; rank++)
                assert_int_equal(unlink(path_of(rank)), 0);
        }
    }
    goes_on(RANKS, 3, STEPS, true, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_that_was_cut_is_refused),
        TEST(a_file_that_is_missing_is_told),
        TEST(steps_that_differ_are_told),
        TEST(a_checkpoint_takes_the_place_of_a_broken_point),
        TEST(a_step_over_a_point_is_told),
        TEST(who_ends_without_a_step_leaves_the_point),
        TEST(who_died_in_the_first_step_begins_anew),
        TEST(a_damaged_record_is_told),
        TEST(damaged_records_alone_are_refused),
        TEST(who_fails_to_come_back_can_do_so_again),
        TEST(a_step_is_not_given_up_for_one_failure),
        TEST(who_goes_on_failing_takes_a_checkpoint),
        TEST(who_goes_on_failing_can_come_back_later),
        TEST(a_save_that_cannot_read_fails_alone),
        TEST(a_rank_without_io_uring_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
