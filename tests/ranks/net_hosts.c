#include "tests/ranks/net_hosts.h"

#include "tests/ranks/net_relay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t holders[NET_HOSTS_MOST];
static pid_t relay; /**< 0: hosts are on a bridge */
static int host_count;
static int home[2]; /**< network and name of where the hosts were made */

static bool write_text(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return written;
}

// In a user namespace of its own a process is root.
static bool become_root(void)
{
    char users[32], groups[32];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 &&
           write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", users) &&
           write_text("/proc/self/gid_map", groups);
}

static bool run_command(const char *format, ...) __attribute__((format(printf, 1, 2)));

static bool run_command(const char *format, ...)
{
    char command[512] = "PATH=$PATH:/usr/sbin:/sbin; ";
    const size_t used = strlen(command);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command + used, sizeof command - used, format, arguments);
    va_end(arguments);
    return system(command) == 0;
}

static bool enter(pid_t holder, const char *kind, int type)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)holder, kind);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool entered = fd >= 0 && setns(fd, type) == 0;
    if (fd >= 0)
        close(fd);
    return entered;
}

// A process that keeps the namespaces of a host until this one ends.
static bool make_host(int host)
{
    int ready[2];
    char byte;
    if (pipe2(ready, O_CLOEXEC))
        return false;
    holders[host] = fork();
    if (holders[host] == 0) {
        char name[] = {'h', 'o', 's', 't', (char)('a' + host)};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWNET | CLONE_NEWUTS) || sethostname(name, sizeof name) ||
            write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    const bool made = holders[host] > 0 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return made;
}

static bool give_address(int host)
{
    const pid_t child = fork();
    int status = -1;
    if (child == 0)
        _exit(enter(holders[host], "net", CLONE_NEWNET) &&
                      run_command("ip link set lo up && ip addr add 10.31.0.%d/24 dev eth0 && ip "
                                  "link set eth0 up",
                                  host + 1)
                  ? 0
                  : 1);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool connect_to_bridge(int host)
{
    return run_command(
        "ip link add v%d type veth peer name eth0 netns %d && ip link set v%d master br0 up", host,
        (int)holders[host], host);
}

static const char *make_network(void)
{
    if (!run_command("ip -Version >/dev/null 2>&1"))
        return "the command ip (iproute2)";
    if (unshare(CLONE_NEWNET) && !become_root())
        return "network namespaces: unshare(CLONE_NEWNET) is not allowed";
    home[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    home[1] = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    return home[0] >= 0 && home[1] >= 0 ? NULL : "namespaces in /proc";
}

const char *net_hosts_make(int count)
{
    const char *lacks = make_network();
    if (lacks)
        return lacks;
    if (!run_command("ip link set lo up && ip link add br0 type bridge && ip link set br0 up"))
        return "a bridge between network namespaces";
    for (host_count = 0; host_count < count; host_count++)
        if (!make_host(host_count) || !connect_to_bridge(host_count) || !give_address(host_count))
            return "pairs of interfaces (veth) between network namespaces";
    return NULL;
}

// Tells by a byte whether all hosts have an interface.
static _Noreturn void be_relay(int count, int ready, struct net_link *link)
{
    int interfaces[NET_HOSTS_MOST];
    bool made = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int host = 0; host < count && made; host++)
        made = enter(holders[host], "net", CLONE_NEWNET) &&
               (interfaces[host] = net_relay_open(host)) >= 0;
    if (!made || write(ready, "", 1) != 1)
        _exit(1);
    net_relay(interfaces, count, link);
}

static bool start_relay(int count, struct net_link *link)
{
    int ready[2];
    char byte;
    if (pipe2(ready, O_CLOEXEC))
        return false;
    relay = fork();
    if (relay == 0)
        be_relay(count, ready[1], link);
    close(ready[1]);
    const bool made = relay > 0 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return made;
}

const char *net_hosts_make_linked(int count, struct net_link **link)
{
    const char *lacks = make_network();
    if (lacks)
        return lacks;
    *link = mmap(NULL, sizeof **link, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*link == MAP_FAILED)
        return "memory";
    for (host_count = 0; host_count < count; host_count++)
        if (!make_host(host_count))
            return "host names of their own for processes";
    if (!start_relay(count, *link))
        return "interfaces of programs (/dev/net/tun)";
    for (int host = 0; host < count; host++)
        if (!give_address(host))
            return "addresses for interfaces of programs";
    return NULL;
}

bool net_hosts_enter(int host)
{
    return enter(holders[host], "net", CLONE_NEWNET) && enter(holders[host], "uts", CLONE_NEWUTS);
}

bool net_hosts_leave(void)
{
    return setns(home[0], CLONE_NEWNET) == 0 && setns(home[1], CLONE_NEWUTS) == 0;
}

pid_t net_hosts_holder(int host)
{
    return holders[host];
}

bool net_hosts_plug(int host, bool in)
{
    return run_command("ip link set v%d %s", host, in ? "up" : "down");
}

int net_hosts_visit(int host, void (*visit)(pid_t pid, void *argument), void *argument)
{
    struct stat mine, other;
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)holders[host]);
    DIR *list = stat(path, &mine) == 0 ? opendir("/proc") : NULL;
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
        if (pid <= 0 || pid == holders[host] || stat(path, &other) || other.st_ino != mine.st_ino)
            continue;
        count++;
        if (visit)
            visit(pid, argument);
    }
    if (list)
        closedir(list);
    return count;
}

static void send_signal(pid_t pid, void *argument)
{
    kill(pid, *(const int *)argument);
}

int net_hosts_signal(int host, int number)
{
    int before = -1, count = 0, most = 0;
    while (count != before) { // what has been started meanwhile
        before = count;
        count = net_hosts_visit(host, send_signal, &number);
        most = count > most ? count : most;
    }
    return most;
}

uint64_t net_hosts_sent(int host)
{
    char path[64], line[512];
    unsigned long long sent = 0;
    snprintf(path, sizeof path, "/proc/%d/net/dev", (int)holders[host]);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *interface = strstr(line, "eth0:");
        if (interface)
            sscanf(interface, "eth0: %*u %*u %*u %*u %*u %*u %*u %*u %llu", &sent);
    }
    if (file)
        fclose(file);
    return sent;
}

void net_hosts_end(void)
{
    if (relay > 0) {
        kill(relay, SIGKILL);
        waitpid(relay, NULL, 0);
    }
    for (int host = 0; host < host_count; host++) {
        kill(holders[host], SIGKILL);
        waitpid(holders[host], NULL, 0);
    }
}
