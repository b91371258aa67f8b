// PMI-1 against servers that the test plays: ranks learn where rank 0 is, by a descriptor or a
// port; every answer that is malformed, late or missing is an error in its time, with what was
// said.
#include "base/clock.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "collectives/rendezvous/process_manager.h"

#include <dlfcn.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, LINE = 2048, VARIABLES = 8 };

/** What a rank has heard. */
struct heard {
    zero_result result;
    bool twice; /**< a second question had the same answer */
    char message[512], address[BOOT_ADDRESS_BYTES], source[128];
    int port;
    struct boot_place place;
};

static struct heard *heard; /**< of every rank, shared with them */

/** How a rank asks. */
struct question {
    int rank, world;
    int timeout_ms;
    char variables[VARIABLES][64]; /**< of its environment; "" at the end */
    bool discovers;                /**< it asks for its place first */
    bool leaves;                   /**< and for nothing then */
};

static void ask_master(const struct question *question, char *const *environment,
                       struct heard *mine, struct base_error *error)
{
    struct boot_master master, again;
    const struct boot_meeting meeting = {.rank = question->rank,
                                         .world = question->world,
                                         .deadline_ns = base_clock_ns() +
                                                        (uint64_t)question->timeout_ms * 1000000};
    mine->result = boot_manager_master(&master, &meeting, environment, error);
    if (mine->result)
        return;
    snprintf(mine->address, sizeof mine->address, "%s", master.address);
    snprintf(mine->source, sizeof mine->source, "%s", master.source);
    mine->port = master.port;
    mine->twice = !boot_manager_master(&again, &meeting, environment, error) &&
                  memcmp(&again, &master, sizeof again) == 0;
}

static pid_t start(const struct question *question)
{
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct heard *mine = &heard[question->rank];
    struct base_error error = {.result = ZERO_OK};
    char *environment[VARIABLES + 1] = {NULL};
    alarm(60);
    for (int i = 0; i < VARIABLES && *question->variables[i]; i++)
        environment[i] = (char *)(uintptr_t)question->variables[i];
    if (question->discovers)
        mine->result = boot_manager_discover(&mine->place, environment, &error);
    if (!mine->result && !question->leaves)
        ask_master(question, environment, mine, &error);
    boot_manager_leave();
    snprintf(mine->message, sizeof mine->message, "%s", error.message);
    _exit(0);
}

static void wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/** A rank that has a descriptor for each end of a pair. */
static struct question by_descriptor(int rank, int world, int fd)
{
    struct question question = {.rank = rank, .world = world, .timeout_ms = 20000};
    snprintf(question.variables[0], 64, "ZERO_PMI=1");
    snprintf(question.variables[1], 64, "PMI_FD=%d", fd);
    snprintf(question.variables[2], 64, "PMI_RANK=%d", rank);
    snprintf(question.variables[3], 64, "PMI_SIZE=%d", world);
    return question;
}

/* ------------------------------------------------------------------ a server */

/** A line of a client's; false: it has hung up. */
static bool read_line(int fd, char line[LINE])
{
    size_t used = 0;
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    while (used < LINE - 1 && poll(&polled, 1, 20000) == 1 && recv(fd, line + used, 1, 0) == 1)
        if (line[used++] == '\n') {
            line[used] = '\0';
            return true;
        }
    return false;
}

static void say(int fd, const char *text)
{
    send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static const struct {
    const char *request, *answer;
} right[] = {
    {"cmd=init ", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"},
    {"cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"},
    {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7_0\n"},
    {"cmd=put ", "cmd=put_result rc=0 msg=success\n"},
    {"cmd=barrier_in", "cmd=barrier_out\n"},
    {"cmd=get ", "cmd=get_result rc=0 msg=success value=6107@10.0.0.4,fd00::4\n"},
    {"cmd=finalize", "cmd=finalize_ack\n"},
};

enum { REQUESTS = sizeof right / sizeof *right };

static int request_of(const char *line)
{
    for (int i = 0; i < REQUESTS; i++)
        if (strncmp(line, right[i].request, strlen(right[i].request)) == 0)
            return i;
    fail_msg("no request of PMI-1: %s", line);
    return -1;
}

/** Answers all requests of one client, and this one wrongly: NULL, not at all; "", by hanging up.
 */
static void serve_wrongly(int fd, const char *request, const char *answer)
{
    char line[LINE];
    while (read_line(fd, line)) {
        const int asked = request_of(line);
        const bool wrong = request && strcmp(right[asked].request, request) == 0;
        if (wrong && answer && !*answer)
            break;
        if (!wrong || answer)
            say(fd, wrong ? answer : right[asked].answer);
    }
    close(fd);
}

/* ------------------------------------------------------------------ right answers */

/** A store and a barrier for WORLD clients. */
struct store {
    int fds[WORLD];
    int open, waiting, finalized;
    char value[LINE];
    const char *maxes;
};

static void answer(struct store *store, int client, const char *line)
{
    char text[2 * LINE];
    const char *value = strstr(line, " value=");
    const int asked = request_of(line);
    snprintf(text, sizeof text, "%s", right[asked].answer);
    if (strncmp(line, "cmd=put ", 8) == 0)
        snprintf(store->value, sizeof store->value, "%s", value + 7);
    if (strncmp(line, "cmd=get ", 8) == 0)
        snprintf(text, sizeof text, "cmd=get_result rc=0 msg=success value=%s", store->value);
    if (strncmp(line, "cmd=get_maxes", 13) == 0 && store->maxes)
        snprintf(text, sizeof text, "%s", store->maxes);
    store->finalized += strncmp(line, "cmd=finalize", 12) == 0;
    if (strncmp(line, "cmd=barrier_in", 14) != 0) {
        say(store->fds[client], text);
    } else if (++store->waiting == WORLD) {
        for (int i = 0; i < WORLD; i++)
            say(store->fds[i], text);
        store->waiting = 0;
    }
}

static void serve(struct store *store)
{
    char line[LINE];
    for (store->open = WORLD; store->open > 0;) {
        struct pollfd polls[WORLD];
        for (int i = 0; i < WORLD; i++)
            polls[i] = (struct pollfd){.fd = store->fds[i], .events = POLLIN};
        assert_true(poll(polls, WORLD, 30000) > 0);
        for (int i = 0; i < WORLD; i++) {
            if (!polls[i].revents)
                continue;
            if (read_line(store->fds[i], line)) {
                answer(store, i, line);
                continue;
            }
            close(store->fds[i]);
            store->fds[i] = -1;
            store->open--;
        }
    }
}

static void expect_all_know(const struct store *store)
{
    assert_int_equal(store->finalized, WORLD);
    for (int rank = 0; rank < WORLD; rank++) {
        if (heard[rank].result)
            fail_msg("rank %d: %d, %s", rank, heard[rank].result, heard[rank].message);
        assert_true(heard[rank].twice);
        assert_true(heard[rank].port > 0);
        assert_int_equal(heard[rank].port, heard[0].port);
        assert_string_equal(heard[rank].address, heard[0].address);
        assert_string_equal(heard[rank].source, "PMI-1");
    }
}

static void exchange(struct store *store)
{
    int ends[WORLD][2];
    pid_t pids[WORLD];
    memset(heard, 0, WORLD * sizeof *heard);
    for (int rank = 0; rank < WORLD; rank++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[rank]), 0);
    for (int rank = 0; rank < WORLD; rank++) {
        const struct question question = by_descriptor(rank, WORLD, ends[rank][1]);
        pids[rank] = start(&question);
        store->fds[rank] = ends[rank][0];
    }
    // A client hangs up when all processes that have its end have: the test has, and each rank.
    for (int rank = 0; rank < WORLD; rank++)
        close(ends[rank][1]);
    serve(store);
    for (int rank = 0; rank < WORLD; rank++)
        wait_for(pids[rank]);
    expect_all_know(store);
}

static void ranks_hear_where_rank_0_is(void **state)
{
    (void)state;
    struct store store = {.maxes = NULL};
    exchange(&store);
    // Rank 0 publishes as many addresses as fit, and the first one in any case.
    store = (struct store){.maxes = "cmd=maxes kvsname_max=64 keylen_max=32 vallen_max=32\n"};
    exchange(&store);
    assert_true(strlen(store.value) <= 32);
    assert_null(strchr(heard[1].address, ' '));
}

static int listen_somewhere(int *port)
{
    static const unsigned char loopback[MESH_ADDRESS_BYTES] = {
        [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    unsigned char address[MESH_ADDRESS_BYTES];
    int listener;
    assert_int_equal(mesh_listen(&listener, loopback, 0, 5, NULL), ZERO_OK);
    assert_true(mesh_address(listener, false, address, port));
    return listener;
}

/** A rank that calls the server by its port, and is told there which it is. */
static void the_server_says_which_rank_calls(void **state)
{
    (void)state;
    struct question question = {
        .rank = 2, .world = 7, .timeout_ms = 20000, .discovers = true, .variables = {"ZERO_PMI=1"}};
    char line[LINE];
    int port;
    const int listener = listen_somewhere(&port);
    snprintf(question.variables[1], 64, "PMI_PORT=127.0.0.1:%d", port);
    snprintf(question.variables[2], 64, "PMI_ID=2");
    for (int leaves = 0; leaves < 2; leaves++) {
        struct pollfd polled = {.fd = listener, .events = POLLIN};
        memset(heard, 0, WORLD * sizeof *heard);
        question.leaves = leaves == 1;
        const pid_t pid = start(&question);
        assert_int_equal(poll(&polled, 1, 20000), 1);
        const int fd = accept(listener, NULL, NULL);
        assert_true(read_line(fd, line));
        assert_string_equal(line, "cmd=initack pmiid=2\n");
        say(fd, "cmd=initack\ncmd=set size=7\ncmd=set rank=2\ncmd=set debug=0\n");
        serve_wrongly(fd, NULL, NULL);
        wait_for(pid);
        assert_int_equal(heard[2].result, ZERO_OK);
        assert_int_equal(heard[2].place.rank, 2);
        assert_int_equal(heard[2].place.world, 7);
        assert_int_equal(heard[2].port, leaves ? 0 : 6107);
        assert_string_equal(heard[2].address, leaves ? "" : "10.0.0.4,fd00::4");
    }
    close(listener);
}

/* ------------------------------------------------------------------ wrong ones */

static char long_line[6000], long_name[700], long_value[500];

static const struct {
    const char *request, *answer;
    zero_result result;
    const char *text;
} wrong[] = {
    {"cmd=init ", "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n", ZERO_E_INVALID,
     "answers \"cmd=response_to_init pmi_version=2"},
    {"cmd=init ", "cmd=response_to_init pmi_version=1 rc=-1\n", ZERO_E_INVALID, "rc=-1"},
    {"cmd=init ", "cmd=response_to_init rc=0\n", ZERO_E_INVALID, "to \"cmd=init pmi_version=1"},
    {"cmd=init ", "cmd=response_to_initial pmi_version=1 rc=0\n", ZERO_E_INVALID, "initial"},
    {"cmd=init ", "HTTP/1.1 400 Bad Request\r\n", ZERO_E_INVALID, "\"HTTP/1.1 400 Bad Request?\""},
    {"cmd=init ", "\033[2J\033]0;x\007\n", ZERO_E_INVALID, "\"?[2J?]0;x?\""},
    {"cmd=init ", "\n", ZERO_E_INVALID, "answers \"\""},
    {"cmd=init ", "          \n", ZERO_E_INVALID, "answers \"          \""},
    {"cmd=init ", "=\n", ZERO_E_INVALID, "answers \"=\""},
    {"cmd=init ", "", ZERO_E_PEER, "closed its connection after \"cmd=init"},
    {"cmd=init ", NULL, ZERO_E_TIMEOUT, "does not answer in time"},
    {"cmd=init ", "cmd=response_to_init pmi", ZERO_E_TIMEOUT, "does not answer in time"},
    {"cmd=init ", long_line, ZERO_E_INVALID, "bytes without an end"},
    {"cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=4 vallen_max=1024\n", ZERO_E_INVALID,
     "keylen_max=4"},
    {"cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=-1\n", ZERO_E_INVALID,
     "vallen_max=-1"},
    {"cmd=get_maxes", "cmd=maxes keylen_max=64 vallen_max=99999999999999999999\n", ZERO_E_INVALID,
     "vallen_max=9999"},
    {"cmd=get_maxes", "cmd=maxes\n", ZERO_E_INVALID, "answers \"cmd=maxes\""},
    {"cmd=get_my_kvsname", "cmd=my_kvsname\n", ZERO_E_INVALID, "\"cmd=my_kvsname\""},
    {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=\n", ZERO_E_INVALID, "kvsname="},
    {"cmd=get_my_kvsname", long_name, ZERO_E_INVALID, "kvsname=nnnn"},
    {"cmd=put ", "cmd=put_result rc=1 msg=duplicate_key\n", ZERO_E_INVALID, "duplicate_key"},
    {"cmd=put ", "cmd=get_result rc=0 value=1@a\n", ZERO_E_INVALID, "to \"cmd=put kvsname=kvs_7_0"},
    {"cmd=barrier_in", "cmd=finalize_ack\n", ZERO_E_INVALID, "to \"cmd=barrier_in\""},
    {"cmd=barrier_in", NULL, ZERO_E_TIMEOUT, "not all of 2 ranks may have come"},
    {"cmd=get ", "cmd=get_result rc=-1 msg=key_zero-rank-0_not_found value=unknown\n",
     ZERO_E_INVALID, "not_found"},
    {"cmd=get ", "cmd=get_result rc=0 msg=success\n", ZERO_E_INVALID, "to \"cmd=get kvsname="},
    {"cmd=get ", long_value, ZERO_E_INVALID, "answers \"cmd=get_result"},
    {"cmd=get ", "cmd=get_result rc=0 value=6107\n", ZERO_E_INVALID, "\"6107\" as the place"},
    {"cmd=get ", "cmd=get_result rc=0 value=0@10.0.0.4\n", ZERO_E_INVALID, "\"0@10.0.0.4\" as"},
    {"cmd=get ", "cmd=get_result rc=0 value=65536@10.0.0.4\n", ZERO_E_INVALID, "as the place"},
    {"cmd=get ", "cmd=get_result rc=0 value=6107@\n", ZERO_E_INVALID, "\"6107@\" as the place"},
    {"cmd=get ", "cmd=get_result rc=0 value=6107@$(reboot)\n", ZERO_E_INVALID, "as the place"},
    {"cmd=get ", "cmd=get_result rc=0 value=@10.0.0.4\n", ZERO_E_INVALID, "as the place"},
    {"cmd=get ", "cmd=get_result rc=0 value=+1@10.0.0.4\n", ZERO_E_INVALID, "as the place"},
    {"cmd=finalize", "", ZERO_E_PEER, "closed its connection after \"cmd=finalize\""},
};

static void what_a_server_says_wrongly_is_shown(void **state)
{
    (void)state;
    memset(long_line, 'x', sizeof long_line - 1);
    snprintf(long_name, sizeof long_name, "cmd=my_kvsname kvsname=%0600d\n", 0);
    for (char *at = strstr(long_name, "=0"); *++at == '0';)
        *at = 'n';
    snprintf(long_value, sizeof long_value, "cmd=get_result rc=0 value=%0400d\n", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        memset(heard, 0, WORLD * sizeof *heard);
        struct question question = by_descriptor(0, 2, ends[1]);
        if (wrong[i].result == ZERO_E_TIMEOUT)
            question.timeout_ms = 300;
        const uint64_t begun = base_clock_ns();
        const pid_t pid = start(&question);
        close(ends[1]);
        serve_wrongly(ends[0], wrong[i].request, wrong[i].answer);
        wait_for(pid);
        assert_true(base_clock_ns() - begun < UINT64_C(15000000000));
        if (heard[0].result != wrong[i].result || !strstr(heard[0].message, wrong[i].text) ||
            !strstr(heard[0].message, "set MASTER_ADDR"))
            fail_msg("\"%s\", \"%.60s\": %d, %s", wrong[i].request,
                     wrong[i].answer ? wrong[i].answer : "nothing", heard[0].result,
                     heard[0].message);
    }
}

/** Another rank of another world answers. */
static void a_server_that_counts_others_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *says, *text;
    } cases[] = {
        {"cmd=initack\ncmd=set size=7\ncmd=set rank=1\ncmd=set debug=0\n", "this one is 1 of 7"},
        {"cmd=initack\ncmd=set size=2\ncmd=set rank=2\ncmd=set debug=0\n", "cmd=set rank=2"},
        {"cmd=initack\ncmd=set rank=1\n", "answers \"cmd=set rank=1\""},
        {"cmd=initack rc=4\n", "rc=4"},
        {"", "closed its connection after \"cmd=initack"},
    };
    struct question question = {.rank = 2, .world = 7, .timeout_ms = 20000};
    char line[LINE];
    int port;
    const int listener = listen_somewhere(&port);
    snprintf(question.variables[0], 64, "ZERO_PMI=1");
    snprintf(question.variables[1], 64, "PMI_PORT=localhost:%d", port);
    snprintf(question.variables[2], 64, "PMI_ID=2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pollfd polled = {.fd = listener, .events = POLLIN};
        memset(heard, 0, WORLD * sizeof *heard);
        const pid_t pid = start(&question);
        assert_int_equal(poll(&polled, 1, 20000), 1);
        const int fd = accept(listener, NULL, NULL);
        assert_true(read_line(fd, line));
        say(fd, cases[i].says);
        shutdown(fd, SHUT_WR);
        wait_for(pid);
        close(fd);
        assert_true(heard[2].result < 0);
        if (!strstr(heard[2].message, cases[i].text))
            fail_msg("no \"%s\" in %s", cases[i].text, heard[2].message);
    }
    close(listener);
}

/* ------------------------------------------------------------------ variables */

static void variables_that_cannot_be_are_named(void **state)
{
    (void)state;
    int plain[2];
    char descriptor[64];
    assert_int_equal(pipe(plain), 0);
    snprintf(descriptor, sizeof descriptor, "PMI_FD=%d", plain[0]);
    const struct {
        const char *first, *second;
        zero_result result;
        const char *text;
    } cases[] = {
        {"PMI_FD=-1", "", ZERO_E_INVALID, "PMI_FD=-1 is no number"},
        {"PMI_FD=eight", "", ZERO_E_INVALID, "PMI_FD=eight is no number"},
        {"PMI_FD=1000", "", ZERO_E_UNSUPPORTED, "PMI_FD=1000 is no open socket"},
        {descriptor, "", ZERO_E_UNSUPPORTED, "is no open socket"},
        {"PMI_PORT=nowhere", "PMI_ID=1", ZERO_E_INVALID, "PMI_PORT=nowhere is no host:port"},
        {"PMI_PORT=:1", "PMI_ID=1", ZERO_E_INVALID, "PMI_PORT=:1 is no host:port"},
        {"PMI_PORT=127.0.0.1:0", "PMI_ID=1", ZERO_E_INVALID, "the port of PMI_PORT=0 is no number"},
        {"PMI_PORT=127.0.0.1:1", "", ZERO_E_INVALID, "PMI_ID is not set"},
        {"PMI_PORT=127.0.0.1:1", "PMI_ID=1", ZERO_E_IO, "ECONNREFUSED"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct question question = {.rank = 1, .world = 2, .timeout_ms = 10000};
        memset(heard, 0, WORLD * sizeof *heard);
        snprintf(question.variables[0], 64, "ZERO_PMI=1");
        snprintf(question.variables[1], 64, "%s", cases[i].first);
        snprintf(question.variables[2], 64, "%s", cases[i].second);
        wait_for(start(&question));
        if (heard[1].result != cases[i].result || !strstr(heard[1].message, cases[i].text))
            fail_msg("%s: %d, %s", cases[i].first, heard[1].result, heard[1].message);
    }
    close(plain[0]);
    close(plain[1]);
}

/** The one argument: a library that has MPI_Init(). */
static const char *mpi;

/** mpi4py and others load MPI so that no other library sees it. */
static void an_mpi_that_is_loaded_apart_is_seen(void **state)
{
    (void)state;
    struct question question = {.rank = 1, .world = 2, .timeout_ms = 10000};
    void *library = dlopen(mpi, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    memset(heard, 0, WORLD * sizeof *heard);
    snprintf(question.variables[0], 64, "ZERO_PMI=1");
    snprintf(question.variables[1], 64, "PMI_FD=1000");
    wait_for(start(&question));
    dlclose(library);
    assert_int_equal(heard[1].result, ZERO_E_UNSUPPORTED);
    assert_non_null(strstr(heard[1].message, "the program is one of MPI"));
}

static int set_up(void **state)
{
    (void)state;
    heard = mmap(NULL, WORLD * sizeof *heard, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    return heard == MAP_FAILED ? -1 : 0;
}

int main(int argc, char **argv)
{
    mpi = argc > 1 ? argv[1] : "";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_hear_where_rank_0_is),
        cmocka_unit_test(the_server_says_which_rank_calls),
        cmocka_unit_test(what_a_server_says_wrongly_is_shown),
        cmocka_unit_test(a_server_that_counts_others_is_refused),
        cmocka_unit_test(variables_that_cannot_be_are_named),
        cmocka_unit_test(an_mpi_that_is_loaded_apart_is_seen),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
