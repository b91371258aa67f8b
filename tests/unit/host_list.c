// The hosts that --hosts and a host file name, and what is said of wrong ones.
#include "tools/zero-run/host_list.h"

#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

/** "a:4 b:0/8 ": each host with its slots, and its max_slots where there are some. */
static const char *shown(const struct run_hosts *hosts)
{
    static char text[4096];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < hosts->count; i++) {
        const struct run_host *host = &hosts->list[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s=%d", i ? " " : "",
                                 host->name, host->slots);
        if (host->most)
            used += (size_t)snprintf(text + used, sizeof text - used, "/%d", host->most);
    }
    return text;
}

static void expect(struct run_hosts *hosts, zero_result result, const struct base_error *error,
                   const char *input, const char *expected)
{
    if (result)
        fail_msg("'%s': %s", input, error->message);
    assert_string_equal(shown(hosts), expected);
    run_hosts_free(hosts);
}

static void expect_refused(struct run_hosts *hosts, zero_result result,
                           const struct base_error *error, const char *input, const char *expected)
{
    if (result != ZERO_E_INVALID || strcmp(error->message, expected) != 0)
        fail_msg("'%s': %d, \"%s\" instead of \"%s\"", input, result, error->message, expected);
    assert_null(hosts->list);
    assert_int_equal(hosts->count, 0);
}

static zero_result parse_file(struct run_hosts *hosts, const char *text, struct base_error *error)
{
    return run_hosts_parse_file(hosts, text, strlen(text), "F", error);
}

struct row {
    const char *input, *expected;
};

static void lists_are_read(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"a", "a=0"},
        {"a:4,b:4", "a=4 b=4"},
        {" a:4, b ,\tc:1 ", "a=4 b=0 c=1"},
        {"node-1.example.org:12,_x", "node-1.example.org=12 _x=0"},
        {"10.0.0.1:2,10.0.0.2", "10.0.0.1=2 10.0.0.2=0"},
        {"[fd00::4]:2,[::1]", "fd00::4=2 ::1=0"},
        {"[FD00:0:0::4]", "fd00::4=0"},
        {"root@a:2,me@[fd00::4]:3", "root@a=2 me@fd00::4=3"},
        {"a:4096", "a=4096"},
        {"a:007", "a=7"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run_hosts hosts;
        struct base_error error = {.result = ZERO_OK};
        const zero_result result = run_hosts_parse(&hosts, rows[i].input, &error);
        expect(&hosts, result, &error, rows[i].input, rows[i].expected);
    }
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"", "--hosts: a host is missing at the end"},
        {"a,,b", "--hosts: a host is missing before a ','"},
        {"a,", "--hosts: a host is missing at the end"},
        {"a b", "--hosts: a ',' is missing before 'b'"},
        {"a:0", "--hosts: 'a:' takes a number from 1 to 4096, not '0'"},
        {"a:4097", "--hosts: 'a:' takes a number from 1 to 4096, not '4097'"},
        {"a:99999999999999999999",
         "--hosts: 'a:' takes a number from 1 to 4096, not '99999999999999999999'"},
        {"a:", "--hosts: 'a:' takes a number from 1 to 4096, not ''"},
        {"a:4x", "--hosts: 'a:' takes a number from 1 to 4096, not '4x'"},
        {"a:-4", "--hosts: 'a:' takes a number from 1 to 4096, not '-4'"},
        {"a,b:2,A:4", "--hosts: host 'A' is there twice: the number behind its name is that of its "
                      "ranks, A:2"},
        {"a,root@a", "--hosts: host 'a' is there twice: the number behind its name is that of its "
                     "ranks, a:2"},
        {"[fd00::4],[fd00:0::4]",
         "--hosts: host 'fd00::4' is there twice: the number behind its name is that of its "
         "ranks, fd00::4:2"},
        {"fd00::4", "--hosts: an IPv6 address stands in brackets: [fd00::4]:2"},
        {"::1:4", "--hosts: an IPv6 address stands in brackets: [fd00::4]:2"},
        {"[fd00::4", "--hosts: a '[' has no ']'"},
        {"[fd00::4]2", "--hosts: a ',' is missing before '2'"},
        {"[a]:4", "--hosts: 'a' is no IPv6 address, which brackets are for"},
        {"[fe80::1%eth0]", "--hosts: 'fe80::1%eth0' is no IPv6 address, which brackets are for"},
        {"10.0.0.256", "--hosts: '10.0.0.256' is no IPv4 address"},
        {"4", "--hosts: '4' is no IPv4 address"},
        {"-oProxyCommand=x", "--hosts: '-oProxyCommand=x' is no host's name"},
        {"-a", "--hosts: '-a' is no host's name"},
        {"$(id)", "--hosts: '$(id)' is no host's name"},
        {"a;b", "--hosts: 'a;b' is no host's name"},
        {"-l@a", "--hosts: '-l' is no user's name"},
        {"@a", "--hosts: '' is no user's name"},
        {"a@b@c", "--hosts: 'a@b' is no user's name"},
        {"a@", "--hosts: '' is no host's name"},
        {"\xc3\xa4", "--hosts: '\xc3\xa4' is no host's name"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run_hosts hosts;
        struct base_error error = {.result = ZERO_OK};
        const zero_result result = run_hosts_parse(&hosts, rows[i].input, &error);
        expect_refused(&hosts, result, &error, rows[i].input, rows[i].expected);
    }
}

static void files_are_read(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"node1 slots=4\nnode2 slots=4\n", "node1=4 node2=4"},
        {"# DeepSpeed\n\n  worker-1 slots=4 # fast\nworker-2\tslots=2", "worker-1=4 worker-2=2"},
        {"a slots=2 max_slots=4\nb max-slots=3\nc slots = 1\n", "a=2/4 b=0/3 c=1"},
        {"a\nb:2\n[fd00::1]:3\nfd00::2 slots=4\nroot@c slots=1\n",
         "a=0 b=2 fd00::1=3 fd00::2=4 root@c=1"},
        {"a slots=4\r\nb slots=4\r\n", "a=4 b=4"},
        {"a#b\n", "a=0"},
        {"\xef\xbb\xbf"
         "a slots=4\n",
         "a=4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run_hosts hosts;
        struct base_error error = {.result = ZERO_OK};
        const zero_result result = parse_file(&hosts, rows[i].input, &error);
        expect(&hosts, result, &error, rows[i].input, rows[i].expected);
    }
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"", "F: there is no host in it"},
        {"# nothing\n\n", "F: there is no host in it"},
        {"a\n\nb slots=x\n", "F:3: slots takes a number from 1 to 4096, not 'x'"},
        {"a slots=\n", "F:1: slots takes a number from 1 to 4096, not ''"},
        {"a slots=0", "F:1: slots takes a number from 1 to 4096, not '0'"},
        {"a slots", "F:1: 'slots' is neither slots=N nor max_slots=N"},
        {"a 4", "F:1: '4' is neither slots=N nor max_slots=N"},
        {"a gpus=4", "F:1: 'gpus=4' is neither slots=N nor max_slots=N"},
        {"a b", "F:1: 'b' is neither slots=N nor max_slots=N"},
        {"a,b", "F:1: ',b' is neither slots=N nor max_slots=N"},
        {"a slots=1 slots=2", "F:1: the slots of host 'a' are there twice"},
        {"a:1 slots=2", "F:1: the slots of host 'a' are there twice"},
        {"a slots=4 max_slots=2", "F:1: host 'a' has slots=4, but max_slots=2"},
        {"a slots=1\n#\nb slots=1\nA slots=1",
         "F:4: host 'A' is there already, in line 1: slots=N there is the number of its ranks"},
        {"=4\n", "F:1: '=4' is no host's name"},
        {"a:b:c\n", "F:1: 'a:b:c' is no IPv6 address"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run_hosts hosts;
        struct base_error error = {.result = ZERO_OK};
        const zero_result result = parse_file(&hosts, rows[i].input, &error);
        expect_refused(&hosts, result, &error, rows[i].input, rows[i].expected);
    }
}

static void a_file_may_be_anything(void **state)
{
    (void)state;
    struct run_hosts hosts;
    struct base_error error = {.result = ZERO_OK};
    struct temporary dir;
    assert_true(temporary_make(&dir));
    assert_int_equal(run_hosts_parse_file(&hosts, "a\0b", 3, "F", &error), ZERO_E_INVALID);
    assert_string_equal(error.message, "F:1: it is no text");
    base_error_clear(&error);
    assert_int_equal(run_hosts_read(&hosts, temporary_path(&dir, "none"), &error), ZERO_NOT_FOUND);
    assert_null(hosts.list);
    base_error_clear(&error);
    assert_int_equal(run_hosts_read(&hosts, dir.directory, &error), ZERO_E_IO);
    base_error_clear(&error);
    assert_int_equal(run_hosts_read(&hosts, "/dev/zero", &error), ZERO_E_INVALID);
    assert_non_null(strstr(error.message, "this is no list of hosts"));

    int ends[2];
    char path[32];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "a slots=2\nb", 11), 11);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    base_error_clear(&error);
    const zero_result result = run_hosts_read(&hosts, path, &error);
    expect(&hosts, result, &error, path, "a=2 b=0");
    close(ends[0]);
    temporary_remove(&dir);
}

static void there_are_not_too_many(void **state)
{
    (void)state;
    static char list[(RUN_HOSTS_MAX + 1) * 8], name[RUN_HOST_BYTES + 1];
    struct run_hosts hosts;
    struct base_error error = {.result = ZERO_OK};
    size_t used = 0;
    for (int i = 0; i < RUN_HOSTS_MAX; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%sn%d", i ? "," : "", i);
    assert_int_equal(run_hosts_parse(&hosts, list, &error), ZERO_OK);
    assert_int_equal(hosts.count, RUN_HOSTS_MAX);
    run_hosts_free(&hosts);
    snprintf(list + used, sizeof list - used, ",m");
    assert_int_equal(run_hosts_parse(&hosts, list, &error), ZERO_E_INVALID);
    assert_string_equal(error.message, "--hosts: there are more than 512 hosts");
    memset(name, 'x', sizeof name - 1);
    base_error_clear(&error);
    assert_int_equal(run_hosts_parse(&hosts, name, &error), ZERO_E_INVALID);
    assert_string_equal(error.message, "--hosts: a host's name has at most 210 characters");
}

static void the_user_is_no_part_of_the_address(void **state)
{
    (void)state;
    assert_string_equal(run_host_address(&(struct run_host){.name = "root@a"}), "a");
    assert_string_equal(run_host_address(&(struct run_host){.name = "fd00::4"}), "fd00::4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(files_are_read),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(a_file_may_be_anything),
        cmocka_unit_test(there_are_not_too_many),
        cmocka_unit_test(the_user_is_no_part_of_the_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
