/**
 * What the files of the rendezvous share: the link, and messages on its sockets.
 *
 *   meet.c      opening and closing; arguments; who watches whom
 *   host.c      rank 0: listens until every rank has come
 *   guest.c     the other ranks: call until rank 0 answers
 *   exchange.c  bytes and descriptors, through rank 0
 *   message.c   one message on one socket
 *
 * Sockets are sequenced packets, so a message arrives whole or not at all, and one that is longer
 * than it may be shows itself.
 */
#ifndef COLLECTIVES_BOOT_LINK_H
#define COLLECTIVES_BOOT_LINK_H

#include "collectives/boot/boot.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BOOT_MAGIC UINT64_C(0x746f6f626f72657a) /**< "zeroboot" */
#define BOOT_PROTOCOL 1U

/** Rank 0 knows best why something fails: the others give it this long beyond a deadline to say
 * so. */
#define BOOT_VERDICT_NS UINT64_C(500000000)

enum {
    BOOT_TEXT_BYTES = 400,       /**< of a refusal's reason */
    BOOT_RANKS_BYTES = 160,      /**< of a list of ranks */
    BOOT_PART_BYTES = 32 * 1024, /**< payload of a message, at most */
    BOOT_CALLERS_MAX = 64,       /**< processes that have called but not said who they are */
};

enum boot_message_type {
    BOOT_HELLO = 1,   /**< payload: struct boot_hello */
    BOOT_WELCOME = 2, /**< every rank is there */
    BOOT_FAIL = 3,    /**< payload: struct boot_failure; the sender gives up */
    BOOT_PART = 4,    /**< a part of rank `source`'s share of an exchange */
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

struct boot_link {
    int rank, world;
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
    const struct base_log *log;
    uint64_t sequence; /**< exchanges so far */
    int *sockets;      /**< rank 0: one a rank, -1 its own; others: the one to rank 0 */
    int socket_count;
    int *watched; /**< descriptors of the peers' processes */
    pid_t *pids;
    int watch;                    /**< epoll over `watched`; -1 none */
    struct boot_message *message; /**< the one being received */
    struct pollfd *polls;         /**< scratch: 1 + BOOT_CALLERS_MAX + world */
};

/* ---- message.c */

/** No child gets this new descriptor (base/forked.h). Returns fd, or -1 with errno if it is -1
 * already, or cannot be guarded, and then is closed. */
int boot_fd_guard(int fd);

/** Closes *fd if it is open and makes it -1. */
void boot_fd_close(int *fd);

/** Milliseconds until the deadline for poll(2), rounded up, at most `most`; 0: it has passed. */
int boot_time_left(uint64_t deadline_ns, int most);

/** Writes which ranks rank 0 has no connection to: "ranks 1, 4", or "rank 2"; the first 16, and how
 * many more. */
void boot_missing_text(const int *sockets, int world, char text[BOOT_RANKS_BYTES]);

/**
 * Sends header and payload, and `count` descriptors beside them. header->magic, protocol and fds
 * are filled in. ZERO_E_TIMEOUT, ZERO_E_PEER (the other end is closed), ZERO_E_IO.
 */
zero_result boot_send(int fd, struct boot_header *header, const void *payload, const int *fds,
                      int count, uint64_t deadline_ns, struct base_error *error);

/** Whether the payload of a whole message is what its header says. */
bool boot_message_valid(const struct boot_message *message, size_t bytes);

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

/* ---- host.c, guest.c */

/** The socket's name: of this user, job and communicator. Returns the address's length. */
socklen_t boot_address(struct sockaddr_un *address, const struct boot_link *link);

/** Meets as rank 0; as another rank. Errors: boot_meet(). */
zero_result boot_host(struct boot_link *link, uint64_t deadline_ns, struct base_error *error);
zero_result boot_guest(struct boot_link *link, uint64_t deadline_ns, struct base_error *error);

#endif
