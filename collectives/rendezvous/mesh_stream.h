/**
 * What the files of a meeting of several hosts share: messages on TCP connections.
 *
 *   master_address.c  where rank 0 is.
 *   mesh_stream.c     addresses, connections, messages.
 *   mesh.c            opening and closing; arguments.
 *   mesh_callers.c    callers that have not said their rank yet.
 *   mesh_server.c     rank 0: listens until every rank has come, and says where each is.
 *   mesh_client.c     the other ranks: call rank 0, then each other.
 *   mesh_table.c      they check what rank 0 says of where the ranks are.
 *
 * Every message is a header and as many bytes as it says; its receiver knows how many there can be.
 */
#ifndef COLLECTIVES_RENDEZVOUS_MESH_STREAM_H
#define COLLECTIVES_RENDEZVOUS_MESH_STREAM_H

#include "collectives/rendezvous/mesh.h"
#include "collectives/rendezvous/rendezvous_link.h"

#define MESH_MAGIC UINT64_C(0x6873656d6f72657a) /**< "zeromesh" */
#define MESH_PROTOCOL 2U                        /**< of the meeting, and of what follows it */

enum { MESH_ADDRESS_BYTES = 16 }; /**< of IPv6, or IPv4 as a part of it (RFC 4291, 2.5.5.2) */

enum mesh_type {
    MESH_HELLO = 1,   /**< client to rank 0, the first one: struct mesh_hello */
    MESH_KNOWN = 2,   /**< its answer: you are one of mine; until then it may not have looked */
    MESH_LATER = 3,   /**< or: call again, I am meeting for another communicator: its name */
    MESH_FAIL = 4,    /**< the sender gives up; the payload is why */
    MESH_TABLE = 5,   /**< rank 0: all are there: the token, and a struct mesh_entry a rank */
    MESH_PEER = 6,    /**< client to client: struct mesh_peer */
    MESH_READY = 7,   /**< client to rank 0: I am connected to all */
    MESH_GO = 8,      /**< rank 0: so are all others */
    MESH_MISSING = 9, /**< rank 0, before MESH_TABLE: a text, the ranks that have not come */
};

/** Before every payload; the same in every version. */
struct mesh_header {
    uint64_t magic;
    uint32_t protocol;
    uint32_t type;
    int32_t result; /**< of MESH_FAIL */
    uint32_t length;
};

struct mesh_hello {
    int32_t rank, world;
    int32_t pid;
    uint32_t port; /**< where it listens for other clients */
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
    char secret[BOOT_SECRET_BYTES];
    char host[BOOT_HOST_BYTES];
    unsigned char host_id[BOOT_HOST_ID_BYTES];
};

struct mesh_entry {
    unsigned char address[MESH_ADDRESS_BYTES];
    uint32_t port;
    int32_t pid;
    char host[BOOT_HOST_BYTES];
    unsigned char host_id[BOOT_HOST_ID_BYTES];
};

struct mesh_peer {
    uint64_t token;
    uint32_t rank, zero;
};

/** One rank's part of a meeting. */
struct mesh_meeting {
    struct boot_mesh *mesh;
    const struct boot_meeting *place;
    const struct boot_master *master;
    unsigned char *table;       /**< the payload of MESH_TABLE, */
    struct mesh_entry *entries; /**< and its entries */
    struct mesh_callers *callers;
    struct pollfd *polls;           /**< scratch: 1 + BOOT_CALLERS_MAX + world */
    struct boot_wait wait;          /**< of the whole meeting */
    char missing[BOOT_RANKS_BYTES]; /**< what rank 0 has told last of the ranks that are missing;
                                         "": nothing */
    char other[BOOT_NAME_BYTES];    /**< the communicator that rank 0 was meeting for when this
                                         rank called last; "": this one */
};

/** Bytes of MESH_TABLE's payload. */
static inline size_t mesh_table_bytes(int world)
{
    return sizeof(uint64_t) + (size_t)world * sizeof(struct mesh_entry);
}

/* ---- mesh_stream.c */

/** Whether an address never leaves its host. */
bool mesh_is_loopback(const unsigned char address[MESH_ADDRESS_BYTES]);

/** Whether it is no address, but stands for any. */
bool mesh_is_any(const unsigned char address[MESH_ADDRESS_BYTES]);

/** The addresses of a socket: of this end, or of the other one. False: it has none, as a
 * connection that has ended. */
bool mesh_address(int fd, bool other, unsigned char address[MESH_ADDRESS_BYTES], int *port);

/** Finds out whether rank 0's address is by itself one that never leaves its host, and which. */
bool mesh_names_loopback(const struct boot_master *master,
                         unsigned char address[MESH_ADDRESS_BYTES]);

/** What is wrong with rank 0's address as seen from rank 0's own host, for people: that it does not
 * resolve, is no address of this host, or one that no other host reaches. NULL: nothing. May take
 * as long as the resolver. */
const char *mesh_doubt(const struct boot_master *master);

/** Listens at an address (all zero: any) and a port (0: any). ZERO_AGAIN: it is in use. */
zero_result mesh_listen(int *fd, const unsigned char address[MESH_ADDRESS_BYTES], int port,
                        int backlog, struct base_error *error);

/** Connects to an address. ZERO_E_IO, with why: it does not answer. */
zero_result mesh_connect(int *fd, const unsigned char address[MESH_ADDRESS_BYTES], int port,
                         uint64_t deadline_ns, struct base_error *error);

/** Connects to any address that rank 0's name stands for. ZERO_E_IO, with why: none answers. */
zero_result mesh_call(int *fd, const struct boot_master *master, uint64_t deadline_ns,
                      struct base_error *error);

/** Accepts a connection. *fd is -1 if there is none any more. ZERO_E_LIMIT: descriptors are used
 * up; the message names the limit. ZERO_E_IO. */
zero_result mesh_accept(int *fd, int listener, struct base_error *error);

/** Sends a message. ZERO_E_PEER, ZERO_E_TIMEOUT, ZERO_E_IO. */
zero_result mesh_send(int fd, enum mesh_type type, const void *payload, size_t length,
                      uint64_t deadline_ns, struct base_error *error);

/** Says why this side gives up, without waiting. */
void mesh_send_failure(int fd, zero_result result, const char *text);

/** Whether a header is of this protocol, with at most `most` bytes behind it. ZERO_E_INVALID,
 * ZERO_E_VERSION. */
zero_result mesh_check(const struct mesh_header *header, size_t most, struct base_error *error);

/** Receives `length` bytes. ZERO_E_PEER, ZERO_E_TIMEOUT, ZERO_E_IO. */
zero_result mesh_receive_bytes(int fd, void *bytes, size_t length, uint64_t deadline_ns,
                               struct base_error *error);

/** Receives what there is of `size` bytes, of which *used have come before. Returns whether all are
 * there; *gone: no more will come. */
bool mesh_receive_some(int fd, void *bytes, size_t size, size_t *used, bool *gone);

/** Receives a header, and checks it; of MESH_FAIL also what follows, which it returns as a failure
 * of this rank. */
zero_result mesh_receive(int fd, struct mesh_header *header, size_t most, uint64_t deadline_ns,
                         struct base_error *error);

/** Writes where rank 0 is, for people: "port 6106 of 10.0.0.4 (MASTER_ADDR, MASTER_PORT + 1)". */
void mesh_place_text(const struct boot_master *master, char text[BOOT_TEXT_BYTES]);

/** Makes a text that came from elsewhere one: it ends, nothing is behind its end, and what is not
 * printable in ASCII is a '?'. */
void mesh_clean(char *text, size_t size);

/* ---- mesh_table.c */

/** Whether the table that came is one of ranks that can be called. ZERO_E_INVALID, naming the first
 * thing that is not as it should be. */
zero_result mesh_check_table(const struct mesh_meeting *meeting, struct base_error *error);

/* ---- mesh_server.c, mesh_client.c */

/** Meets as rank 0; as another rank. Errors: boot_mesh_open(). */
zero_result mesh_server(struct mesh_meeting *meeting, struct base_error *error);
zero_result mesh_client(struct mesh_meeting *meeting, struct base_error *error);

#endif
