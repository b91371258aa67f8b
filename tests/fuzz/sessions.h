/**
 * tests/fuzz/sessions.h: conversations that are damaged, many of them, several at a time.
 */
#ifndef TESTS_FUZZ_SESSIONS_H
#define TESTS_FUZZ_SESSIONS_H

/** How a session ends. */
enum session_end {
    SESSION_WRONG, /**< as none may, and it has said how */
    SESSION_HARMED,
    SESSION_WELL,
};

struct sessions {
    enum session_end (*run)(unsigned seed); /**< by several threads at the same time */
    unsigned count;                         /**< seeds from 0 on */
    unsigned together;
    unsigned most_well; /**< in a hundred: more, and nothing was damaged */
};

/** Runs as many as there are, or as the program's argument says. Returns the program's exit status:
 * none was wrong, and some ended well, but not nearly all. */
int sessions_run(const struct sessions *sessions, int argc, char **argv);

#endif
