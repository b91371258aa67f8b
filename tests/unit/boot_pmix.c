// PMIx against a library that the test plays: ranks hear how many they are and where rank 0 is,
// leave at once, and say in one line what is missing where a library, a server or an answer is.
#include "base/clock.h"
#include "collectives/rendezvous/mesh.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------ the library */

enum { BOOL = 1, STRING = 3, INT32 = 9, UINT16 = 13, UINT32 = 14, NOT_FOUND = -46 };

struct process {
    char name[256];
    uint32_t rank;
};

struct value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        int32_t int32;
        uint16_t uint16;
        uint32_t uint32;
        uint64_t room[3];
    };
};

struct info {
    char key[512];
    uint32_t flags;
    struct value value;
};

/** How the library behaves, and what it has seen. */
static struct {
    const char *file; /**< in its place; NULL: the test's own functions */
    bool busy;        /**< another part of the program has initialised it */
    int init, commit, put, fence, fence_status, get;
    const char *name; /**< of the job */
    uint32_t rank;
    uint16_t size_type;
    uint32_t size, local_size, local_rank, nodes; /**< 0: it does not know */
    bool silent;                                  /**< a fence is never over */
    bool late;                                    /**< it is over after a while */
    uint16_t text_type;
    const char *text; /**< that rank 0 has put */
    char published[400];
    int inits, leaves;
} fake;

static void reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.name = "job7";
    fake.rank = 1;
    fake.size_type = UINT32;
    fake.size = 4;
    fake.local_size = 2;
    fake.local_rank = 1;
    fake.nodes = 2;
    fake.text_type = STRING;
    fake.text = "6107@10.0.0.4,fd00::4";
}

/** Takes the place of the C library's. */
void *dlopen(const char *name, int flags)
{
    void *(*real)(const char *, int);
    void *found = dlsym(RTLD_NEXT, "dlopen");
    memcpy(&real, &found, sizeof real);
    return real(strcmp(name, "libpmix.so.2") == 0 ? fake.file : name, flags);
}

#pragma GCC visibility push(default) // as a library has them
int PMIx_Init(struct process *self, const struct info *infos, size_t count);
int PMIx_Initialized(void);
int PMIx_Get(const struct process *of, const char *key, const struct info *infos, size_t count,
             struct value **value);
int PMIx_Put(uint8_t scope, const char *key, const struct value *value);
int PMIx_Commit(void);
int PMIx_Fence_nb(const struct process *who, size_t count, const struct info *infos,
                  size_t info_count, void (*done)(int status, void *user), void *user);
int PMIx_Finalize(const struct info *infos, size_t count);
const char *PMIx_Error_string(int status);
#pragma GCC visibility pop

int PMIx_Init(struct process *self, const struct info *infos, size_t count)
{
    (void)infos;
    fake.inits += fake.init == 0;
    snprintf(self->name, sizeof self->name, "%s", fake.name);
    self->rank = fake.rank;
    return count ? -1 : fake.init;
}

int PMIx_Initialized(void)
{
    return fake.busy;
}

static int number(struct value *value, uint16_t type, uint32_t number)
{
    value->type = type;
    if (type == UINT16)
        value->uint16 = (uint16_t)number;
    else if (type == STRING)
        value->string = strdup("4");
    else
        value->uint32 = number;
    return number ? 0 : NOT_FOUND;
}

int PMIx_Get(const struct process *of, const char *key, const struct info *infos, size_t count,
             struct value **value)
{
    struct value *made = calloc(1, sizeof *made);
    const bool all = of->rank == UINT32_MAX - 1;
    int status = NOT_FOUND;
    if (strcmp(of->name, fake.name) != 0)
        status = -1;
    else if (all && strcmp(key, "pmix.job.size") == 0)
        status = number(made, fake.size_type, fake.size);
    else if (all && strcmp(key, "pmix.local.size") == 0)
        status = number(made, UINT32, fake.local_size);
    else if (all && strcmp(key, "pmix.num.nodes") == 0)
        status = number(made, UINT32, fake.nodes);
    else if (of->rank == fake.rank && strcmp(key, "pmix.lrank") == 0)
        status = number(made, UINT16, fake.local_rank);
    else if (of->rank == 0 && strcmp(key, "zero-rank-0") == 0 && count == 1 &&
             strcmp(infos->key, "pmix.timeout") == 0) {
        made->type = fake.text_type;
        if (made->type == STRING)
            made->string = strdup(*fake.published ? fake.published : fake.text);
        status = fake.get;
    }
    *value = status ? NULL : made;
    if (status && made->type == STRING)
        free(made->string);
    if (status)
        free(made);
    return status;
}

int PMIx_Put(uint8_t scope, const char *key, const struct value *value)
{
    if (scope != 3 || strcmp(key, "zero-rank-0") != 0 || value->type != STRING)
        return -1;
    snprintf(fake.published, sizeof fake.published, "%s", value->string);
    return fake.put;
}

int PMIx_Commit(void)
{
    return fake.commit;
}

static struct {
    void (*done)(int status, void *user);
    void *user;
} call_back;

static void *end_fence(void *unused)
{
    usleep(50000);
    call_back.done(fake.fence_status, call_back.user);
    return unused;
}

int PMIx_Fence_nb(const struct process *who, size_t count, const struct info *infos,
                  size_t info_count, void (*done)(int status, void *user), void *user)
{
    pthread_t thread;
    if (who || count || info_count != 1 || strcmp(infos->key, "pmix.collect") != 0 ||
        infos->value.type != BOOL || !infos->value.flag)
        return -1;
    call_back.done = done;
    call_back.user = user;
    if (fake.fence || fake.silent)
        return fake.fence;
    if (!fake.late)
        done(fake.fence_status, user);
    else if (!pthread_create(&thread, NULL, end_fence, NULL))
        pthread_detach(thread);
    return 0;
}

int PMIx_Finalize(const struct info *infos, size_t count)
{
    (void)infos;
    fake.leaves++;
    return count ? -1 : 0;
}

const char *PMIx_Error_string(int status)
{
    return status == NOT_FOUND ? "NOT-FOUND" : "AN-ERROR";
}

/* ------------------------------------------------------------------ ranks */

/** What a rank has heard. */
static struct heard {
    zero_result result;
    bool twice;
    char message[512], address[BOOT_ADDRESS_BYTES];
    int port, inits, leaves;
    struct boot_place place;
} * heard; /**< shared with the process that asks */

static char *const alone[] = {"PMIX_NAMESPACE=job7", "PMIX_RANK=1", NULL};
static char *const of_rank_0[] = {"PMIX_NAMESPACE=job7", "PMIX_RANK=0", NULL};

static void ask_master(char *const *environment, int timeout_ms, struct base_error *error)
{
    struct boot_master master, again;
    const struct boot_meeting meeting = {.rank = (int)fake.rank,
                                         .world = 4,
                                         .deadline_ns =
                                             base_clock_ns() + (uint64_t)timeout_ms * 1000000};
    heard->result = boot_manager_master(&master, &meeting, environment, error);
    if (heard->result)
        return;
    heard->port = master.port;
    snprintf(heard->address, sizeof heard->address, "%s", master.address);
    heard->twice = !boot_manager_master(&again, &meeting, environment, error) &&
                   memcmp(&again, &master, sizeof again) == 0;
}

/** What a process hears that asks for its place, for rank 0's, or for both. */
static const struct heard *ask(char *const *environment, bool place, bool master, int timeout_ms)
{
    memset(heard, 0, sizeof *heard);
    const pid_t pid = fork();
    int status;
    if (pid == 0) {
        struct base_error error = {.result = ZERO_OK};
        alarm(60);
        if (place)
            heard->result = boot_manager_discover(&heard->place, environment, &error);
        if (master && !heard->result)
            ask_master(environment, timeout_ms, &error);
        boot_manager_leave();
        snprintf(heard->message, sizeof heard->message, "%s", error.message);
        heard->inits = fake.inits;
        heard->leaves = fake.leaves;
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(heard->inits, heard->leaves);
    return heard;
}

static void a_rank_hears_its_place(void **state)
{
    (void)state;
    reset();
    const struct boot_place *place = &ask(alone, true, false, 0)->place;
    assert_int_equal(heard->result, ZERO_OK);
    assert_int_equal(heard->inits, 1);
    assert_int_equal(place->rank, 1);
    assert_int_equal(place->world, 4);
    assert_int_equal(place->local_rank, 1);
    assert_int_equal(place->local_world, 2);
    assert_int_equal(place->hosts, 2);
    assert_string_equal(place->launcher, "PMIx");
    assert_string_equal(place->source, "PMIX_RANK=1, PMIX_JOB_SIZE=4");
    assert_non_null(strstr(place->job, "job7"));
    // What it leaves out is not known.
    fake.local_size = fake.local_rank = fake.nodes = 0;
    assert_int_equal(ask(alone, true, false, 0)->result, ZERO_OK);
    assert_int_equal(place->local_world, 0);
    assert_int_equal(place->local_rank, -1);
    assert_int_equal(place->hosts, 0);
    fake.local_size = 5; // of 4
    assert_int_equal(ask(alone, true, false, 0)->result, ZERO_OK);
    assert_int_equal(place->local_world, 0);
}

static void pals_says_the_rank_and_pmix_the_world(void **state)
{
    (void)state;
    reset();
    char *const pals[] = {"PALS_RANKID=1",       "PALS_APID=a", "PALS_LOCAL_RANKID=1",
                          "PMIX_NAMESPACE=job7", "PMIX_RANK=1", NULL};
    assert_int_equal(ask(pals, true, false, 0)->result, ZERO_OK);
    assert_int_equal(heard->place.world, 4);
}

static void ranks_hear_where_rank_0_is(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        reset();
        fake.late = late == 1;
        ask(alone, true, true, 20000);
        assert_int_equal(heard->result, ZERO_OK);
        assert_true(heard->twice);
        assert_int_equal(heard->inits, 1); // for both questions, and for one more
        assert_int_equal(heard->port, 6107);
        assert_string_equal(heard->address, "10.0.0.4,fd00::4");
        fake.rank = 0;
        assert_int_equal(ask(of_rank_0, false, true, 20000)->result, ZERO_OK);
        assert_true(heard->port > 0 && heard->port != 6107);
        assert_true(*heard->address != '\0');
    }
    reset();
    fake.fence = -157; // it is over at once, and no call-back comes
    assert_int_equal(ask(alone, false, true, 20000)->result, ZERO_OK);
}

/* ------------------------------------------------------------------ what goes wrong */

static void expect(char *const *environment, bool place, zero_result result, const char *text)
{
    ask(environment, place, !place, fake.silent ? 300 : 20000);
    if (heard->result != result || !strstr(heard->message, text))
        fail_msg("no \"%s\": %d, %s", text, heard->result, heard->message);
    assert_non_null(strstr(heard->message, place ? "ZERO_RANK" : "MASTER_ADDR"));
}

static void a_library_that_is_not_there_is_named(void **state)
{
    (void)state;
    reset();
    fake.file = "libpmix-of-nothing.so.2";
    expect(alone, true, ZERO_E_INVALID, "PMIx can't be asked: libpmix-of-nothing.so.2");
    expect(alone, false, ZERO_E_UNSUPPORTED, "PMIx can't be asked: libpmix-of-nothing.so.2");
    fake.file = "libc.so.6";
    expect(alone, false, ZERO_E_UNSUPPORTED, "libpmix.so.2 has no PMIx_Init");
}

static void a_server_that_is_not_there_is_told(void **state)
{
    (void)state;
    reset();
    fake.init = -25;
    expect(alone, true, ZERO_E_INVALID, "PMIx can't be asked: PMIx_Init: AN-ERROR (-25)");
    expect(alone, false, ZERO_E_UNSUPPORTED, "PMIx_Init: AN-ERROR (-25)");
    reset();
    fake.busy = true;
    expect(alone, false, ZERO_E_UNSUPPORTED, "another part of the program has initialised it");
    reset();
    fake.name = "job8";
    expect(alone, true, ZERO_E_INVALID, "it knows this process as rank 1 of another job");
    reset();
    fake.rank = 2;
    expect(alone, true, ZERO_E_INVALID, "it knows this process as rank 2 of another job");
}

static void numbers_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint16_t type;
        uint32_t size;
    } sizes[] = {{UINT32, 0}, {UINT32, 1}, {UINT32, UINT32_MAX}, {INT32, 4}, {STRING, 4}, {0, 4}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        reset();
        fake.size_type = sizes[i].type;
        fake.size = sizes[i].size;
        expect(alone, true, ZERO_E_INVALID, "it does not say how many ranks there are");
    }
    reset();
    fake.size = 5;
    expect(alone, false, ZERO_E_INVALID, "it counts other ranks: this one is 1 of 5");
}

static void an_exchange_that_fails_is_told(void **state)
{
    (void)state;
    reset();
    fake.fence = -2;
    expect(alone, false, ZERO_E_PEER, "PMIx_Fence: AN-ERROR (-2)");
    fake.fence = -47;
    expect(alone, false, ZERO_E_UNSUPPORTED, "PMIx_Fence: AN-ERROR (-47)");
    reset();
    fake.fence_status = -3;
    expect(alone, false, ZERO_E_PEER, "PMIx_Fence: AN-ERROR (-3)");
    fake.fence_status = -24;
    expect(alone, false, ZERO_E_TIMEOUT, "PMIx_Fence: AN-ERROR (-24)");
    reset();
    fake.silent = true;
    expect(alone, false, ZERO_E_TIMEOUT, "not all of 4 ranks may have come");
    reset();
    fake.get = NOT_FOUND;
    expect(alone, false, ZERO_E_IO, "PMIx_Get: NOT-FOUND (-46)");
    reset();
    fake.text_type = UINT32;
    expect(alone, false, ZERO_E_INVALID, "what rank 0 has put is no text");
    static char text[600];
    memset(text, '1', sizeof text - 1);
    reset();
    fake.text = text;
    expect(alone, false, ZERO_E_INVALID, "what rank 0 has put is no text");
    fake.text = "6107@a\033";
    expect(alone, false, ZERO_E_INVALID, "\"6107@a?\" as the place of rank 0");
    reset();
    fake.rank = 0;
    fake.put = -4;
    expect(of_rank_0, false, ZERO_E_IO, "PMIx_Put: AN-ERROR (-4)");
    reset();
    fake.rank = 0;
    fake.commit = -5;
    expect(of_rank_0, false, ZERO_E_IO, "PMIx_Commit: AN-ERROR (-5)");
}

static void variables_that_disagree_stay_an_error(void **state)
{
    (void)state;
    reset();
    char *const half[] = {"RANK=1", "LOCAL_RANK=1", "PMIX_NAMESPACE=job7", "PMIX_RANK=1", NULL};
    ask(half, true, false, 0);
    assert_int_equal(heard->result, ZERO_OK); // the half says what PMIx says
    char *const other[] = {"RANK=2", "LOCAL_RANK=0", "PMIX_NAMESPACE=job7", "PMIX_RANK=1", NULL};
    ask(other, true, false, 0);
    assert_int_equal(heard->result, ZERO_E_INVALID);
    assert_non_null(strstr(heard->message, "disagree"));
    char *const forbidden[] = {"ZERO_PMI=0", "PMIX_NAMESPACE=job7", "PMIX_RANK=1", NULL};
    ask(forbidden, true, false, 0);
    assert_int_equal(heard->result, ZERO_E_INVALID);
    assert_int_equal(heard->inits, 0);
}

/** Which manager is asked, if any. */
static void it_is_asked_where_the_user_says_so(void **state)
{
    (void)state;
    static const struct {
        char *variables[6];
        bool offered;
    } cases[] = {
        {{"PMI_FD=5", "PMI_RANK=1", "PMI_SIZE=2", NULL}, false},
        {{"ZERO_PMI=1", "PMI_FD=5", "PMI_RANK=1", "PMI_SIZE=2", NULL}, true},
        {{"ZERO_PMI=0", "PMI_FD=5", "PMI_RANK=1", "PMI_SIZE=2", NULL}, false},
        {{"ZERO_PMI=1", "PMI_FD=5", "PMI_RANK=0", "PMI_SIZE=2", NULL}, false},
        {{"ZERO_PMI=1", "PMI_FD=5", "PMI_RANK=1", "PMI_SIZE=8", NULL}, false},
        {{"ZERO_PMI=1", "PMI_FD=5", NULL}, true},
        {{"ZERO_PMI=1", "PMI_RANK=1", "PMI_SIZE=2", NULL}, false},
        {{"ZERO_PMI=1", "PMI_PORT=a:1", "PMI_ID=1", NULL}, true},
        {{"PMIX_NAMESPACE=7", "PMIX_RANK=1", NULL}, true},
        {{"PMIX_NAMESPACE=7", "PMIX_RANK=0", NULL}, false},
        {{"PMIX_RANK=1", NULL}, false},
        {{"ZERO_PMI=0", "PMIX_NAMESPACE=7", "PMIX_RANK=1", NULL}, false},
        {{NULL}, false},
    };
    bool offered;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(boot_manager_look(&offered, 1, 2, cases[i].variables, NULL), ZERO_OK);
        assert_int_equal(offered, cases[i].offered);
    }
    struct base_error error = {.result = ZERO_OK};
    char *const odd[] = {"ZERO_PMI=yes", NULL};
    assert_int_equal(boot_manager_look(&offered, 1, 2, odd, &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "ZERO_PMI=yes"));
}

static int set_up(void **state)
{
    (void)state;
    heard = mmap(NULL, sizeof *heard, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return heard == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_hears_its_place),
        cmocka_unit_test(pals_says_the_rank_and_pmix_the_world),
        cmocka_unit_test(ranks_hear_where_rank_0_is),
        cmocka_unit_test(a_library_that_is_not_there_is_named),
        cmocka_unit_test(a_server_that_is_not_there_is_told),
        cmocka_unit_test(numbers_that_cannot_be_are_refused),
        cmocka_unit_test(an_exchange_that_fails_is_told),
        cmocka_unit_test(variables_that_disagree_stay_an_error),
        cmocka_unit_test(it_is_asked_where_the_user_says_so),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
