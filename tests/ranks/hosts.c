// Jobs on several hosts, which are all this machine: ranks are processes whose launcher's variables
// say that some of them are elsewhere, so that they meet over TCP. Each host is a user namespace,
// so that its ranks share memory with each other and with no other ones. Whatever they are, the
// values are those of one host.
#include "tests/numerics/synthetic.h"
#include "tests/unit/port.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, HOSTS = 2 };

enum launcher { TORCHRUN, SLURM };

/** What a job does, and on what. */
struct job {
    enum launcher launcher;
    int ranks[HOSTS]; /**< of each host, in order */
    struct synthetic model;
    zero_config config;
    const char *directory; /**< where it saves after half its steps, and goes on from; NULL: none */
    bool resumes;          /**< begins with that */
    const char *before;    /**< where it saves one step before; NULL: nowhere */
    int killed;            /**< this rank ends, before step .at; -1: none */
    int at;
};

/** What a rank has seen, in memory shared with it. */
struct seen {
    zero_result result;
    char message[512];
    char host[64];   /**< what its host is called */
    int together;    /**< ranks of its host, as the plan says */
    char gather[16]; /**< as the plan says */
    uint8_t fingerprint[16];
};

static struct seen *seen; /**< of RANKS */
static pid_t holders[HOSTS];
static char scratch[] = "/tmp/zero-hosts-XXXXXX";

static int world_of(const struct job *job)
{
    return job->ranks[0] + job->ranks[1];
}

/* ------------------------------------------------------------------ hosts */

static bool write_map(const char *path, unsigned id)
{
    char text[32];
    const int length = snprintf(text, sizeof text, "%u %u 1", id, id);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, (size_t)length) == length;
    if (fd >= 0)
        close(fd);
    return written;
}

/** A process that keeps a host's user namespace until this one ends. */
static pid_t hold_namespace(void)
{
    int ready[2];
    char byte = 0;
    const unsigned user = geteuid();
    if (pipe2(ready, O_CLOEXEC))
        return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        byte = unshare(CLONE_NEWUSER) == 0 && write_map("/proc/self/uid_map", user);
        if (write(ready[1], &byte, 1) == 1)
            pause();
        _exit(0);
    }
    close(ready[1]);
    const bool held = read(ready[0], &byte, 1) == 1 && byte;
    close(ready[0]);
    if (!held)
        print_message("not run: hosts that share no memory, for unshare(CLONE_NEWUSER) is not "
                      "allowed here\n");
    return pid;
}

static void enter_host(int host)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)holders[host]);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWUSER))
        fprintf(stderr, "a host is not apart\n");
    if (fd >= 0)
        close(fd);
}

/* ------------------------------------------------------------------ a rank */

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void set_torchrun(const struct job *job, int host, int rank, int local, int port)
{
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("TORCHELASTIC_RESTART_COUNT", host); // each counts its own
    set_number("MASTER_PORT", port - 1);            // torchrun's own, whether or not it listens
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world_of(job));
    set_number("LOCAL_RANK", local);
    set_number("LOCAL_WORLD_SIZE", job->ranks[host]);
}

static void set_slurm(const struct job *job, int host, int rank, int local, int port)
{
    char tasks[32];
    snprintf(tasks, sizeof tasks, "%d,%d", job->ranks[0], job->ranks[1]);
    setenv("SLURM_JOB_ID", "4711", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NODELIST", "localhost,elsewhere", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", tasks, 1);
    set_number("SLURM_NODEID", host);
    set_number("SLURM_PROCID", rank);
    set_number("SLURM_LOCALID", local);
    set_number("SLURM_STEP_NUM_TASKS", world_of(job));
    set_number("ZERO_MASTER_PORT", port); // not that of a real job 4711
}

// Gives each host a name of its own, where this process may.
static void name_host(int host, char *name, size_t size)
{
    static const char *const names[HOSTS] = {"first-host", "second-host"};
    if (unshare(CLONE_NEWUTS) == 0 && sethostname(names[host], strlen(names[host])))
        _exit(1);
    gethostname(name, size - 1);
}

static zero_result resume(zero_ctx *z, const struct job *job)
{
    zero_load_result loaded = {.struct_size = sizeof loaded};
    return job->resumes ? zero_resume(z, job->directory, NULL, &loaded) : ZERO_OK;
}

static zero_result train(zero_ctx *z, const struct job *job, int rank)
{
    zero_result r = synthetic_commit(z, &job->model);
    const char *together = strstr(zero_plan_text(z), "the host's ");
    if (together)
        sscanf(together, "the host's %d rank", &seen[rank].together);
    const char *gather = strstr(zero_plan_text(z), "  gather ");
    if (gather)
        sscanf(gather, "  gather %15[^:]", seen[rank].gather);
    if (!r)
        r = resume(z, job);
    for (uint64_t step = job->resumes ? SYNTHETIC_STEPS / 2 : 0; !r && step < SYNTHETIC_STEPS;
         step++) {
        if (rank == job->killed && (int)step == job->at)
            kill(getpid(), SIGKILL);
        if (job->before && step + 1 == SYNTHETIC_STEPS / 2)
            r = zero_save(z, job->before, NULL);
        if (!r && job->directory && !job->resumes && step == SYNTHETIC_STEPS / 2)
            r = zero_save(z, job->directory, NULL);
        if (!r)
            r = synthetic_step(z, &job->model, step);
    }
    if (!r && job->directory)
        r = zero_save_wait(z);
    return r ? r : zero_fingerprint(z, seen[rank].fingerprint);
}

static void be_rank(const struct job *job, int host, int rank, int local, int port)
{
    enter_host(host);
    name_host(host, seen[rank].host, sizeof seen[rank].host);
    (job->launcher == SLURM ? set_slurm : set_torchrun)(job, host, rank, local, port);
    zero_ctx *z = NULL;
    zero_result r = zero_open(&z, &job->config);
    if (!r)
        r = train(z, job, rank);
    seen[rank].result = r;
    if (r)
        snprintf(seen[rank].message, sizeof seen[rank].message, "%s", zero_last_error(z));
    zero_close(z);
}

/* ------------------------------------------------------------------ jobs */

static struct job job_of(int first, int second, int stage)
{
    struct job job = {.ranks = {first, second},
                      .model = {.dtype = ZERO_F32, .micro_batches = 5, .tied = true},
                      .config = zero_config_default(),
                      .killed = -1};
    job.config.stage = stage;
    job.config.timeout_s = 60;
    synthetic_configure(&job.model, &job.config);
    return job;
}

// A rank that counts hosts takes those of one name for one host.
static void tell_if_nameless(const struct job *job)
{
    static bool told;
    if (!told && job->ranks[1] && strcmp(seen[0].host, seen[job->ranks[0]].host) == 0) {
        print_message("not run: hosts with names of their own, for unshare(CLONE_NEWUTS) is not "
                      "allowed here\n");
        told = true;
    }
}

// Ranks of each host run in a directory of that name: what they call by a relative one differs.
static void run(const struct job *job)
{
    int port, rank = 0;
    pid_t pids[RANKS];
    const int reserved = port_reserve(&port);
    assert_true(reserved >= 0);
    memset(seen, 0, RANKS * sizeof *seen);
    for (int host = 0; host < HOSTS; host++)
        for (int local = 0; local < job->ranks[host]; local++, rank++) {
            pids[rank] = fork();
            assert_true(pids[rank] >= 0);
            if (pids[rank] == 0) {
                alarm(120);
                if (chdir(scratch) || chdir(host ? "b" : "a"))
                    _exit(1);
                be_rank(job, host, rank, local, port);
                _exit(0);
            }
        }
    for (int i = 0; i < rank; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        const bool as_told =
            i == job->killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
        if (!as_told)
            fail_msg("rank %d: status %x", i, status);
    }
    close(reserved);
    tell_if_nameless(job);
}

// Ranks whose host has the same name.
static int ranks_beside(const struct job *job, int rank)
{
    int count = 0;
    for (int other = 0; other < world_of(job); other++)
        count += strcmp(seen[other].host, seen[rank].host) == 0;
    return count;
}

static void expect_golden(const struct job *job)
{
    for (int rank = 0; rank < world_of(job); rank++) {
        char text[33];
        if (seen[rank].result)
            fail_msg("rank %d: %d, %s", rank, seen[rank].result, seen[rank].message);
        for (int i = 0; i < 16; i++)
            snprintf(text + 2 * i, 3, "%02x", seen[rank].fingerprint[i]);
        assert_string_equal(text, synthetic_golden(&job->model));
        assert_int_equal(seen[rank].together, ranks_beside(job, rank));
    }
}

/* ------------------------------------------------------------------ tests */

static void values_are_those_of_one_host(void **state)
{
    (void)state;
    static const int ranks[][HOSTS] = {{1, 1}, {2, 2}, {2, 1}};
    for (int stage = 0; stage <= 3; stage++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
            struct job job = job_of(ranks[i][0], ranks[i][1], stage);
            job.launcher = i == 1 ? SLURM : TORCHRUN;
            run(&job);
            expect_golden(&job);
        }
}

// Stage 0 may add up what each rank sends in the update, where it can read that.
static void one_micro_batch_a_rank_is_the_same(void **state)
{
    (void)state;
    uint8_t fingerprint[16];
    for (int hosts = 1; hosts <= HOSTS; hosts++) {
        struct job job = job_of(3 - hosts, hosts - 1, 0);
        job.model.micro_batches = 2;
        synthetic_configure(&job.model, &job.config);
        run(&job);
        for (int rank = 0; rank < 2; rank++) {
            if (seen[rank].result)
                fail_msg("rank %d: %d, %s", rank, seen[rank].result, seen[rank].message);
            if (hosts == 1)
                memcpy(fingerprint, seen[rank].fingerprint, sizeof fingerprint);
            assert_memory_equal(seen[rank].fingerprint, fingerprint, sizeof fingerprint);
        }
    }
}

// Each host's in a directory of its own.
static void state_and_sums_may_be_in_files(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage += 3) {
        struct job job = job_of(2, 1, stage);
        job.config.offload_optimizer = "nvme";
        job.config.offload_grads = "nvme";
        job.config.nvme_dir = ".";
        run(&job);
        expect_golden(&job);
    }
}

static void a_dead_rank_and_its_host_are_named(void **state)
{
    (void)state;
    char part[128];
    for (int killed = 0; killed < 3; killed++) {
        struct job job = job_of(2, 1, 1 + killed);
        job.killed = killed;
        job.at = 3;
        run(&job);
        snprintf(part, sizeof part, "rank %d died on %.63s", killed, seen[killed].host);
        for (int rank = 0; rank < 3; rank++)
            if (rank != killed &&
                (seen[rank].result != ZERO_E_PEER || !strstr(seen[rank].message, part)))
                fail_msg("rank %d: %d, %s", rank, seen[rank].result, seen[rank].message);
    }
}

static int files_beginning(const char *directory, const char *begin)
{
    int count = 0;
    DIR *list = opendir(directory);
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));)
        count += strncmp(entry->d_name, begin, strlen(begin)) == 0;
    closedir(list);
    return count;
}

static void checkpoints_go_from_some_hosts_to_others(void **state)
{
    (void)state;
    char directory[64];
    for (int stage = 0; stage <= 3; stage += 3) {
        snprintf(directory, sizeof directory, "%s/checkpoints-%d", scratch, stage);
        struct job job = job_of(2, 1, stage);
        job.directory = directory;
        run(&job);
        expect_golden(&job);
        assert_int_equal(files_beginning(directory, "step-"), 1);
        assert_int_equal(files_beginning(directory, ".zero-shared-"), 0);
        job = job_of(1, 1, 3 - stage);
        job.directory = directory;
        job.resumes = true;
        run(&job);
        expect_golden(&job);
    }
}

static void a_directory_that_is_not_shared_is_told(void **state)
{
    (void)state;
    char shared[64];
    snprintf(shared, sizeof shared, "%s/shared", scratch);
    for (int saves = 1; saves <= 2; saves++) {
        struct job job = job_of(1, 1, 2);
        job.directory = "checkpoints";
        job.before = saves == 2 ? shared : NULL;
        run(&job);
        for (int rank = 0; rank < 2; rank++)
            if (seen[rank].result != ZERO_E_IO ||
                !strstr(seen[rank].message, "/checkpoints is not there"))
                fail_msg("rank %d: %d, %s", rank, seen[rank].result, seen[rank].message);
        assert_non_null(strstr(seen[0].message, "rank 1 on "));
        assert_non_null(strstr(strstr(seen[0].message, "rank 1 on "), seen[1].host));
    }
}

// Stages 1 and 2 share by default, and stage 3 its slots, where a host has several ranks.
static void a_host_may_have_one_copy_or_one_a_rank(void **state)
{
    (void)state;
    static const char *const gathers[] = {"copy", "shared", "slots"};
    for (int stage = 1; stage <= 3; stage++)
        for (int i = 0; i < (stage == 3 ? 3 : 2); i++) {
            struct job job = job_of(2, 1 + (stage + i) % 2, stage);
            job.config.gather = gathers[i];
            run(&job);
            expect_golden(&job);
            for (int rank = 0; rank < world_of(&job); rank++)
                assert_string_equal(seen[rank].gather, gathers[i]);
        }
}

// How ranks of so many on each host gather at stage 3 by default.
static void slots_are_the_hosts_where_that_has_several_ranks(void **state)
{
    (void)state;
    static const struct {
        int ranks[HOSTS];
        const char *gather;
    } hosts[] = {{{1, 1}, "copy"}, {{2, 2}, "slots"}, {{3, 1}, "slots"}, {{1, 3}, "slots"}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        for (int few = 0; few < 2; few++) {
            struct job job = job_of(hosts[i].ranks[0], hosts[i].ranks[1], 3);
            job.config.open_units = few ? 2 : 4;
            job.config.prefetch_units = few ? 1 : 2;
            job.config.paranoid = i % 2 == (size_t)few;
            run(&job);
            expect_golden(&job);
            for (int rank = 0; rank < world_of(&job); rank++)
                assert_string_equal(seen[rank].gather, hosts[i].gather);
        }
}

static void what_needs_common_memory_is_refused(void **state)
{
    (void)state;
    struct job job = job_of(1, 1, 2);
    job.config.transport = "shm";
    run(&job);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(seen[rank].result, ZERO_E_INVALID);
        assert_non_null(strstr(seen[rank].message, "1 of 2 ranks are on this host"));
    }
}

static int set_up(void **state)
{
    (void)state;
    char path[64];
    seen =
        mmap(NULL, RANKS * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED || !mkdtemp(scratch))
        return -1;
    for (int host = 0; host < HOSTS; host++) {
        holders[host] = hold_namespace();
        snprintf(path, sizeof path, "%s/%c", scratch, "ab"[host]);
        if (mkdir(path, 0700))
            return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    for (int host = 0; host < HOSTS; host++) {
        kill(holders[host], SIGKILL);
        waitpid(holders[host], NULL, 0);
    }
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_one_host),
        cmocka_unit_test(one_micro_batch_a_rank_is_the_same),
        cmocka_unit_test(state_and_sums_may_be_in_files),
        cmocka_unit_test(a_dead_rank_and_its_host_are_named),
        cmocka_unit_test(checkpoints_go_from_some_hosts_to_others),
        cmocka_unit_test(a_directory_that_is_not_shared_is_told),
        cmocka_unit_test(a_host_may_have_one_copy_or_one_a_rank),
        cmocka_unit_test(slots_are_the_hosts_where_that_has_several_ranks),
        cmocka_unit_test(what_needs_common_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
