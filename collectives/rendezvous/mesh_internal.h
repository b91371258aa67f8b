/**
 * What the files of a meeting of several hosts share: addresses and connections of TCP, and the
 * table of where all ranks are.
 */
#ifndef COLLECTIVES_RENDEZVOUS_MESH_INTERNAL_H
#define COLLECTIVES_RENDEZVOUS_MESH_INTERNAL_H

#include "collectives/rendezvous/meeting.h"

enum { MESH_ADDRESS_BYTES = 16 }; /**< of IPv6, or IPv4 as a part of it (RFC 4291, 2.5.5.2) */

/** Where a speaker is: a rank that has called rank 0, for itself and for the ranks of its host. */
struct mesh_entry {
    unsigned char address[MESH_ADDRESS_BYTES];
    uint32_t port;
    int32_t rank; /**< the lowest of those that it speaks for, by which it goes */
    char host[BOOT_HOST_BYTES];
    unsigned char host_id[BOOT_HOST_ID_BYTES];
};

/** A rank in the table. */
struct mesh_rank {
    int32_t pid;
    uint32_t entry; /**< of its speaker; entry 0 is rank 0 itself */
};

/** Speakers besides rank 0: that of each host, and on rank 0's host that of the others. */
enum { MESH_SPEAKERS = BOOT_MESH_MAX };

/** The payload of BOOT_TABLE, but for what stands behind it: the entries, in the order of their
 * ranks. */
struct mesh_table {
    uint64_t token; /**< by which the ranks of this meeting know each other */
    struct mesh_rank ranks[];
};

static inline size_t mesh_table_bytes(int world, int entries)
{
    return sizeof(struct mesh_table) + (size_t)world * sizeof(struct mesh_rank) +
           (size_t)entries * sizeof(struct mesh_entry);
}

static inline struct mesh_entry *mesh_entries(struct mesh_table *table, int world)
{
    return (struct mesh_entry *)(void *)(table->ranks + world);
}

/** Where all ranks are. */
struct mesh_places {
    struct mesh_table *table;
    struct mesh_entry *entries; /**< behind it, room for most_entries */
    int count, most;            /**< entries */
    int *leaders;               /**< of each entry, the first one of its host */
    int *speakers;              /**< rank 0: of each entry, the rank that has called */
};

/** A rank of this host that this one speaks for. */
struct mesh_member {
    int fd; /**< -1: it has been turned away */
    int rank;
    pid_t pid;
};

/** The ranks of this host that this one speaks for; who they are, and where they call it. */
struct mesh_gathering {
    int listener; /**< -1: this rank speaks for none, or all have come */
    int count;
    struct mesh_member members[]; /**< room for BOOT_HOST_RANKS_MAX, or all ranks */
};

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

/* ---- mesh_gather.c: ranks of one host but rank 0 gather, before one of them calls rank 0 */

/** Room for the ranks of a host; NULL: no memory, or each rank speaks for itself. */
struct mesh_gathering *mesh_gathering_create(const struct boot_meeting *place);

/** Finds the speaker of this host and calls it, or becomes it. meeting->member: it has called
 * another one. ZERO_AGAIN: another rank is about to be it. ZERO_E_INVALID, ZERO_E_IO. */
zero_result mesh_gather(struct meeting *meeting, struct base_error *error);

/** What a speaker does while it waits for rank 0's word: boot_way.attend_poll, .attend,
 * .hear_turned and .pass_missing. */
int mesh_gather_poll(const struct meeting *meeting, struct pollfd *polls);
zero_result mesh_gather_attend(struct meeting *meeting, const struct pollfd *polls,
                               struct base_error *error);
zero_result mesh_gather_turned(struct meeting *meeting, size_t length, struct base_error *error);
void mesh_gather_missing(const struct meeting *meeting);

/** All have come: the speaker listens to no other one. */
void mesh_gather_end(struct meeting *meeting);

/** Sends all members a message. ZERO_E_PEER, ZERO_E_TIMEOUT, ZERO_E_IO, naming the rank. */
zero_result mesh_gather_tell(const struct meeting *meeting, enum boot_message_type type,
                             const void *payload, size_t length, struct base_error *error);

/** Waits until all members have taken the table and the connections that it has handed over. Errors
 * are mesh_gather_tell()'s, and what a member says that gives up. */
zero_result mesh_gather_await_ready(const struct meeting *meeting, struct base_error *error);

/** Hands connections over to a member, BOOT_FDS_MAX at a time. */
zero_result mesh_gather_hand_over(const struct meeting *meeting, int rank, const int *fds,
                                  int count, struct base_error *error);

/** Tells all members that all have met. One that does not hear it is shown the end of its
 * connection, as by a death that the others then see. */
void mesh_gather_let_go(const struct meeting *meeting);

/** The connections to the members become this rank's, by their ranks. */
void mesh_gather_keep(struct meeting *meeting);

/** Closes the connections to the members, and tells those that have called, if `result` is no
 * success, why there is no meeting. */
void mesh_gather_close(struct meeting *meeting, zero_result result, const char *why);

/* ---- mesh_table.c */

/** Room for the ranks and their speakers. False: no memory. */
bool mesh_places_create(struct mesh_places *places, const struct boot_meeting *place);
void mesh_places_free(struct mesh_places *places);

/** The entry of the leader of an entry's host: the first one of that host. */
int mesh_leader_entry(const struct mesh_places *places, int entry);

/** Whether the speaker of an entry gets connections to those of other hosts. */
bool mesh_connects(const struct meeting *meeting, int entry);

/** Whether a caller has hung up, as one does that calls several addresses in turn. */
bool mesh_has_hung_up(int fd);

/** Rank 0 keeps where a speaker that has called is: boot_way.enter. */
zero_result mesh_enter(struct meeting *meeting, const struct boot_caller *caller,
                       struct base_error *error);

/** Rank 0 hears from a speaker that a rank of its host has come: boot_way.hear_member. */
zero_result mesh_hear_member(struct meeting *meeting, int speaker, struct base_error *error);

/** Writes which ranks have come, by hosts: boot_way.come_text. */
void mesh_come_text(const struct meeting *meeting, struct base_text *text);

/** Rank 0 tells all speakers where the ranks are. */
zero_result mesh_send_table(struct meeting *meeting, struct base_error *error);

/** Another rank hears it, and checks it. */
zero_result mesh_hear_table(struct meeting *meeting, struct base_error *error);

/* ---- mesh_peers.c */

/** The entry of the speaker that this rank is, or has; the rank that this speaker goes by. */
int mesh_own_entry(const struct meeting *meeting);
int mesh_own_name(const struct meeting *meeting);

/** Gets a speaker a connection to that of each other host. */
zero_result mesh_connect_peers(struct meeting *meeting, struct base_error *error);

/* ---- mesh_connect.c */

/** Rank 0 tells all ranks where they are, and waits until each host is connected to all others. */
zero_result mesh_finish_server(struct meeting *meeting, struct base_error *error);

/** Another rank hears where the ranks are, and its host gets a connection to each other one. */
zero_result mesh_finish_client(struct meeting *meeting, struct base_error *error);

#endif
