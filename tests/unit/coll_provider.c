// Providers by themselves: ranks that are engines of this process, or of a child that dies. Skipped
// where UCX is not to be had.
#include "base/clock.h"
#include "base/fault.h"
#include "collectives/provider/provider.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, ARENAS = 4, BYTES = 3 << 20 };

static const uint64_t second = UINT64_C(1000000000);

static const struct coll_provider *ops;

/** One rank of this process. */
struct engine {
    struct coll_provided *provided;
    unsigned char *memory; /**< its part of arena 1 */
    struct coll_blob key;
    _Atomic unsigned ended; /**< times that it was told of ended copies */
};

static void count_ended(void *user)
{
    struct engine *engine = user;
    atomic_fetch_add(&engine->ended, 1);
}

static void open_engine(struct engine *engine, int rank, int world)
{
    struct base_error error = {.result = ZERO_OK};
    const struct coll_provider_config config = {
        .rank = rank, .world = world, .arenas = ARENAS, .ended = count_ended, .user = engine};
    *engine = (struct engine){.memory = malloc(BYTES)};
    assert_non_null(engine->memory);
    for (size_t i = 0; i < BYTES; i++)
        engine->memory[i] = (unsigned char)mix((uint32_t)rank, (uint32_t)i, 5);
    if (ops->open(&engine->provided, &config, &error) != ZERO_OK)
        fail_msg("%s", error.message);
    if (ops->publish(engine->provided, 1, engine->memory, BYTES, &engine->key, &error) != ZERO_OK)
        fail_msg("%s", error.message);
}

static void close_engine(struct engine *engine)
{
    ops->close(engine->provided);
    free(engine->memory);
}

static void meet(struct engine *engine, int rank, const struct coll_blob *address,
                 const struct coll_blob *key)
{
    struct base_error error = {.result = ZERO_OK};
    if (ops->connect(engine->provided, rank, address, &error) != ZERO_OK ||
        ops->learn(engine->provided, 1, rank, key, &error) != ZERO_OK)
        fail_msg("%s", error.message);
}

static uint32_t state_of(const struct coll_copy *copy)
{
    return atomic_load(&copy->state);
}

static void await(const struct engine *engine, struct coll_copy *copy)
{
    const uint64_t began = base_clock_ns();
    while (state_of(copy) == COLL_COPY_UNDER_WAY && base_clock_ns() - began < 20 * second)
        ops->progress(engine->provided);
}

/** Reads something of a peer. UCX makes a connection when it is used first, and takes it badly if
 * the peer goes away before it is made. */
static void read_once(const struct engine *engine, int from)
{
    uint64_t word;
    struct coll_copy copy = {0};
    ops->start(engine->provided, &(struct coll_remote){from, 1, 0, sizeof word}, &word, &copy);
    await(engine, &copy);
    assert_int_equal(state_of(&copy), COLL_COPY_HERE);
}

static void open_all(struct engine engines[WORLD])
{
    for (int i = 0; i < WORLD; i++)
        open_engine(&engines[i], i, WORLD);
    for (int i = 0; i < WORLD; i++)
        for (int j = 0; j < WORLD; j++) {
            const struct coll_blob address = ops->address(engines[j].provided);
            if (i != j)
                meet(&engines[i], j, &address, &engines[j].key);
        }
    for (int i = 0; i < WORLD; i++)
        for (int j = 0; j < WORLD; j++)
            if (i != j)
                read_once(&engines[i], j);
}

/* ------------------------------------------------------------------ copies */

static void copies_of_odd_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 63, 4095, 4097, 8191, 65537, (1 << 20) + 3};
    struct engine engines[WORLD];
    unsigned char *to = malloc(BYTES);
    open_all(engines);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int from = 1; from < WORLD; from++) {
            const size_t at = 3 * i + (i % 2) * 4096, bytes = sizes[i], shift = 5 * i;
            const struct coll_remote remote = {from, 1, at, bytes};
            struct coll_copy copy = {0};
            memset(to, 0xee, BYTES);
            ops->start(engines[0].provided, &remote, to + shift, &copy);
            await(&engines[0], &copy);
            assert_int_equal(state_of(&copy), COLL_COPY_HERE);
            assert_memory_equal(to + shift, engines[from].memory + at, bytes);
            assert_true(shift == 0 || to[shift - 1] == 0xee);
            assert_int_equal(to[shift + bytes], 0xee);
        }
    assert_true(atomic_load(&engines[0].ended) > 0);
    for (int i = 0; i < WORLD; i++)
        close_engine(&engines[i]);
    free(to);
}

static void many_at_a_time(void **state)
{
    (void)state;
    enum { COPIES = 64 };
    const size_t bytes = BYTES / COPIES;
    static struct coll_copy copies[COPIES];
    struct engine engines[WORLD];
    unsigned char *to = malloc(BYTES);
    open_all(engines);
    memset(copies, 0, sizeof copies);
    for (int i = 0; i < COPIES; i++) {
        const struct coll_remote remote = {1 + i % 2, 1, (size_t)i * bytes, bytes};
        ops->start(engines[0].provided, &remote, to + (size_t)i * bytes, &copies[i]);
    }
    for (int i = COPIES - 1; i >= 0; i--) {
        if (i % 3 == 0)
            ops->settle(engines[0].provided, &copies[i]);
        await(&engines[0], &copies[i]);
        assert_int_equal(state_of(&copies[i]), COLL_COPY_HERE);
        assert_memory_equal(to + (size_t)i * bytes, engines[1 + i % 2].memory + (size_t)i * bytes,
                            bytes);
    }
    for (int i = 0; i < WORLD; i++)
        close_engine(&engines[i]);
    free(to);
}

static void expect_broken(const struct engine *engine, const struct coll_remote *remote)
{
    char why[128] = "";
    unsigned char to[16];
    struct coll_copy copy = {0};
    assert_true(remote->bytes <= sizeof to);
    ops->start(engine->provided, remote, to, &copy);
    await(engine, &copy);
    assert_int_equal(state_of(&copy), COLL_COPY_BROKEN);
    ops->why(engine->provided, remote->rank, why, sizeof why);
    assert_true(strlen(why) > 0);
}

static void what_is_not_known_is_not_read(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    struct engine engines[WORLD];
    open_all(engines);
    struct coll_provided *first = engines[0].provided;
    expect_broken(&engines[0], &(struct coll_remote){0, 1, 0, 16}); // itself
    expect_broken(&engines[0], &(struct coll_remote){1, 2, 0, 16}); // an arena that is not there
    assert_int_equal(ops->learn(first, 1, 1, &(struct coll_blob){"", 1}, &error), ZERO_E_IO);
    ops->withdraw(first, 1);
    expect_broken(&engines[0], &(struct coll_remote){1, 1, 0, 16});
    ops->halt(first);
    ops->halt(first);
    expect_broken(&engines[0], &(struct coll_remote){2, 1, 0, 16});
    for (int i = 0; i < WORLD; i++)
        close_engine(&engines[i]);
}

static void ends_in_any_order(void **state)
{
    (void)state;
    static const int orders[][WORLD] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}};
    unsigned char *to = malloc(BYTES);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct engine engines[WORLD];
        struct coll_copy copy = {0};
        open_all(engines);
        const struct coll_remote remote = {1, 1, 0, BYTES};
        ops->start(engines[0].provided, &remote, to, &copy); // is under way at the end
        for (int j = 0; j < WORLD; j++)
            close_engine(&engines[orders[i][j]]);
        assert_true(state_of(&copy) != COLL_COPY_UNDER_WAY);
    }
    free(to);
}

/* ------------------------------------------------------------------ peers that go away */

/** A peer that is a child of this process. */
struct child {
    pid_t pid;
    int socket;
};

static void tell(int socket, const struct coll_blob *blob)
{
    if (write(socket, &blob->count, sizeof blob->count) != sizeof blob->count ||
        write(socket, blob->bytes, blob->count) != (ssize_t)blob->count)
        _exit(1);
}

static struct coll_blob hear(int socket, unsigned char *bytes, size_t most)
{
    size_t count = 0;
    if (recv(socket, &count, sizeof count, MSG_WAITALL) != sizeof count || count > most ||
        recv(socket, bytes, count, MSG_WAITALL) != (ssize_t)count)
        count = 0;
    return (struct coll_blob){bytes, count};
}

static void exchange(struct engine *engine, int peer, int socket)
{
    static unsigned char address[65536], key[65536];
    const struct coll_blob mine = ops->address(engine->provided);
    tell(socket, &mine);
    tell(socket, &engine->key);
    const struct coll_blob its = hear(socket, address, sizeof address);
    const struct coll_blob its_key = hear(socket, key, sizeof key);
    meet(engine, peer, &its, &its_key);
    tell(socket, &engine->key);
    hear(socket, key, sizeof key);
    read_once(engine, peer);
    tell(socket, &engine->key);
    hear(socket, key, sizeof key);
}

static void start_child(struct child *child)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    child->pid = fork();
    assert_true(child->pid >= 0);
    if (child->pid == 0) {
        struct engine engine;
        alarm(60);
        open_engine(&engine, 1, 2);
        exchange(&engine, 0, pair[1]);
        for (;;)
            pause();
    }
    close(pair[1]);
    child->socket = pair[0];
}

static void end_child(const struct child *child, int signal)
{
    int status;
    kill(child->pid, signal);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    close(child->socket);
}

/** Copies the whole arena so often that the peer goes away meanwhile. */
static void copy_until_broken(const struct engine *engine, unsigned char *to, pid_t victim)
{
    const struct coll_remote remote = {1, 1, 0, BYTES};
    const uint64_t began = base_clock_ns();
    for (int turn = 0; base_clock_ns() - began < 30 * second; turn++) {
        struct coll_copy copy = {0};
        ops->start(engine->provided, &remote, to, &copy);
        if (turn == 3)
            kill(victim, SIGKILL);
        await(engine, &copy);
        if (state_of(&copy) == COLL_COPY_BROKEN)
            return;
        assert_int_equal(state_of(&copy), COLL_COPY_HERE);
    }
    fail_msg("copies go on without their owner");
}

static void a_peer_that_dies_breaks_its_copies(void **state)
{
    (void)state;
    struct child child;
    struct engine engine;
    char why[128] = "";
    unsigned char *to = malloc(BYTES);
    start_child(&child);
    open_engine(&engine, 0, 2);
    exchange(&engine, 1, child.socket);
    copy_until_broken(&engine, to, child.pid);
    ops->why(engine.provided, 1, why, sizeof why);
    assert_true(strlen(why) > 0);
    expect_broken(&engine, &(struct coll_remote){1, 1, 0, 16});
    end_child(&child, SIGKILL);
    close_engine(&engine);
    free(to);
}

/** What was given up is not written any more, whatever the peer does later. */
static void a_peer_that_stops_is_given_up(void **state)
{
    (void)state;
    struct child child;
    struct engine engine;
    struct coll_copy copy = {0};
    const struct coll_remote remote = {1, 1, 0, BYTES};
    unsigned char *to = malloc(BYTES);
    start_child(&child);
    open_engine(&engine, 0, 2);
    exchange(&engine, 1, child.socket);
    kill(child.pid, SIGSTOP);
    usleep(10000);
    const uint64_t began = base_clock_ns();
    ops->start(engine.provided, &remote, to, &copy);
    ops->settle(engine.provided, &copy);
    assert_true(base_clock_ns() - began < 10 * second);
    assert_int_equal(state_of(&copy), COLL_COPY_BROKEN);
    memset(to, 0xee, BYTES);
    kill(child.pid, SIGCONT);
    usleep(200000);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(to[i], 0xee);
    end_child(&child, SIGKILL);
    close_engine(&engine);
    free(to);
}

static void a_child_leaves_the_engine_alone(void **state)
{
    (void)state;
    struct engine engines[WORLD];
    struct coll_copy copy = {0};
    unsigned char *to = malloc(BYTES);
    int status = -1;
    open_all(engines);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        close_engine(&engines[0]);
#ifdef TEST_SANITIZED
        _exit(0); // or what is its parent's would count as lost
#else
        exit(0); // what UCX has registered for that is called
#endif
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ops->start(engines[0].provided, &(struct coll_remote){1, 1, 0, BYTES}, to, &copy);
    await(&engines[0], &copy);
    assert_int_equal(state_of(&copy), COLL_COPY_HERE);
    assert_memory_equal(to, engines[1].memory, BYTES);
    for (int i = 0; i < WORLD; i++)
        close_engine(&engines[i]);
    free(to);
}

/* ------------------------------------------------------------------ good manners */

/** Whether another thread of this process takes SIGUSR1, which is for the program's own. */
static bool any_takes_signals(void)
{
    bool any = false;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[300], line[256];
        const int number = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = number > 0 && number != getpid() ? fopen(path, "r") : NULL;
        unsigned long long blocked = 0;
        while (file && fgets(line, sizeof line, file))
            sscanf(line, "SigBlk: %llx", &blocked);
        any |= file && !(blocked >> (SIGUSR1 - 1) & 1);
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return any;
}

static void signals_stay_the_programs(void **state)
{
    (void)state;
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP, SIGABRT, SIGALRM};
    struct engine engines[WORLD];
    struct sigaction before[sizeof signals / sizeof *signals], after;
    const int child = fork(); // where the library is loaded for the first time
    if (child != 0) {
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        return;
    }
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], NULL, &before[i]);
    open_all(engines);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        sigaction(signals[i], NULL, &after);
        if (after.sa_sigaction != before[i].sa_sigaction)
            _exit(1);
    }
#ifndef TEST_SANITIZED // whose own thread takes them
    if (any_takes_signals())
        _exit(2);
#else
    (void)any_takes_signals;
#endif
    _exit(0);
}

static void what_is_missing_is_an_error(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    const struct coll_provider_config config = {.world = 2, .arenas = ARENAS};
    struct coll_provided *provided;
    const int child = fork();
    if (child == 0) {
        base_fault_set("ucx.library@1", NULL);
        const zero_result result = ops->open(&provided, &config, &error);
        _exit(result == ZERO_E_UNSUPPORTED && strstr(error.message, "libucp.so.0") ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(base_fault_set("ucx.thread@1", NULL), ZERO_OK);
    assert_int_equal(ops->open(&provided, &config, &error), ZERO_E_NOMEM);
    zero_result result = ZERO_E_NOMEM;
    for (int failing = 1; result != ZERO_OK; failing++) {
        char fault[32];
        struct coll_blob key;
        static unsigned char memory[4096];
        snprintf(fault, sizeof fault, "alloc@%d", failing);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        base_error_clear(&error);
        result = ops->open(&provided, &config, &error);
        if (result == ZERO_OK) {
            result = ops->publish(provided, 0, memory, sizeof memory, &key, &error);
            ops->close(provided);
        }
        assert_true(result == ZERO_OK || result == ZERO_E_NOMEM);
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

int main(void)
{
    struct base_error error = {.result = ZERO_OK};
    const struct coll_provider_config config = {.world = 1, .arenas = 1};
    struct coll_provided *provided;
    setenv("UCX_TLS", "tcp,self", 0);
    ops = coll_provider_find("ucx");
    const pid_t child = fork(); // which leaves nothing loaded here
    if (child == 0)
        _exit(ops && ops->open(&provided, &config, &error) == ZERO_OK ? 0 : 1);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        printf("skipped: no UCX (libucp.so.0) on this machine, or in this build\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_stay_the_programs),
        cmocka_unit_test(what_is_missing_is_an_error),
        cmocka_unit_test(copies_of_odd_sizes),
        cmocka_unit_test(many_at_a_time),
        cmocka_unit_test(what_is_not_known_is_not_read),
        cmocka_unit_test(ends_in_any_order),
        cmocka_unit_test(a_peer_that_dies_breaks_its_copies),
        cmocka_unit_test(a_peer_that_stops_is_given_up),
        cmocka_unit_test(a_child_leaves_the_engine_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
