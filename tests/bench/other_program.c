#include "tests/bench/other_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// Runs it with these as its input and output.
static int spawn(struct other_program *program, char **arguments, int in, int out)
{
    posix_spawn_file_actions_t actions;
    int status = posix_spawn_file_actions_init(&actions);
    if (status)
        return status;
    if (posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO) ||
        posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO))
        status = -1;
    if (!status)
        status = posix_spawnp(&program->pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

bool other_program_start(struct other_program *program, char **arguments)
{
    int to[2], from[2];
    *program = (struct other_program){0};
    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) {
        perror("pipe2");
        return false;
    }
    const int status = spawn(program, arguments, to[0], from[1]);
    close(to[0]);
    close(from[1]);
    program->asked = fdopen(to[1], "w");
    program->told = fdopen(from[0], "r");
    if (!status && program->asked && program->told)
        return true;
    fprintf(stderr, "%s: %s\n", arguments[0], strerror(status));
    return false;
}

double other_program_time(struct other_program *program)
{
    double seconds = 0;
    if (fputs("again\n", program->asked) < 0 || fflush(program->asked) ||
        fscanf(program->told, "%lf", &seconds) != 1 || seconds <= 0) {
        fprintf(stderr, "the program to compare with has ended\n");
        exit(1);
    }
    return seconds;
}

void other_program_stop(struct other_program *program)
{
    fclose(program->asked);
    fclose(program->told);
    waitpid(program->pid, NULL, 0);
    *program = (struct other_program){0};
}
