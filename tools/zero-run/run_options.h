/**
 * tools/zero-run/run_options.h: what the command line says.
 */
#ifndef TOOLS_ZERO_RUN_RUN_OPTIONS_H
#define TOOLS_ZERO_RUN_RUN_OPTIONS_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/rendezvous/hosts_of_job.h"
#include "tools/zero-run/host_list.h"
#include "tools/zero-run/rank_output.h"

#include <signal.h>

/* ------------------------------------------------------------------ run_options.c */

enum run_bind { RUN_BIND_NONE, RUN_BIND_CORE, RUN_BIND_NUMA, RUN_BIND_AUTO };

/** What is about a job of several hosts. */
struct run_far {
    bool ranks_given, restarts_given;  /**< -n and --max-restarts are there */
    struct run_hosts hosts;            /**< none: this one */
    const char *host_list, *host_file; /**< as given; NULL: not */
    const char *rsh;                   /**< NULL: ssh */
    char **exports; /**< of `exported`: "NAME=VALUE" for the ranks of all hosts */
    int exported;
    struct boot_hosts_given given; /**< --nodes and --master, for hosts of a platform */
    int least_hosts;     /**< of --nodes MIN:MAX, MIN: so many are enough after a loss; 0: it has
                            no range, and the ranks decide */
    int agent_timeout_s; /**< without a word from a host it is lost */
};

struct run_options {
    int ranks;
    struct run_far far;
    int least;             /**< ranks to go on with: fewer than `ranks` with -n MIN:MAX */
    int restarts;          /**< at most; -1: not given */
    int backoff_s;         /**< before a second restart without progress; -1: not given */
    int timeout_s;         /**< 0: none */
    int grace_s;           /**< from a request to stop to SIGTERM, and from there to SIGKILL */
    sigset_t stop_signals; /**< besides SIGTERM and SIGINT: they ask the job to stop */
    enum run_bind bind;
    bool plan, plan_probe;
    int plan_json;  /**< 1: as JSON; 0: as text */
    int plan_world; /**< ranks to plan for, */
    int plan_here;  /**< how many of them are on this host, or the one with the most, */
    int plan_least; /**< and on the one with the fewest */
    bool explain;
    bool help, version;
    enum option_when prefix, color, pty;
    const char *only;        /**< the list of --only; NULL: all */
    unsigned char *shown;    /**< of each rank, whether its output is; NULL: all */
    enum option_when status; /**< never: no status at all; always: --status has a time */
    int status_s;            /**< between two status lines that are not redrawn */
    const char *trace;       /**< NULL: none */
    const char *log_dir;     /**< NULL: none */
    const char *metrics;     /**< NULL: none */
    char *settings;          /**< the -o's, a line each; NULL: none */
    char **program;          /**< and its arguments */
};

/** Reads the command line. ZERO_E_INVALID (what is wrong), ZERO_E_NOMEM. run_options_free() in
 * either case. */
zero_result run_options_parse(struct run_options *options, int argc, char **argv,
                              struct base_error *error);
/** Takes the number of ranks to start, and to go on with at least, which a platform may say: what
 * --only shows follows from it. ZERO_E_INVALID: --only names others. ZERO_E_NOMEM. */
zero_result run_options_take_ranks(struct run_options *options, int least, int ranks,
                                   struct base_error *error);
void run_options_free(struct run_options *options);

/** Why --trace is refused. */
#define RUN_TRACE_ALONE                                                                            \
    "--trace is for a job of one host: leave it out, or run the program on one host with it"

/* ------------------------------------------------------------------ rank_filter.c */

/** Reads a list such as "0,4-7" of ranks below `ranks` and marks them in shown[]. ZERO_E_INVALID
 * (what is wrong). */
zero_result run_only_parse(const char *list, int ranks, unsigned char *shown,
                           struct base_error *error);

/** Writes such a list; `pair` stands between two ranks that are a range. *Local.* */
void run_only_show(struct base_text *text, const unsigned char *shown, int ranks, char pair);

/* ------------------------------------------------------------------ run_help.c */

extern const char run_help[];

#endif
