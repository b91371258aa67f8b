#include "tools/zero-run/run.h"

#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PIDFD_SIGNAL_PROCESS_GROUP // Linux 6.9
#define PIDFD_SIGNAL_PROCESS_GROUP (1U << 2)
#endif

enum { GUARDIAN_SOCKET = 3, GUARDIAN_GROUPS = 4096 };

// A process group it guards. A pidfd cannot come to mean another process.
struct group {
    pid_t number;
    int pidfd;
};

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

// Calls `visit` for each process of the host, until it returns false.
static void each_process(bool (*visit)(pid_t pid, void *argument), void *argument)
{
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        char *end;
        const long pid = strtol(entry->d_name, &end, 10);
        if (pid > 0 && !*end && !visit((pid_t)pid, argument))
            break;
    }
    if (directory)
        closedir(directory);
}

struct group_search {
    pid_t group;
    uint64_t ticks;
    bool found;
};

static bool is_old_member(pid_t pid, void *argument)
{
    struct group_search *search = argument;
    char path[64], text[1024];
    int fd = -1, group = 0;
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (base_open(&fd, path, O_RDONLY, 0, NULL))
        return true;
    const ssize_t count = read(fd, text, sizeof text - 1);
    base_close(&fd, path, NULL);
    text[count > 0 ? count : 0] = '\0';
    // The second field is a name that may contain anything.
    const char *rest = strrchr(text, ')');
    if (rest &&
        sscanf(rest,
               ") %*c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
               "%*d %*d %llu",
               &group, &started) == 2 &&
        group == search->group && started < search->ticks)
        search->found = true;
    return !search->found;
}

void run_guardian_kill_group(pid_t group, uint64_t ticks)
{
    struct group_search search = {.group = group, .ticks = ticks};
    each_process(is_old_member, &search);
    if (search.found)
        kill(-group, SIGKILL);
}

enum answer { ANSWER_NO, ANSWER_YES, ANSWER_LATER };

// A process without an environment has none, or is about to get that of the program it becomes.
static enum answer ask_again(pid_t pid)
{
    char path[64], target[8];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid); // a zombie has no program
    return readlink(path, target, sizeof target) > 0 ? ANSWER_LATER : ANSWER_NO;
}

// Whether the environment of a process has the line.
static enum answer has_variable(pid_t pid, const char *line)
{
    static char bytes[65536];
    char path[64];
    int fd = -1;
    const size_t length = strlen(line) + 1; // with the zero at its end
    size_t used = 0;
    ssize_t count;
    bool found = false, empty = true;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    if (base_open(&fd, path, O_RDONLY, 0, NULL))
        return ANSWER_NO;
    while (!found && (count = read(fd, bytes + used, sizeof bytes - used)) > 0) {
        empty = false;
        used += (size_t)count;
        const char *at = memmem(bytes, used, line, length);
        found = at && (at == bytes || at[-1] == '\0');
        // A line may begin at the end of what has been read.
        const size_t keep = used < length ? used : length;
        memmove(bytes, bytes + used - keep, keep);
        used = keep;
    }
    base_close(&fd, path, NULL);
    if (empty)
        return ask_again(pid);
    return found ? ANSWER_YES : ANSWER_NO;
}

struct job_search {
    char line[64];
    char host[32]; // the second line that it has to have; "": none
    int killed;
    bool unsure; // some process may have to be asked again
};

// Whether a process is of the job, and of the host of it that is guarded.
static enum answer is_member(pid_t pid, const struct job_search *search)
{
    const enum answer answer = has_variable(pid, search->line);
    return answer == ANSWER_YES && *search->host ? has_variable(pid, search->host) : answer;
}

static bool kill_member(pid_t pid, void *argument)
{
    struct job_search *search = argument;
    const enum answer answer = pid == getpid() ? ANSWER_NO : is_member(pid, search);
    search->unsure = search->unsure || answer == ANSWER_LATER;
    if (answer != ANSWER_YES)
        return true;
    // The number may have become another process's: asked again once it is pinned.
    const int pidfd = pidfd_open(pid, 0);
    if (pidfd >= 0 && is_member(pid, search) == ANSWER_YES &&
        pidfd_send_signal(pidfd, SIGKILL, NULL, 0) == 0)
        search->killed++;
    search->unsure = true; // it may have started another one that has not been seen
    if (pidfd >= 0)
        close(pidfd);
    return true;
}

int run_guardian_kill_job(const char *token, int host)
{
    struct job_search search = {.unsure = true};
    snprintf(search.line, sizeof search.line, "ZERO_JOB=%s", token);
    if (host >= 0)
        snprintf(search.host, sizeof search.host, "ZERO_HOST=%d", host);
    int killed = -1;
    // Whatever has no environment for a second has none.
    for (int idle = 0; search.unsure && idle < 50; idle += killed == search.killed) {
        killed = search.killed;
        search.unsure = false;
        each_process(kill_member, &search);
        if (search.unsure)
            usleep(20000);
    }
    return search.killed;
}

static uint64_t ticks_since_boot(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    const uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
    return (uint64_t)now.tv_sec * hz + (uint64_t)now.tv_nsec * hz / UINT64_C(1000000000);
}

// The groups first, at once; then the processes that have left them, until none is found.
static void end_job(const struct group *groups, int count, const char *token, int host)
{
    const uint64_t ticks = ticks_since_boot();
    for (int i = 0; i < count; i++)
        if (pidfd_send_signal(groups[i].pidfd, SIGKILL, NULL, PIDFD_SIGNAL_PROCESS_GROUP) &&
            errno != ESRCH)
            run_guardian_kill_group(groups[i].number, ticks);
    run_guardian_kill_job(token, host);
}

// The next group; false: zero-run has ended.
static bool receive_group(struct group *group)
{
    union control control;
    struct iovec data = {.iov_base = &group->number, .iov_len = sizeof group->number};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t count;
    do
        count = recvmsg(GUARDIAN_SOCKET, &message, MSG_CMSG_CLOEXEC);
    while (count < 0 && errno == EINTR);
    group->pidfd = -1; // as it stays if there is no descriptor to be had for it
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&group->pidfd, CMSG_DATA(header), sizeof group->pidfd);
    return count == (ssize_t)sizeof group->number;
}

// A guardian that looks for processes of an outer job by their environment must not find the
// guardian of an inner one: that has still to end its own job.
static void forget_environment(void)
{
    for (char **entry = environ; entry && *entry; entry++)
        memset(*entry, 0, strlen(*entry));
}

static _Noreturn void guardian_main(int channel, const char *token, int host)
{
    static struct group groups[GUARDIAN_GROUPS];
    int count = 0;
    setsid();
    for (int number = 1; number < NSIG; number++)
        if (number != SIGCHLD)
            signal(number, SIG_IGN);
    prctl(PR_SET_NAME, "zero-run-guard");
    forget_environment();
    const int null = open("/dev/null", O_RDWR);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && null >= 0; fd++)
        dup2(null, fd);
    if (dup2(channel, GUARDIAN_SOCKET) < 0 || chdir("/"))
        _exit(1);
    closefrom(GUARDIAN_SOCKET + 1);
    if (send(GUARDIAN_SOCKET, "", 1, MSG_NOSIGNAL) != 1)
        _exit(1);
    while (count < GUARDIAN_GROUPS && receive_group(&groups[count]))
        count++;
    end_job(groups, count, token, host);
    _exit(0);
}

zero_result run_guardian_start(struct run_guardian *guardian, const char *token, int host,
                               struct base_error *error)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return zero_fail_errno(error, ZERO_E_IO, errno, "a socket for the guardian");
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        guardian_main(ends[1], token, host);
    }
    const int reason = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return zero_fail_errno(error, ZERO_E_IO, reason, "cannot start the guardian");
    }
    guardian->pid = pid;
    guardian->socket = ends[0];
    // No signal that is meant for zero-run reaches it from here on.
    char ready;
    ssize_t count;
    do
        count = recv(ends[0], &ready, 1, 0);
    while (count < 0 && errno == EINTR);
    return count == 1 ? ZERO_OK : zero_fail(error, ZERO_E_IO, "the guardian has not started");
}

bool run_guardian_tell(struct run_guardian *guardian, int pidfd, pid_t group)
{
    union control control = {.header = {.cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(sizeof pidfd)}};
    struct iovec data = {.iov_base = &group, .iov_len = sizeof group};
    const struct msghdr message = {.msg_iov = &data,
                                   .msg_iovlen = 1,
                                   .msg_control = control.bytes,
                                   .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.header), &pidfd, sizeof pidfd);
    return sendmsg(guardian->socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof group;
}

void run_guardian_end(struct run_guardian *guardian)
{
    if (guardian->pid > 0) {
        kill(guardian->pid, SIGKILL);
        waitpid(guardian->pid, NULL, 0);
        close(guardian->socket);
    }
    *guardian = (struct run_guardian){.socket = -1};
}
