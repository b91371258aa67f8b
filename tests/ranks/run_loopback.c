// Jobs on hosts whose loopback has no IPv4 address, no IPv6, or is down: zero-run starts their
// ranks in each case, and only those that talk by tcp and have no address fail, at once. Each host
// is a network namespace of the test's own.
#include "collectives/rendezvous/rendezvous.h"
#include "tests/fault/mounts.h"
#include "tests/ranks/run_command.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char *rank_path;

/* ------------------------------------------------------------------ hosts */

static bool control_loopback(unsigned long what, struct ifreq *request)
{
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strcpy(request->ifr_name, "lo");
    const bool done = fd >= 0 && ioctl(fd, what, request) == 0;
    if (fd >= 0)
        close(fd);
    return done;
}

static void raise_loopback(void)
{
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    assert_true(control_loopback(SIOCSIFFLAGS, &request));
}

// As "ip addr del 127.0.0.1/8 dev lo" does.
static void remove_ipv4(void)
{
    struct ifreq request = {.ifr_flags = 0};
    const struct sockaddr_in none = {.sin_family = AF_INET};
    memcpy(&request.ifr_addr, &none, sizeof none);
    assert_true(control_loopback(SIOCSIFADDR, &request));
}

// Whether it could; where /proc is read-only it can't.
static bool disable_ipv6(void)
{
    FILE *file = fopen("/proc/sys/net/ipv6/conf/all/disable_ipv6", "we");
    const bool written = file && fputs("1", file) >= 0;
    return file && fclose(file) == 0 && written;
}

static void make_host(bool ipv4, bool ipv6)
{
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    if (!ipv6 && !disable_ipv6()) {
        print_message("not run: IPv6 can't be disabled here\n");
        skip();
    }
    if (ipv4 || ipv6)
        raise_loopback();
    if (ipv6 && !ipv4)
        remove_ipv4();
    if (ipv6 && !boot_has_loopback(AF_INET6)) {
        print_message("not run: this kernel has no IPv6\n");
        skip();
    }
    assert_int_equal(boot_has_loopback(AF_INET), ipv4);
    assert_int_equal(boot_has_loopback(AF_INET6), ipv6);
}

/* ------------------------------------------------------------------ jobs */

static void expect_training(const char *option)
{
    struct run_command run;
    RUN(&run, "-n", "2", "-o", option, "--", rank_path, "3", "f32", "5");
    if (run.status != 0)
        fail_msg("%s: %d, %s", option, run.status, run.err);
    run_command_free(&run);
}

static void expect_address(const char *address)
{
    struct run_command run;
    char line[64];
    snprintf(line, sizeof line, "[1] %s", address);
    RUN_SCRIPT(&run, "test \"$MASTER_PORT\" -gt 0 && echo $MASTER_ADDR", "-n", "2");
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, line), 1);
    run_command_free(&run);
}

static void ipv6_alone_will_do(void **state)
{
    (void)state;
    make_host(false, true);
    expect_address("::1");
    expect_training("transport=shm");
    expect_training("transport=tcp");
    setenv("ZERO_MASTER_ADDR", "localhost", 1);
    expect_training("transport=tcp");
    unsetenv("ZERO_MASTER_ADDR");
}

static void ipv4_alone_will_do(void **state)
{
    (void)state;
    make_host(true, false);
    expect_address("127.0.0.1");
    expect_training("transport=shm");
    expect_training("transport=tcp");
}

static void without_either_ranks_share_memory(void **state)
{
    (void)state;
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    assert_false(boot_has_loopback(AF_INET));
    assert_false(boot_has_loopback(AF_INET6));
    expect_address("127.0.0.1");
    expect_training("transport=shm");

    struct run_command run;
    RUN(&run, "-n", "2", "-o", "transport=tcp", "--", rank_path, "3", "f32", "5");
    assert_int_equal(run.status, 1);
    if (!strstr(run.err, "of the loopback, whose IPv4 address this host does not have"))
        fail_msg("%s", run.err);
    run_command_free(&run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ipv6_alone_will_do),
        cmocka_unit_test(ipv4_alone_will_do),
        cmocka_unit_test(without_either_ranks_share_memory),
    };
    char why[MOUNTS_WHY];
    if (argc != 3)
        return 2;
    run_command_path = argv[1];
    rank_path = argv[2];
    if (!mounts_namespace(CLONE_NEWNET, why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
