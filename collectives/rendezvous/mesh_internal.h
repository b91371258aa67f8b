/**
 * What the files of a meeting of several hosts share: addresses and connections of TCP, and the
 * table of where all ranks are.
 */
#ifndef COLLECTIVES_RENDEZVOUS_MESH_INTERNAL_H
#define COLLECTIVES_RENDEZVOUS_MESH_INTERNAL_H

#include "collectives/rendezvous/meeting.h"

enum { MESH_ADDRESS_BYTES = 16 }; /**< of IPv6, or IPv4 as a part of it (RFC 4291, 2.5.5.2) */

/** Where a rank is. */
struct mesh_entry {
    unsigned char address[MESH_ADDRESS_BYTES];
    uint32_t port;
    int32_t pid;
    char host[BOOT_HOST_BYTES];
    unsigned char host_id[BOOT_HOST_ID_BYTES];
};

/** The payload of BOOT_TABLE. */
struct mesh_table {
    uint64_t token; /**< by which the ranks of this meeting know each other */
    struct mesh_entry entries[];
};

static inline size_t mesh_table_bytes(int world)
{
    return sizeof(struct mesh_table) + (size_t)world * sizeof(struct mesh_entry);
}

/* ---- mesh_address.c */

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

/** How many names or addresses rank 0's address has, with commas between them. */
int mesh_count_names(const struct boot_master *master);

/** Connects to any address that one of rank 0's names stands for: these are tried in turn, from
 * number `first` on, modulo how many there are. ZERO_E_IO, with why: none answers. */
zero_result mesh_call(int *fd, const struct boot_master *master, int first, uint64_t deadline_ns,
                      struct base_error *error);

/* ---- mesh.c */

/** Says, when it is time to, for what this rank waits: `what` follows the time in the sentence. */
void mesh_remind(struct meeting *meeting, const char *what);

/* ---- mesh_connect.c */

/** Rank 0 keeps where a rank that has come is. False: its connection has ended. */
bool mesh_enter(struct meeting *meeting, const struct boot_caller *caller);

/** Rank 0 tells all ranks where they are, and waits until each is connected to all others. */
zero_result mesh_finish_server(struct meeting *meeting, struct base_error *error);

/** Another rank hears where the ranks are, and gets a connection to each. */
zero_result mesh_finish_client(struct meeting *meeting, struct base_error *error);

#endif
