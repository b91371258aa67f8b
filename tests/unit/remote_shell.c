// Agents that are started by a remote shell: by one that is a script and does what ssh does, and
// by one that fails as ssh does. The agent is this program.
#include "tools/zero-run/remote_shell_parts.h"

#include "base/clock.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_S = 20 };

static struct temporary dir;
static struct run_shell_way way;
static struct run_shell shell;
static const struct run_host there = {.name = "there"}, here = {.name = "localhost"};

/* ------------------------------------------------------------------ the agent */

// In hexadecimal: a path may be no text.
static const char *hex_of(const char *text)
{
    static char hex[2 * RUN_SHELL_PATH + 1];
    hex[0] = '\0';
    for (size_t i = 0; text[i]; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
    return hex;
}

// Tells its number and its path, and sends back what it gets.
static int be_agent(const char *path)
{
    static const struct run_self self = {.side = RUN_SIDE_AGENT, .host = -1};
    static struct run_link link;
    struct run_frame frame;
    bool told = false;
    if (run_link_adopt(&link, &self, NULL))
        return 2;
    while (link.state != RUN_LINK_ENDED) {
        struct pollfd polls[RUN_LINK_POLLS];
        run_link_poll(&link, polls);
        poll(polls, RUN_LINK_POLLS, 100);
        run_link_turn(&link);
        if (link.state == RUN_LINK_OPEN && !told)
            run_link_send(&link,
                          json_pack("{s:i,s:s}", "pid", (int)getpid(), "path", hex_of(path)));
        told = told || link.state == RUN_LINK_OPEN;
        while (run_link_next(&link, &frame)) {
            fprintf(stderr, "the agent has got a message\n");
            run_link_send(&link, frame.object);
        }
    }
    return link.end == RUN_LINK_EOF ? 0 : 3;
}

/* ------------------------------------------------------------------ its coordinator */

static char heard[8192]; /**< the last message */
static int messages;

static void turn(void)
{
    struct pollfd polls[RUN_LINK_POLLS + RUN_SHELL_POLLS];
    struct run_frame frame;
    run_link_poll(&shell.link, polls);
    run_shell_poll(&shell, polls + RUN_LINK_POLLS);
    poll(polls, RUN_LINK_POLLS + RUN_SHELL_POLLS, 100);
    run_link_turn(&shell.link);
    while (run_link_next(&shell.link, &frame)) {
        char *text = json_dumps(frame.object, JSON_COMPACT);
        snprintf(heard, sizeof heard, "%s", text);
        free(text);
        json_decref(frame.object);
        messages++;
    }
    run_shell_turn(&shell);
}

static void start(const struct run_host *host)
{
    struct base_error error = {.result = ZERO_OK};
    messages = 0;
    if (run_shell_start(&shell, host, &way, &error))
        fail_msg("%s", error.message);
}

static void await_message(int count)
{
    const double deadline = base_clock_s() + PATIENCE_S;
    while (messages < count) {
        turn();
        if (shell.ended || base_clock_s() > deadline) {
            char why[1024];
            run_shell_why(&shell, why, sizeof why);
            fail_msg("%d messages: %s", messages, why);
        }
    }
}

static void await_end(void)
{
    const double deadline = base_clock_s() + PATIENCE_S;
    while (!run_shell_is_gone(&shell))
        if (turn(), base_clock_s() > deadline)
            fail_msg("it has not ended: %s", shell.text);
    assert_true(shell.ended);
}

static void expect_why(const char *expected)
{
    char why[1024];
    run_shell_why(&shell, why, sizeof why);
    assert_string_equal(why, expected);
}

static void use_script(const char *script)
{
    static char rsh[256];
    const char *path = temporary_path(&dir, "ssh");
    assert_true(temporary_write(&dir, "ssh", script));
    assert_int_equal(chmod(path, 0755), 0);
    snprintf(rsh, sizeof rsh, "'%s' -p 22", path);
    struct base_error error = {.result = ZERO_OK};
    if (run_shell_prepare(&way, rsh, &error))
        fail_msg("%s", error.message);
}

// As ssh does, it joins the words behind the host, and a shell reads them.
static const char like_ssh[] = "#!/bin/sh\n"
                               "while [ \"$1\" != there ]; do shift; done\n"
                               "shift\n"
                               "echo 'Authorized users only' >&2\n"
                               "echo 'Welcome'\n"
                               "cd / && exec ${LOGIN_SHELL-sh} -c \"$*\"\n";

/* ------------------------------------------------------------------ tests */

static void an_agent_comes_up_and_goes(void **state)
{
    (void)state;
    char line[64];
    use_script(like_ssh);
    start(&there);
    assert_false(shell.local);
    await_message(1);
    assert_non_null(strstr(heard, hex_of(way.program)));
    assert_string_equal(shell.link.noise, "Welcome\n");
    assert_int_equal(shell.link.theirs.side, RUN_SIDE_AGENT);
    run_link_send(&shell.link, json_pack("{s:s}", "say", "this"));
    await_message(2);
    assert_string_equal(heard, "{\"say\":\"this\"}");
    const double deadline = base_clock_s() + PATIENCE_S;
    while (!run_shell_line(&shell, line, sizeof line) && base_clock_s() < deadline)
        turn();
    assert_string_equal(line, "the agent has got a message");
    assert_false(run_shell_line(&shell, line, sizeof line));
    run_link_close(&shell.link); // the agent ends by itself
    await_end();
    assert_int_equal(shell.end.si_code, CLD_EXITED);
    assert_int_equal(shell.end.si_status, 0);
    run_shell_close(&shell);
    run_shell_close(&shell);
}

static void a_local_agent_is_a_child(void **state)
{
    (void)state;
    use_script("#!/bin/sh\nexit 255\n");
    start(&here);
    assert_true(shell.local);
    await_message(1);
    char expected[32];
    snprintf(expected, sizeof expected, "{\"pid\":%d,", (int)shell.pid);
    assert_memory_equal(heard, expected, strlen(expected));
    run_shell_signal(&shell, SIGTERM);
    await_end();
    expect_why("host localhost: the agent was ended by SIGTERM");
    run_shell_close(&shell);
}

static void which_hosts_are_this_machine(void **state)
{
    (void)state;
    static const char *const mine[] = {"localhost", "127.0.0.1", "127.7.0.1", "LOCALHOST"};
    static const char *const others[] = {"no-such-host.invalid", "192.0.2.1",
                                         "nobody-here@localhost", "2001:db8::1"};
    struct run_host host;
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) {
        snprintf(host.name, sizeof host.name, "%s", mine[i]);
        assert_true(run_shell_is_here(&host));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(host.name, sizeof host.name, "%s", others[i]);
        assert_false(run_shell_is_here(&host));
    }
    gethostname(host.name, sizeof host.name);
    assert_true(run_shell_is_here(&host));
}

// A path reaches the other host as it is, whatever is in it, through whatever login shells this
// machine has.
static void every_path_is_safe(void **state)
{
    (void)state;
    static const char *const names[] = {"with a blank", "it's",          "$HOME `id` \"x\" \\n \\",
                                        "a;b&c|d*?",    "line\nbreak\n", "\xc3\xa4\xff",
                                        "100%s%%",      "!x#~{a,b}",     "-n"};
    static const char *const shells[] = {"sh", "bash", "dash", "zsh", "fish", "csh", "tcsh", "ksh"};
    struct run_shell_way real;
    int tried = 0;
    use_script(like_ssh);
    real = way;
    for (size_t s = 0; s < sizeof shells / sizeof *shells; s++) {
        char path[64];
        snprintf(path, sizeof path, "command -v %s >/dev/null", shells[s]);
        if (system(path))
            continue;
        setenv("LOGIN_SHELL", shells[s], 1);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++, tried++) {
            snprintf(way.program, sizeof way.program, "%s/%s", dir.directory, names[i]);
            assert_int_equal(symlink(real.program, way.program), 0);
            start(&there);
            await_message(1);
            assert_false(shell.by_path);
            if (!strstr(heard, hex_of(way.program)))
                fail_msg("%s: %s instead of %s", shells[s], heard, hex_of(way.program));
            run_shell_close(&shell);
            unlink(way.program);
        }
    }
    unsetenv("LOGIN_SHELL");
    way = real;
    assert_true(tried > 0);
}

static void zero_run_may_be_elsewhere(void **state)
{
    (void)state;
    char path[8192], program[RUN_SHELL_PATH];
    use_script(like_ssh);
    strcpy(program, way.program);
    strcpy(way.program, "/nonexistent/zero-run");
    start(&there);
    await_end();
    expect_why("host there: there is neither /nonexistent/zero-run nor a zero-run in its PATH, so "
               "install it there: "
               "sh: 1: zero-run: not found");
    run_shell_close(&shell);
    use_script("#!/bin/sh\necho 'no such pod' >&2; exit 1\n");
    strcpy(way.program, "/nonexistent/zero-run");
    start(&there);
    await_end();
    expect_why("host there: no such pod: there is neither /nonexistent/zero-run nor a zero-run in "
               "its PATH, so install it there; or ssh itself has failed: try `ssh ... there true`");
    run_shell_close(&shell);
    use_script(like_ssh);
    strcpy(way.program, "/nonexistent/zero-run");
    snprintf(path, sizeof path, "%s:%s", dir.directory, getenv("PATH"));
    assert_int_equal(symlink(program, temporary_path(&dir, "zero-run")), 0);
    setenv("PATH", path, 1);
    start(&there);
    await_message(1);
    assert_true(shell.by_path);
    run_shell_close(&shell);
    setenv("PATH", path + strlen(dir.directory) + 1, 1);
}

static void what_ssh_says_is_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *script, *why;
    } rows[] = {
        {"echo 'ssh: connect to host there port 22: No route to host\r' >&2; exit 255",
         "host there: ssh: connect to host there port 22: No route to host: `ssh ... there true` "
         "by "
         "hand has to "
         "work first"},
        {"echo 'Authorized users only.' >&2; echo >&2\n"
         "echo 'me@there: Permission denied (publickey).' >&2; exit 255",
         "host there: ssh: me@there: Permission denied (publickey): it lets this user in with a "
         "password only, or not at all; `ssh-copy-id there` gives it a key"},
        {"echo 'Host key verification failed.' >&2; exit 255",
         "host there: ssh: Host key verification failed: its key is not known here; `ssh there` by "
         "hand asks whether it is right"},
        {"echo '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2\n"
         "echo 'Host key verification failed.' >&2; exit 255",
         "host there: ssh: Host key verification failed: its key is another one than known_hosts "
         "has; if that is right, `ssh-keygen -R there` forgets the old one"},
        {"echo 'ssh: Could not resolve hostname there: Name or service not known' >&2; exit 255",
         "host there: ssh: Could not resolve hostname there: Name or service not known: `ssh ... "
         "there "
         "true` by hand has to work first"},
        {"echo 'kex_exchange_identification: Connection closed' >&2; exit 255",
         "host there: ssh: kex_exchange_identification: Connection closed: `ssh ... there true` by "
         "hand has to "
         "work first"},
        {"printf 'a\\033[2Jb\\n' >&2; exit 255",
         "host there: ssh: a?[2Jb: `ssh ... there true` by hand has to work first"},
        {"exit 255",
         "host there: ssh: it has ended with status 255: `ssh ... there true` by hand has to "
         "work first"},
        {"exit 64",
         "host there: its zero-run is of another version, which has no agents: install the "
         "same zero-run on all hosts"},
        {"exit 3", "host there: the agent has ended with status 3"},
        {"echo 'This account is not available.'; exit 3",
         "host there: the agent has ended with status 3: its shell says: This account is not "
         "available"},
        {"kill -9 $$", "host there: ssh was ended by SIGKILL"},
        {"echo zerolinkzerolinkzerolinkzerolink; sleep 60",
         "host there: its zero-run speaks version 1869768058 of the protocol between hosts, this "
         "one version 2: install the same zero-run on all hosts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char script[1024];
        snprintf(script, sizeof script, "#!/bin/sh\n%s\n", rows[i].script);
        use_script(script);
        start(&there);
        const double deadline = base_clock_s() + PATIENCE_S;
        while (!run_shell_is_gone(&shell) && base_clock_s() < deadline)
            turn();
        expect_why(rows[i].why);
        run_shell_close(&shell);
    }
}

static void a_link_may_end_before_its_process(void **state)
{
    (void)state;
    use_script("#!/bin/sh\nexec <&- >&-\nsleep 0.3\necho 'Permission denied' >&2\nexit 255\n");
    start(&there);
    await_end();
    expect_why("host there: ssh: Permission denied: it lets this user in with a password only, or "
               "not at all; `ssh-copy-id there` gives it a key");
    run_shell_close(&shell);
    use_script("#!/bin/sh\nexec sleep 60 <&- >&-\n");
    start(&there);
    const double began = base_clock_s();
    while (!run_shell_is_gone(&shell) && base_clock_s() < began + PATIENCE_S)
        turn();
    assert_false(shell.ended);
    char why[1024]; // what it is told depends on whether this side's hello came before the end
    run_shell_why(&shell, why, sizeof why);
    assert_true(!strcmp(why, "host there: it has reset its connection") ||
                !strcmp(why, "host there: it has closed its connection"));
    run_shell_close(&shell);
    use_script("#!/bin/sh\nexec sleep 60\n");
    start(&there);
    turn();
    expect_why("host there: ssh has not started the agent in time");
    run_shell_close(&shell);
    // More than is kept.
    use_script("#!/bin/sh\nseq 10000 >&2\necho last >&2\nexit 255\n");
    start(&there);
    await_end();
    expect_why("host there: ssh: last: `ssh ... there true` by hand has to work first");
    run_shell_close(&shell);
}

static void an_agent_that_is_lost(void **state)
{
    (void)state;
    use_script("#!/bin/sh\nwhile [ \"$1\" != there ]; do shift; done\nshift\n"
               "\"$@\" <&0 || echo 'Connection to there closed by remote host.' >&2\nexit 255\n");
    start(&there);
    await_message(1);
    const int pid = atoi(strchr(heard, ':') + 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    await_end();
    char why[512];
    run_shell_why(&shell, why, sizeof why);
    assert_non_null(strstr(why, "host there: the agent was killed, or ssh has lost it: "));
    assert_non_null(strstr(why, "closed by remote host"));
    run_shell_close(&shell);
}

static void no_remote_shell_is_said(void **state)
{
    (void)state;
    struct base_error error = {.result = ZERO_OK};
    assert_int_equal(run_shell_prepare(&way, "no-such-shell -v", &error), ZERO_OK);
    assert_int_equal(run_shell_start(&shell, &there, &way, &error), ZERO_NOT_FOUND);
    assert_non_null(strstr(error.message, "host there: cannot start 'no-such-shell', the remote "
                                          "shell (--rsh names another one): No such file"));
    run_shell_close(&shell);
}

static void expect_words(const char *text, const char *expected)
{
    struct run_command_line line = {.count = 0};
    struct base_error error = {.result = ZERO_OK};
    char joined[512] = "";
    if (run_shell_split(&line, text, &error))
        snprintf(joined, sizeof joined, "%s", error.message);
    else
        for (int i = 0; i < line.count; i++)
            snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "[%s]",
                     line.words[i]);
    assert_string_equal(joined, expected);
}

static void rsh_is_split_into_words(void **state)
{
    (void)state;
    expect_words("ssh -p 2222", "[ssh][-p][2222]");
    expect_words("  a\t'b c'\"d e\"f ''", "[a][b cd ef][]");
    expect_words("a\\ b 'c\\d' \"e\\\"f\\g\\$\"", "[a b][c\\d][e\"f\\g$]");
    expect_words("'it'\\''s' \"'\" '\"'", "[it's]['][\"]");
    expect_words("a\\", "[a\\]");
    expect_words("a 'b", "--rsh 'a 'b': a quote has no end");
    expect_words("a \"b", "--rsh 'a \"b': a quote has no end");
    expect_words(" ", "--rsh takes a command, not ' '");
    expect_words("''", "--rsh takes a command, not ''''");
    char many[2 * RUN_SHELL_WORDS + 3];
    for (size_t i = 0; i + 1 < sizeof many; i++)
        many[i] = i % 2 ? ' ' : 'x';
    many[sizeof many - 1] = '\0';
    expect_words(many, "--rsh takes at most 64 words");
}

static void command_lines_are_as_said(void **state)
{
    (void)state;
    static struct run_command_line line;
    struct run_shell one = {.host = &there, .way = &way};
    assert_int_equal(run_shell_prepare(&way, NULL, NULL), ZERO_OK);
    strcpy(way.program, "/opt/zero/bin/zero-run");
    assert_int_equal(run_shell_command(&line, &one, NULL), ZERO_OK);
    assert_string_equal(line.words[0], "ssh");
    assert_string_equal(line.words[line.count - 3], "there");
    assert_string_equal(line.words[line.count - 2], "/opt/zero/bin/zero-run");
    assert_string_equal(line.words[line.count - 1], "--agent");
    assert_null(line.words[line.count]);
    assert_int_equal(run_shell_prepare(&way, "docker exec -i", NULL), ZERO_OK);
    strcpy(way.program, "/opt/zero/bin/zero-run");
    assert_int_equal(run_shell_command(&line, &one, NULL), ZERO_OK);
    assert_int_equal(line.count, 6);
}

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&dir);
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && !strcmp(argv[1], "--agent"))
        return be_agent(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_comes_up_and_goes),
        cmocka_unit_test(a_local_agent_is_a_child),
        cmocka_unit_test(which_hosts_are_this_machine),
        cmocka_unit_test(every_path_is_safe),
        cmocka_unit_test(zero_run_may_be_elsewhere),
        cmocka_unit_test(what_ssh_says_is_one_line),
        cmocka_unit_test(a_link_may_end_before_its_process),
        cmocka_unit_test(an_agent_that_is_lost),
        cmocka_unit_test(no_remote_shell_is_said),
        cmocka_unit_test(rsh_is_split_into_words),
        cmocka_unit_test(command_lines_are_as_said),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
