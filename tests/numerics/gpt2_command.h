/**
 * gpt2_command.h: shell commands, for tests of whole programs.
 */
#ifndef TESTS_GPT2_COMMAND_H
#define TESTS_GPT2_COMMAND_H

/** Room for what a command prints, the final zero included; more is lost. */
#define COMMAND_OUTPUT_BYTES 16384

/** Runs a shell command; returns its exit code, and in `output` what it printed on both streams. */
int command_run(char *output, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
