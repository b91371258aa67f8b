/**
 * The program zero-run: starts the ranks of a job on this host, watches them, and ends them all
 * when one fails.
 *
 *   main.c         what to do with the options; the order of things
 *   options.c      the command line, and --help: the manual
 *   environment.c  what the ranks are told
 *   spawn.c        from a command to running processes
 *   bind.c         which CPUs a rank may use
 *   output.c       lines of ranks, on their way to a terminal or file
 *   supervise.c    the loop: exits, signals, output, deadlines
 *   report.c       what became of a rank, in words and as an exit status
 *   plan.c         --plan
 *
 * Everything is driven by descriptors (pidfds, pipes, a signalfd) in one poll loop of one thread.
 */
#ifndef COLLECTIVES_RUN_RUN_H
#define COLLECTIVES_RUN_RUN_H

#include "base/error.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** Exit statuses of zero-run's own, a contract (--help has it). A failed rank's own status, or
 * 128 + its signal, is passed on. */
enum run_status {
    RUN_OK = 0,
    RUN_USAGE = 64,         /**< the command line */
    RUN_NO_PROGRAM = 66,    /**< the program is not there or cannot be executed */
    RUN_NOT_ALONE = 69,     /**< another launcher has started zero-run several times */
    RUN_SYSTEM = 71,        /**< the system refused: processes, memory, descriptors */
    RUN_CANNOT_CREATE = 73, /**< --log-dir or --metrics cannot be created */
    RUN_OUTPUT = 74,        /**< the ranks succeeded, but not all of their output could be written;
                                 or nobody reads it any more */
    RUN_TIMEOUT = 75,       /**< --timeout has passed */
    RUN_NO_PLAN = 76,       /**< --plan: the program ended without making one */
    RUN_ENVIRONMENT = 78,   /**< launchers' variables are malformed or disagree */
};

/* ------------------------------------------------------------------ options.c */

enum run_prefix { RUN_PREFIX_AUTO, RUN_PREFIX_ALWAYS, RUN_PREFIX_NEVER };

struct run_options {
    int ranks;
    int timeout_s; /**< 0: none */
    bool bind_core;
    bool plan;
    int plan_world; /**< 0: as many as ranks */
    bool explain;
    bool help, version;
    enum run_prefix prefix;
    const char *log_dir; /**< NULL: none */
    const char *metrics; /**< NULL: none */
    char *settings;      /**< the -o's, a line each; NULL: none */
    char **program;      /**< and its arguments */
};

/** Reads the command line. ZERO_E_INVALID (what is wrong), ZERO_E_NOMEM. run_options_free() in
 * either case. */
zero_result run_options_parse(struct run_options *options, int argc, char **argv,
                              struct base_error *error);
void run_options_free(struct run_options *options);

extern const char run_help[];

/* ------------------------------------------------------------------ output.c */

enum { RUN_LINE_BYTES = 64 * 1024 }; /**< longer lines are broken */

/** Where lines go: standard output or standard error, without ever blocking the loop. */
struct run_sink {
    int fd;
    char *bytes; /**< waiting to be written: from `start`, `used` of them */
    size_t start, used, capacity;
    int failed; /**< errno of the write that failed: everything since is dropped */
};

/** One pipe from a rank. */
struct run_stream {
    int fd; /**< -1: closed */
    struct run_sink *sink;
    int *log_fd;     /**< shared by both streams of a rank; -1: none, or it failed */
    int *log_errno;  /**< why it failed */
    char prefix[16]; /**< "" : bytes are passed on as they come */
    char *line;      /**< an unfinished one */
    size_t used;
};

/** Adds bytes; never fails: what there is no memory for counts as failed output. */
void run_sink_add(struct run_sink *sink, const char *bytes, size_t count);
/** Ranks have to wait until something has been written. */
bool run_sink_full(const struct run_sink *sink);
/** Writes what fits without blocking, after poll() has said that something does. */
void run_sink_write(struct run_sink *sink);
void run_sink_free(struct run_sink *sink);

/** Reads what is there and passes on all whole lines; closes the stream at its end. */
void run_stream_read(struct run_stream *stream);
/** Passes on the unfinished line and closes the stream. */
void run_stream_close(struct run_stream *stream);

/* ------------------------------------------------------------------ the job */

struct run_rank {
    int number;
    pid_t pid; /**< also of its process group; 0: not started */
    int pidfd;
    bool ended;
    siginfo_t end;                /**< how, if ended */
    struct run_stream streams[2]; /**< of standard output and standard error */
    int log_fd;
    int log_errno;
};

struct run_job {
    const struct run_options *options;
    int count; /**< processes */
    struct run_rank *ranks;
    int running;
    char token[33]; /**< ZERO_JOB */
    int master_port;
    int metrics_fd; /**< -1: none */
    int plan_fd;    /**< -1: none */
    bool piped;     /**< output comes through pipes */
    struct run_sink out, err;

    sigset_t saved_mask; /**< zero-run's own when it was started: the ranks' */
    int signals;         /**< signalfd */
    int exits;           /**< epoll over the pidfds: in the order in which ranks ended */
    struct pollfd *polls;

    bool ignored_pipe; /**< SIGPIPE was ignored when zero-run was started: the ranks' too */

    int stop_signals;    /**< received so far: the first is passed on, the second kills */
    uint64_t timeout_ns; /**< UINT64_MAX: none */
    uint64_t kill_ns;    /**< when ranks that don't stop are killed; UINT64_MAX: never */
    bool stopping;       /**< the ranks have been told to end */
    bool timed_out;
    bool told_sink[2]; /**< that standard output, standard error cannot be written */
    int failed_rank;   /**< the first one, -1: none */
};

/** Writes a line "zero-run: ..." to standard error, in order with what ranks wrote. */
void run_say(struct run_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- environment.c */

/** The environment of one rank: zero-run's own with the job's variables. Freed by
 * run_environment_free(); NULL: no memory. */
char **run_environment_make(const struct run_job *job, int rank);
void run_environment_free(char **environment);

/* ---- bind.c */

/** The share of rank `rank` of `ranks`: consecutive ones of the allowed CPUs, at least one. */
void run_bind_share(const cpu_set_t *allowed, int rank, int ranks, cpu_set_t *share);

/* ---- spawn.c */

/** Starts all ranks; they end when zero-run does. After an error those that were started are still
 * running. Returns RUN_OK, RUN_NO_PROGRAM or RUN_SYSTEM, and *error has the reason. */
enum run_status run_spawn(struct run_job *job, struct base_error *error);

/* ---- supervise.c */

/** Blocks the signals zero-run passes on, makes what the loop waits on. ZERO_E_IO, ZERO_E_NOMEM. */
zero_result run_supervise_begin(struct run_job *job, struct base_error *error);
/** Runs until every rank has ended and its process group is gone, and all output is written. */
void run_supervise(struct run_job *job);
/** Ends every process of the job now; none of their ends is a failure. */
void run_stop_now(struct run_job *job);
/** Writes what is waiting, unless a signal comes. */
void run_flush(struct run_job *job);

/* ---- report.c */

/** How a process ended, in words. */
void run_describe_end(const siginfo_t *end, char *text, size_t size);
/** Its status, 128 + signal if a signal ended it. */
int run_end_status(const siginfo_t *end);
/** What zero-run exits with. */
int run_job_status(const struct run_job *job);

/* ---- plan.c */

/** Prints the plan that the program has handed over. Returns the exit status. */
int run_plan_print(struct run_job *job);

#endif
