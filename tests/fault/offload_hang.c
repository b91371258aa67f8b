// A disk that hangs while a job's state is in files: in a tile or a strip, in a record, in what a
// save reads. Within timeout_s that is an error which says where, zero_close() ends, and when the
// disk comes back to it, a job goes on from the last finished step with the same bits.
#include "base/fault.h"
#include "tests/ranks/saved.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, TIMEOUT_S = 2 };

#define TIMEOUT_TEXT "for 2 s"

/** What hangs. */
enum what { TILES, GATHERS, RECORDS, SAVES, KINDS };

static const struct {
    const char *fault, *words, *io;
} hangs[KINDS] = {
    [TILES] = {"offload.read:hang@1", ": reads and writes have not come back " TIMEOUT_TEXT,
               "threads"},
    [GATHERS] = {"offload.read:hang@1", ": reads and writes have not come back " TIMEOUT_TEXT,
                 "uring"},
    [RECORDS] = {"io.write:hang@1", ".slots: writing 4096 bytes at offset ", "sync"},
    [SAVES] = {"offload.read:hang@1", ".slots: reads and writes have not come back " TIMEOUT_TEXT,
               "uring"},
};

/** In memory where there is such a directory: what does not hang is to be in time. */
static struct temporary temporary;

struct job {
    enum what what;
    uint8_t digest[STEPS + 1][16]; // after each step, of a job that nothing befalls
    int warnings;                  // of zero_close()
};

static bool in_memory(struct team_rank *rank, void *user)
{
    struct job *job = user;
    rank->config.micro_batches = toy_odd.micro_batches;
    if (!toy_open(rank, &toy_odd))
        return false;
    for (int step = 1; step <= STEPS; step++) {
        if (!toy_train(rank, &toy_odd, 1))
            return false;
        TEAM_OK(rank, zero_fingerprint(rank->z, job->digest[step]));
    }
    return true;
}

static void hear(void *user, zero_log_level level, const char *component, const char *message)
{
    struct job *job = user;
    (void)component;
    if (level == ZERO_LOG_WARN && strstr(message, "zero_close: ") && strstr(message, TIMEOUT_TEXT))
        job->warnings += strstr(message, ".slots stays as it is") != NULL;
}

static void configure(struct team_rank *rank, struct job *job)
{
    rank->config.stage = 3;
    rank->config.name = "hang";
    rank->config.micro_batches = toy_odd.micro_batches;
    rank->config.offload_optimizer = rank->config.offload_params = rank->config.offload_grads =
        "nvme";
    rank->config.nvme_dir = temporary.directory;
    rank->config.io = hangs[job->what].io;
    rank->config.tile_bytes = 65536;
    rank->config.log = hear;
    rank->config.log_user = job;
    rank->config.log_level = ZERO_LOG_WARN;
}

static bool micros(struct team_rank *rank)
{
    for (int i = 0; i < zero_micro_count(rank->z); i++)
        if (!toy_micro(rank, &toy_odd, i, NULL, NULL))
            return false;
    return true;
}

static bool step_hangs(struct team_rank *rank, const char *fault, const char *words)
{
    if (!micros(rank))
        return false;
    TEAM_CHECK(base_fault_set(fault, NULL) == ZERO_OK);
    TEAM_FAILS(rank, toy_update(rank, &toy_odd), ZERO_E_TIMEOUT, words);
    TEAM_CHECK(strstr(zero_last_error(rank->z), TIMEOUT_TEXT));
    return true;
}

static bool gather_hangs(struct team_rank *rank, const char *fault, const char *words)
{
    zero_micro micro = {.struct_size = sizeof micro};
    TEAM_CHECK(base_fault_set(fault, NULL) == ZERO_OK);
    zero_result r = zero_micro_begin(rank->z, 0, &micro);
    for (zero_unit unit = 0; !r && unit < toy_odd.unit_count; unit++)
        r = zero_gather(rank->z, unit, NULL);
    TEAM_FAILS(rank, r, ZERO_E_TIMEOUT, words);
    return true;
}

/** The save fails, and the next one does not begin; steps go on. */
static bool save_hangs(struct team_rank *rank, const char *fault, const char *words)
{
    const char *directory = temporary_path(&temporary, "saves");
    TEAM_CHECK(base_fault_set(fault, NULL) == ZERO_OK);
    TEAM_OK(rank, zero_save(rank->z, directory, NULL));
    TEAM_FAILS(rank, zero_save_wait(rank->z), ZERO_E_TIMEOUT, words);
    TEAM_FAILS(rank, zero_save(rank->z, directory, NULL), ZERO_E_TIMEOUT, words);
    if (!toy_train(rank, &toy_odd, 1))
        return false;
    zero_abort(rank->z, "for a test");
    return true;
}

static bool hang(struct team_rank *rank, void *user)
{
    struct job *job = user;
    const char *fault = hangs[job->what].fault, *words = hangs[job->what].words;
    configure(rank, job);
    rank->config.timeout_s = TIMEOUT_S;
    if (!toy_open(rank, &toy_odd) || !toy_train(rank, &toy_odd, STEPS - 1))
        return false;
    if (job->what == SAVES     ? !save_hangs(rank, fault, words)
        : job->what == GATHERS ? !gather_hangs(rank, fault, words)
                               : !step_hangs(rank, fault, words))
        return false;
    team_close(rank);
    TEAM_CHECK(job->warnings == 1);
    return true;
}

/** Who has a file locked has not ended. */
static bool is_locked(const char *path)
{
    const int fd = open(path, O_RDONLY);
    const bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return locked;
}

static void wait_for_the_file(void)
{
    DIR *directory = opendir(temporary.directory);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        while (strstr(entry->d_name, ".slots") &&
               is_locked(temporary_path(&temporary, entry->d_name)))
            usleep(1000);
    if (directory)
        closedir(directory);
}

/** A record that hung may have come to count. */
static bool come_back(struct team_rank *rank, void *user)
{
    struct job *job = user;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    configure(rank, job);
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
    TEAM_CHECK(loaded.recovered && loaded.step >= STEPS - 1 &&
               loaded.step <= (job->what == RECORDS || job->what == SAVES ? STEPS : STEPS - 1));
    return saved_state(rank, job->digest[loaded.step]) &&
           toy_train(rank, &toy_odd, STEPS - (int)loaded.step) &&
           saved_state(rank, job->digest[STEPS]);
}

/** In a process of its own: others hang at the same time. */
static bool run(enum what what)
{
    struct job job = {.what = what};
    strcpy(temporary.directory, "/dev/shm/zero-test-XXXXXX");
    if (!mkdtemp(temporary.directory) && !temporary_make(&temporary))
        return false;
    bool good = team_run("self", 1, in_memory, &job) && team_run("self", 1, hang, &job);
    base_fault_set(NULL, NULL);
    wait_for_the_file();
    good = good && team_run("self", 1, come_back, &job);
    temporary_remove(&temporary);
    return good;
}

static void a_disk_that_hangs_is_told(void **state)
{
    (void)state;
    pid_t children[KINDS];
    for (enum what what = TILES; what < KINDS; what++) {
        fflush(NULL);
        children[what] = fork();
        assert_true(children[what] >= 0);
        if (children[what] == 0)
            exit(run(what) ? 0 : 1);
    }
    for (enum what what = TILES; what < KINDS; what++) {
        int status = -1;
        assert_int_equal(waitpid(children[what], &status, 0), children[what]);
        if (status != 0)
            fail_msg("what hangs: %d", what);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disk_that_hangs_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
