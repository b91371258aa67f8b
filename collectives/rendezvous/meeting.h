/**
 * How ranks meet, on one host or on several: rank 0 listens, the others call it, each says who it
 * is, and rank 0 tells all of them when all have come.
 *
 *   meeting.c              arguments; what a rank says of itself.
 *   meeting_message.c      one message on one socket, and descriptors beside it.
 *   meeting_callers.c      callers that have not said their rank yet.
 *   meeting_proof.c        both sides of a call prove that they know the job's secret.
 *   meeting_wait.c         when a waiting rank speaks, and lists of ranks.
 *   meeting_server.c       rank 0: listens until every rank has come.
 *   meeting_client.c       the other ranks: call until rank 0 knows them.
 *   rendezvous.c           a meeting on one host, at an abstract unix socket.
 *   rendezvous_exchange.c  bytes and descriptors afterwards, through rank 0.
 *   mesh.c                 a meeting of several hosts, at a port of TCP.
 *   mesh_address.c         addresses and connections of TCP.
 *   mesh_gather.c          before: ranks of a host gather, and one of them speaks for all.
 *   mesh_table.c           where all ranks are, as rank 0 tells.
 *   mesh_peers.c           connections between the hosts' speakers, then,
 *   mesh_connect.c         which belong to their leaders.
 *
 * Sockets are streams. Every message is a header and as many bytes as it says; its receiver knows
 * how many there can be.
 */
#ifndef COLLECTIVES_RENDEZVOUS_MEETING_H
#define COLLECTIVES_RENDEZVOUS_MEETING_H

#include "base/hmac.h"
#include "base/numbers.h"
#include "base/reminder.h"
#include "base/text.h"
#include "collectives/rendezvous/mesh.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#define BOOT_MAGIC UINT64_C(0x746f6f626f72657a) /**< "zeroboot" */
#define BOOT_PROTOCOL 5U                        /**< of the meeting, and of what follows it */

/** Rank 0 knows best why something fails: the others give it this long beyond a deadline to say
 * so. */
#define BOOT_GRACE_NS UINT64_C(500000000)

enum {
    BOOT_TEXT_BYTES = 400,                 /**< of a refusal's reason */
    BOOT_RANKS_BYTES = BASE_NUMBERS_BYTES, /**< of a list of ranks */
    BOOT_CALLERS_MAX = 64, /**< processes that have called but not said who they are */
};

/* ------------------------------------------------------------------ messages */

enum boot_message_type {
    BOOT_HELLO = 1,      /**< client to rank 0, the first one: struct boot_hello */
    BOOT_KNOWN = 2,      /**< the last answer to a call: you are one of mine; until then the called
                              rank may not have looked. With a secret its proof: BASE_HMAC_BYTES */
    BOOT_LATER = 3,      /**< or: call again, I am meeting for another communicator: its name */
    BOOT_FAIL = 4,       /**< the sender gives up; the payload is why */
    BOOT_TABLE = 5,      /**< rank 0 of several hosts: all are there: struct mesh_table's bytes */
    BOOT_PEER = 6,       /**< client to client: struct boot_peer */
    BOOT_READY = 7,      /**< client to rank 0: I am connected to all; or to its speaker: I have the
                            table, and      the connections if I lead this host */
    BOOT_GO = 8,         /**< rank 0: all have met; on one host with every rank's process id; of a
                              speaker with its rank, an int32_t */
    BOOT_MISSING = 9,    /**< rank 0, while it waits: a text, the ranks that have not come */
    BOOT_PART = 10,      /**< a rank's share of an exchange: struct boot_part, and its bytes */
    BOOT_CHALLENGE = 11, /**< to a caller that claims to know the secret: BASE_NONCE_BYTES */
    BOOT_PROOF = 12,     /**< the caller's answer: BASE_HMAC_BYTES */
    BOOT_MEMBER = 13,    /**< speaker to rank 0: a rank of its host has come: struct boot_member */
    BOOT_TURNED = 14,    /**< rank 0's answer if it is none: struct boot_turned, and why */
    BOOT_SOCKETS = 15, /**< speaker to the leader of its host: connections, in the table's order */
};

/** Before every payload; the first three fields stay here in every version from 3 on. */
struct boot_header {
    uint64_t magic;
    uint32_t protocol;
    uint32_t type;
    int32_t result;  /**< of BOOT_FAIL */
    uint32_t length; /**< of the payload */
    uint32_t fds;    /**< descriptors that come with this message */
    uint32_t zero;
};

/** Whether a caller will prove that it knows the job's secret: what introduces it begins so. */
struct boot_claim {
    uint32_t proves; /**< 1: it will; 0: it has no secret */
    uint32_t zero;
    unsigned char nonce[BASE_NONCE_BYTES]; /**< its own of this call; all zero without a secret */
};

struct boot_hello {
    struct boot_claim claim;
    int32_t rank, world;
    int32_t pid;
    uint32_t port; /**< where it listens for other clients; 0: on one host */
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
    char host[BOOT_HOST_BYTES];
    unsigned char host_id[BOOT_HOST_ID_BYTES];
};

struct boot_peer {
    struct boot_claim claim;
    uint64_t token;
    uint32_t rank, called; /**< who calls, and whom: a speaker goes by its host's lowest rank */
};

struct boot_member {
    int32_t rank, world;
    int32_t pid;
    uint32_t zero;
};

struct boot_turned {
    int32_t rank;
    int32_t result;
};

/** Closes *fd if it is open and makes it -1. */
void boot_fd_close(int *fd);

/** Milliseconds until the deadline for poll(2), rounded up, at most `most`; 0: it has passed. */
int boot_time_left(uint64_t deadline_ns, int most);

/** A stream socket that does not block and that no child gets; -1 with errno. */
int boot_socket(int family);

/** Accepts a connection. *fd is -1 if there is none any more. ZERO_E_LIMIT: descriptors are used
 * up; the message names the limit. ZERO_E_IO. */
zero_result boot_accept(int *fd, int listener, struct base_error *error);

/** Sends a message. ZERO_E_PEER, ZERO_E_TIMEOUT, ZERO_E_IO. */
zero_result boot_send(int fd, enum boot_message_type type, const void *payload, size_t length,
                      uint64_t deadline_ns, struct base_error *error);

/** boot_send() of a payload of two pieces, with `count` descriptors beside it. */
zero_result boot_send_with(int fd, enum boot_message_type type, const struct iovec payload[2],
                           const int *fds, int count, uint64_t deadline_ns,
                           struct base_error *error);

/** Says why this side gives up, without waiting. */
void boot_send_failure(int fd, zero_result result, const char *text);

/** Whether a header is of this protocol, with at most `most` bytes behind it. ZERO_E_INVALID,
 * ZERO_E_VERSION. */
zero_result boot_check(const struct boot_header *header, size_t most, struct base_error *error);

/** Receives `length` bytes. ZERO_E_PEER, ZERO_E_TIMEOUT, ZERO_E_IO. */
zero_result boot_receive_bytes(int fd, void *bytes, size_t length, uint64_t deadline_ns,
                               struct base_error *error);

/** Receives what there is of `size` bytes, of which *used have come before. Returns whether all are
 * there; *gone: no more will come. */
bool boot_receive_some(int fd, void *bytes, size_t size, size_t *used, bool *gone);

/** Receives a header, and checks it; of BOOT_FAIL also what follows, which it returns as a failure
 * of this rank: header->type is BOOT_FAIL then. */
zero_result boot_receive(int fd, struct boot_header *header, size_t most, uint64_t deadline_ns,
                         struct base_error *error);

/** boot_receive() with `room` descriptors, which the caller owns then. ZERO_E_IO: as many have not
 * arrived. No descriptor is left open after an error. */
zero_result boot_receive_with(int fd, struct boot_header *header, size_t most, int *fds, int room,
                              uint64_t deadline_ns, struct base_error *error);

/** Makes a text that came from elsewhere one: it ends, nothing is behind its end, and what is not
 * printable in ASCII is a '?'. */
void boot_clean(char *text, size_t size);

/* ------------------------------------------------------------------ waiting */

/** A wait that is spoken of while it lasts. */
struct boot_wait {
    uint64_t begun_ns;           /**< of base_clock_ns() */
    struct base_reminder said;   /**< reminders of this rank's */
    uint64_t told_ns;            /**< rank 0: when it has last told the others */
    bool (*asked)(void);         /**< boot_meeting.asked; NULL: a request does not end this wait */
    bool (*in_vain)(void *user); /**< boot_meeting.in_vain, */
    void *user;                  /**< and of it */
    uint64_t grace_ns;           /**< how much longer than rank 0 this rank waits then */
    uint64_t asked_ns; /**< when it was first seen that this rank is asked; 0: it is not */
};

/** Begins a wait that may last until the deadline. The first reminder is due after `remind_ns` (0:
 * BASE_REMINDER_NS), or half of the time there is. */
struct boot_wait boot_wait_begin(uint64_t remind_ns, uint64_t deadline_ns);

/** Whether this rank is to say now that it waits; *seconds: for how long it has. */
bool boot_wait_says(struct boot_wait *wait, double *seconds);

/** Whether rank 0 is to tell the others now which ranks are missing: often enough for each to know
 * before its first reminder. */
bool boot_wait_tells(struct boot_wait *wait);

/** Milliseconds for poll(2): until the deadline or the next reminder, at least 1, at most `most`;
 * 0: the deadline has passed, or a request to stop ends the wait, or it is in vain. */
int boot_wait_left(struct boot_wait *wait, uint64_t deadline_ns, int most);

/** Whether a request to stop ends the wait. It gives ranks that are on their way some time. */
bool boot_wait_stops(struct boot_wait *wait);

/** The failure then; `ranks` are those that this one waits for. ZERO_E_ABORTED. */
zero_result boot_fail_stopped(int rank, const char *ranks, int world, struct base_error *error);

/** The ranks that have not come, those without a process: "ranks 1-5, 7". */
const char *boot_missing_text(struct base_numbers *missing, const pid_t *pids, int world);

/* ------------------------------------------------------------------ proofs */

/** The sides of a call, as base_proof_make() tells them apart. */
struct boot_sides {
    const char *caller, *called;
};

extern const struct boot_sides boot_sides_of_rank_0; /**< a rank calls rank 0 */
extern const struct boot_sides boot_sides_of_host;   /**< it calls the speaker of its host */
extern const struct boot_sides boot_sides_of_peers;  /**< a speaker calls another one */

/** Makes the claim of a call that is about to begin, with a nonce of its own; `secret` "": there is
 * none. ZERO_E_IO. *Local.* */
zero_result boot_claim_make(struct boot_claim *claim, const char *secret, struct base_error *error);

/** Whether a caller's claim fits: both sides have a secret, or none has. ZERO_E_INVALID, with the
 * words for both sides. *Local.* */
zero_result boot_claim_check(const struct boot_claim *claim, const char *secret,
                             struct base_error *error);

/** The caller's side of a call, when it has sent what introduces it. */
struct boot_call {
    int fd;
    const char *secret; /**< "": none */
    const struct boot_sides *sides;
    const struct boot_claim *claim; /**< with which what it has said of itself begins, */
    size_t length;                  /**< so many bytes in all */
    uint64_t deadline_ns;
    bool proved; /**< it has been challenged, by `nonce`, and has answered */
    unsigned char nonce[BASE_NONCE_BYTES];
};

/** Answers BOOT_CHALLENGE, whose header has come. ZERO_E_INVALID: it is none, it is the second one,
 * or this rank has no secret; else as boot_send(). *Local.* */
zero_result boot_call_answer(struct boot_call *call, const struct boot_header *header,
                             struct base_error *error);

/** Receives BOOT_KNOWN, whose header has come, and checks that the called side knows the secret.
 * ZERO_E_INVALID: it does not; else as boot_receive_bytes(). *Local.* */
zero_result boot_call_known(const struct boot_call *call, const struct boot_header *header,
                            struct base_error *error);

/* ------------------------------------------------------------------ callers */

/** A process that has called this rank and not said yet, or not proved, who it is. */
struct boot_caller {
    int fd;
    uint64_t since_ns; /**< when it was let in, or challenged */
    pid_t pid;         /**< on one host: its process */
    bool challenged;   /**< it has introduced itself, and its proof is expected */
    size_t used;       /**< bytes that are there of `said`, or if it is challenged of `proof` */
    struct {
        struct boot_header header;
        union {
            struct boot_claim claim;
            struct boot_hello hello;
            struct boot_peer peer;
        };
    } said;
    unsigned char nonce[BASE_NONCE_BYTES]; /**< the challenge */
    struct {
        struct boot_header header;
        unsigned char mac[BASE_HMAC_BYTES];
    } proof;
};

/** How a rank receives callers. Both `introduce` and `refuse` take the caller's socket or close it,
 * and make caller->fd -1. */
struct boot_reception {
    enum boot_message_type type;    /**< of the message that introduces a caller */
    size_t length;                  /**< bytes of its payload, which begins with its claim */
    const char *secret;             /**< that a caller has to prove it knows; "": there is none */
    const struct boot_sides *sides; /**< names for the proofs */
    /** Why a caller is not let in before it says anything; NULL: it is. */
    const char *(*admit)(void *user, struct boot_caller *caller);
    /** A caller has introduced itself, and proved that it knows the secret. An error ends the
     * meeting. */
    zero_result (*introduce)(void *user, struct boot_caller *caller, struct base_error *error);
    /** A caller is not let in, for what it has said or for its silence; ZERO_E_PEER: it has hung
     * up. */
    void (*refuse)(void *user, struct boot_caller *caller, zero_result result, const char *why);
};

/** There is room for BOOT_CALLERS_MAX, or as many as there are descriptors for. While it is full,
 * new callers wait in the kernel's queue. If no descriptor is left, the oldest caller has to
 * introduce itself sooner. */
struct boot_callers {
    int count;
    bool crowded;                             /**< no descriptor is left for further callers */
    struct boot_caller all[BOOT_CALLERS_MAX]; /**< in the order in which they came */
};

/** Writes what to wait for: the listener, if there is room, and every caller. Returns how many
 * they are. *Local.* */
int boot_callers_poll(const struct boot_callers *callers, int listener, struct pollfd *polls);

/** For how long to wait at most, in milliseconds, so that a caller's silence is noticed. *Local.*
 */
int boot_callers_patience(const struct boot_callers *callers);

/** Deals with what has come, as poll() has found it: what callers say, and one newcomer. ZERO_E_IO:
 * no newcomer can be let in, now or when others have left; what `introduce` returns. *Local.* */
zero_result boot_callers_receive(struct boot_callers *callers,
                                 const struct boot_reception *reception, void *user, int listener,
                                 const struct pollfd *polls, struct base_error *error);

/** Tells a caller, without waiting, that it is one of those that are waited for: by BOOT_KNOWN,
 * with this side's proof if there is a secret. ZERO_E_PEER and the like: its connection has ended.
 * *Local.* */
zero_result boot_callers_welcome(const struct boot_caller *caller,
                                 const struct boot_reception *reception);

/** Hangs up on every caller. *Local.* */
void boot_callers_close(struct boot_callers *callers);

/* ------------------------------------------------------------------ the meeting */

struct meeting;

/** Where ranks meet: what a meeting on one host and one of several do differently. */
struct boot_way {
    size_t size;
    const char *name;
    bool apart; /**< ranks are on several hosts: texts name a rank's host, and callers are strangers
                     until they know the job's secret */
    /** Rank 0 begins to listen. */
    zero_result (*listen)(struct meeting *meeting, struct base_error *error);
    /** Another rank calls rank 0. ZERO_AGAIN, with why: rank 0 does not answer yet. */
    zero_result (*call)(struct meeting *meeting, struct base_error *error);
    /** What listened is not rank 0, or (`silent`) says nothing: whether rank 0 may be elsewhere,
     * where the next call goes. NULL: it is not. */
    bool (*is_elsewhere)(struct meeting *meeting, bool silent);
    /** Until when what is called now has to answer as rank 0; NULL: boot_patience(). */
    uint64_t (*answer_deadline)(const struct meeting *meeting);
    /** As boot_reception's; NULL: every caller is let in. */
    const char *(*admit)(void *user, struct boot_caller *caller);
    /** Rank 0 keeps what a rank has said of itself. ZERO_AGAIN: its connection has ended. An error
     * ends the meeting. */
    zero_result (*enter)(struct meeting *meeting, const struct boot_caller *caller,
                         struct base_error *error);
    /** Rank 0 hears from a rank that has come of another one. NULL: none speaks for others. */
    zero_result (*hear_member)(struct meeting *meeting, int speaker, struct base_error *error);
    /** Writes which ranks have come from where, as text to add to why others are waited for. NULL:
     * it is not known. */
    void (*come_text)(const struct meeting *meeting, struct base_text *text);
    /** A speaker waits for what rank 0 says: adds what else to poll, and returns how many these
     * are. This one and the next three are NULL if each rank speaks for itself. */
    int (*attend_poll)(const struct meeting *meeting, struct pollfd *polls);
    /** Deals with what has come of these. */
    zero_result (*attend)(struct meeting *meeting, const struct pollfd *polls,
                          struct base_error *error);
    /** Hears that rank 0 refuses a rank that this one speaks for. */
    zero_result (*hear_turned)(struct meeting *meeting, size_t length, struct base_error *error);
    /** Passes on which ranks are missing. */
    void (*pass_missing)(const struct meeting *meeting);
    /** Writes who calls: "process 7", "a call from 10.0.0.1". */
    void (*caller_text)(const struct boot_caller *caller, char text[BOOT_TEXT_BYTES]);
    /** Writes where rank 0 waits for the others. */
    void (*place_text)(const struct meeting *meeting, char text[BOOT_TEXT_BYTES]);
    /** Adds that rank 0 is not reached, where and why; `result` is ZERO_AGAIN if time is up. */
    void (*unreached_text)(const struct meeting *meeting, zero_result result, const char *why,
                           struct base_text *text);
    /** Warns that this rank has waited for these ones. `why`: for rank 0, which has not answered
     * so far; else NULL. */
    void (*say_waiting)(struct meeting *meeting, double seconds, const char *ranks,
                        const char *why);
    /** All have come: rank 0, and another rank, do what remains. */
    zero_result (*finish_server)(struct meeting *meeting, struct base_error *error);
    zero_result (*finish_client)(struct meeting *meeting, struct base_error *error);
};

/** One rank's part of a meeting. */
struct meeting {
    const struct boot_way *way;
    const struct boot_meeting *place;
    const struct boot_master *master; /**< of several hosts */
    const char *secret;               /**< the job's; "": it has none, or is on one host */
    int *sockets;                     /**< of every rank; -1: none. Others than rank 0 may have one,
                                           to rank 0, or, if `member`, to their host's speaker */
    pid_t *pids;                      /**< of every rank; rank 0: 0, it has not come */
    char (*hosts)[BOOT_HOST_BYTES];   /**< of every rank; NULL: on one host */
    struct boot_hello hello;          /**< what this rank says of itself */
    struct mesh_places *places;       /**< of several hosts: where the ranks are */
    struct mesh_gathering *gathering; /**< of several hosts: those this rank speaks for; or NULL */
    bool member;                      /**< another rank of this host speaks for this one, */
    pid_t speaker;                    /**< of that process; 0: it is not known */
    int listener;                     /**< -1: none */
    int absent;                       /**< rank 0: how many ranks have not come */
    int *known;                       /**< rank 0: the ranks to which it has sockets, */
    int known_count;                  /**< in the order in which they came */
    struct boot_callers *callers;
    struct pollfd *polls; /**< scratch: 2 + BOOT_CALLERS_MAX + world */
    struct boot_wait wait;
    const char *doubt; /**< rank 0: what is wrong with its address, once ranks are waited for */
    bool told;         /**< rank 0 is not to hear why this rank fails: it has said so itself, or
                            has heard that this rank is ready */
    char missing[BOOT_RANKS_BYTES]; /**< the ranks that are missing, as rank 0 has told last */
    int turn; /**< of several hosts: which of rank 0's names is called first, if it has several */
    int strangers;               /**< how many calls other processes have answered than rank 0 */
    char other[BOOT_TEXT_BYTES]; /**< that a rank is opening another communicator; "": none is */
};

/** Meets as rank 0 or another rank. `meeting` has way, place, what the way needs, and the arrays of
 * all ranks. ZERO_E_NOMEM; errors: boot_meet(), boot_mesh_open(). *Collective.* */
zero_result boot_meeting_run(struct meeting *meeting, struct base_error *error);

/** Whether rank and world, job and name can be those of a meeting of at most `most` ranks. */
zero_result boot_meeting_check(const struct boot_meeting *place, int most,
                               struct base_error *error);

/** There is no memory for a meeting. ZERO_E_NOMEM. */
zero_result boot_fail_memory(const struct boot_meeting *place, struct base_error *error);

/** Writes the name of this host, printable. */
void boot_host_name(char name[BOOT_HOST_BYTES]);

/** Writes a rank as texts name it: "rank 2 (host a, process 7)". Returns the text. */
const char *boot_rank_text(const struct meeting *meeting, int rank, char text[BOOT_TEXT_BYTES]);

/** Rank 0: a rank that was missing has come. */
void boot_come(struct meeting *meeting, int rank, pid_t pid);

/** Rank 0: a rank went away before all had met. ZERO_E_PEER. */
zero_result boot_fail_gone(const struct meeting *meeting, int rank, struct base_error *error);

/** Rank 0: sends every rank that it has a socket to this message. ZERO_E_PEER, ZERO_E_TIMEOUT,
 * ZERO_E_IO. */
zero_result boot_send_all(const struct meeting *meeting, enum boot_message_type type,
                          const void *payload, size_t length, struct base_error *error);

/** Another rank: until when it waits for rank 0. */
uint64_t boot_patience(const struct meeting *meeting);

/** Another rank: waits for rank 0's message of this type, with so many bytes. */
zero_result boot_hear(struct meeting *meeting, enum boot_message_type type, void *payload,
                      size_t length, struct base_error *error);

/** boot_hear() of at most `most` bytes; *length: how many. */
zero_result boot_hear_some(struct meeting *meeting, enum boot_message_type type, void *payload,
                           size_t most, size_t *length, struct base_error *error);

/** boot_hear() of `count` descriptors, which the caller owns then, and no byte. */
zero_result boot_hear_fds(struct meeting *meeting, enum boot_message_type type, int *fds, int count,
                          struct base_error *error);

/** Meets as rank 0; as another rank. */
zero_result boot_server(struct meeting *meeting, struct base_error *error);
zero_result boot_client(struct meeting *meeting, struct base_error *error);

/* ------------------------------------------------------------------ on one host */

/** What an exchange is about. */
enum boot_share { BOOT_SHARE_BYTES = 0, BOOT_SHARE_FDS = 1 };

/** Before the bytes of a rank's share of an exchange. */
struct boot_part {
    uint64_t sequence; /**< number of the exchange */
    uint64_t total;    /**< bytes of a share, or its descriptors */
    uint32_t source;   /**< whose share */
    uint32_t kind;     /**< an enum boot_share */
};

struct boot_link {
    int rank, world;
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
    const struct base_log *log;
    uint64_t remind_ns; /**< boot_meeting.remind_ns */
    uint64_t sequence;  /**< exchanges so far */
    int *sockets;       /**< rank 0: one a rank, -1 its own; others: the one to rank 0 */
    int socket_count;
    int *watched; /**< descriptors of the peers' processes */
    pid_t *pids;
    int watch;            /**< epoll over `watched`; -1 none */
    struct pollfd *polls; /**< scratch: world + 1 */
};

/** The process at the other end of a unix socket; false with errno. */
bool boot_find_peer(int fd, struct ucred *peer);

/** boot_reception.admit of a unix socket: processes of this user are let in. */
const char *boot_admit_user(void *user, struct boot_caller *caller);

/** The socket's name: of this user, job and communicator. Returns the address's length. */
socklen_t boot_address(struct sockaddr_un *address, const char *job, const char *name);

/** The name of the socket at which the ranks of one host gather that meet others at this port. */
socklen_t boot_host_address(struct sockaddr_un *address, const struct boot_meeting *place, int port,
                            const unsigned char host_id[BOOT_HOST_ID_BYTES]);

#endif
