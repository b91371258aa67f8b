/**
 * tools/zero-run/agent_link.h: how the coordinator of a job and the agent of a host talk.
 *
 * A link is a stream of bytes in both directions: a socketpair, the standard input and output of a
 * remote command, or a connection of TCP. Both sides begin with a hello. Where the job has a
 * secret, each side proves next that it knows it (base/hmac.h). Frames follow: control frames,
 * which are JSON objects, and raw bytes. Every byte of the other side is checked; what is wrong
 * ends the link.
 *
 * One thread owns a link and waits for it in its poll loop; nothing but run_link_call(),
 * run_link_finish() and run_link_adopt() blocks. Each side sends a beat when it has sent nothing
 * for a second, so silence means that the other machine or the network between is gone. Raw bytes
 * have a window: run_link_full() tells their sender to wait. Control frames and beats pass all the
 * same.
 *
 *   agent_link_bytes.c    what a link has received, what it has still to send, and its end.
 *   agent_link_meeting.c  hellos and proofs.
 *   agent_link.c          frames and beats.
 *   agent_link_calls.c    agents that call the coordinator's port.
 *
 * Writing to a pipe or socket whose reader is gone must not end the process: SIGPIPE is ignored.
 */
#ifndef TOOLS_ZERO_RUN_AGENT_LINK_H
#define TOOLS_ZERO_RUN_AGENT_LINK_H

#include "base/error.h"
#include "base/hmac.h"

#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RUN_LINK_PROTOCOL = 2,
    RUN_LINK_POLLS = 2,           /**< entries of poll() for a link */
    RUN_FRAME_BYTES = 64 * 1024,  /**< most of a raw frame */
    RUN_CONTROL_BYTES = 4 << 20,  /**< most of a control frame */
    RUN_LINK_WINDOW = 256 * 1024, /**< raw bytes that the other side has not confirmed */
    RUN_LINK_MOST = 64 << 20,     /**< bytes that one side keeps for a link: more end it */
    RUN_LINK_NOISE = 64 * 1024,   /**< bytes that a remote shell may write before a hello */
    RUN_LINK_NAME = 64,           /**< of a host's name or a job's, with its final zero */
    RUN_CALLERS_MAX = 64,         /**< agents that have called and not proved themselves */
};

/* ------------------------------------------------------------------ hellos */

enum run_side { RUN_SIDE_AGENT = 1, RUN_SIDE_COORDINATOR = 2 };

/** What each side sends first. The first two fields stay here in every protocol. With a secret a
 * coordinator's has no job and no name: they follow with its proof. */
struct run_hello {
    uint64_t magic;
    uint32_t protocol;
    uint32_t side; /**< enum run_side */
    uint32_t has_secret;
    int32_t host; /**< an agent's host by its number; -1: it is told later */
    unsigned char nonce[BASE_NONCE_BYTES];
    char job[RUN_LINK_NAME];  /**< both sides' are equal; "": the link itself says so */
    char name[RUN_LINK_NAME]; /**< of this side's host, for messages */
};

/** What one side says of itself and expects. Pointers are borrowed. */
struct run_self {
    enum run_side side;
    int host;           /**< an agent: its host's number, or -1 */
    const char *job;    /**< below RUN_LINK_NAME; NULL: as "" */
    const char *secret; /**< NULL or "": none */
    bool noisy;         /**< a remote shell may write something before the hello of the agent */
    bool called;        /**< it says nothing before a hello has begun to come */
};

/* ------------------------------------------------------------------ links */

enum run_link_state {
    RUN_LINK_MEETING, /**< hellos and proofs are on their way: no frame may be sent yet */
    RUN_LINK_OPEN,
    RUN_LINK_ENDED,
};

enum run_link_end {
    RUN_LINK_FAREWELL = 1, /**< the other side has said that it is done */
    RUN_LINK_EOF,          /**< the other process has ended; its machine is there */
    RUN_LINK_LOST,         /**< the kernel has given the connection up: machine or network */
    RUN_LINK_SILENT,       /**< nothing has come for silence_ns */
    RUN_LINK_REFUSED,      /**< another job, secret or protocol: calling again is no use */
    RUN_LINK_WRONG,        /**< what came is none of this protocol */
    RUN_LINK_FAILED,       /**< this side has no memory, or the system refuses */
};

enum run_frame_type {
    RUN_FRAME_CONTROL = 1, /**< a JSON object */
    RUN_FRAME_OUTPUT,      /**< raw: of a rank's output */
    RUN_FRAME_METRICS,     /**< raw */
    RUN_FRAME_INPUT,       /**< raw: for a rank's standard input */
};

struct run_frame {
    enum run_frame_type type;
    uint32_t tag;      /**< the sender's own; no value is special */
    json_t *object;    /**< of a control frame; the receiver releases it by json_decref() */
    const char *bytes; /**< of a raw frame, until the next call that has the link */
    size_t count;
};

/** Bytes that wait: `used` from `start`. All zero: none. */
struct run_bytes {
    char *data;
    size_t start, used, capacity;
};

/** One end of a link; no part but these three times is to be changed from outside. */
struct run_link {
    uint64_t beat_ns;    /**< after so long without a frame it sends a beat: 1 s */
    uint64_t silence_ns; /**< after so long without a byte the link ends: 30 s; 0: never */
    uint64_t meet_ns;    /**< when hellos and proofs have to be over; UINT64_MAX: no matter */

    enum run_link_state state;
    enum run_link_end end;   /**< how it has ended; 0: it has not */
    struct base_error why;   /**< and in words, without the name of the other side */
    struct run_hello theirs; /**< the other side's, once `greeted` */
    bool greeted;

    int in, out; /**< one socket, or two descriptors; -1: closed */
    struct run_self self;
    struct run_hello ours;
    bool said_hello;
    int step;         /**< of the meeting */
    char noise[128];  /**< the beginning of what came before the hello */
    size_t noise_all; /**< how much that was */
    struct run_bytes received, waiting;
    size_t wanted; /**< bytes of the frame that has come in part */
    uint64_t heard_ns, sent_ns;
    uint64_t unconfirmed; /**< raw bytes sent, and not confirmed */
    uint64_t taken;       /**< raw bytes received, and not confirmed yet */
    bool held;            /**< none is confirmed now */
    bool eof;             /**< no byte will come any more, */
    int errnum;           /**< why the connection is no more; 0: the end of the stream */
    bool deaf;            /**< the other side takes no bytes any more */
    bool farewell;        /**< this side has said that it is done */
};

/**
 * Begins a link over descriptors, which it owns from now on: `in` and `out` may be the same. They
 * are made not to block. ZERO_E_IO, ZERO_E_NOMEM; both are closed then. *Local.*
 */
zero_result run_link_begin(struct run_link *link, int in, int out, const struct run_self *self,
                           struct base_error *error);

/** Begins the link of an agent that was started with it as standard input and output, and puts
 * others there: "/dev/null" and standard error. Errors as of run_link_begin(); ZERO_E_INVALID: it
 * is a terminal. *Local.* */
zero_result run_link_adopt(struct run_link *link, const struct run_self *self,
                           struct base_error *error);

/** Writes what to wait for; an entry that is not needed has fd -1. *Local.* */
void run_link_poll(const struct run_link *link, struct pollfd polls[RUN_LINK_POLLS]);

/** When the link has something to do even if nothing comes, of base_clock_ns(). *Local.* */
uint64_t run_link_due(const struct run_link *link);

/** Reads and writes what can be without blocking, sends a beat that is due, notices silence. To be
 * called whenever poll() says something, and when run_link_due() has come. *Local.* */
void run_link_turn(struct run_link *link);

/** Sets after how long a silence the link ends, and beats so that none is that long. *Local.* */
void run_link_expect(struct run_link *link, uint64_t silence_ns);

/** Takes the next frame. To be called after run_link_turn() until it returns false; what the other
 * side sent before its end comes before link->state is RUN_LINK_ENDED. *Local.* */
bool run_link_next(struct run_link *link, struct run_frame *frame);

/** Sends a control frame; the object is the link's from now on, NULL counts as a lack of memory.
 * Not before the link is open; by one that has ended nothing is sent. Whatever fails ends
 * it. *Local.* */
void run_link_send(struct run_link *link, json_t *object);

/** Sends raw bytes, in several frames if one does not hold them. *Local.* */
void run_link_send_bytes(struct run_link *link, enum run_frame_type type, uint32_t tag,
                         const char *bytes, size_t count);

/** Whether this side should send no more raw bytes now: the other one has too many to take, or the
 * network has. What is sent all the same is sent in its order. *Local.* */
bool run_link_full(const struct run_link *link);

/** While a link is held, this side confirms no raw bytes, so that the other one sends fewer and
 * then none. *Local.* */
void run_link_hold(struct run_link *link, bool held);

/** Says that this side is done: it sends nothing more, and the end of the stream is no failure of
 * it. *Local.* */
void run_link_farewell(struct run_link *link);

/** Says farewell, and waits until all is written and the other side has closed its end, or the
 * deadline has come. *Local.* */
void run_link_finish(struct run_link *link, uint64_t deadline_ns);

/** Closes the descriptors and frees what it keeps; link->end and link->why stay. *Local.* Accepts a
 * link that is closed, or all zero but for in and out, -1. */
void run_link_close(struct run_link *link);

/* ------------------------------------------------------------------ calls */

/** Callers of one kind that were refused. Times are of base_clock_ns(). */
struct run_refusals {
    int count;         /**< that were not told of yet, */
    char reason[256];  /**< and the last one of them, with why */
    uint64_t tell_ns;  /**< when they are told of at the earliest */
    uint64_t quiet_ns; /**< from one time to the next: 10 s first, and longer while they come */
};

/** A port at which agents call. */
struct run_listener {
    int fd, port;
    uint64_t prove_ns; /**< how long a caller may take to prove itself: 5 s; may be changed */
    uint64_t spare_ns; /**< how long at least, while others wait for its place: 0.25 s. One that has
                          said hello has four times as long */
    struct run_self self;
    struct run_link *callers[RUN_CALLERS_MAX]; /**< `count`, the oldest first */
    int count;
    struct run_refusals strangers, agents; /**< agents: of another job, secret or protocol */
};

/** Listens at a port, 0: any, of all addresses. `self` is the coordinator's. ZERO_AGAIN: the port
 * is in use; ZERO_E_IO. *Local.* */
zero_result run_listener_open(struct run_listener *listener, int port, const struct run_self *self,
                              struct base_error *error);

/** Writes what to wait for into 1 + RUN_CALLERS_MAX entries and returns how many it needs. *Local.*
 */
int run_listener_poll(const struct run_listener *listener, struct pollfd *polls);

/** When there is something to do even if no caller says anything, of base_clock_ns(); UINT64_MAX:
 * there is nothing. *Local.* */
uint64_t run_listener_due(const struct run_listener *listener);

/** Lets callers in, and hears what they say. While there are RUN_CALLERS_MAX, others wait in the
 * kernel's queue until one of these has had its time. *Local.* */
void run_listener_turn(struct run_listener *listener);

/** Takes a link that is open; the caller owns it, closes it and frees it by base_free(). NULL:
 * none. *Local.* */
struct run_link *run_listener_next(struct run_listener *listener);

/** Writes what has become of callers that were refused. The first is told of at once, those that
 * follow together, at growing intervals; `all`: now. To be called until it returns false: there is
 * nothing to tell. *Local.* */
bool run_listener_refusals(struct run_listener *listener, bool all, char *text, size_t size);

/** Closes the port and the callers that have not proved themselves. *Local.* */
void run_listener_close(struct run_listener *listener);

/** How an agent calls. */
struct run_calling {
    const char *const *addresses; /**< names or addresses of the coordinator, of `count` */
    int count, port;
    uint64_t deadline_ns;
    bool (*asked)(void); /**< whether this process was asked to stop; NULL: never */
    void (*say)(void *user, double seconds, const char *why); /**< it waits still; NULL: no words */
    void *user;
};

/**
 * Calls the coordinator until it answers, in growing intervals. Blocks. ZERO_E_TIMEOUT: it has not
 * answered in time; the message says how the last call ended. ZERO_E_ABORTED: `asked`.
 * ZERO_E_INVALID: what answers is of another job, secret or protocol.
 * ZERO_E_UNSUPPORTED: no library computes proofs. ZERO_E_IO, ZERO_E_NOMEM. *Local.*
 */
zero_result run_link_call(struct run_link *link, const struct run_calling *calling,
                          const struct run_self *self, struct base_error *error);

#endif
