// Jobs whose launcher says where rank 0 is, but not how many ranks are on each host. Hosts are
// network namespaces of this machine, each with an interface and abstract sockets of its own, on
// one bridge: ranks find out by themselves whether they share memory.
#include "tests/numerics/synthetic.h"
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/ucx_here.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { HOSTS = 3, MOST_RANKS = 8, PORT = 6105 };

/** A job: a letter for the host of each rank, and what its launcher sets. */
struct job {
    const char *hosts;
    void (*set)(const struct job *job, int rank);
    const char *master; /**< MASTER_ADDR; NULL: none */
    bool own;           /**< rank and world are the program's */
    int absent;         /**< this rank does not start; -1: all do */
    const char *transport;
    int32_t stage, timeout_s;
    bool ucx;    /**< UCX is told to go by TCP: else nothing is gained by it here */
    int lacking; /**< this rank finds no UCX; -1: all do */
    int killed;  /**< this rank ends after some steps; -1: none */
    const struct synthetic *model;
};

/** What a rank has seen, in memory shared with it. */
struct seen {
    zero_result result;
    char message[512];
    char opened[256];  /**< the line that says which transport and gather */
    char planned[256]; /**< and the one in the plan */
    char sent[256];    /**< the plan's line of what hosts send */
    char waited[1024]; /**< the last warning */
    uint8_t fingerprint[16];
};

static struct seen *seen; /**< of MOST_RANKS */

static int world_of(const struct job *job)
{
    return (int)strlen(job->hosts);
}

/* ------------------------------------------------------------------ launchers */

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static int host_of(const struct job *job, int rank)
{
    return job->hosts[rank] - 'a';
}

static int count_hosts(const struct job *job)
{
    int count = 0;
    for (int host = 0; host < HOSTS; host++)
        count += strchr(job->hosts, 'a' + host) != NULL;
    return count;
}

static int local_rank(const struct job *job, int rank)
{
    int local = 0;
    for (int other = 0; other < rank; other++)
        local += job->hosts[other] == job->hosts[rank];
    return local;
}

static void set_azure(const struct job *job, int rank)
{
    setenv("AZUREML_EXPERIMENT_ID", "e1", 1);
    setenv("AZUREML_RUN_ID", "r1", 1);
    set_number("AZUREML_NODE_COUNT", count_hosts(job));
    setenv("AZ_BATCH_HOST_LIST", "10.31.0.1,10.31.0.2", 1);
    set_number("NODE_RANK", host_of(job, rank));
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world_of(job));
    set_number("LOCAL_RANK", local_rank(job, rank));
}

static void set_deepspeed(const struct job *job, int rank)
{
    set_number("CROSS_RANK", host_of(job, rank));
    set_number("CROSS_SIZE", count_hosts(job));
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world_of(job));
    set_number("LOCAL_RANK", local_rank(job, rank));
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
}

static void set_pmi(const struct job *job, int rank)
{
    set_number("PMI_RANK", rank);
    set_number("PMI_SIZE", world_of(job));
}

static void set_flux(const struct job *job, int rank)
{
    set_pmi(job, rank);
    setenv("FLUX_JOB_ID", "f23r45t", 1);
    set_number("FLUX_JOB_SIZE", world_of(job));
    set_number("FLUX_JOB_NNODES", count_hosts(job));
    set_number("FLUX_TASK_RANK", rank);
    set_number("FLUX_TASK_LOCAL_ID", local_rank(job, rank));
    setenv("PMI_FD", "9", 1);
    setenv("PMI_SPAWNED", "0", 1);
}

static void set_pals(const struct job *job, int rank)
{
    set_pmi(job, rank);
    setenv("PALS_APID", "1b2f6b3e-0a49", 1);
    set_number("PALS_RANKID", rank);
    set_number("PALS_NODEID", host_of(job, rank));
    set_number("PALS_LOCAL_RANKID", local_rank(job, rank));
}

static void set_hydra(const struct job *job, int rank)
{
    int ranks = 0;
    for (int other = 0; other < world_of(job); other++)
        ranks += job->hosts[other] == job->hosts[rank];
    set_pmi(job, rank);
    set_number("MPI_LOCALRANKID", local_rank(job, rank));
    set_number("MPI_LOCALNRANKS", ranks);
}

static void set_by_hand(const struct job *job, int rank)
{
    set_number("ZERO_RANK", rank);
    set_number("ZERO_WORLD_SIZE", world_of(job));
}

static void set_nothing(const struct job *job, int rank)
{
    (void)job;
    (void)rank;
}

static const struct {
    const char *name;
    void (*set)(const struct job *job, int rank);
    bool own;
} launchers[] = {
    {"Azure ML, type PyTorch", set_azure, false},
    {"DeepSpeed's launcher", set_deepspeed, false},
    {"Flux", set_flux, false},
    {"PALS", set_pals, false},
    {"MPICH, which says it but gives no name to the job", set_hydra, false},
    {"variables set by hand", set_by_hand, false},
    {"the program", set_nothing, true},
};

enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

/* ------------------------------------------------------------------ ranks */

static void keep(void *user, zero_log_level level, const char *component, const char *message)
{
    struct seen *mine = user;
    (void)component;
    if (level == ZERO_LOG_WARN)
        snprintf(mine->waited, sizeof mine->waited, "%s", message);
    if (strstr(message, "transport "))
        snprintf(mine->opened, sizeof mine->opened, "%s", message);
}

/** A line of the plan; "": it has none that begins so. */
static void note_line(const zero_ctx *z, const char *title, char line[256])
{
    const char *found = strstr(zero_plan_text(z), title);
    snprintf(line, 256, "%.*s", found ? (int)strcspn(found, "\n") : 0, found ? found : "");
}

static zero_result train(zero_ctx *z, const struct synthetic *model, int rank, bool killed)
{
    zero_result r = synthetic_commit(z, model);
    note_line(z, "transport    ", seen[rank].planned);
    note_line(z, "hosts        ", seen[rank].sent);
    for (uint64_t step = 0; !r && step < SYNTHETIC_STEPS; step++) {
        if (killed && step == 3)
            kill(getpid(), SIGKILL);
        r = synthetic_step(z, model, step);
    }
    return r ? r : zero_fingerprint(z, seen[rank].fingerprint);
}

static const struct synthetic model = {.dtype = ZERO_F32, .micro_batches = 5, .tied = true};

static void be_rank(const struct job *job, int rank)
{
    zero_config config = zero_config_default();
    config.stage = job->stage;
    config.timeout_s = job->timeout_s;
    config.transport = job->transport;
    config.log = keep;
    config.log_user = &seen[rank];
    config.log_level = ZERO_LOG_INFO;
    config.world = job->own ? world_of(job) : 0;
    config.rank = job->own ? rank : 0;
    synthetic_configure(job->model, &config);
    if (job->ucx)
        setenv("UCX_TLS", "tcp,self", 1);
    if (rank == job->lacking)
        setenv("ZERO_FAULT", "ucx.library:enoent@1+", 1);
    if (job->master) {
        setenv("MASTER_ADDR", job->master, 1);
        set_number("MASTER_PORT", PORT);
    }
    job->set(job, rank);
    zero_ctx *z = NULL;
    zero_result r = zero_open(&z, &config);
    if (!r)
        r = train(z, job->model, rank, rank == job->killed);
    seen[rank].result = r;
    if (r)
        snprintf(seen[rank].message, sizeof seen[rank].message, "%s", zero_last_error(z));
    zero_close(z);
}

// Ranks of a host have a parent in common there, as under a launcher, and no other ones.
static void be_launcher(const struct job *job, int host)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!net_hosts_enter(host))
        _exit(1);
    int count = 0, failed = 0, status;
    pid_t victim = -1;
    for (int rank = 0; rank < world_of(job); rank++) {
        if (host_of(job, rank) != host || rank == job->absent)
            continue;
        count++;
        const pid_t pid = fork();
        victim = rank == job->killed ? pid : victim;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(60);
            be_rank(job, rank);
            _exit(0);
        }
    }
    for (; count > 0; count--) {
        const pid_t ended = wait(&status);
        const bool as_told =
            ended == victim ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
        failed |= ended < 0 || !as_told;
    }
    _exit(failed);
}

static void run(const struct job *job)
{
    pid_t pids[HOSTS];
    memset(seen, 0, MOST_RANKS * sizeof *seen);
    for (int host = 0; host < HOSTS; host++) {
        pids[host] = fork();
        assert_true(pids[host] >= 0);
        if (pids[host] == 0)
            be_launcher(job, host);
    }
    for (int host = 0; host < HOSTS; host++) {
        int status;
        assert_int_equal(waitpid(pids[host], &status, 0), pids[host]);
        assert_int_equal(status, 0);
    }
}

static struct job job_of(const char *hosts, int launcher)
{
    return (struct job){.hosts = hosts,
                        .set = launchers[launcher].set,
                        .master = "10.31.0.1",
                        .own = launchers[launcher].own,
                        .absent = -1,
                        .lacking = -1,
                        .killed = -1,
                        .stage = 2,
                        .timeout_s = 30,
                        .model = &model};
}

static void expect_good(const struct job *job, const char *what, const char *how)
{
    run(job);
    for (int rank = 0; rank < world_of(job); rank++) {
        char text[33];
        if (seen[rank].result)
            fail_msg("%s, %s, rank %d: %d, %s", what, job->hosts, rank, seen[rank].result,
                     seen[rank].message);
        for (int i = 0; i < 16; i++)
            snprintf(text + 2 * i, 3, "%02x", seen[rank].fingerprint[i]);
        assert_string_equal(text, synthetic_golden(job->model));
    }
    if (!strstr(seen[0].opened, how))
        fail_msg("%s, %s: no \"%s\" in %s", what, job->hosts, how, seen[0].opened);
}

static void expect_failure(int rank, zero_result result, const char *first, const char *second)
{
    if (seen[rank].result != result || !strstr(seen[rank].message, first) ||
        !strstr(seen[rank].message, second))
        fail_msg("rank %d: %d, %s; no \"%s\" or \"%s\"", rank, seen[rank].result,
                 seen[rank].message, first, second);
}

/* ------------------------------------------------------------------ tests */

static void ranks_of_two_hosts_find_each_other(void **state)
{
    (void)state;
    for (int launcher = 0; launcher < LAUNCHERS; launcher++) {
        const struct job job = job_of("aabb", launcher);
        expect_good(&job, launchers[launcher].name, "transport tcp, gather shared");
    }
}

// With sum_group the bits are those of one host, whether sums travel or contributions.
static void hosts_send_sums_of_their_blocks(void **state)
{
    (void)state;
    static const struct synthetic twos = {.dtype = ZERO_F32, .micro_batches = 5, .sum_group = 2};
    static const struct synthetic early = {
        .dtype = ZERO_F32, .micro_batches = 5, .sum_group = 2, .unclipped = true};
    static const struct synthetic fours = {.dtype = ZERO_BF16, .micro_batches = 5, .sum_group = 4};
    static const struct synthetic mixed = {.micro_batches = 8, .sum_group = 4};
    static const char sums[] = "send one sum of each block of ";
    static const struct {
        const char *hosts;
        const struct synthetic *model;
        int stage;
        const char *sent;
    } cases[] = {{"aabb", &twos, 0, sums},
                 {"aabb", &twos, 1, sums},
                 {"aabb", &early, 2, sums},
                 {"aabbcc", &twos, 3, sums},
                 {"aaaabbbb", &fours, 2, sums},
                 {"aaaabbbb", &mixed, 3, sums},
                 {"aaabb", &twos, 2, "(hosts have not the same number of consecutive ranks)"},
                 {"abab", &twos, 2, "(hosts have not the same number of consecutive ranks)"},
                 {"aabb", &fours, 1, "(no block of sum_group=4 lies whole on a host of 2 ranks)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job = job_of(cases[i].hosts, 0);
        job.model = cases[i].model;
        job.stage = cases[i].stage;
        expect_good(&job, "sums", "transport tcp");
        if (!strstr(seen[1].sent, cases[i].sent))
            fail_msg("%s: no \"%s\" in %s", job.hosts, cases[i].sent, seen[1].sent);
    }
}

static void ranks_of_one_host_share_memory(void **state)
{
    (void)state;
    for (int launcher = 0; launcher < LAUNCHERS; launcher++) {
        const struct job job = job_of("aaa", launcher);
        expect_good(&job, launchers[launcher].name, "transport shm, gather shared");
    }
}

static void hosts_may_have_any_ranks(void **state)
{
    (void)state;
    static const char *const hosts[] = {"ab", "abc", "abab", "abbccc", "bacab", "bbb"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct job job = job_of(hosts[i], 0);
        job.master = *hosts[i] == 'a' ? "10.31.0.1" : "10.31.0.2";
        job.stage = (int32_t)(1 + i % 3);
        const bool apart = strspn(hosts[i], (char[]){*hosts[i], '\0'}) < strlen(hosts[i]);
        expect_good(&job, "uneven hosts", apart ? "transport tcp" : "transport shm");
    }
}

static void a_transport_that_was_given_stays(void **state)
{
    (void)state;
    struct job job = job_of("aa", 0);
    job.transport = "tcp";
    expect_good(&job, "tcp", "transport tcp");
    job.transport = "shm";
    job.master = "10.31.0.77"; // is not asked
    expect_good(&job, "shm", "transport shm");
}

static void ucx_moves_the_same_bits(void **state)
{
    (void)state;
#ifdef ZERO_WITH_UCX
    // hosts_matrix has more of them.
    static const char *const hosts[] = {"ab", "aabb", "abc", "abbccc"};
    for (int i = 0; i < 4 && ucx_is_here(); i++) {
        struct job job = job_of(hosts[i], 0);
        job.stage = i;
        job.ucx = true;
        job.transport = i % 2 ? "ucx" : NULL;
        expect_good(&job, "UCX", "transport ucx, gather ");
        const char *why = i % 2 ? "transport    ucx, private memory: sent"
                                : "transport    ucx, private memory: sent (all hosts have UCX ";
        assert_non_null(strstr(seen[0].planned, why));
    }
#endif
}

static void without_ucx_somewhere_bytes_are_sent(void **state)
{
    (void)state;
#ifdef ZERO_WITH_UCX
    struct job job = job_of("ab", 0);
    job.ucx = true;
    job.lacking = 1;
    expect_good(&job, "one host without UCX", "transport tcp, gather shared");
    for (int rank = 0; rank < 2 && ucx_is_here(); rank++)
        if (!strstr(seen[rank].planned,
                    "tcp, private memory: sent (no ucx: rank 1 on hostb: no UCX "
                    "here: libucp.so.0"))
            fail_msg("rank %d: %s", rank, seen[rank].planned);
    job.transport = "ucx";
    run(&job);
    for (int rank = 0; rank < 2 && ucx_is_here(); rank++)
        expect_failure(rank, ZERO_E_UNSUPPORTED,
                       "transport=ucx: rank 1 on hostb: no UCX here: ", "libucp.so.0");
    job = job_of("ab", 0); // nor where its network is TCP, which is no gain
    if (access("/sys/class/infiniband", F_OK))
        expect_good(&job, "TCP only", "transport tcp, gather shared");
#else
    struct job job = job_of("ab", 0);
    job.transport = "ucx";
    run(&job);
    expect_failure(0, ZERO_E_UNSUPPORTED, "transport=ucx", "this build");
#endif
}

static void a_death_is_told_as_over_tcp(void **state)
{
    (void)state;
    char part[64];
    for (int killed = 0; killed < 4; killed++) {
        struct job job = job_of("aabb", 0);
        job.stage = killed;
        job.killed = killed;
        job.ucx = true;
        run(&job);
        snprintf(part, sizeof part, "rank %d died on host%c", killed, "aabb"[killed]);
        for (int rank = 0; rank < 4; rank++)
            if (rank != killed)
                expect_failure(rank, ZERO_E_PEER, part, "its last call");
    }
}

static void whom_a_rank_waits_for_is_said(void **state)
{
    (void)state;
    struct job job = job_of("aabb", 0);
    job.timeout_s = 2;
    job.absent = 3;
    run(&job);
    for (int rank = 0; rank < 3; rank++)
        expect_failure(rank, ZERO_E_TIMEOUT, "rank 3 of 4 did not come",
                       "port 6106 of 10.31.0.1 (MASTER_ADDR, MASTER_PORT + 1)");
    for (int rank = 0; rank < 3; rank++)
        assert_non_null(strstr(seen[rank].waited, "for rank 3 of 4"));
    job.absent = 0;
    run(&job);
    for (int rank = 1; rank < 4; rank++) {
        expect_failure(rank, ZERO_E_TIMEOUT, "rank 0 of 4 at port 6106 of 10.31.0.1 (MASTER_ADDR, ",
                       "ECONNREFUSED");
        assert_non_null(strstr(seen[rank].waited, "port 6106 of 10.31.0.1 (MASTER_ADDR, "));
    }
}

static void a_wrong_address_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *address, *doubt;
    } wrong[] = {{"127.0.0.1", "which is reached by ranks of this host only"},
                 {"10.31.0.3", "which is no address of this host"},
                 {"node0.invalid", "which does not resolve on this host"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char place[64];
        struct job job = job_of("ab", 0);
        job.master = wrong[i].address;
        job.timeout_s = 2;
        run(&job);
        snprintf(place, sizeof place, "port 6106 of %s (MASTER_ADDR, ", wrong[i].address);
        expect_failure(0, ZERO_E_TIMEOUT, place, wrong[i].doubt);
        expect_failure(1, ZERO_E_TIMEOUT, place, "rank 0 has to run on that host");
        assert_non_null(strstr(seen[0].waited, wrong[i].doubt));
    }
}

static void without_an_address_only_one_host_can_meet(void **state)
{
    (void)state;
    struct job job = job_of("aabb", 3);
    job.master = NULL;
    job.timeout_s = 2;
    run(&job);
    expect_failure(0, ZERO_E_TIMEOUT, "ranks 2, 3 of 4 did not come", "set MASTER_ADDR");
    expect_failure(3, ZERO_E_TIMEOUT, "rank 0 of 4 did not come", "set MASTER_ADDR");
    job.hosts = "bbb";
    job.timeout_s = 30;
    expect_good(&job, "one host without an address", "transport shm");
}

static int set_up(void **state)
{
    (void)state;
    seen = mmap(NULL, MOST_RANKS * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    return seen == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    net_hosts_end();
    return 0;
}

int main(void)
{
    const char *lacks = net_hosts_make(HOSTS);
    if (lacks) {
        printf("skipped: this machine has no %s\n", lacks);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_two_hosts_find_each_other),
        cmocka_unit_test(hosts_send_sums_of_their_blocks),
        cmocka_unit_test(ranks_of_one_host_share_memory),
        cmocka_unit_test(hosts_may_have_any_ranks),
        cmocka_unit_test(a_transport_that_was_given_stays),
        cmocka_unit_test(ucx_moves_the_same_bits),
        cmocka_unit_test(without_ucx_somewhere_bytes_are_sent),
        cmocka_unit_test(a_death_is_told_as_over_tcp),
        cmocka_unit_test(whom_a_rank_waits_for_is_said),
        cmocka_unit_test(a_wrong_address_is_named),
        cmocka_unit_test(without_an_address_only_one_host_can_meet),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
