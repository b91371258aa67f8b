// Signals that ask the job to stop: which ones the library takes, when, and what becomes of others.
// Each case is a process of its own.
#include <zero/zero.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { NUMEL = 4000, GOOD = 0, BAD = 3, PAUSE_US = 700000 };

/** In a case: says what is wrong and ends it. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(BAD);                                                                            \
        }                                                                                          \
    } while (0)

/** Runs a case; 128 + signal if one ended it. */
static int run(void (*body)(void))
{
    int status;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(GOOD);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static zero_ctx *open_context(const char *name)
{
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    config.world = 1;
    config.name = name;
    config.micro_batches = 1;
    const zero_param_desc desc = zero_param_vector("w", NUMEL, NULL);
    CHECK(zero_open(&z, &config) == ZERO_OK);
    CHECK(zero_add_group(z, NULL, NULL) == ZERO_OK);
    CHECK(zero_add_param(z, NULL, &desc) == ZERO_OK);
    CHECK(zero_commit(z) == ZERO_OK);
    return z;
}

static void step(zero_ctx *z)
{
    const zero_hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    zero_step_args args = zero_step_args_default();
    args.group_count = 1;
    args.hyper = &hyper;
    CHECK(zero_micro_begin(z, 0, NULL) == ZERO_OK);
    CHECK(zero_grad_none(z, 0, NULL) == ZERO_OK);
    CHECK(zero_step(z, &args, NULL) == ZERO_OK);
}

static bool is_plain(int number)
{
    struct sigaction action;
    CHECK(sigaction(number, NULL, &action) == 0);
    return !(action.sa_flags & SA_SIGINFO) && action.sa_handler == SIG_DFL;
}

/* ------------------------------------------------------------------ the first one */

static void listens_first(void)
{
    CHECK(zero_stop_on_signals(NULL) == ZERO_OK);
    raise(SIGTERM); // before there is a context
    zero_ctx *z = open_context("main");
    CHECK(!zero_stop_requested(z));
    step(z);
    CHECK(zero_stop_requested(z));
    zero_close(z);
    raise(SIGTERM); // on its way to every process
    // The job is what was asked.
    z = open_context("main");
    step(z);
    CHECK(zero_stop_requested(z));
    zero_close(z);
}

static void stops_otherwise(void)
{
    zero_ctx *z = open_context("main");
    zero_stop_requested(z);
    zero_request_stop(z);
    step(z);
    CHECK(zero_stop_requested(z));
    zero_close(z);
    raise(SIGTERM);
}

static void listens_by_asking(void)
{
    zero_ctx *z = open_context("main");
    CHECK(is_plain(SIGTERM));
    CHECK(!zero_stop_requested(z));
    CHECK(!is_plain(SIGTERM) && !is_plain(SIGINT) && is_plain(SIGHUP) && is_plain(SIGUSR1));
    raise(SIGINT);
    step(z);
    CHECK(zero_stop_requested(z));
    zero_close(z);
}

static void named(void)
{
    CHECK(zero_stop_on_signals("usr1,  SIGHUP, USR2") == ZERO_OK);
    raise(SIGHUP);
    zero_ctx *z = open_context("main");
    step(z);
    CHECK(zero_stop_requested(z));
    zero_close(z);
}

static void gives_them_back(void)
{
    CHECK(zero_stop_on_signals("USR1") == ZERO_OK);
    for (int i = 0; i < 2; i++) {
        zero_ctx *z = open_context("main"), *other = open_context("other");
        step(z);
        CHECK(!zero_stop_requested(z));
        CHECK(is_plain(SIGUSR1) == (i == 1));
        zero_close(z);
        CHECK(!is_plain(SIGTERM) && !is_plain(SIGINT));
        zero_close(other);
        CHECK(is_plain(SIGUSR1) && is_plain(SIGTERM) && is_plain(SIGINT));
    }
}

static void by_the_environment(void)
{
    setenv("ZERO_STOP_SIGNAL", "USR1", 1);
    zero_ctx *z = open_context("main");
    CHECK(is_plain(SIGUSR1)); // the program has not asked yet
    zero_stop_requested(z);
    raise(SIGUSR1);
    step(z);
    CHECK(zero_stop_requested(z));
    zero_close(z);
}

static void the_first_signal_asks(void **state)
{
    (void)state;
    assert_int_equal(run(listens_first), GOOD);
    assert_int_equal(run(listens_by_asking), GOOD);
    assert_int_equal(run(stops_otherwise), GOOD);
    assert_int_equal(run(named), GOOD);
    assert_int_equal(run(gives_them_back), GOOD);
    assert_int_equal(run(by_the_environment), GOOD);
}

/* ------------------------------------------------------------------ ordinary effects */

static void does_not_listen(void)
{
    setenv("ZERO_STOP_SIGNAL", "USR1", 1);
    open_context("main");
    raise(SIGUSR1);
}

static void twice(void)
{
    CHECK(zero_stop_on_signals(NULL) == ZERO_OK);
    raise(SIGTERM);
    raise(SIGTERM); // by who passes on what has been sent to all
    usleep(PAUSE_US);
    raise(SIGTERM);
}

static void another(void)
{
    CHECK(zero_stop_on_signals(NULL) == ZERO_OK);
    raise(SIGTERM);
    raise(SIGINT);
}

static void after_the_last_context(void)
{
    zero_ctx *one = open_context("one"), *other = open_context("other");
    zero_stop_requested(one);
    zero_close(one);
    raise(SIGTERM);
    step(other);
    CHECK(zero_stop_requested(other));
    zero_close(other);
    raise(SIGINT);
}

static void in_a_child(void)
{
    CHECK(zero_stop_on_signals(NULL) == ZERO_OK);
    zero_ctx *z = open_context("main");
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        raise(SIGTERM);
        _exit(GOOD);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    step(z);
    CHECK(!zero_stop_requested(z));
    raise(SIGTERM);
    step(z);
    CHECK(zero_stop_requested(z));
}

static void as_a_child(void)
{
    int status;
    CHECK(zero_stop_on_signals(NULL) == ZERO_OK);
    raise(SIGTERM);
    const pid_t pid = fork();
    if (pid == 0) {
        zero_ctx *z = open_context("main"); // a rank of its own
        step(z);
        CHECK(!zero_stop_requested(z));
        raise(SIGTERM);
        step(z);
        CHECK(zero_stop_requested(z));
        zero_close(z);
        _exit(GOOD);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == GOOD);
}

static void others_have_their_ordinary_effect(void **state)
{
    (void)state;
    assert_int_equal(run(does_not_listen), 128 + SIGUSR1);
    assert_int_equal(run(twice), 128 + SIGTERM);
    assert_int_equal(run(another), 128 + SIGINT);
    assert_int_equal(run(after_the_last_context), 128 + SIGINT);
    assert_int_equal(run(in_a_child), GOOD);
    assert_int_equal(run(as_a_child), GOOD);
}

/* ------------------------------------------------------------------ the program's own */

static volatile sig_atomic_t own;

static void on_own(int number)
{
    own = number;
}

static void own_before(void)
{
    signal(SIGTERM, on_own);
    signal(SIGHUP, SIG_IGN);
    CHECK(zero_stop_on_signals("HUP") == ZERO_OK);
    zero_ctx *z = open_context("main");
    raise(SIGTERM);
    raise(SIGHUP);
    CHECK(own == SIGTERM);
    step(z);
    CHECK(!zero_stop_requested(z));
    zero_close(z);
    raise(SIGTERM);
    CHECK(signal(SIGHUP, SIG_DFL) == SIG_IGN && signal(SIGTERM, SIG_DFL) == on_own);
}

static void own_afterwards(void)
{
    zero_ctx *z = open_context("main");
    zero_stop_requested(z);
    signal(SIGTERM, on_own);
    zero_close(z);
    CHECK(is_plain(SIGINT) && signal(SIGTERM, SIG_DFL) == on_own);
}

static void what_the_program_handles_stays_its_own(void **state)
{
    (void)state;
    assert_int_equal(run(own_before), GOOD);
    assert_int_equal(run(own_afterwards), GOOD);
    signal(SIGUSR2, on_own);
    assert_int_equal(zero_stop_on_signals("USR1,USR2"), ZERO_E_STATE);
    assert_non_null(strstr(zero_last_error(NULL), "SIGUSR2"));
    assert_true(is_plain(SIGUSR1) && is_plain(SIGTERM));
    signal(SIGUSR2, SIG_DFL);
}

/* ------------------------------------------------------------------ lists */

static void other_lists_are_refused(void **state)
{
    (void)state;
    static const char *const lists[] = {"",     "KILL",     "USR1,", "USR1, ", " USR1", "USR1 ,HUP",
                                        ",HUP", "USR1 HUP", "10",    "SIG",    "TSTP"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_int_equal(zero_stop_on_signals(lists[i]), ZERO_E_INVALID);
        assert_non_null(strstr(zero_last_error(NULL), "names of signals"));
    }
    zero_ctx *z = NULL;
    zero_config config = zero_config_default();
    setenv("ZERO_STOP_SIGNAL", "USR3", 1);
    assert_int_equal(zero_open(&z, &config), ZERO_E_INVALID);
    assert_null(z);
    assert_non_null(strstr(zero_last_error(NULL), "ZERO_STOP_SIGNAL"));
    assert_non_null(strstr(zero_last_error(NULL), "'USR3'"));
    assert_int_equal(zero_stop_on_signals(NULL), ZERO_E_INVALID);
    unsetenv("ZERO_STOP_SIGNAL");
    assert_true(is_plain(SIGUSR1) && is_plain(SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_signal_asks),
        cmocka_unit_test(others_have_their_ordinary_effect),
        cmocka_unit_test(what_the_program_handles_stays_its_own),
        cmocka_unit_test(other_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
