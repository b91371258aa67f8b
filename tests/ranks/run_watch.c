// zero-run watches ranks that train: trace, status line, and whom it blames.
#include "base/clock.h"
#include "tests/ranks/run_command.h"
#include "tests/unit/temporary.h"

#include <fcntl.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

enum { WORLD = 3, STEPS = 4, MOST_EVENTS = 20000, TERMINAL_BYTES = 1 << 20 };

static const char *rank_path;

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static json_int_t integer(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(event, key));
}

static double number(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static json_t *load_trace(const char *path)
{
    json_error_t error;
    json_t *events = json_load_file(path, 0, &error);
    if (!events)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    assert_true(json_is_array(events));
    return events;
}

static int count_events(const json_t *events, int rank, const char *name)
{
    size_t i;
    json_t *event;
    int count = 0;
    json_array_foreach(events, i, event) count += !strcmp(text_of(event, "ph"), "X") &&
                                                  integer(event, "pid") == rank &&
                                                  !strcmp(text_of(event, "name"), name);
    return count;
}

/* ------------------------------------------------------------------ nesting */

struct stretch {
    json_int_t rank, track;
    int64_t begin, end; /**< ns */
};

static int compare(const void *left, const void *right)
{
    const struct stretch *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->track != b->track)
        return a->track < b->track ? -1 : 1;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end; // the one that ends later is around the other
}

/** On every track two events are one inside the other, or apart. */
static void expect_nested(const json_t *events)
{
    static struct stretch stretches[MOST_EVENTS];
    static int64_t open_ends[MOST_EVENTS];
    size_t i, count = 0, depth = 0;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        if (strcmp(text_of(event, "ph"), "X") != 0)
            continue;
        const double begin = number(event, "ts"), duration = number(event, "dur");
        assert_true(begin >= 0 && duration >= 0);
        assert_true(count < MOST_EVENTS);
        stretches[count].rank = integer(event, "pid");
        stretches[count].track = integer(event, "tid");
        stretches[count].begin = (int64_t)(begin * 1000 + 0.5);
        stretches[count].end = stretches[count].begin + (int64_t)(duration * 1000 + 0.5);
        count++;
    }
    qsort(stretches, count, sizeof *stretches, compare);
    for (i = 0; i < count; i++) {
        const struct stretch *stretch = &stretches[i];
        if (i > 0 && (stretch->rank != stretch[-1].rank || stretch->track != stretch[-1].track))
            depth = 0;
        while (depth > 0 && open_ends[depth - 1] <= stretch->begin)
            depth--;
        if (depth > 0 && stretch->end > open_ends[depth - 1])
            fail_msg("rank %d, track %d: %lld to %lld overlaps one that ends at %lld",
                     (int)stretch->rank, (int)stretch->track, (long long)stretch->begin,
                     (long long)stretch->end, (long long)open_ends[depth - 1]);
        open_ends[depth++] = stretch->end;
    }
}

/* ------------------------------------------------------------------ trace */

static void a_trace_has_everything(void **state)
{
    (void)state;
    struct temporary directory;
    struct run_command run;
    assert_true(temporary_make(&directory));
    const char *path = temporary_path(&directory, "trace.json");
    RUN(&run, "-n", "3", "--trace", path, "--", rank_path, "train", "4", "30");
    if (run.status != 0 || *run.err)
        fail_msg("status %d: %s", run.status, run.err);
    run_command_free(&run);
    json_t *events = load_trace(path);
    for (int rank = 0; rank < WORLD; rank++) {
        assert_int_equal(count_events(events, rank, "step"), STEPS);
        assert_int_equal(count_events(events, rank, "update"), STEPS);
        assert_int_equal(count_events(events, rank, "verdict"), STEPS);
        assert_true(count_events(events, rank, "gather") >= 2 * 5 * STEPS);
        assert_true(count_events(events, rank, "reduce") >= 2 * 5 * STEPS);
        assert_true(count_events(events, rank, "reduce-scatter") >= 2 * 5 * STEPS);
        assert_int_equal(count_events(events, rank, "reduce-scatter"),
                         count_events(events, 0, "reduce-scatter"));
        assert_true(count_events(events, rank, "all-gather") >= STEPS);
        assert_true(count_events(events, rank, "exchange") >= STEPS);
    }
    expect_nested(events);
    json_decref(events);
    temporary_remove(&directory);
}

static void a_failed_job_leaves_a_valid_trace(void **state)
{
    (void)state;
    struct temporary directory;
    struct run_command run;
    assert_true(temporary_make(&directory));
    const char *path = temporary_path(&directory, "trace.json");
    RUN(&run, "-n", "3", "--trace", path, "--", rank_path, "killed", "2");
    assert_int_equal(run.status, 128 + SIGKILL);
    run_command_free(&run);
    json_t *events = load_trace(path), *event;
    size_t i;
    int unfinished = 0;
    json_array_foreach(events, i, event) unfinished +=
        integer(json_object_get(event, "args"), "unfinished") == 1;
    assert_true(unfinished > 0);
    assert_int_equal(count_events(events, 1, "step"), 2);
    expect_nested(events);
    json_decref(events);
    temporary_remove(&directory);
}

/** A line of --metrics, the last one that has this key; NULL: none. */
static json_t *last_line(const char *path, const char *key)
{
    json_t *found = NULL;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char text[4096];
    while (fgets(text, sizeof text, file)) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line);
        json_decref(json_object_get(line, key) ? found : line);
        found = json_object_get(line, key) ? line : found;
    }
    fclose(file);
    return found;
}

// Returns the seconds from the death to the first new step.
static double restart(void)
{
    struct temporary directory;
    struct run_command run;
    char trace[256], metrics[256];
    assert_true(temporary_make(&directory));
    snprintf(trace, sizeof trace, "%s/trace", directory.directory);
    snprintf(metrics, sizeof metrics, "%s/metrics", directory.directory);
    RUN(&run, "-n", "3", "--max-restarts", "1", "--trace", trace, "--metrics", metrics, "--",
        rank_path, "again", "6");
    if (run.status != 0)
        fail_msg("status %d: %s", run.status, run.err);
    assert_non_null(strstr(run.err, "| 1: rank 1: signal SIGKILL after step 4; then 3 ranks from "
                                    "step 1 on, "));
    run_command_free(&run);
    json_t *events = load_trace(trace);
    assert_int_equal(count_events(events, 1, "step"), 4 + 6);
    expect_nested(events);
    json_decref(events);
    json_t *line = last_line(metrics, "step");
    assert_int_equal(integer(line, "step"), 6);
    json_decref(line);
    line = last_line(metrics, "restart");
    assert_int_equal(integer(line, "restart"), 1);
    assert_int_equal(integer(line, "rank"), 1);
    assert_int_equal(integer(line, "ranks"), 3);
    assert_int_equal(integer(line, "after_step"), 4);
    assert_string_equal(text_of(line, "cause"), "signal SIGKILL");
    json_decref(line);
    line = last_line(metrics, "restarts");
    assert_int_equal(integer(line, "restarts"), 1);
    const double lost_s = number(line, "lost_s");
    json_decref(line);
    temporary_remove(&directory);
    assert_true(lost_s > 0);
    return lost_s;
}

// Both starts are in one trace and one file of metrics, and the first new step comes soon.
static void a_restarted_job_goes_on_in_its_files(void **state)
{
    (void)state;
    assert_true(run_fastest(restart, 2) < 2);
}

static void a_trace_that_cannot_be_written_is_said(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "2", "--trace", "/dev/full", "--", rank_path, "train", "2");
    run_command_expect_line(&run, 74, "cannot write the trace: No space left on device (ENOSPC)",
                            "the job goes on without it");
    RUN(&run, "-n", "2", "--trace", "/nowhere/trace", "--", rank_path, "train", "2");
    run_command_expect_line(&run, 73, "/nowhere/trace", NULL);
    RUN(&run, "--plan", "--trace", "trace", "--", rank_path, "train", "2");
    run_command_expect_line(&run, 64, "--trace has no effect", NULL);
}

/* ------------------------------------------------------------------ status */

static void lines_come_now_and_then(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "2", "--status", "1", "--", rank_path, "train", "35", "100");
    assert_int_equal(run.status, 0);
    int lines = 0;
    for (const char *line = run.err; *line; line = strchr(line, '\n') + 1, lines++) {
        unsigned step;
        double loss, tokens;
        char scale, unit[8];
        float ms;
        if (sscanf(line, "zero-run: step %u, loss %lf, %lf%c", &step, &loss, &tokens, &scale) < 3 ||
            !strstr(line, " tokens/s, ") || !strstr(line, " ms a step, ") ||
            !strstr(line, "iB; gather ") || !strstr(line, " %, rest "))
            fail_msg("%s", run.err);
        assert_true(step >= 1 && step <= 35);
        // 6 micro-batches of 256 tokens in 100 ms or a little more.
        assert_int_equal(sscanf(strstr(line, "tokens/s, "), "tokens/s, %f %2s", &ms, unit), 2);
        assert_true(ms >= 99 && !strcmp(unit, "ms"));
        tokens *= scale == 'k' ? 1000 : 1;
        assert_true(tokens > 0.9 * 6 * 256 / (ms * 1e-3) && tokens < 1.1 * 6 * 256 / (ms * 1e-3));
    }
    assert_true(lines >= 2 && lines <= 1 + (int)run.seconds);
    run_command_free(&run);
}

static void no_lines_come_where_none_are_wanted(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "2", "--status", "off", "--", rank_path, "train", "3", "100");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.err, "");
    run_command_free(&run);
    RUN(&run, "--status", "sometimes", "--", "true");
    run_command_expect_line(&run, 64, "--status takes a time", "'sometimes'");
}

/** Runs zero-run on a terminal of 60 columns; returns all that it got to see. */
static char *run_on_terminal(const char *const *args, int *status)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 60};
    char *shown = calloc(TERMINAL_BYTES, 1);
    size_t used = 0;
    int terminal;
    assert_non_null(shown);
    const pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("TERM", "xterm", 1);
        execv(run_command_path, (char *const *)(uintptr_t)args);
        _exit(99);
    }
    ssize_t count;
    while ((count = read(terminal, shown + used, TERMINAL_BYTES - 1 - used)) > 0)
        used += (size_t)count;
    close(terminal);
    assert_int_equal(waitpid(pid, status, 0), pid);
    return shown;
}

/** What is left to be seen of a terminal's last line, and how often one was erased. */
static const char *replay(const char *shown, int *erased, char *screen, size_t size)
{
    static const char erase[] = "\r\033[K";
    size_t used = 0, line = 0;
    *erased = 0;
    for (; *shown; shown++) {
        if (!strncmp(shown, erase, strlen(erase))) {
            shown += strlen(erase) - 1;
            used = line;
            ++*erased;
            continue;
        }
        assert_int_not_equal(*shown, '\033');
        assert_true(used + 1 < size);
        if (*shown != '\r')
            screen[used++] = *shown;
        if (*shown == '\n')
            line = used;
        assert_true(used - line < 60);
    }
    screen[used] = '\0';
    return screen;
}

static void on_a_terminal_it_is_redrawn(void **state)
{
    (void)state;
    static char screen[TERMINAL_BYTES];
    int status, erased;
    const double begin = base_clock_s();
    const char *const args[] = {run_command_path,
                                "-n",
                                "2",
                                "--color",
                                "never",
                                "--",
                                "sh",
                                "-c",
                                "\"$0\" train 10 200; echo done",
                                rank_path,
                                NULL};
    char *shown = run_on_terminal(args, &status);
    const double seconds = base_clock_s() - begin;
    assert_int_equal(status, 0);
    if (!strstr(shown, "\r\033[Kstep ") || !strstr(shown, ", loss "))
        fail_msg("%s", shown);
    replay(shown, &erased, screen, sizeof screen);
    assert_true(erased >= 2 && erased <= 2 + (int)(5 * seconds));
    // Nothing of it is left, and what the ranks write is whole.
    if (strcmp(screen, "[0] done\n[1] done\n") != 0 && strcmp(screen, "[1] done\n[0] done\n") != 0)
        fail_msg("%s", screen);
    free(shown);
}

static void a_rank_with_the_terminal_is_not_disturbed(void **state)
{
    (void)state;
    int status;
    const char *const args[] = {run_command_path, "--", rank_path, "train", "3", "200", NULL};
    char *shown = run_on_terminal(args, &status);
    assert_int_equal(status, 0);
    assert_string_equal(shown, "");
    free(shown);
}

/* ------------------------------------------------------------------ blame */

static void expect_part(const struct run_command *run, const char *part)
{
    if (!strstr(run->err, part))
        fail_msg("\"%s\" is not in: %s", part, run->err);
}

static void whoever_does_not_come_is_named(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "3", "-o", "timeout_s=3", "--", rank_path, "late", "2");
    assert_int_equal(run.status, 7);
    expect_part(&run, "zero-run: rank 1 never posted #");
    expect_part(&run, "; rank");
    expect_part(&run, " have waited ");       // the ranks say so
    assert_null(strstr(run.err, "\"main\"")); // there is no other
    assert_null(strstr(run.err, "in main"));
    assert_null(strstr(run.err, "in context"));
    expect_part(&run, " since ");
    assert_true(strstr(run.err, "zero-run: rank 0 was in ") ||
                strstr(run.err, "zero-run: rank 2 was in "));
    assert_null(strstr(run.err, "rank 1 was in"));
    run_command_free(&run);
}

static void a_job_that_takes_too_long_is_explained(void **state)
{
    (void)state;
    struct run_command run;
    static const char waits[] = "; rank 0 waits since ";
    int seconds = 1;
    do {
        char timeout[16];
        snprintf(timeout, sizeof timeout, "%d", seconds);
        if (seconds > 1)
            run_command_free(&run);
        RUN(&run, "-n", "2", "--timeout", timeout, "--", rank_path, "late", "2");
        assert_int_equal(run.status, 75);
        expect_part(&run, "(--timeout)");
        seconds *= 2;
    } while (!strstr(run.err, waits) && seconds < RUN_PATIENCE_S); // they had not come so far
    expect_part(&run, "zero-run: rank 1 never posted #");
    expect_part(&run, waits);
    expect_part(&run, "zero-run: rank 1 was in the program's own code, after zero_step of step 2");
    run_command_free(&run);
}

static void a_killed_rank_has_been_somewhere(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "3", "--", rank_path, "killed", "2");
    assert_int_equal(run.status, 128 + SIGKILL);
    expect_part(&run, "zero-run: rank 1 (process ");
    expect_part(&run, ") failed first: signal SIGKILL");
    expect_part(&run,
                "zero-run: rank 1 was in the program's own code, after zero_gather(unit 0 \"");
    expect_part(&run, "\") of step 3");
    run_command_free(&run);
}

static void whoever_left_with_success_is_named(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "3", "--", rank_path, "gone", "2");
    assert_int_equal(run.status, 7);
    assert_null(strstr(run.err, "rank 1 (process "));
    expect_part(&run, "zero-run: rank 1 had ended before with exit code 0, in the middle");
    run_command_free(&run);
}

static void the_reason_of_who_ends_the_job_is_told(void **state)
{
    (void)state;
    struct run_command run;
    RUN(&run, "-n", "3", "--", rank_path, "aborts", "2");
    expect_part(&run, "zero-run: rank 1 has ended the job: \"my reason?\"");
    run_command_free(&run);
}

static void programs_that_know_nothing_are_not_blamed(void **state)
{
    (void)state;
    struct run_command run;
    RUN_SCRIPT(&run, "sleep 0.1; exit $((3 * RANK))", "-n", "2");
    run_command_expect_line(&run, 3, "rank 1 (process ", "failed first: exit code 3");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_has_everything),
        cmocka_unit_test(a_failed_job_leaves_a_valid_trace),
        cmocka_unit_test(a_restarted_job_goes_on_in_its_files),
        cmocka_unit_test(a_trace_that_cannot_be_written_is_said),
        cmocka_unit_test(lines_come_now_and_then),
        cmocka_unit_test(no_lines_come_where_none_are_wanted),
        cmocka_unit_test(on_a_terminal_it_is_redrawn),
        cmocka_unit_test(a_rank_with_the_terminal_is_not_disturbed),
        cmocka_unit_test(whoever_does_not_come_is_named),
        cmocka_unit_test(a_job_that_takes_too_long_is_explained),
        cmocka_unit_test(a_killed_rank_has_been_somewhere),
        cmocka_unit_test(whoever_left_with_success_is_named),
        cmocka_unit_test(the_reason_of_who_ends_the_job_is_told),
        cmocka_unit_test(programs_that_know_nothing_are_not_blamed),
    };
    if (argc != 3)
        return 2;
    run_command_path = argv[1];
    rank_path = argv[2];
    setenv("OMP_NUM_THREADS", "1", 1); // zero-run says what it sets itself
    return cmocka_run_group_tests(tests, NULL, NULL);
}
