/**
 * tools/zero-run/rank_output.h: what ranks write, on its way to zero-run's own output.
 */
#ifndef TOOLS_ZERO_RUN_RANK_OUTPUT_H
#define TOOLS_ZERO_RUN_RANK_OUTPUT_H

#include "base/error.h"
#include "tools/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------ tail.c */

enum {
    RUN_TAIL_LINES = 10,
    RUN_TAIL_BYTES = 240, /**< of a line: the rest is cut */
    RUN_SIGHT = 24,       /**< lines of a screen: what has fewer below it needs no repetition */
};

/** The last lines a rank wrote to both of its streams, in the order in which they were read. */
struct run_tail {
    struct run_tail_line {
        uint64_t place; /**< lines that its sink had shown, this one included */
        int sink;       /**< 0: of standard output, 1: of standard error */
        int used;
        bool cut;
        char text[RUN_TAIL_BYTES];
    } lines[RUN_TAIL_LINES];      /**< a ring: line i is at i % RUN_TAIL_LINES */
    uint64_t count;               /**< of lines so far */
    struct run_tail_line open[2]; /**< of each stream, the line that has not ended */
};

/** Adds what has been read from stream 0 or 1 and handed to sink `sink`, which has shown `place`
 * lines by now. */
void run_tail_add(struct run_tail *tail, int stream, const char *bytes, size_t count, int sink,
                  uint64_t place);
/** Stream 0 or 1 has ended: what it wrote last is a line too. */
void run_tail_end(struct run_tail *tail, int stream, int sink, uint64_t place);
/** Line `i` of those that are kept, the oldest is 0; NULL behind the newest. */
const struct run_tail_line *run_tail_line(const struct run_tail *tail, int i);

/* ------------------------------------------------------------------ rank_output.c */

enum { RUN_LINE_BYTES = 64 * 1024 }; /**< longer lines are broken */

/** Where lines go: standard output or standard error, without ever blocking the loop. */
struct run_sink {
    int fd;
    char *bytes; /**< waiting to be written: from `start`, `used` of them */
    size_t start, used, capacity;
    int failed;     /**< errno of the write that failed: everything since is dropped */
    int number;     /**< 0: standard output, 1: standard error */
    uint64_t shown; /**< lines so far */
    bool drawn;     /**< the last line is the status line: it goes before anything else comes */
    bool mid_line;  /**< what was added last has not ended its line */
    bool terminal;
    bool watched; /**< a terminal, and zero-run's own: not one that a launcher reads into a file */
    bool color;
};

struct run_join;
struct run_link;

/** One pipe or pseudo-terminal from a rank. */
struct run_stream {
    int fd; /**< -1: closed */
    int rank;
    bool hidden;           /**< --only: it goes to the log only */
    struct run_join *join; /**< where its warnings wait for those of other ranks; NULL: nowhere */
    struct run_sink *sink;
    int *log_fd;     /**< shared by both streams of a rank; -1: none, or it failed */
    int *log_errno;  /**< why it failed */
    int number;      /**< 0: standard output, 1: standard error */
    bool lines;      /**< passed on line by line; else bytes as they come */
    char prefix[32]; /**< before each line */
    char *line;      /**< an unfinished one */
    size_t used;
    struct run_tail *tail; /**< of the rank */
    struct run_link *link; /**< an agent's: bytes go there as they come; NULL: to the sink */
    int poll;              /**< its place in run_job's polls; 0: it is not waited for */
};

/** Prepares a sink for standard output (0) or standard error (1). */
void run_sink_init(struct run_sink *sink, int number, enum option_when color);
/** Adds bytes; never fails: what there is no memory for counts as failed output. */
void run_sink_add(struct run_sink *sink, const char *bytes, size_t count);
/** Shows a line that is to be replaced, unless other bytes wait or have not ended their line. Not
 * counted as shown. */
void run_sink_draw(struct run_sink *sink, const char *line);
/** Takes it away. */
void run_sink_erase(struct run_sink *sink);
/** Ranks have to wait until something has been written. */
bool run_sink_full(const struct run_sink *sink);
/** Writes what fits without blocking, after poll() has said that something does. */
void run_sink_write(struct run_sink *sink);
void run_sink_free(struct run_sink *sink);

/** Reads what is there and passes on all whole lines; closes the stream at its end. */
void run_stream_read(struct run_stream *stream);
/** Takes bytes that a rank of another host has written, and passes on all whole lines. */
void run_stream_feed(struct run_stream *stream, const char *bytes, size_t count);
/** Passes on the unfinished line. */
void run_stream_flush(struct run_stream *stream);
/** Passes on the unfinished line and closes the stream. */
void run_stream_close(struct run_stream *stream);

/* ------------------------------------------------------------------ terminal.c */

/** Opens a pseudo-terminal that passes bytes on as they are: ends[0] reads without blocking what is
 * written to ends[1]. It has the size of the terminal `like` less `columns`, if that is one. False:
 * errno says why not, and both ends are -1. */
bool run_terminal_open(int ends[2], int like, int columns);

/* ------------------------------------------------------------------ run_metrics.c */

/** From rank 0's pipe to the file of --metrics, in whole lines. */
struct run_metrics {
    int file;   /**< -1: none, or it has failed */
    int input;  /**< the pipe; -1: none, or closed */
    int output; /**< rank 0's end, until that has been started */
    char *line; /**< what does not end with a newline yet */
    size_t used;
    int failed; /**< errno of the write that failed: everything since is dropped */
    bool told;
    struct run_link *link; /**< an agent's: lines go there, and there is no file; else NULL */
};

/** Makes the pipe, and creates or empties the file unless there is a link. ZERO_E_IO, ZERO_E_NOMEM.
 */
zero_result run_metrics_open(struct run_metrics *metrics, const char *path,
                             struct base_error *error);
/** Takes bytes that rank 0 has written on another host, and writes all whole lines. */
void run_metrics_feed(struct run_metrics *metrics, const char *bytes, size_t count);
/** Makes the pipe for a rank 0 that is about to be started. ZERO_E_IO. */
zero_result run_metrics_connect(struct run_metrics *metrics, struct base_error *error);
/** Reads what is there and writes all whole lines. */
void run_metrics_read(struct run_metrics *metrics);
/** Writes an unfinished line, and closes the pipe. */
void run_metrics_disconnect(struct run_metrics *metrics);
/** Adds a line of zero-run's own, with its newline, unless there is no file. */
void run_metrics_add(struct run_metrics *metrics, const char *line);
/** Disconnects, and closes the file. */
void run_metrics_close(struct run_metrics *metrics);

/* ------------------------------------------------------------------ merge_warnings.c */

enum {
    RUN_JOIN_WARNINGS = 16,  /**< that wait at a time */
    RUN_JOIN_MS = 300,       /**< how long each does after the last rank that has given it, */
    RUN_JOIN_MOST_MS = 3000, /**< and at most */
};

/** Warnings of the library's that wait until every rank has given them, or no more has for
 * RUN_JOIN_MS. */
struct run_join {
    int ranks;   /**< of this start */
    bool errors; /**< a rank has noticed the end of another one: what ranks write to standard error
                    now they write alike, and it waits as warnings do */
    struct run_warning {
        char *text;                     /**< behind "zero[rank] ", with its newline; NULL: none */
        bool whole;                     /**< it is all of a line */
        unsigned char *given;           /**< by each rank */
        int count;                      /**< of ranks that gave it */
        uint64_t first_ns;              /**< when the first one did */
        uint64_t due_ns;                /**< when it is shown at the latest */
        const struct run_stream *first; /**< of the rank that gave it first */
    } warnings[RUN_JOIN_WARNINGS];
};

/** Takes a line of a rank's standard error; false: it is no such warning, or there is no memory,
 * and the caller shows it. */
bool run_join_take(struct run_join *join, const struct run_stream *stream, const char *line,
                   size_t length);
/** Shows those that are warnings of the library's. */
void run_join_show_warnings(struct run_join *join);
/** When the next one is to be shown; UINT64_MAX: none waits. */
uint64_t run_join_due(const struct run_join *join);
/** Shows those that are due at now_ns; UINT64_MAX: all. */
void run_join_show(struct run_join *join, uint64_t now_ns);

#endif
