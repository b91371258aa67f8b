/**
 * tests/ranks/run_command.h: zero-run as a command, with what it printed and how it ended.
 */
#ifndef TESTS_RANKS_RUN_COMMAND_H
#define TESTS_RANKS_RUN_COMMAND_H

#include "tests/unit/temporary.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

enum {
    /** Seconds in which whatever is waited for comes, on a machine that is busy elsewhere too.
     * Sooner than a rank that sleeps, or the usual --grace, would let a job end by itself. */
    RUN_PATIENCE_S = 20,
};

/** A command under way or ended. */
struct run_command {
    pid_t pid;
    FILE *files[2];  /**< standard output and error while it runs */
    char *out, *err; /**< all of it, with a zero at the end */
    size_t out_size;
    int status; /**< exit status, 128 + signal if a signal ended it */
    double seconds;
    double started;
};

/** Path of the program, argv[1] of the test. */
extern const char *run_command_path;
/** Whether it is in a process group of its own: then there is a process that could resume it. */
extern bool run_command_grouped;

/** Starts `zero-run args`, the list ends with NULL. */
void run_command_start(struct run_command *command, const char *const *args);
/** Waits for it and reads what it printed. Fails the test after RUN_PATIENCE_S, or that time. */
void run_command_finish(struct run_command *command);
void run_command_finish_in(struct run_command *command, int seconds);
void run_command_free(struct run_command *command);

/** Starts `zero-run options -- sh -c script`. */
void run_script_start(struct run_command *command, const char *const *options, const char *script);
void run_script(struct run_command *command, const char *const *options, const char *script);
#define START_SCRIPT(command, script, ...)                                                         \
    run_script_start((command), (const char *const[]){__VA_ARGS__, NULL}, (script))
#define RUN_SCRIPT(command, script, ...)                                                           \
    run_script((command), (const char *const[]){__VA_ARGS__, NULL}, (script))
#define RUN_START(command, ...)                                                                    \
    run_command_start((command), (const char *const[]){__VA_ARGS__, NULL})
#define RUN(command, ...) run_command_run((command), (const char *const[]){__VA_ARGS__, NULL})
void run_command_run(struct run_command *command, const char *const *args);

/** Waits until all that it has printed so far has these words: of its standard output, or of its
 * standard error. Fails the test after RUN_PATIENCE_S. */
void run_await_output(const struct run_command *command, const char *words);
void run_await_error(const struct run_command *command, const char *words);

/** The fastest of a few attempts, which return seconds; the first that takes less than `enough` is
 * the last one. Others may have lost the processor to another process. */
double run_fastest(double (*attempt)(void), double enough);

/** Asserts the status, and that standard error is one line that has these parts. */
void run_command_expect_line(struct run_command *command, int status, const char *part1,
                             const char *part2);
/** How many lines of a text are exactly `line`. */
int run_command_lines(const char *text, const char *line);

/** The state of a process as /proc/PID/stat has it; 'X': there is no such process. */
char run_process_state(pid_t pid);
/** Whether a process is there and no zombie. */
int run_command_alive(pid_t pid);

/** A directory for a group of tests, $D for its scripts: what cmocka calls before and after. */
extern struct temporary run_directory;
int run_make_directory(void **state);
int run_remove_directory(void **state);
/** Makes a file there, for a script that waits for it. */
void run_give_sign(const char *name);
/** Reads a number from a file there as soon as it has a line; fails the test after RUN_PATIENCE_S.
 */
pid_t run_await_pid(const char *name);
/** Waits for a process to go; fails the test after RUN_PATIENCE_S. */
void run_expect_gone(pid_t pid);

#endif
