/**
 * What the files of the rendezvous share: the link, and messages on its sockets.
 *
 *   rendezvous.c           opening and closing; arguments; which rank watches which.
 *   rendezvous_server.c    rank 0: listens until every rank has come.
 *   rendezvous_client.c    the other ranks: call until rank 0 answers.
 *   rendezvous_exchange.c  bytes and descriptors, through rank 0.
 *   rendezvous_message.c   one message on one socket.
 *   rendezvous_wait.c      what a rank says while it waits, and lists of ranks.
 *
 * Sockets are sequenced packets, so a message arrives whole or not at all, and one that is longer
 * than it may be shows itself.
 */
#ifndef COLLECTIVES_RENDEZVOUS_RENDEZVOUS_LINK_H
#define COLLECTIVES_RENDEZVOUS_RENDEZVOUS_LINK_H

#include "base/numbers.h"
#include "base/reminder.h"
#include "collectives/rendezvous/rendezvous.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BOOT_MAGIC UINT64_C(0x746f6f626f72657a) /**< "zeroboot" */
#define BOOT_PROTOCOL 2U

/** Rank 0 knows best why something fails: the others give it this long beyond a deadline to say
 * so. */
#define BOOT_VERDICT_NS UINT64_C(500000000)

enum {
    BOOT_TEXT_BYTES = 400,                 /**< of a refusal's reason */
    BOOT_RANKS_BYTES = BASE_NUMBERS_BYTES, /**< of a list of ranks */
    BOOT_PART_BYTES = 32 * 1024,           /**< payload of a message, at most */
    BOOT_CALLERS_MAX = 64, /**< processes that have called but not said who they are */
};

enum boot_message_type {
    BOOT_HELLO = 1,   /**< payload: struct boot_hello */
    BOOT_WELCOME = 2, /**< every rank is there */
    BOOT_FAIL = 3,    /**< payload: struct boot_failure; the sender gives up */
    BOOT_PART = 4,    /**< a part of rank `source`'s share of an exchange */
    BOOT_MISSING = 5, /**< payload: a text, the ranks that rank 0 still waits for */
};

/** What an exchange is about. */
enum boot_share { BOOT_SHARE_BYTES = 0, BOOT_SHARE_FDS = 1 };

/** Before every payload. */
struct boot_header {
    uint64_t magic;
    uint32_t protocol; /**< magic, protocol and type stay here in every version */
    uint32_t type;
    uint64_t sequence; /**< number of the exchange */
    uint32_t source;   /**< whose share */
    uint32_t fds;      /**< descriptors that come with this message */
    uint64_t total;    /**< bytes of a share, or its descriptors */
    uint64_t offset;   /**< first byte of this part */
    uint32_t length;   /**< of the payload */
    uint32_t kind;     /**< an enum boot_share */
};

struct boot_hello {
    int32_t rank, world;
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
};

struct boot_failure {
    int32_t result;
    char text[BOOT_TEXT_BYTES];
};

struct boot_message {
    struct boot_header header;
    unsigned char payload[BOOT_PART_BYTES];
};

/** A wait that is spoken of while it lasts. */
struct boot_wait {
    uint64_t begun_ns;         /**< of base_clock_ns() */
    struct base_reminder said; /**< reminders of this rank's */
    uint64_t told_ns;          /**< rank 0: when it has last told the others */
    bool (*asked)(void);       /**< boot_meeting.asked; NULL: a request does not end this wait */
    uint64_t verdict_ns;       /**< how much longer than rank 0 this rank waits then */
    uint64_t asked_ns;         /**< when it was first seen that this rank is asked; 0: it is not */
};

struct boot_link {
    int rank, world;
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
    const struct base_log *log;
    bool all_here;                  /**< boot_meeting.all_here */
    uint64_t remind_ns;             /**< boot_meeting.remind_ns */
    bool (*asked)(void);            /**< boot_meeting.asked */
    uint64_t sequence;              /**< exchanges so far */
    char missing[BOOT_RANKS_BYTES]; /**< what rank 0 has told of it last; "": nothing */
    int *sockets; /**< rank 0: one a rank, -1 its own; others: the one to rank 0 */
    int socket_count;
    int *watched; /**< descriptors of the peers' processes */
    pid_t *pids;
    int watch;                    /**< epoll over `watched`; -1 none */
    struct boot_message *message; /**< the one being received */
    struct pollfd *polls;         /**< scratch: 1 + BOOT_CALLERS_MAX + world */
};

/* ---- rendezvous_message.c */

/** No child gets this new descriptor (base/forked.h). Returns fd, or -1 with errno if it is -1
 * already, or cannot be guarded, and then is closed. */
int boot_fd_guard(int fd);

/** Closes *fd if it is open and makes it -1. */
void boot_fd_close(int *fd);

/** Milliseconds until the deadline for poll(2), rounded up, at most `most`; 0: it has passed. */
int boot_time_left(uint64_t deadline_ns, int most);

/**
 * Sends header and payload, and `count` descriptors beside them. header->magic, protocol and fds
 * are filled in. ZERO_E_TIMEOUT, ZERO_E_PEER (the other end is closed), ZERO_E_IO.
 */
zero_result boot_send(int fd, struct boot_header *header, const void *payload, const int *fds,
                      int count, uint64_t deadline_ns, struct base_error *error);

/**
 * Receives one message with up to `room` descriptors into fds (then owned by the caller; others
 * are closed), if there is one: *arrived says so. ZERO_E_PEER: the other end is closed;
 * ZERO_E_INVALID: it is no message of this protocol; ZERO_E_VERSION: of another version of it;
 * ZERO_E_IO. No descriptor is left open after an error.
 */
zero_result boot_receive(int fd, struct boot_message *message, int *fds, int room, bool *arrived,
                         struct base_error *error);

/** Tells every rank that rank 0 has met so far that it gives up, and why. */
void boot_tell_ranks(struct boot_link *link, zero_result result, const char *text);

/** Tells a peer, if it listens, that this side gives up, and why. */
void boot_send_failure(int fd, zero_result result, const char *text);

/** The failure a peer has sent, as this rank's own. */
zero_result boot_peer_failure(const struct boot_message *message, struct base_error *error);

/* ---- rendezvous_wait.c */

/** Begins a wait that may last until the deadline. The first reminder is due after `remind_ns` (0:
 * BASE_REMINDER_NS), or half of the time there is. */
struct boot_wait boot_wait_begin(uint64_t remind_ns, uint64_t deadline_ns);

/** Whether this rank is to say now that it waits; *seconds: for how long it has. */
bool boot_wait_says(struct boot_wait *wait, double *seconds);

/** Whether rank 0 is to tell the others now which ranks are missing: often enough for each to know
 * before its first reminder. */
bool boot_wait_tells(struct boot_wait *wait);

/** Milliseconds for poll(2): until the deadline or the next reminder, at least 1, at most `most`;
 * 0: the deadline has passed, or a request to stop ends the wait. */
int boot_wait_left(struct boot_wait *wait, uint64_t deadline_ns, int most);

/** Whether a request to stop ends the wait. It gives ranks that are on their way some time. */
bool boot_wait_stops(struct boot_wait *wait);

/** The failure then; `ranks` are those that this one waits for. ZERO_E_ABORTED. */
zero_result boot_fail_stopped(int rank, const char *ranks, int world, struct base_error *error);

/** Warns that this rank waits for these ones at the rendezvous of one host, in words that are the
 * same on every rank that does: zero-run shows equal lines once. */
void boot_say_waiting(const struct boot_link *link, double seconds, const char *ranks,
                      const char *why);

/** The ranks from `first` on to which there is no connection: "ranks 1-5, 7". */
const char *boot_missing_text(struct base_numbers *missing, const int *sockets, int first,
                              int world);

/* ---- rendezvous_server.c, rendezvous_client.c */

/** The socket's name: of this user, job and communicator. Returns the address's length. */
socklen_t boot_address(struct sockaddr_un *address, const struct boot_link *link);

/** Writes where the ranks meet, for people: the socket as ss(8) shows it, job and name, and who can
 * come there. */
void boot_place_text(const struct boot_link *link, char text[BOOT_TEXT_BYTES]);

/** Meets as rank 0; as another rank. Errors: boot_meet(). */
zero_result boot_server(struct boot_link *link, uint64_t deadline_ns, struct base_error *error);
zero_result boot_client(struct boot_link *link, uint64_t deadline_ns, struct base_error *error);

#endif
