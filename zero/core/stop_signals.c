// Signals that ask the job to stop. A disposition is the process's, so what is known of them is
// kept once a process, whatever contexts it has.

#include "zero/core/api_call.h"
#include "zero/core/stop.h"

#include "base/clock.h"
#include "collectives/rendezvous/rendezvous.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/** A signal that comes again within this time is no new request: a launcher passes on what the
 * batch system has sent to all processes, its ranks among them. */
#define ECHO_NS UINT64_C(500000000)

/** What listens, changed under the mutex. */
static struct {
    pthread_mutex_t mutex;
    _Atomic bool listening;
    int contexts;   /**< open ones of this process */
    bool stops;     /**< one of them was told to stop */
    sigset_t taken; /**< signals that have on_signal() as their handler */
} listener = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/** What the handler reads and writes. */
static struct {
    _Atomic(struct control_segment *) segment; /**< zero-run's; NULL: none */
    _Atomic pid_t owner;                       /**< the process that listens; no child of it does */
    _Atomic int number;                        /**< of the first request; 0: there is none */
    _Atomic uint64_t at_ns;                    /**< when it came, a moment later */
} request;

bool eng_stop_signalled(void)
{
    return atomic_load_explicit(&request.number, memory_order_relaxed) != 0;
}

bool eng_stop_requested(void)
{
    return eng_stop_signalled() ||
           control_stopping(atomic_load_explicit(&request.segment, memory_order_relaxed));
}

void eng_stop_unopened(int rank)
{
    struct control_segment *segment = atomic_load_explicit(&request.segment, memory_order_relaxed);
    if (segment && rank >= 0 && (uint32_t)rank < segment->world)
        control_hear(&segment->ranks[rank], 0);
}

bool eng_stop_listening(void)
{
    return atomic_load_explicit(&listener.listening, memory_order_relaxed);
}

/* ------------------------------------------------------------------ the handler */

/** Whether a signal asks for what has been asked for already, or is a request: all that is no
 * second request. What a terminal's keyboard sends is never an echo. */
static bool is_request(int number, const siginfo_t *info)
{
    const uint64_t now = base_clock_ns();
    int first = 0;
    if (atomic_compare_exchange_strong_explicit(&request.number, &first, number,
                                                memory_order_relaxed, memory_order_relaxed)) {
        atomic_store_explicit(&request.at_ns, now, memory_order_relaxed);
        return true;
    }
    const uint64_t at_ns = atomic_load_explicit(&request.at_ns, memory_order_relaxed);
    return number == first && info->si_code != SI_KERNEL && (!at_ns || now - at_ns < ECHO_NS);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    const int saved = errno;
    const struct control_segment *segment =
        atomic_load_explicit(&request.segment, memory_order_relaxed);
    if (getpid() != atomic_load_explicit(&request.owner, memory_order_relaxed) ||
        control_insists(segment) || !is_request(number, info)) {
        // The ordinary effect, as soon as the handler has returned and the signal is not blocked.
        const struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(number, &plain, NULL);
        raise(number);
    }
    errno = saved;
}

/* ------------------------------------------------------------------ listening */

static bool is_own(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_signal;
}

static bool is_handled(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) ||
           (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/** Takes the signals that have their ordinary effect. Others stay the program's, or ignored. */
static void take(const sigset_t *signals)
{
    struct sigaction before, action = {.sa_sigaction = on_signal,
                                       .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK,
                                       .sa_mask = *signals};
    for (int number = 1; number < NSIG; number++)
        if (sigismember(signals, number) == 1 && !sigaction(number, NULL, &before) &&
            !(before.sa_flags & SA_SIGINFO) && before.sa_handler == SIG_DFL &&
            !sigaction(number, &action, NULL))
            sigaddset(&listener.taken, number);
}

/** The first signal of a set for which the program has a handler; 0: none. */
static int first_handled(const sigset_t *signals)
{
    struct sigaction action;
    for (int number = 1; number < NSIG; number++)
        if (sigismember(signals, number) == 1 && !sigaction(number, NULL, &action) &&
            is_handled(&action) && !is_own(&action))
            return number;
    return 0;
}

/** Tells zero-run that this rank listens, before a context does. A rank that cannot say so is told
 * why by zero_open(). */
static void tell_zero_run(void)
{
    struct control_segment *segment, *old;
    struct boot_place place;
    struct base_error ignored = {0};
    if (boot_discover(&place, environ, &ignored) ||
        control_map(&segment, place.rank, place.world, &ignored) || !segment)
        return;
    control_listen(&segment->ranks[place.rank]);
    old = atomic_exchange_explicit(&request.segment, segment, memory_order_relaxed);
    control_detach(old);
}

/** A child of a process that listened becomes one of its own. */
static void own(void)
{
    const pid_t pid = getpid();
    if (atomic_load_explicit(&request.owner, memory_order_relaxed) == pid)
        return;
    atomic_store_explicit(&request.number, 0, memory_order_relaxed);
    atomic_store_explicit(&request.owner, pid, memory_order_relaxed);
    listener.contexts = 0;
    listener.stops = false;
}

/** With the mutex: listens to these signals, and those listened to before. */
static void listen_to(const sigset_t *signals)
{
    own();
    if (!eng_stop_listening())
        tell_zero_run();
    take(signals);
    atomic_store_explicit(&listener.listening, true, memory_order_relaxed);
}

/** SIGTERM, SIGINT and what ZERO_STOP_SIGNAL adds; ZERO_E_INVALID: of that. */
static zero_result usual_signals(sigset_t *signals, struct base_error *error)
{
    const char *more = getenv(CONTROL_STOP_VARIABLE);
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    return more && *more ? control_read_signals(signals, more, CONTROL_STOP_VARIABLE, error)
                         : ZERO_OK;
}

void eng_stop_listen(void)
{
    sigset_t signals;
    struct base_error ignored = {0}; // zero_open() has read the variable before
    usual_signals(&signals, &ignored);
    pthread_mutex_lock(&listener.mutex);
    if (!eng_stop_listening())
        listen_to(&signals);
    pthread_mutex_unlock(&listener.mutex);
}

zero_result zero_stop_on_signals(const char *signals)
{
    struct base_error *error = eng_thread_error();
    sigset_t named, all;
    sigemptyset(&named);
    zero_result r = usual_signals(&all, error);
    if (!r && signals)
        r = control_read_signals(&named, signals, "zero_stop_on_signals", error);
    if (r)
        return r;
    pthread_mutex_lock(&listener.mutex);
    const int handled = first_handled(&named);
    if (handled)
        r = zero_fail(error, ZERO_E_STATE,
                      "zero_stop_on_signals: the program has a handler for SIG%s: let it call "
                      "zero_request_stop()",
                      sigabbrev_np(handled));
    sigorset(&all, &all, &named);
    if (!r)
        listen_to(&all);
    pthread_mutex_unlock(&listener.mutex);
    return r;
}

/* ------------------------------------------------------------------ contexts */

zero_result eng_stop_check(struct base_error *error)
{
    sigset_t signals;
    return usual_signals(&signals, error);
}

void eng_stop_open(zero_ctx *z)
{
    pthread_mutex_lock(&listener.mutex);
    own();
    listener.contexts++;
    pthread_mutex_unlock(&listener.mutex);
    z->job.stop.counted = true;
}

/** With the mutex: gives the signals back, but for those that the program has taken since. */
static void stop_listening(void)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction now;
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&listener.taken, number) == 1 && !sigaction(number, NULL, &now) &&
            is_own(&now))
            sigaction(number, &plain, NULL);
    sigemptyset(&listener.taken);
    atomic_store_explicit(&listener.listening, false, memory_order_relaxed);
}

void eng_stop_close(zero_ctx *z)
{
    if (!z->job.stop.counted)
        return;
    pthread_mutex_lock(&listener.mutex);
    assert(listener.contexts > 0);
    listener.contexts--;
    listener.stops = listener.stops || eng_stop_agreed(z);
    // Who was asked to stop is about to end, and what comes now asks for the same.
    if (listener.contexts == 0 && eng_stop_listening() && !listener.stops && !eng_stop_signalled())
        stop_listening();
    pthread_mutex_unlock(&listener.mutex);
}
