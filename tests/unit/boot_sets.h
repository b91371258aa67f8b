/**
 * Environments of platforms and launchers, and what a program and zero-run are to make of each.
 */
#ifndef TESTS_UNIT_BOOT_SETS_H
#define TESTS_UNIT_BOOT_SETS_H

#include "collectives/rendezvous/hosts_of_job.h"

enum { BOOT_SET_VARIABLES = 40, BOOT_SET_BYTES = 2048, BOOT_ANSWER_BYTES = 1024 };

struct boot_environment {
    char bytes[BOOT_SET_BYTES];
    size_t used;
    char *list[BOOT_SET_VARIABLES];
    int count;
};

/** Makes an environment of variables with blanks between them. `others` hold before them; or NULL.
 */
void boot_environment_make(struct boot_environment *made, const char *variables,
                           const char *others);

/** Adds variables; one that is there already is replaced, or else kept. */
void boot_environment_add(struct boot_environment *made, const char *variables, bool replace);

/** Length of "NAME=". */
size_t boot_name_length(const char *variable);

/** "rank 5 of 8, 1 of 4 here, 2 hosts, 10.0.0.4:6106", with "?" for what is not known; or "!
 * message". */
void boot_ask_library(char answer[BOOT_ANSWER_BYTES], char *const *environment);

/** "host 1 of 2, 4 ranks, algo-1:7777, job SageMaker.t1, 0 restarts"; "alone, 8 ranks, 0 restarts";
 * or
 * "! message". */
void boot_ask_zero_run(char answer[BOOT_ANSWER_BYTES], const struct boot_hosts_given *given,
                       char *const *environment);

/** Fails unless the answer is the one that is wanted: "! TEXT" wants a message with TEXT in it. */
void boot_check_answer(const char *name, const char *what, const char *answer, const char *want);

struct boot_set {
    const char *name;
    const char *variables;
    const char
        *first; /**< what is different for the first rank, or the first host; NULL: not tried */
    const char *library, *zero_run;
    struct boot_hosts_given given;
    const char *alone; /**< the variable without which nothing says that there are several */
};

#define BOOT_STARTED(launcher) "! " launcher " has started several processes already"

extern const struct boot_set boot_sets[];
extern const size_t boot_set_count;

#endif
