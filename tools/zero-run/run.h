/**
 * The program zero-run: starts the ranks of a job on this host, watches them, and ends them all
 * when one fails.
 *
 *   run_main.c         what to do with the options.
 *   run_job.c          a job: what it needs, and the order of things.
 *   run_options.c      the command line.
 *   run_help.c         --help.
 *   run_environment.c  what the ranks are told.
 *   rank_threads.c     how many threads a rank is to compute with.
 *   run_files.c        the files that zero-run writes: logs, and whether two of them are one.
 *   spawn.c            from a command to running processes.
 *   bind.c             which CPUs and memory a rank may use, by hwloc's topology.
 *   guardian.c         the process that ends the ranks if zero-run is killed.
 *   orphans.c          what ranks have left behind.
 *   rank_output.c      lines of ranks, on their way to a terminal or file.
 *   terminal.c         the pseudo-terminal that a rank has for standard output.
 *   merge_warnings.c   warnings that several ranks give alike.
 *   rank_filter.c      lists of ranks: read for --only, written for messages.
 *   tail.c             the last lines of a rank.
 *   utf8.c             texts that were cut.
 *   run_metrics.c      --metrics: rank 0's lines on their way to the file.
 *   supervise.c        the loop: exits, output, deadlines.
 *   run_signals.c      what zero-run passes on to the ranks.
 *   stopped_ranks.c    ranks that a signal has stopped.
 *   oom.c              whether the kernel has killed for lack of memory.
 *   run_words.c        lines of zero-run's own, ends and errors in words.
 *   run_report.c       what became of a rank, in words and as an exit status.
 *   run_plan.c         --plan.
 *   first_failure.c    which rank ended first.
 *   restart.c          starting a job again that has failed.
 *   status_line.c      the status line, read from the control segment (segment_view.h).
 *   blame.c            who never arrived where.
 *   blame_inquiry.c    what recorders say, and its words.
 *   run_progress.c     how the training goes.
 *   run_trace.c        --trace.
 *   host_list.c        --hosts and --hostfile.
 *   remote_shell*.c    agents of other hosts, by ssh or --rsh (remote_shell.h).
 *   agent_link*.c      how a coordinator and its agents talk (agent_link.h).
 *
 * A job of several hosts (span.h) has a zero-run on each, an agent, and one that coordinates them:
 *
 *   coordinator*.c     the job as the coordinator sees it (coordinator.h).
 *   agent.c            the agent of a host, and agent_reports.c, what it reports (agent.h).
 *   platform.c         whether a platform has started zero-run on each host (platform.h).
 *   span.c             what agents tell of their ranks' areas of the control segment.
 *
 * Everything is driven by descriptors (pidfds, pipes, a signalfd) in one poll loop of one thread.
 * All but run_main.c is a library that tests link too.
 */
#ifndef TOOLS_ZERO_RUN_RUN_H
#define TOOLS_ZERO_RUN_RUN_H

#include "base/control_group.h"
#include "base/error.h"
#include "base/text.h"
#include "tools/zero-run/run_options.h"
#include "tools/zero-run/segment_view.h"
#include "tools/zero-run/span.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/** Exit statuses of zero-run's own, a contract (--help has it). A failed rank's own status, or
 * 128 + its signal, is passed on. */
enum run_status {
    RUN_OK = 0,
    RUN_USAGE = 64,         /**< the command line */
    RUN_DOES_NOT_FIT = 65,  /**< --plan: the plan was made, and needs more than this host has */
    RUN_NO_PROGRAM = 66,    /**< the program is not there or cannot be executed */
    RUN_NOT_ALONE = 69,     /**< another launcher has started zero-run several times */
    RUN_SYSTEM = 71,        /**< the system refused: processes, memory, descriptors */
    RUN_CANNOT_CREATE = 73, /**< --log-dir or --metrics cannot be created */
    RUN_OUTPUT = 74,        /**< the ranks succeeded, but not all of their output could be written;
                                 or its reader is gone */
    RUN_STOPPED = 75,       /**< before the job's end: the ranks were told to and did, or --timeout
                                 has passed */
    RUN_NO_PLAN = 76,       /**< --plan: the program ended without making one */
    RUN_ENVIRONMENT = 78,   /**< launchers' variables are malformed or disagree; or hwloc's describe
                                 another machine, and nothing can be bound */
};

/* ------------------------------------------------------------------ oom.c */

/** Where the kernel counts the processes that it has killed for lack of memory. */
struct run_oom {
    char path[BASE_GROUP_PATH + 32]; /**< the file; "": none can be read */
    bool group;                      /**< counts our control group's only; else all of the host */
    uint64_t kills;                  /**< so far */
};

enum run_oom_verdict {
    RUN_OOM_UNKNOWN, /**< nothing can be read */
    RUN_OOM_NOT,     /**< none has been killed */
    RUN_OOM_HOST,    /**< somewhere on this host */
    RUN_OOM_GROUP,   /**< in our control group */
};

/** Finds the counter and reads it. `root` stands before all paths; "" but in tests. */
void run_oom_begin(struct run_oom *oom, const char *root);
/** Whether the kernel has killed a process since the last time. */
enum run_oom_verdict run_oom_check(struct run_oom *oom);

/* ------------------------------------------------------------------ guardian.c */

/** A process that has nothing but one end of a socket, whose other end only zero-run has. If
 * zero-run ends without a farewell, it kills the ranks and what they have started. */
struct run_guardian {
    pid_t pid;  /**< 0: none */
    int socket; /**< -1: none */
};

/** Starts it; to be called before there is anything to inherit. `token` is the job's, and `host`
 * the number of this host if there are several, else -1. ZERO_E_IO. */
zero_result run_guardian_start(struct run_guardian *guardian, const char *token, int host,
                               struct base_error *error);
/** Tells it of a process group by its leader's pidfd, which no other process can come to mean.
 * False: it is gone. */
bool run_guardian_tell(struct run_guardian *guardian, int pidfd, pid_t group);
/** Ends it: there is nothing left to guard. */
void run_guardian_end(struct run_guardian *guardian);

/** Kills process group `group` by its number if one of its processes has been started before
 * `ticks` (clock ticks since boot): then the number has been the group's all the time. For kernels
 * that cannot kill a group by a pidfd, and tests. */
void run_guardian_kill_group(pid_t group, uint64_t ticks);
/** Kills every process whose environment says that it is of the job, and of the host with that
 * number unless it is -1, until none is found, and returns how many; takes a second if the host has
 * processes without any environment. */
int run_guardian_kill_job(const char *token, int host);

/* ------------------------------------------------------------------ status_line.c */

/** What zero-run shares with the ranks, and what it makes of that. */
struct run_watch {
    struct control_segment *segment; /**< NULL: none (--plan) */
    int fd;                          /**< of the segment; -1: none */
    uint64_t period_ns;              /**< from one status to the next; 0: no status */
    bool redraws;                    /**< it stays in its line */
    uint64_t status_ns;              /**< when the next one is due; UINT64_MAX: never */
    uint64_t memory_ns;              /**< when the memory is to be looked at again */
    struct run_progress progress;    /**< as shown last */
    struct run_trace *trace;         /**< NULL: none */
    uint64_t drain_ns;               /**< when it is due; UINT64_MAX: never */
    bool told_trace;                 /**< that it cannot be written */
};

/* ------------------------------------------------------------------ restart.c */

/** A failure after which the job was started again. */
struct run_restart {
    int rank;            /**< that failed first, */
    const char *host;    /**< where that was; NULL: here, */
    siginfo_t end;       /**< and how; si_pid 0: with its host */
    uint64_t step;       /**< finished before; 0: none */
    uint64_t failed_ns;  /**< when that was noticed, */
    uint64_t started_ns; /**< and when the ranks were started again */
    int ranks;           /**< that went on */
    uint64_t first_step; /**< that they finished first; 0: none */
    double lost_s;       /**< from the failure to the end of that step */
};

struct run_restarts {
    struct run_restart *list; /**< room for --max-restarts; NULL: there are none */
    int count;
    int before;        /**< restarts of what has started zero-run; an agent's */
    int idle;          /**< starts in a row that came no further than some start before */
    uint64_t furthest; /**< step that any start has finished */
};

/* ------------------------------------------------------------------ the job */

struct run_binding;
struct run_rank {
    int number;                /**< in the job */
    const char *host;          /**< where it is; NULL: here */
    enum run_oom_verdict oom;  /**< when its end was noticed, on a host that is not this one */
    uint64_t memory, resident; /**< there, as struct run_area has them */
    pid_t pid;                 /**< also of its process group; 0: not started */
    int pidfd;
    pid_t heir;       /**< the program, whose shell `pid` was: see run_orphans_succeed(); 0: none */
    bool ended, well; /**< well: it ended as run_ended_well() says */
    siginfo_t end;    /**< how, if ended */
    struct run_stream streams[2]; /**< of standard output and standard error */
    struct run_tail tail;
    int log_fd, log_errno;
    bool hidden; /**< --only: its output is not shown */
    int stopped; /**< the signal that has stopped it; 0: it runs, or zero-run has stopped it */
};

/** What there is to compute with. */
struct run_cores {
    int count; /**< of the CPUs that zero-run may use, at least 1 */
    int quota; /**< CPUs that its control groups let it keep busy; 0: no limit */
};

/** Where the ranks' output goes, and zero-run's own lines. */
struct run_output {
    struct run_sink out, err;
    struct run_join join;
    bool piped;        /**< output comes through pipes */
    bool no_pty;       /**< it was said that a rank has a pipe instead of a pseudo-terminal */
    bool one_sink;     /**< both are the same file: `err` has everything, in its order */
    bool told_sink[2]; /**< it was said that standard output, standard error cannot be written */
    bool unread;       /**< the reader of one of them has gone */
};

/** What zero-run was started with, and the ranks get back. */
struct run_inherited {
    rlim_t files; /**< the limit of open files */
    sigset_t mask;
    bool ignored_size;   /**< SIGXFSZ */
    bool ignored_pipe;   /**< SIGPIPE */
    bool ignored_hangup; /**< SIGHUP: a closed terminal is no reason to stop */
};

/** How the ranks are to end. What is of one start, restart.c sets anew before the next. */
struct run_stop {
    int signals; /**< received so far: the first asks or is passed on, the second kills */
    uint32_t number, sender; /**< of the last one; sender 0: the kernel, or out of sight */
    uint64_t at_ns;          /**< of the last one */
    uint64_t timeout_ns;     /**< UINT64_MAX: none */
    uint64_t ask_ns;  /**< when ranks that were asked to stop get SIGTERM; UINT64_MAX: never */
    uint64_t kill_ns; /**< when ranks that don't stop are killed; UINT64_MAX: never */
    bool stopping, suspended; /**< the ranks have been told to end; zero-run has stopped them */
    sigset_t sent;            /**< signals that the ranks of this start have got from zero-run */
    int ended_by;             /**< the last of them that was to end them; 0: none */
    bool timed_out, told_far; /**< an agent's platform has sent the first of the signals */
};

/** Which of a job's ranks are here. */
struct run_place {
    int world;       /**< ranks of this start on all hosts, */
    int first;       /**< and the number of the first one here */
    int first_world; /**< ranks of the first start */
    int room, left;  /**< ranks that the hosts which are left have room for; these hosts */
    int host, hosts; /**< of several hosts which this is; an agent's */
};

struct run_job {
    const struct run_options *options;
    int slots; /**< of `ranks` */
    int count; /**< processes of this start: the first ones */
    struct run_place at;
    struct run_span *span; /**< NULL: this is the only host */
    struct run_rank *ranks;
    int running;
    char token[33]; /**< ZERO_JOB */
    int master_port;
    const char *master_address; /**< stays where it is */
    struct run_metrics metrics;
    int plan_fd; /**< -1: none */
    struct run_output output;
    struct run_inherited inherited;
    struct run_stop stop;
    struct run_cores cores;
    bool told_threads;
    struct run_guardian guardian;
    struct run_binding *binding; /**< NULL: none */
    struct run_oom oom;
    struct run_watch watch;

    int signals; /**< signalfd */
    int exits;   /**< epoll over the pidfds: in the order in which ranks ended */
    struct pollfd *polls;

    int failed_rank;    /**< the first one, -1: none */
    uint64_t failed_ns; /**< when that was noticed */
    bool resting;       /**< no rank is there, and the next start is waited for */
    struct run_restarts restarts;
};

/* ---- run_words.c */

/** Writes a line "zero-run: ..." to standard error, in order with what ranks wrote. */
void run_say(struct run_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** An errno in words: "No space left on device (ENOSPC)", with the limit behind it. */
enum { RUN_ERRNO_TEXT = 256 };
const char *run_describe_errno(int errnum, char text[RUN_ERRNO_TEXT]);
/** How a process ended, in words. */
void run_describe_end(const siginfo_t *end, char *text, size_t size);
/** Whether a signal asks the job to stop. */
bool run_signals_ask(const struct run_job *job, int number);
/** Whether a signal that a rank has got may have been such a request: it is none that zero-run has
 * sent to the ranks. */
bool run_signals_asked(const struct run_job *job, int number);

/** The rank of this host with a number; NULL: it is on another one. */
struct run_rank *run_job_rank(const struct run_job *job, int number);

/* ---- run_environment.c */

/** The environment of the rank at `place` in job->ranks: zero-run's own with the job's variables.
 * Freed by run_environment_free(); NULL: no memory. */
char **run_environment_make(const struct run_job *job, int place);
void run_environment_free(char **environment);

/* ---- rank_threads.c */

/** Finds the cores. */
void run_threads_count(struct run_cores *cores);
/** The OMP_NUM_THREADS that zero-run gives a rank of `ranks`: its cores over the ranks that share
 * them, at least 1; 0: none, as zero-run's environment has one. `binding` may be NULL. */
int run_threads_of(const struct run_cores *cores, const struct run_binding *binding, int ranks,
                   int rank);
/** What ranks get, in words: "OMP_NUM_THREADS=4 for each rank (8 cores, 2 ranks)". */
void run_threads_text(const struct run_cores *cores, const struct run_binding *binding, int ranks,
                      struct base_text *text);
/** Says that, once a job. */
void run_threads_say(struct run_job *job);

/* ---- run_files.c */

/** Makes the log directory. ZERO_E_IO. */
zero_result run_files_make_directory(const struct run_options *options, struct base_error *error);
/** ZERO_E_INVALID: two of the files that zero-run would write or read are one, and which. */
zero_result run_files_check(const struct run_options *options, struct base_error *error);
/** Removes logs of ranks that a job of `ranks` does not have; `empty`: empties the others. */
void run_files_clear_logs(struct run_job *job, int ranks, bool empty);
/** Opens the logs. Those of an earlier job end here, but on several hosts. ZERO_E_IO. */
zero_result run_files_open_logs(struct run_job *job, struct base_error *error);

/* ---- stopped_ranks.c */

/** Looks which ranks a signal has stopped, and says so of each once. */
void run_stopped_look(struct run_job *job);

/* ---- bind.c */

/** Reads the topology and deals its cores out; *binding is NULL if `bind` comes to none.
 * ZERO_E_IO: the topology cannot be read, ZERO_E_NOMEM. */
zero_result run_bind_open(struct run_binding **binding, enum run_bind bind, int ranks,
                          struct base_error *error);
/** ZERO_E_UNSUPPORTED: the topology is another machine's (HWLOC_XMLFILE, HWLOC_SYNTHETIC), so that
 * nothing can be bound. */
zero_result run_bind_check(const struct run_binding *binding, struct base_error *error);
/** Cores of a rank over the ranks that have exactly these, at least 1. */
int run_bind_cores(const struct run_binding *binding, int rank);
/** Binds the calling process to what rank `rank` has got; false: errno says why not. */
bool run_bind_apply(const struct run_binding *binding, int rank);
/** Who has got what, as a table. */
void run_bind_explain(const struct run_binding *binding, struct base_text *text);
void run_bind_close(struct run_binding *binding);

/* ---- orphans.c */

/** Makes zero-run the parent of every process that its ranks leave behind. */
void run_orphans_adopt(void);
/** Takes note of those that have ended. */
void run_orphans_reap(const struct run_job *job);
/** Whether the rank goes on although its process has ended: that was a shell around the program,
 * and a signal has ended it that the program, which listens, takes as a request to stop. The
 * program's process is the rank from then on. */
bool run_orphans_succeed(struct run_job *job, struct run_rank *rank);
/** Kills those that are there, and what they leave behind, until none is. The ranks have ended. */
void run_orphans_end(const struct run_job *job);

/* ---- run_job.c */

/** Fills in what a job is before anything of it is there, and makes its list of `count` ranks.
 * run_job_free() in either case. ZERO_E_NOMEM, ZERO_E_IO. */
zero_result run_job_init(struct run_job *job, const struct run_options *options, int count,
                         struct base_error *error);
/** Lets this process have as many descriptors as it may; ranks get the limit it had. */
void run_job_raise_limit(struct run_job *job);
/** Closes the logs. */
void run_job_close_logs(struct run_job *job);
void run_job_free(struct run_job *job);
/** Runs a job of this host alone; returns the exit status, and if it says why in *error. */
int run_job(const struct run_options *options, struct base_error *error);

/* ---- run_signals.c */

/** Blocks the signals zero-run passes on or is told by, and makes job->signals. ZERO_E_IO. */
zero_result run_signals_begin(struct run_job *job, struct base_error *error);
/** Does what the signals that have come ask for. */
void run_signals_take(struct run_job *job);
/** Does what a signal to stop asks for that an agent has got. */
void run_signals_take_far(struct run_job *job, int number);
/** Sends a signal to a rank and what it has started. */
void run_signals_send_one(const struct run_rank *rank, int number);
/** To all ranks that have not ended. */
void run_signals_send(struct run_job *job, int number);

/* ---- spawn.c */

/** Draws job->token, anew for each start. ZERO_E_IO. */
zero_result run_choose_token(struct run_job *job, struct base_error *error);
/** Starts all ranks; they end when zero-run does. After an error those that were started are still
 * running. Returns RUN_OK, RUN_NO_PROGRAM or RUN_SYSTEM, and *error has the reason. */
enum run_status run_spawn(struct run_job *job, struct base_error *error);
/** Makes the streams of a rank, as far as they need no descriptor. False: no memory. */
bool run_spawn_streams(struct run_job *job, struct run_rank *rank);
/** Whether a port of all of this host's addresses is free at the moment. */
bool run_port_is_free(int port);

/* ---- supervise.c */

/** Makes what the loop waits on. ZERO_E_IO, ZERO_E_NOMEM. */
zero_result run_supervise_begin(struct run_job *job, struct base_error *error);
/** Waits for whatever comes next, at most `timeout_ms`, and moves output. */
void run_turn(struct run_job *job, int timeout_ms);
/** Of run_turn(): the time until something is to be done; -1: nothing is. */
int run_turn_timeout(const struct run_job *job);
/** A rank has ended, and rank->end says how: takes its last output, and decides whether it has
 * ended well. */
void run_rank_gone(struct run_job *job, struct run_rank *rank);
/** It is the first that has failed: says so, and stops the others. */
void run_rank_failed(struct run_job *job, const struct run_rank *rank);
/** Runs until every rank has ended and its process group is gone, and all output is written. */
void run_supervise(struct run_job *job);
/** Passes the time until `until` without any rank. False: a signal or --timeout ends the job. */
bool run_rest(struct run_job *job, uint64_t until);
/** The job has ended: completes metrics and trace. */
void run_end(struct run_job *job);
/** When --grace from now is over. */
uint64_t run_after_grace(const struct run_job *job);
/** Asks the ranks to stop by themselves, and signals those that have not after --grace. False: none
 * of their programs listens, or there is no time. */
bool run_ask(struct run_job *job);
/** Tells the ranks to end, and kills those that have not after --grace; none of their ends is a
 * failure from now on. */
void run_stop(struct run_job *job);
/** Kills every rank's process group now. */
void run_kill(struct run_job *job);
/** Writes what is waiting, unless a signal comes. */
void run_flush(struct run_job *job);

/* ---- first_failure.c */

/** The rank whose end the others noticed first, if zero-run has not yet been told of it; waits
 * until it is. NULL: none. */
struct run_rank *run_first_to_end(struct run_job *job);

/* ---- run_report.c */

/** Whether a rank has ended well: with 0, or as a program does that was told to stop. */
bool run_ended_well(const struct run_job *job, const struct run_rank *rank);
/** Says which rank failed first, how, why perhaps, and what it wrote last; of one that zero-run
 * itself has ended only that. */
void run_report_first(struct run_job *job, const struct run_rank *rank);
/** Says after which step the ranks stopped, if they have been told to. */
void run_report_stop(struct run_job *job);
/** Its status, 128 + signal if a signal ended it. */
int run_end_status(const siginfo_t *end);
/** What zero-run exits with. */
int run_job_status(const struct run_job *job);

/* ---- status_line.c */

/** Makes the control segment, but for --plan. ZERO_E_NOMEM. */
zero_result run_watch_begin(struct run_job *job, struct base_error *error);
/** Creates --trace's file. ZERO_E_IO, ZERO_E_NOMEM. */
zero_result run_watch_open_trace(struct run_job *job, struct base_error *error);
/** When there is something to do, of base_clock_ns(); UINT64_MAX: never. */
uint64_t run_watch_due(const struct run_job *job);
/** Does what is due. */
void run_watch_update(struct run_job *job);
/** Says from the flight recorders who never arrived, and what rank `failed` (-1: none) was in. */
void run_watch_blame(struct run_job *job, int failed);
/** No rank is left: takes the status line away. The segment stays. */
void run_watch_finish(struct run_job *job);
/** Makes another segment for the next start. ZERO_E_NOMEM. */
zero_result run_watch_renew(struct run_job *job, struct base_error *error);
/** Ends the trace. */
void run_watch_end(struct run_job *job);
/** Whether not all of the trace could be written. */
bool run_watch_trace_lost(const struct run_job *job);
void run_watch_close(struct run_job *job);

/* ---- restart.c */

/** Makes room for what --max-restarts allows. ZERO_E_NOMEM. */
zero_result run_restart_begin(struct run_job *job, struct base_error *error);
/** Whether the job is to be started again: decides, says so or why not, and waits as long as it
 * has to. */
bool run_restart_due(struct run_job *job);
/** Seconds before the next start, after `idle` starts in a row that came no further than some start
 * before: none after the first of them, then backoff_s, then twice as long each time, at most a
 * minute. */
int run_restart_wait_s(int backoff_s, int idle);
/** Makes what a start needs and the one before has used up. ZERO_E_IO, ZERO_E_NOMEM. */
zero_result run_restart_prepare(struct run_job *job, struct base_error *error);
/** Of run_restart_prepare(): makes a job as it was before its first start, with `count` ranks. */
void run_restart_clear(struct run_job *job, int count);
/** Says how often, why, and what time was lost. */
void run_restart_report(struct run_job *job);
void run_restart_end(struct run_job *job);

/* ---- run_plan.c */

/** Prints the plans that the program has handed over: for each of its contexts three texts, each
 * ended by a zero: for people, as JSON, and why it does not fit. Returns the exit status. */
int run_plan_print(struct run_job *job);

#endif
