/**
 * tools/zero-run/remote_shell.h: starts the agent of a host, by a remote shell or as a child, with
 * its link (agent_link.h) as standard input and output.
 *
 * No port is listened at, a secret travels inside ssh's channel only, and no byte of a user's goes
 * through a shell: ssh's channel is the link. Whatever ssh and the agent write to standard error
 * comes back here, too.
 *
 *   remote_shell.c          the processes, and what they write.
 *   remote_shell_command.c  command lines: words of --rsh, and quoting.
 *   remote_shell_why.c      why no agent came up.
 */
#ifndef TOOLS_ZERO_RUN_REMOTE_SHELL_H
#define TOOLS_ZERO_RUN_REMOTE_SHELL_H

#include "tools/zero-run/agent_link.h"
#include "tools/zero-run/host_list.h"

#include <signal.h>
#include <sys/types.h>

enum {
    RUN_SHELL_POLLS = 2,   /**< entries of poll(), without those of the link */
    RUN_SHELL_TEXT = 4096, /**< of what it writes to standard error: the last bytes are kept */
    RUN_SHELL_WORDS = 64,  /**< of --rsh */
    RUN_SHELL_PATH = 4096, /**< of zero-run */
};

/** How agents are started. Pointers are borrowed as long as there are shells. */
struct run_shell_way {
    const char *rsh;              /**< --rsh; NULL: ssh */
    char program[RUN_SHELL_PATH]; /**< the absolute path of zero-run, here as on other hosts */
};

/** An agent of a host that was started. */
struct run_shell {
    struct run_link link;
    const struct run_host *host;
    const struct run_shell_way *way;
    bool local;        /**< a child, and no remote shell */
    bool called;       /**< neither: it has called by itself, and there is no process here */
    bool by_path;      /**< zero-run was not there: the one in PATH of its host is tried */
    pid_t pid;         /**< of the remote shell, or the agent; 0: none */
    int pidfd;         /**< -1: none */
    int error_fd;      /**< what it writes to standard error; -1: none, or closed */
    bool up;           /**< the agent has come up: what is written now is its own */
    bool ended;        /**< the process; its link may still have something */
    siginfo_t end;     /**< how */
    uint64_t quiet_ns; /**< when the end of the link was seen first; 0: not yet */
    size_t used;       /**< of `text`, */
    size_t told;       /**< of which run_shell_line() has returned so much */
    char text[RUN_SHELL_TEXT + 1];
};

/** Finds zero-run's own path, and checks --rsh. ZERO_E_INVALID: a quote has no end, or there is no
 * word, or there are too many. ZERO_E_IO. *Local.* */
zero_result run_shell_prepare(struct run_shell_way *way, const char *rsh, struct base_error *error);

/** Whether a host is this machine, and its user this process's: then its agent is a child. May take
 * as long as the resolver. *Local.* */
bool run_shell_is_here(const struct run_host *host);

/**
 * Starts the agent of a host, of which `host` and `way` stay where they are. It has come up when
 * shell->link.state is RUN_LINK_OPEN. ZERO_NOT_FOUND: there is no such remote shell on this
 * machine; ZERO_E_IO, ZERO_E_NOMEM. After an error there is nothing to close. *Local.*
 */
zero_result run_shell_start(struct run_shell *shell, const struct run_host *host,
                            const struct run_shell_way *way, struct base_error *error);

/** Writes what to wait for, beside what run_link_poll() does; entries may have fd -1. *Local.* */
void run_shell_poll(const struct run_shell *shell, struct pollfd polls[RUN_SHELL_POLLS]);

/**
 * Takes what the process has written, and notices its end. To be called after run_link_turn() of
 * the link. If the host has no zero-run where this machine has it, starts the one in PATH there,
 * with a new link in place of the old one. *Local.*
 */
void run_shell_turn(struct run_shell *shell);

/** Takes the next line that the agent has written to standard error since it came up: a text of one
 * line, which it cuts at `size`. False: there is none. *Local.* */
bool run_shell_line(struct run_shell *shell, char *line, size_t size);

/** Whether there is no agent any more, and none will come: its link has ended, and so has its
 * process, which says why and may take a moment longer. Before that, where the link itself tells
 * all, or the process has not followed in 2 s. To be asked after run_shell_turn(). *Local.* */
bool run_shell_is_gone(const struct run_shell *shell);

/** Why no agent came up, or how it ended, as one line: "host b: ssh: Permission denied (publickey):
 * ..." To be called when run_shell_is_gone(), or when its time is over. *Local.* */
void run_shell_why(const struct run_shell *shell, char *text, size_t size);

/** Sends a signal to the remote shell, or to a local agent, but not to its ranks. *Local.* */
void run_shell_signal(const struct run_shell *shell, int number);

/** Ends the process and closes all. What it has started on its host sees the end of its link.
 * *Local.* Accepts one that is closed. */
void run_shell_close(struct run_shell *shell);

#endif
