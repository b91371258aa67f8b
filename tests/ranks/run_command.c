#include "tests/ranks/run_command.h"

#include "base/clock.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARGUMENTS = 32 };

const char *run_command_path;
bool run_command_grouped;
struct temporary run_directory;

void run_command_start(struct run_command *command, const char *const *args)
{
    const char *list[ARGUMENTS] = {run_command_path};
    for (int i = 0; args[i]; i++) {
        assert_true(i < ARGUMENTS - 2);
        list[i + 1] = args[i];
    }
    *command = (struct run_command){.files = {tmpfile(), tmpfile()}, .started = base_clock_s()};
    assert_non_null(command->files[0]);
    assert_non_null(command->files[1]);
    command->pid = fork();
    assert_true(command->pid >= 0);
    if (command->pid == 0) {
        if (run_command_grouped)
            setpgid(0, 0);
        dup2(fileno(command->files[0]), STDOUT_FILENO);
        dup2(fileno(command->files[1]), STDERR_FILENO);
        execv(run_command_path, (char *const *)(uintptr_t)list);
        _exit(99);
    }
}

static char *read_all(FILE *file, size_t *size)
{
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long length = ftell(file);
    assert_true(length >= 0);
    rewind(file);
    char *text = calloc((size_t)length + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)length, file), length);
    fclose(file);
    *size = (size_t)length;
    return text;
}

void run_command_finish_in(struct run_command *command, int seconds)
{
    int status = 0;
    const double deadline = base_clock_s() + seconds;
    while (waitpid(command->pid, &status, WNOHANG) == 0) {
        if (base_clock_s() > deadline) {
            kill(command->pid, SIGKILL);
            waitpid(command->pid, &status, 0);
            size_t size;
            fail_msg("zero-run did not end in %d s: %s%s", seconds,
                     read_all(command->files[0], &size), read_all(command->files[1], &size));
        }
        usleep(500);
    }
    size_t ignored;
    command->seconds = base_clock_s() - command->started;
    command->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    command->out = read_all(command->files[0], &command->out_size);
    command->err = read_all(command->files[1], &ignored);
}

void run_command_finish(struct run_command *command)
{
    run_command_finish_in(command, RUN_PATIENCE_S);
}

void run_command_free(struct run_command *command)
{
    free(command->out);
    free(command->err);
}

void run_command_run(struct run_command *command, const char *const *args)
{
    run_command_start(command, args);
    run_command_finish(command);
}

void run_script_start(struct run_command *command, const char *const *options, const char *script)
{
    const char *list[ARGUMENTS];
    int count = 0;
    for (; options[count]; count++)
        list[count] = options[count];
    const char *const rest[] = {"--", "sh", "-c", script, NULL};
    memcpy(list + count, rest, sizeof rest);
    run_command_start(command, list);
}

void run_script(struct run_command *command, const char *const *options, const char *script)
{
    run_script_start(command, options, script);
    run_command_finish(command);
}

static void await_words(FILE *file, const char *words)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    char text[8192];
    for (;;) {
        const ssize_t count = pread(fileno(file), text, sizeof text - 1, 0);
        text[count > 0 ? count : 0] = '\0';
        if (strstr(text, words))
            return;
        if (base_clock_s() > deadline)
            fail_msg("no \"%s\": %s", words, text);
        usleep(1000);
    }
}

void run_await_output(const struct run_command *command, const char *words)
{
    await_words(command->files[0], words);
}

void run_await_error(const struct run_command *command, const char *words)
{
    await_words(command->files[1], words);
}

double run_fastest(double (*attempt)(void), double enough)
{
    double fastest = attempt();
    for (int i = 1; i < 5 && fastest >= enough; i++) {
        const double seconds = attempt();
        fastest = seconds < fastest ? seconds : fastest;
    }
    return fastest;
}

void run_command_expect_line(struct run_command *command, int status, const char *part1,
                             const char *part2)
{
    const char *newline = strchr(command->err, '\n');
    if (command->status != status || !newline || newline[1] || !strstr(command->err, part1) ||
        (part2 && !strstr(command->err, part2)))
        fail_msg("status %d, standard error: %s", command->status, command->err);
    run_command_free(command);
}

int run_command_lines(const char *text, const char *line)
{
    const size_t length = strlen(line);
    int count = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        count += strcspn(at, "\n") == length && !memcmp(at, line, length);
    return count;
}

char run_process_state(pid_t pid)
{
    char path[64], state;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 'X';
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'X';
    fclose(file);
    return state;
}

int run_command_alive(pid_t pid)
{
    const char state = run_process_state(pid);
    return state != 'Z' && state != 'X';
}

int run_make_directory(void **state)
{
    (void)state;
    if (!temporary_make(&run_directory))
        return -1;
    return setenv("D", run_directory.directory, 1);
}

int run_remove_directory(void **state)
{
    (void)state;
    temporary_remove(&run_directory);
    return 0;
}

void run_give_sign(const char *name)
{
    assert_true(temporary_write(&run_directory, name, "\n"));
}

pid_t run_await_pid(const char *name)
{
    const char *path = temporary_path(&run_directory, name);
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    while (base_clock_s() < deadline) {
        int pid = 0;
        char newline = 0;
        FILE *file = fopen(path, "r");
        const int got = file ? fscanf(file, "%d%c", &pid, &newline) : 0;
        if (file)
            fclose(file);
        if (got == 2 && newline == '\n')
            return pid;
        usleep(1000);
    }
    fail_msg("no number in %s", path);
    return 0;
}

void run_expect_gone(pid_t pid)
{
    const double deadline = base_clock_s() + RUN_PATIENCE_S;
    while (run_command_alive(pid)) {
        if (base_clock_s() > deadline)
            fail_msg("process %d is still there", (int)pid);
        usleep(1000);
    }
}
