#include "base/size_limit.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

struct base_size_limit base_size_limit_begin(void)
{
    struct base_size_limit limit = {.held = false};
    struct rlimit size;
    sigset_t signals;
    if (getrlimit(RLIMIT_FSIZE, &size) || size.rlim_cur == RLIM_INFINITY)
        return limit;
    limit.pending = sigpending(&signals) == 0 && sigismember(&signals, SIGXFSZ) == 1;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    limit.held = pthread_sigmask(SIG_BLOCK, &signals, &limit.before) == 0;
    return limit;
}

void base_size_limit_end(const struct base_size_limit *limit)
{
    const struct timespec now = {0};
    const int saved = errno;
    sigset_t signals;
    if (!limit->held)
        return;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    while (!limit->pending && (sigtimedwait(&signals, NULL, &now) == SIGXFSZ || errno == EINTR))
        continue;
    pthread_sigmask(SIG_SETMASK, &limit->before, NULL);
    errno = saved;
}
