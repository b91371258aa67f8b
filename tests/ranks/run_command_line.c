// zero-run's command line, what ranks are told, and what comes of their output.
#include "tests/ranks/run_command.h"
#include "tests/unit/temporary.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void wrong_options_are_one_line(void **state)
{
    (void)state;
    struct run_command run;
    static const struct {
        const char *args[6];
        const char *part;
    } wrong[] = {
        {{NULL}, "no program given"},
        {{"-n", "2"}, "no program given"},
        {{"-n"}, "-n needs a value"},
        {{"-n", "0", "true"}, "-n takes a number from 1 to 16384, not '0'"},
        {{"-n", "-1", "true"}, "not '-1'"},
        {{"-n", "2x", "true"}, "not '2x'"},
        {{"-n", "99999999999999999999", "true"}, "-n takes a number"},
        {{"-n", "", "true"}, "not ''"},
        {{"-n", "4097", "true"}, "-n 4097: a host has at most 4096 ranks"},
        {{"-n", "3:2", "true"},
         "-n takes a number of ranks, or MIN:MAX, from 1 to 16384, not '3:2'"},
        {{"-n", "0:2", "true"}, "not '0:2'"},
        {{"-n", "2:", "true"}, "not '2:'"},
        {{"-n", ":2", "true"}, "not ':2'"},
        {{"-n", "1:2:3", "true"}, "not '1:2:3'"},
        {{"-n", "1:4097", "true"}, "-n 4097: a host has at most 4096 ranks"},
        {{"-n", "1:16385", "true"}, "not '1:16385'"},
        {{"-n", "12345678:4", "true"}, "not '12345678:4'"},
        {{"--nodes", "3:2", "true"},
         "--nodes takes a number of hosts, or MIN:MAX, from 1 to 512, not '3:2': MIN is more than "
         "MAX"},
        {{"--nodes", "0", "true"}, "--nodes takes a number from 1 to 512, not '0'"},
        {{"--nodes", "0:2", "true"}, "not '0:2'"},
        {{"--nodes", "2:", "true"}, "not '2:'"},
        {{"--nodes", ":2", "true"}, "not ':2'"},
        {{"--nodes", "1:5000", "true"}, "not '1:5000'"},
        {{"--nodes", "1:2", "--max-restarts", "0", "true"}, "so MIN of --nodes has no effect"},
        {{"--plan", "--nodes", "1:2", "true"}, "so MIN of --nodes has no effect"},
        {{"--max-restarts", "-1", "true"}, "--max-restarts takes a number from 0 to 10000"},
        {{"--max-restarts", "10001", "true"}, "not '10001'"},
        {{"--backoff", "soon", "--max-restarts", "1", "true"}, "--backoff takes a time such as"},
        {{"--backoff", "1", "true"}, "--backoff is for --max-restarts only"},
        {{"-n", "1:2", "--max-restarts", "0", "true"}, "so MIN of -n has no effect"},
        {{"--plan", "-n", "1:2", "true"}, "--plan restarts nothing, so MIN of -n has no effect"},
        {{"--plan", "--max-restarts", "0", "true"}, "so --max-restarts has no effect"},
        {{"--unknown", "true"}, "unknown option --unknown"},
        {{"-y", "true"}, "unknown option -y"},
        {{"--explain", "-yn", "1"}, "unknown option -y"},
        {{"--plan=3", "true"}, "--plan takes text or json, not '3'"},
        {{"--help=3", "true"}, "unknown option --help=3 (it takes no value)"},
        {{"--bind", "socket", "true"}, "--bind takes none, core, numa or auto, not 'socket'"},
        {{"--prefix", "maybe", "true"}, "--prefix takes auto, always or never"},
        {{"--color", "red", "true"}, "--color takes auto, always or never, not 'red'"},
        {{"--timeout", "soon", "true"}, "--timeout takes a time such as 90, 90s, 15m or 2h"},
        {{"--timeout", "0", "true"}, "from 1 s to 365d, not '0'"},
        {{"--timeout", "-1", "true"}, "not '-1'"},
        {{"--timeout", " 1", "true"}, "not ' 1'"},
        {{"--timeout", "1w", "true"}, "not '1w'"},
        {{"--timeout", "1hh", "true"}, "not '1hh'"},
        {{"--timeout", "h", "true"}, "not 'h'"},
        {{"--timeout", "366d", "true"}, "not '366d'"},
        {{"--timeout", "9223372036854775807d", "true"}, "not '9223372036854775807d'"},
        {{"--timeout", "99999999999999999999", "true"}, "not '99999999999999999999'"},
        {{"--grace", "soon", "true"}, "--grace takes a time such as 90, 90s, 15m or 2h, from 0 s"},
        {{"--timeout"}, "--timeout needs a value"},
        {{"-o", "stage", "true"}, "-o takes key=value, not 'stage'"},
        {{"-o", "=1", "true"}, "-o takes key=value"},
        {{"-o", "a=1\nb=2", "true"}, "-o takes key=value, not 'a=1?b=2'"},
        {{"--world", "4", "true"}, "--world is for --plan only"},
        {{"--probe", "true"}, "--probe is for --plan only"},
        {{"-n", "5", "--plan", "--world", "4", "true"}, "-n 5: so many ranks of this host, but"},
        {{"--plan", "--metrics", "f", "true"}, "--metrics has no effect"},
        {{"--explain", "true"}, "--explain starts nothing"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        run_command_run(&run, wrong[i].args);
        assert_int_equal(run.out_size, 0);
        run_command_expect_line(&run, 64, "zero-run: ", wrong[i].part);
    }
}

static void help_and_version_are_printed(void **state)
{
    (void)state;
    struct run_command run;
    static const char *const help[] = {"--help", "-h"};
    for (int i = 0; i < 2; i++) {
        RUN(&run, "-n", "3", help[i], "program");
        assert_int_equal(run.status, 0);
        assert_memory_equal(run.out, "usage: zero-run ", 16);
        // Every option of the table, and every status.
        static const char *const parts[] = {
            "-n, --ranks N", "-o KEY=VALUE", "--bind HOW",     "--log-dir DIR", "--metrics FILE",
            "--prefix WHEN", "--color WHEN", "--timeout TIME", "--grace TIME",  "--plan ",
            "--probe ",      "--world W",    "--explain",      "--version",     "-h, --help",
            "\n    0  ",     "\n   64  ",    "\n   66  ",      "\n   69  ",     "\n   71  ",
            "\n   73  ",     "\n   74  ",    "\n   75  ",      "\n   76  ",     "\n   78  "};
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            if (!strstr(run.out, parts[p]))
                fail_msg("--help lacks '%s'", parts[p]);
        assert_string_equal(run.err, "");
        run_command_free(&run);
    }
    RUN(&run, "--version");
    assert_int_equal(run.status, 0);
    assert_memory_equal(run.out, "zero-run ", 9);
    run_command_free(&run);
}

static void missing_programs_are_one_line(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "4", "/nonexistent/program");
    run_command_expect_line(&run, 66, "cannot run '/nonexistent/program'", "ENOENT");
    RUN(&run, "no-such-program-anywhere");
    run_command_expect_line(&run, 66, "cannot run 'no-such-program-anywhere'", "ENOENT");
    RUN(&run, "-n", "2", "/tmp");
    run_command_expect_line(&run, 66, "cannot run '/tmp'", "EACCES");
}

static void ranks_are_told_who_they_are(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $ZERO_RANK $ZERO_LOCAL_RANK "
               "$ZERO_WORLD_SIZE $ZERO_LOCAL_WORLD_SIZE $MASTER_ADDR",
               "-n", "3");
    assert_int_equal(run.status, 0);
    for (int rank = 0; rank < 3; rank++) {
        char line[64];
        snprintf(line, sizeof line, "[%d] %d %d 3 3 %d %d 3 3 127.0.0.1", rank, rank, rank, rank,
                 rank);
        assert_int_equal(run_command_lines(run.out, line), 1);
    }
    assert_string_equal(run.err, "");
    run_command_free(&run);

    // One job, one token and port; the next job has others.
    char first[128], second[128];
    char *const jobs[2] = {first, second};
    for (int i = 0; i < 2; i++) {
        RUN_SCRIPT(&run, "echo $ZERO_JOB $MASTER_PORT", "-n", "2", "--prefix", "never");
        const size_t length = strcspn(run.out, "\n");
        assert_true(length > 34 && length < 40);
        snprintf(jobs[i], 128, "%.*s", (int)length, run.out);
        assert_int_equal(run_command_lines(run.out, jobs[i]), 2);
        run_command_free(&run);
    }
    assert_string_not_equal(first, second);
}

static void options_reach_the_ranks(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "printf '%s\\n' \"$ZERO_OPTIONS\"", "-o", "stage=3", "-o", "name=a b=c");
    assert_string_equal(run.out, "stage=3\nname=a b=c\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, "echo ${ZERO_OPTIONS-none} ${ZERO_PLAN-none} ${ZERO_METRICS_FD-none}", "-n",
               "1");
    assert_string_equal(run.out, "none none none\n");
    run_command_free(&run);

    setenv("ZERO_OPTIONS", "seed=1", 1);
    setenv("ZERO_PLAN", "1", 1); // of another zero-run
    setenv("OMP_NUM_THREADS", "7", 1);
    RUN_SCRIPT(&run, "printf '%s\\n' \"$ZERO_OPTIONS\" ${ZERO_PLAN-none} $OMP_NUM_THREADS", "-o",
               "stage=3");
    assert_string_equal(run.out, "seed=1\nstage=3\nnone\n7\n");
    run_command_free(&run);
    unsetenv("ZERO_OPTIONS");
    unsetenv("ZERO_PLAN");
    unsetenv("OMP_NUM_THREADS");
}

static void programs_options_are_their_own(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "echo", "-n", "--help", "-o");
    assert_string_equal(run.out, "--help -o");
    run_command_free(&run);
    RUN(&run, "-n", "1", "--", "echo", "--", "-n", "4");
    assert_string_equal(run.out, "-- -n 4\n");
    run_command_free(&run);
}

static void lines_are_prefixed(void **state)
{
    (void)state;
    struct run_command run;
    // An unfinished line in pieces, empty lines, both streams, no newline at the end.
    RUN_SCRIPT(&run, "printf one; sleep 0.05; printf ' line\\n\\n'; echo wrong >&2; printf end",
               "-n", "2");
    assert_int_equal(run.status, 0);
    for (int rank = 0; rank < 2; rank++) {
        char line[32];
        snprintf(line, sizeof line, "[%d] one line", rank);
        assert_int_equal(run_command_lines(run.out, line), 1);
        snprintf(line, sizeof line, "[%d] ", rank);
        assert_int_equal(run_command_lines(run.out, line), 1);
        snprintf(line, sizeof line, "[%d] end", rank);
        assert_int_equal(run_command_lines(run.out, line), 1);
        snprintf(line, sizeof line, "[%d] wrong", rank);
        assert_int_equal(run_command_lines(run.err, line), 1);
    }
    assert_int_equal(run.out_size, 2 * (13 + 5 + 8));
    run_command_free(&run);

    RUN_SCRIPT(&run, "printf x", "-n", "1", "--prefix", "always");
    assert_string_equal(run.out, "[0] x\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, "printf x", "-n", "1");
    assert_string_equal(run.out, "x");
    run_command_free(&run);
}

// Every line a rank wrote is there, whole: nothing of another one is inside.
static void expect_whole_lines(const char *text, bool prefixed)
{
    enum { RANKS = 4, LINES = 3000 };
    int next[RANKS] = {0};
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        int prefix = -1, rank, number, end = 0;
        const int start = *line == '[' ? 4 : 0;
        if (start)
            assert_int_equal(sscanf(line, "[%d] ", &prefix), 1);
        assert_int_equal(sscanf(line + start, "%d:%d:%n", &rank, &number, &end), 2);
        end += start;
        assert_true(rank >= 0 && rank < RANKS && prefix == (prefixed ? rank : -1));
        assert_int_equal(number, next[rank]++);
        const size_t length = strcspn(line, "\n");
        assert_int_equal(length, end + number % 50 * 10 + 1);
        assert_int_equal(line[length - 1], '!');
        assert_null(memchr(line, '!', length - 1));
    }
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(next[rank], LINES);
}

static void lines_never_mix(void **state)
{
    (void)state;
    struct run_command run;
    static const char *const prefixes[] = {"always", "never"};
    for (int i = 0; i < 2; i++) {
        RUN_SCRIPT(&run,
                   "exec awk -v r=$RANK 'BEGIN { for (i = 0; i < 3000; i++) { s = r \":\" i \":\"; "
                   "for (k = 0; k < i % 50; k++) s = s \"abcdefghij\"; print s \"!\" } }'",
                   "-n", "4", "--prefix", prefixes[i]);
        assert_int_equal(run.status, 0);
        expect_whole_lines(run.out, i == 0);
        run_command_free(&run);
    }
}

static void bytes_are_not_interpreted(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "printf 'a\\000b\\377\\n\\000'", "-n", "2");
    assert_int_equal(run.out_size, 2 * (4 + 5 + 4 + 2));
    int seen = 0;
    for (size_t i = 0; i + 9 <= run.out_size; i++)
        seen += !memcmp(run.out + i, "] a\0b\377\n", 7);
    assert_int_equal(seen, 2);
    run_command_free(&run);
}

static void endless_lines_are_broken(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "head -c 150000 /dev/zero | tr '\\000' x; echo y", "-n", "2");
    size_t count = 0;
    int pieces = 0;
    for (const char *line = run.out; *line; line += strcspn(line, "\n") + 1) {
        const size_t length = strcspn(line, "\n");
        assert_true(length <= 65536 + 4);
        count += length - 4;
        pieces++;
    }
    assert_int_equal(count, 2 * 150001);
    assert_int_equal(pieces, 2 * 3);
    run_command_free(&run);

    // Without a prefix nothing is changed.
    RUN_SCRIPT(&run, "head -c 150000 /dev/zero | tr '\\000' x", "-n", "1");
    assert_int_equal(run.out_size, 150000);
    run_command_free(&run);
}

static char *read_file(const char *path)
{
    static char text[4096];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void logs_and_metrics_are_written(void **state)
{
    (void)state;
    struct temporary dir;
    struct run_command run;
    assert_true(temporary_make(&dir));
    const char *logs = temporary_path(&dir, "logs"), *metrics = temporary_path(&dir, "metrics");
    for (int i = 0; i < 2; i++) { // the second replaces what the first has left
        RUN_SCRIPT(&run,
                   "echo out; sleep 0.02; printf err >&2; "
                   "[ $RANK = 0 ] && echo '{}' >>/proc/self/fd/$ZERO_METRICS_FD || [ -z "
                   "$ZERO_METRICS_FD ]",
                   "-n", "2", "--log-dir", logs, "--metrics", metrics);
        assert_int_equal(run.status, 0);
        assert_int_equal(run_command_lines(run.out, "[1] out"), 1);
        run_command_free(&run);
    }
    char path[128];
    snprintf(path, sizeof path, "%s/rank-0.log", logs);
    assert_string_equal(read_file(path), "out\nerr");
    snprintf(path, sizeof path, "%s/rank-1.log", logs);
    assert_string_equal(read_file(path), "out\nerr");
    assert_string_equal(read_file(metrics), "{}\n");

    RUN(&run, "--log-dir", temporary_path(&dir, "metrics"), "true");
    run_command_expect_line(&run, 73, "metrics/rank-0.log", "ENOTDIR");
    RUN(&run, "--log-dir", "/nonexistent/logs", "true");
    run_command_expect_line(&run, 73, "/nonexistent/logs", "ENOENT");
    RUN(&run, "--metrics", "/nonexistent/file", "true");
    run_command_expect_line(&run, 73, "/nonexistent/file", NULL);
    temporary_remove(&dir);
}

static void standard_input_is_rank_0s(void **state)
{
    (void)state;
    struct run_command run;
    struct temporary dir;
    assert_true(temporary_make(&dir));
    FILE *input = fopen(temporary_path(&dir, "input"), "w+");
    assert_non_null(input);
    fputs("hello\n", input);
    rewind(input);
    const int saved = dup(STDIN_FILENO);
    assert_int_equal(dup2(fileno(input), STDIN_FILENO), STDIN_FILENO);
    RUN_SCRIPT(&run, "read line; echo \"got $line\"", "-n", "2");
    dup2(saved, STDIN_FILENO);
    close(saved);
    fclose(input);
    assert_int_equal(run_command_lines(run.out, "[0] got hello"), 1);
    assert_int_equal(run_command_lines(run.out, "[1] got "), 1);
    run_command_free(&run);
    temporary_remove(&dir);
}

// zero-run blocks signals and ignores SIGPIPE: its ranks have what it was started with.
static void signals_are_as_they_were(void **state)
{
    (void)state;
    struct run_command run;
    char line[128];
    int compared = 0;
    RUN_SCRIPT(&run, "cat /proc/self/status", "-n", "1", "--prefix", "always");
    FILE *own = fopen("/proc/self/status", "r");
    assert_non_null(own);
    while (fgets(line, sizeof line, own)) {
        if (strncmp(line, "SigBlk", 6) && strncmp(line, "SigIgn", 6))
            continue;
        char wanted[160];
        snprintf(wanted, sizeof wanted, "[0] %.*s", (int)strcspn(line, "\n"), line);
        assert_int_equal(run_command_lines(run.out, wanted), 1);
        compared++;
    }
    fclose(own);
    assert_int_equal(compared, 2);
    run_command_free(&run);
}

static void ranks_are_bound(void **state)
{
    (void)state;
    struct run_command run;
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    const int cpus = CPU_COUNT(&allowed);
    RUN_SCRIPT(&run, "grep Cpus_allowed_list /proc/self/status", "-n", "2", "--prefix", "never");
    const size_t length = strcspn(run.out, "\n");
    char everything[256];
    snprintf(everything, sizeof everything, "%.*s", (int)length, run.out);
    assert_int_equal(run_command_lines(run.out, everything), 2);
    run_command_free(&run);

    RUN_SCRIPT(&run, "grep Cpus_allowed_list /proc/self/status", "-n", "2", "--prefix", "never",
               "--bind", "core");
    assert_int_equal(run.status, 0);
    if (cpus > 1) // each has a part, and not the same one
        assert_true(strncmp(run.out, strchr(run.out, '\n') + 1, strcspn(run.out, "\n") + 1) != 0);
    run_command_free(&run);

    // What cannot be is said before anything is started.
    setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:2", 1);
    RUN(&run, "-n", "2", "--bind", "numa", "true");
    run_command_expect_line(&run, 78, "HWLOC_SYNTHETIC", "another machine");
    RUN(&run, "--explain", "-n", "2", "--bind", "numa");
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "                1      4          1           1  "
                                                "8-15"),
                     1);
    run_command_free(&run);
    RUN(&run, "--explain", "-n", "9", "--bind", "auto");
    assert_int_equal(run_command_lines(run.out, "bind         nothing"), 1);
    run_command_free(&run);
    unsetenv("HWLOC_SYNTHETIC");

    // More ranks than processors: each has one.
    RUN_SCRIPT(&run, "nproc", "-n", "5", "--bind", "core", "--prefix", "never");
    assert_int_equal(run.status, 0);
    if (cpus < 5)
        assert_int_equal(run_command_lines(run.out, "1"), 5);
    run_command_free(&run);
}

// Four descriptors a rank are more than the limit, which the ranks have all the same.
static void descriptors_are_no_limit(void **state)
{
    (void)state;
    struct run_command run;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    small = before;
    small.rlim_cur = 40;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    RUN_SCRIPT(&run, "ulimit -S -n", "-n", "24", "--prefix", "never", "--bind", "core");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "40"), 24);
    run_command_free(&run);
}

static void times_have_units(void **state)
{
    (void)state;
    struct run_command run;
    static const char *const times[] = {"2", "90s", "15m", "2h", "365d", "0012"};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        RUN(&run, "--timeout", times[i], "--grace", times[i], "true");
        assert_int_equal(run.status, 0);
        run_command_free(&run);
    }
}

static void plans_are_printed(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run,
               "echo talk; echo \"$ZERO_PLAN $ZERO_PLAN_WORLD $ZERO_PLAN_LOCAL_WORLD $WORLD_SIZE "
               "$ZERO_PLAN_PROBE\" "
               ">>/proc/self/fd/$ZERO_PLAN_FD",
               "-n", "4", "--plan");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "1 4 4 1 0\n");
    assert_string_equal(run.err, "talk\n");
    run_command_free(&run);
    // Of so many ranks all are here, or those of -n. A program may take ZERO_PLANNED for a failure:
    // the plan is made all the same.
    const char *both = "echo \"$ZERO_PLAN_LOCAL_WORLD of $ZERO_PLAN_WORLD\" "
                       ">>/proc/self/fd/$ZERO_PLAN_FD; exit 1";
    RUN_SCRIPT(&run, both, "--plan", "--world", "64");
    assert_string_equal(run.out, "64 of 64\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, both, "-n", "4", "--plan", "--world", "64", "--prefix", "always");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "4 of 64\n");
    assert_string_equal(run.err, "");
    run_command_free(&run);

    // Hosts are filled in order.
    both = "echo \"$ZERO_PLAN_LEAST_LOCAL_WORLD to $ZERO_PLAN_LOCAL_WORLD of $ZERO_PLAN_WORLD\" "
           ">>/proc/self/fd/$ZERO_PLAN_FD; exit 1";
    RUN_SCRIPT(&run, both, "--hosts", "a:3,b:1", "--plan");
    assert_string_equal(run.out, "1 to 3 of 4\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, both, "--hosts", "a:4,b:4,c:4", "-n", "6", "--plan");
    assert_string_equal(run.out, "2 to 4 of 6\n");
    run_command_free(&run);
    RUN_SCRIPT(&run, both, "--hosts", "a:4,b:2", "--world", "64", "--plan");
    assert_string_equal(run.out, "4 to 4 of 64\n");
    run_command_free(&run);

    RUN_SCRIPT(&run, "echo $ZERO_PLAN_PROBE >>/proc/self/fd/$ZERO_PLAN_FD", "--probe", "--plan");
    assert_string_equal(run.out, "1\n");
    run_command_free(&run);

    // Of two contexts, the second of which needs too much.
    const char *two = "printf 'text 1\\n\\0{1}\\0\\0text 2\\n\\0{2}\\0too much\\0' "
                      ">>/proc/self/fd/$ZERO_PLAN_FD";
    RUN_SCRIPT(&run, two, "--plan=text");
    assert_string_equal(run.out, "text 1\ntext 2\n");
    run_command_expect_line(&run, 65, "the plan does not fit: too much", NULL);
    RUN_SCRIPT(&run, two, "--plan=json");
    assert_string_equal(run.out, "{1}\n{2}\n");
    run_command_expect_line(&run, 65, "the plan does not fit: too much", NULL);
    RUN_SCRIPT(&run, "echo words >>/proc/self/fd/$ZERO_PLAN_FD", "--plan=json");
    run_command_expect_line(&run, 76, "no plan: the program made it as text only", NULL);

    RUN_SCRIPT(&run, "exit 0", "--plan");
    run_command_expect_line(&run, 76, "no plan: the program ended with exit code 0", NULL);
    RUN_SCRIPT(&run, "exit 3", "--plan");
    run_command_expect_line(&run, 3, "no plan: the program ended with exit code 3", NULL);
    RUN_SCRIPT(&run, "echo half >>/proc/self/fd/$ZERO_PLAN_FD; kill -SEGV $$", "--plan");
    run_command_expect_line(&run, 139, "no plan: the program ended with signal SIGSEGV", NULL);
}

static void places_are_explained(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "--explain");
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "rank         0 of 1"), 1);
    assert_int_equal(run_command_lines(run.out, "zero-run     may start ranks here"), 1);
    run_command_free(&run);

    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    RUN(&run, "--explain");
    assert_int_equal(run.status, 0);
    assert_int_equal(run_command_lines(run.out, "rank         1 of 2"), 1);
    assert_non_null(strstr(run.out, "zero-run     may not start ranks here: "));
    run_command_free(&run);
    RUN(&run, "-n", "2", "true");
    run_command_expect_line(&run, 69, "OMPI_COMM_WORLD_RANK=1", "Open MPI");
    setenv("OMPI_COMM_WORLD_SIZE", "two", 1);
    RUN(&run, "-n", "2", "true");
    run_command_expect_line(&run, 78, "OMPI_COMM_WORLD_SIZE=two", NULL);
    RUN(&run, "--explain");
    assert_int_equal(run.status, 78);
    run_command_free(&run);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");

    // A part of a job that does not know which must not start ranks either.
    setenv("PALS_RANKID", "3", 1);
    RUN(&run, "-n", "2", "true");
    run_command_expect_line(&run, 69, "PALS_RANKID=3", "set ZERO_RANK and ZERO_WORLD_SIZE");
    RUN(&run, "--explain");
    assert_int_equal(run.status, 0);
    assert_non_null(
        strstr(run.out, "error        PALS_RANKID=3: PALS has started this process as"));
    run_command_free(&run);
    unsetenv("PALS_RANKID");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_options_are_one_line),
        cmocka_unit_test(help_and_version_are_printed),
        cmocka_unit_test(missing_programs_are_one_line),
        cmocka_unit_test(ranks_are_told_who_they_are),
        cmocka_unit_test(options_reach_the_ranks),
        cmocka_unit_test(programs_options_are_their_own),
        cmocka_unit_test(lines_are_prefixed),
        cmocka_unit_test(lines_never_mix),
        cmocka_unit_test(bytes_are_not_interpreted),
        cmocka_unit_test(endless_lines_are_broken),
        cmocka_unit_test(logs_and_metrics_are_written),
        cmocka_unit_test(standard_input_is_rank_0s),
        cmocka_unit_test(signals_are_as_they_were),
        cmocka_unit_test(ranks_are_bound),
        cmocka_unit_test(descriptors_are_no_limit),
        cmocka_unit_test(times_have_units),
        cmocka_unit_test(plans_are_printed),
        cmocka_unit_test(places_are_explained),
    };
    if (argc != 2)
        return 2;
    run_command_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
