// paranoid=1: a fault in a window is a segmentation fault like any other, for debuggers and for the
// parent process. Before it has its effect, standard error is told which tensor was touched.
//
// Signals are the process's, so what is kept here is too: the contexts that are watched, and the
// action that was there before, which is there again while none is.

#include "zero/core/context.h"
#include "zero/debug/paranoid.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, LINE = 640 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const zero_ctx *_Atomic watched[MOST];
static int count; /**< of them; under the lock, as what follows */
static struct sigaction before;

/** What is known of a fault: its window, or the error after which the program has gone on. */
static bool explain(const zero_ctx *z, const void *address, char *line, size_t size)
{
    if (z->config.log.level < ZERO_LOG_ERROR)
        return false;
    if (eng_paranoid_describe(z, address, line, size))
        return true;
    if (z->fatal)
        snprintf(line, size, "the program has gone on after an error: %s", z->error.message);
    return z->fatal != ZERO_OK;
}

/** Describes a fault in one write. snprintf(), which formats it, is called in the middle of the
 * program's own code: it allocates nothing for numbers and texts. */
static void describe(const void *address)
{
    char line[LINE] = "zero: ";
    const size_t begun = strlen(line);
    for (int i = 0; i < MOST; i++) {
        const zero_ctx *z = watched[i];
        if (!z || !explain(z, address, line + begun, sizeof line - begun - 1))
            continue;
        const size_t length = strlen(line);
        line[length] = '\n';
        // Where standard error is gone there is no other place for it.
        const ssize_t written = write(STDERR_FILENO, line, length + 1);
        (void)written;
        return;
    }
}

/** When it returns the program touches the address again, which has the effect that it would have
 * had without this handler. */
static void on_fault(int number, siginfo_t *info, void *machine)
{
    const int saved = errno;
    (void)machine;
    if (info->si_code > 0) // not sent by a process, but by what the program did
        describe(info->si_addr);
    sigaction(number, &before, NULL);
    errno = saved;
}

static zero_result install(struct base_error *error)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaction(SIGSEGV, &action, &before))
        return zero_fail_errno(error, ZERO_E_IO, errno, "paranoid: SIGSEGV has no handler");
    return ZERO_OK;
}

/** Takes the handler away again, unless the program has put another one in its place since. */
static void restore(void)
{
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
        now.sa_sigaction == on_fault)
        sigaction(SIGSEGV, &before, NULL);
}

zero_result eng_paranoid_watch(zero_ctx *z, struct base_error *error)
{
    zero_result r = ZERO_OK;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST && watched[i])
        i++;
    if (i == MOST)
        r = zero_fail(error, ZERO_E_LIMIT, "paranoid: more than %d contexts of one process", MOST);
    else if (count == 0)
        r = install(error);
    if (!r) {
        watched[i] = z;
        count++;
        assert(count <= MOST);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void eng_paranoid_unwatch(const zero_ctx *z)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (watched[i] == z) {
            watched[i] = NULL;
            assert(count > 0);
            if (--count == 0)
                restore();
        }
    pthread_mutex_unlock(&lock);
}
