/**
 * collectives/rendezvous/mesh_callers.h: callers of a rank that listens, which have not said their
 * rank yet.
 *
 * There is room for BOOT_CALLERS_MAX of them, or as many as there are descriptors for. As long as
 * it is full, new callers wait in the kernel's queue. If there are no descriptors left, the rank
 * hangs up on its oldest caller sooner than otherwise.
 */
#ifndef COLLECTIVES_RENDEZVOUS_MESH_CALLERS_H
#define COLLECTIVES_RENDEZVOUS_MESH_CALLERS_H

#include "collectives/rendezvous/mesh_stream.h"

struct mesh_caller {
    int fd;
    uint64_t since_ns; /**< when he was let in */
    size_t used;       /**< bytes of `said` that are there */
    struct {
        struct mesh_header header;
        union {
            struct mesh_hello hello;
            struct mesh_peer peer;
        };
    } said;
};

/** How a rank receives callers. What becomes of one's socket both functions decide: they take it or
 * close it, and make caller->fd -1. */
struct mesh_reception {
    enum mesh_type type; /**< of the message that introduces a caller, */
    size_t length;       /**< and bytes of its payload */
    /** One has introduced himself. An error ends the meeting. */
    zero_result (*introduce)(void *user, struct mesh_caller *caller, struct base_error *error);
    /** One is not let in, for what he has said or for his silence. */
    void (*refuse)(void *user, struct mesh_caller *caller, zero_result result, const char *why);
};

struct mesh_callers {
    int count;
    bool crowded;                             /**< no descriptor is left for who is outside */
    struct mesh_caller all[BOOT_CALLERS_MAX]; /**< in the order in which they came */
};

/** Writes what to wait for: the listener, if there is room, and whoever is here. Returns how many
 * they are. *Local.* */
int mesh_callers_poll(const struct mesh_callers *callers, int listener, struct pollfd *polls);

/** For how long to wait at most, in milliseconds: whoever is silent is to be noticed. *Local.* */
int mesh_callers_patience(const struct mesh_callers *callers);

/** Deals with what has come, as poll() has found it: what callers say, and one newcomer. ZERO_E_IO:
 * no newcomer can be let in, now or when others have left; what `introduce` returns. *Local.* */
zero_result mesh_callers_receive(struct mesh_callers *callers,
                                 const struct mesh_reception *reception, void *user, int listener,
                                 const struct pollfd *polls, struct base_error *error);

/** Hangs up on whoever is still here. *Local.* */
void mesh_callers_close(struct mesh_callers *callers);

#endif
