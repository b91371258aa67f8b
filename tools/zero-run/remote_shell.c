#include "tools/zero-run/remote_shell_parts.h"

#include "base/clock.h"
#include "collectives/rendezvous/meeting.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <pwd.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// How long the process may take to end after its link.
static const uint64_t linger_ns = UINT64_C(2000000000);

zero_result run_shell_prepare(struct run_shell_way *way, const char *rsh, struct base_error *error)
{
    struct run_command_line line = {.count = 0};
    *way = (struct run_shell_way){.rsh = rsh};
    const ssize_t length = readlink("/proc/self/exe", way->program, sizeof way->program - 1);
    if (length <= 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "the path of zero-run (/proc/self/exe)");
    return rsh ? run_shell_split(&line, rsh, error) : ZERO_OK;
}

/* ------------------------------------------------------------------ this machine */

static bool is_equal(const struct sockaddr *one, const struct sockaddr *other)
{
    if (one->sa_family != other->sa_family)
        return false;
    if (one->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)one)->sin_addr,
                      &((const struct sockaddr_in *)other)->sin_addr, sizeof(struct in_addr)) == 0;
    return one->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)one)->sin6_addr,
                  &((const struct sockaddr_in6 *)other)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

// All of 127.0.0.0/8 is this machine, whatever addresses the loopback has.
static bool is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    return address->sa_family == AF_INET && ntohl(v4->sin_addr.s_addr) >> 24 == 127;
}

static bool has_address(const struct addrinfo *wanted)
{
    struct ifaddrs *list = NULL;
    bool found = false;
    if (getifaddrs(&list))
        return false;
    for (const struct ifaddrs *one = list; one; one = one->ifa_next)
        for (const struct addrinfo *it = wanted; it && one->ifa_addr && !found; it = it->ai_next)
            found = is_equal(one->ifa_addr, it->ai_addr) || is_loopback(it->ai_addr);
    freeifaddrs(list);
    return found;
}

static bool is_this_user(const struct run_host *host)
{
    const size_t length = (size_t)(run_host_address(host) - host->name);
    const struct passwd *user = length ? getpwuid(geteuid()) : NULL;
    return length == 0 || (user && strlen(user->pw_name) == length - 1 &&
                           !strncmp(user->pw_name, host->name, length - 1));
}

bool run_shell_is_here(const struct run_host *host)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *address = run_host_address(host);
    char own[256] = "";
    struct addrinfo *list = NULL;
    if (!is_this_user(host))
        return false;
    if (!strcasecmp(address, "localhost") ||
        (gethostname(own, sizeof own - 1) == 0 && !strcasecmp(address, own)))
        return true;
    const bool here = getaddrinfo(address, NULL, &hints, &list) == 0 && has_address(list);
    if (list)
        freeaddrinfo(list);
    return here;
}

/* ------------------------------------------------------------------ the process */

// A remote shell that is not ssh may pass variables on, and the agent would take this process's own
// connection for the one that has reached its host.
static const char *hide_connection(void)
{
    const char *connection = getenv("SSH_CONNECTION");
    unsetenv("SSH_CONNECTION");
    return connection;
}

// In a session of its own: no terminal's signal reaches it, and it cannot ask for a password.
// Returns an errno.
static int spawn(struct run_shell *shell, struct run_command_line *line, int link, int error_fd)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int result = posix_spawn_file_actions_init(&actions);
    if (result)
        return result;
    result = posix_spawnattr_init(&attributes);
    if (result) {
        posix_spawn_file_actions_destroy(&actions);
        return result;
    }
    assert(link > STDERR_FILENO && error_fd > STDERR_FILENO);
    const bool ready =
        !posix_spawn_file_actions_adddup2(&actions, link, STDIN_FILENO) &&
        !posix_spawn_file_actions_adddup2(&actions, link, STDOUT_FILENO) &&
        !posix_spawn_file_actions_adddup2(&actions, error_fd, STDERR_FILENO) &&
        !posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                                   POSIX_SPAWN_SETSIGDEF) &&
        !posix_spawnattr_setsigmask(&attributes, &none) &&
        !posix_spawnattr_setsigdefault(&attributes, &all);
    const char *connection = shell->local ? NULL : hide_connection();
    result = ready ? posix_spawnp(&shell->pid, line->words[0], &actions, &attributes, line->words,
                                  environ)
                   : ENOMEM;
    if (connection)
        setenv("SSH_CONNECTION", connection, 1);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return result;
}

static zero_result start_process(struct run_shell *shell, int link, int error_fd,
                                 struct base_error *error)
{
    static struct run_command_line line;
    const zero_result result = run_shell_command(&line, shell, error);
    if (result)
        return result;
    const int errnum = spawn(shell, &line, link, error_fd);
    if (errnum)
        return zero_fail_errno(error, errnum == ENOENT ? ZERO_NOT_FOUND : ZERO_E_IO, errnum,
                               "host %s: cannot start '%.80s'%s", shell->host->name, line.words[0],
                               errnum == ENOENT && !shell->local
                                   ? ", the remote shell (--rsh names another one)"
                                   : "");
    shell->pidfd = pidfd_open(shell->pid, 0);
    return shell->pidfd >= 0 ? ZERO_OK
                             : zero_fail_errno(error, ZERO_E_IO, errno, "host %s: watching '%.80s'",
                                               shell->host->name, line.words[0]);
}

static void close_both(int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

// Starts the process and the link that belongs to it.
static zero_result launch(struct run_shell *shell, struct base_error *error)
{
    static const struct run_self self = {.side = RUN_SIDE_COORDINATOR, .host = -1, .noisy = true};
    int sockets[2] = {-1, -1}, pipes[2] = {-1, -1};
    zero_result result = ZERO_OK;
    shell->used = shell->told = 0;
    shell->quiet_ns = 0;
    shell->text[0] = '\0';
    shell->ended = shell->up = false;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) ||
        pipe2(pipes, O_CLOEXEC | O_NONBLOCK))
        result = zero_fail_errno(error, ZERO_E_IO, errno, "host %s: a socket and a pipe",
                                 shell->host->name);
    // A process that writes to it may wait.
    if (!result && fcntl(pipes[1], F_SETFL, 0))
        result = zero_fail_errno(error, ZERO_E_IO, errno, "host %s: a pipe", shell->host->name);
    if (!result)
        result = start_process(shell, sockets[1], pipes[1], error);
    if (!result) {
        result = run_link_begin(&shell->link, sockets[0], sockets[0], &self, error);
        sockets[0] = -1;
        shell->error_fd = pipes[0];
        pipes[0] = -1;
    }
    close_both(sockets);
    close_both(pipes);
    if (result)
        run_shell_close(shell);
    return result;
}

zero_result run_shell_start(struct run_shell *shell, const struct run_host *host,
                            const struct run_shell_way *way, struct base_error *error)
{
    *shell = (struct run_shell){.link = {.in = -1, .out = -1, .state = RUN_LINK_ENDED},
                                .host = host,
                                .way = way,
                                .local = run_shell_is_here(host),
                                .pidfd = -1,
                                .error_fd = -1};
    return launch(shell, error);
}

void run_shell_signal(const struct run_shell *shell, int number)
{
    if (shell->pidfd >= 0 && !shell->ended)
        pidfd_send_signal(shell->pidfd, number, NULL, 0);
}

// Not reaped before, so no other process has its number. An agent that is local ends its ranks
// itself, and if it is killed its guardian does.
static void end_process(struct run_shell *shell)
{
    siginfo_t ignored;
    if (shell->pid > 0) {
        kill(shell->pid, SIGKILL);
        while (waitid(P_PID, (id_t)shell->pid, &ignored, WEXITED) && errno == EINTR)
            continue;
    }
    if (shell->pidfd >= 0)
        close(shell->pidfd);
    if (shell->error_fd >= 0)
        close(shell->error_fd);
    shell->pid = 0;
    shell->pidfd = shell->error_fd = -1;
}

void run_shell_close(struct run_shell *shell)
{
    run_link_close(&shell->link);
    end_process(shell);
    shell->ended = true;
}

/* ------------------------------------------------------------------ what it says */

// The last bytes are kept: what ssh says first are warnings and greetings.
static void add_text(struct run_shell *shell, const char *bytes, size_t count)
{
    const size_t room = RUN_SHELL_TEXT - shell->used;
    if (count > room) {
        const size_t gone = count - room;
        memmove(shell->text, shell->text + gone, shell->used - gone);
        shell->used -= gone;
        shell->told -= gone < shell->told ? gone : shell->told;
    }
    memcpy(shell->text + shell->used, bytes, count);
    shell->used += count;
    shell->text[shell->used] = '\0';
}

// At most so many bytes at a time: one that writes without end would be all there is to hear.
static void read_errors(struct run_shell *shell, size_t most)
{
    char bytes[RUN_SHELL_TEXT / 4];
    for (size_t done = 0; done < most && shell->error_fd >= 0; done += sizeof bytes) {
        const ssize_t count = read(shell->error_fd, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return;
        if (count <= 0) {
            close(shell->error_fd);
            shell->error_fd = -1;
            return;
        }
        for (ssize_t i = 0; i < count; i++)
            if (!bytes[i])
                bytes[i] = '?';
        add_text(shell, bytes, (size_t)count);
    }
}

bool run_shell_line(struct run_shell *shell, char *line, size_t size)
{
    if (!shell->up)
        return false;
    const char *text = shell->text + shell->told;
    const size_t length = strcspn(text, "\n");
    const bool whole =
        text[length] == '\n' || (shell->ended && length > 0) || length == RUN_SHELL_TEXT;
    if (!whole)
        return false;
    const size_t shown = length < size - 1 ? length : size - 1;
    memcpy(line, text, shown);
    line[shown] = '\0';
    boot_clean(line, size);
    shell->told += length + (text[length] == '\n');
    return true;
}

/* ------------------------------------------------------------------ turns */

void run_shell_poll(const struct run_shell *shell, struct pollfd polls[RUN_SHELL_POLLS])
{
    // A process that the shell has left behind may hold its standard error open.
    polls[0] = (struct pollfd){.fd = shell->ended ? -1 : shell->error_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = shell->ended ? -1 : shell->pidfd, .events = POLLIN};
}

// It was not found where it is on this machine, as far as an exit status tells.
static bool is_not_there(const struct run_shell *shell)
{
    const int status = shell->end.si_status;
    return !shell->local && !shell->by_path && !shell->link.greeted &&
           shell->end.si_code == CLD_EXITED && (status == 127 || status == 126 || status == 1);
}

static void try_path(struct run_shell *shell)
{
    struct base_error error = {.result = ZERO_OK};
    run_link_close(&shell->link);
    end_process(shell);
    shell->by_path = true;
    if (!launch(shell, &error))
        return;
    shell->end = (siginfo_t){.si_code = CLD_EXITED, .si_status = 127};
    add_text(shell, error.message, strlen(error.message));
}

bool run_shell_is_gone(const struct run_shell *shell)
{
    const enum run_link_end end = shell->link.end;
    if (shell->link.state != RUN_LINK_ENDED)
        return false;
    return shell->ended || (end && end != RUN_LINK_EOF && end != RUN_LINK_LOST) ||
           (shell->quiet_ns && base_clock_ns() > shell->quiet_ns + linger_ns);
}

void run_shell_turn(struct run_shell *shell)
{
    if (shell->link.state == RUN_LINK_ENDED && !shell->quiet_ns)
        shell->quiet_ns = base_clock_ns();
    if (shell->ended)
        return;
    read_errors(shell, 16 * 1024);
    if (!shell->up) // these are greetings
        shell->told = shell->used;
    shell->up = shell->link.greeted && shell->link.state != RUN_LINK_MEETING;
    shell->end = (siginfo_t){.si_code = 0};
    if (waitid(P_PIDFD, (id_t)shell->pidfd, &shell->end, WEXITED | WNOWAIT | WNOHANG) == 0 &&
        shell->end.si_pid == 0)
        return;
    // All that it can have left in the pipe; another process may still have the other end.
    read_errors(shell, 1 << 20);
    shell->ended = true;
    if (is_not_there(shell))
        try_path(shell);
}
