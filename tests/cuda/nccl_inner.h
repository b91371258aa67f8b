/**
 * tests/cuda/nccl_inner.h: what the files of nccl_double.h's library have in common: nccl.c has
 * communicators, nccl_memory.c memory and its registrations, nccl_operations.c groups and what is
 * enqueued, nccl_moves.c what streams do with it, and nccl_region.c where ranks meet.
 */
#ifndef TESTS_CUDA_NCCL_INNER_H
#define TESTS_CUDA_NCCL_INNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <nccl.h>

enum {
    NCCL_MOST_RANKS = 16,
    NCCL_PIECE = 64 * 1024,
    NCCL_MEETING_WORDS = 6,
    NCCL_COMPLAINT_BYTES = 256,
};

enum nccl_kind { ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECEIVE };

/** What an operation is, to be the same on all ranks. */
struct nccl_signature {
    uint64_t count;
    int32_t kind, type, reduction, root, registered, nothing;
};

/* ------------------------------------------------------------------ shared memory */

/** What ranks call together: each says some words and gets those of all. */
enum nccl_meeting { INIT, SPLIT, FINALIZE, WINDOW };

struct nccl_words {
    uint32_t meeting; // enum nccl_meeting
    int64_t word[NCCL_MEETING_WORDS];
    ncclUniqueId id;
};

/** A rank's place. Words and pieces have two slots, used in turn: when a rank comes to the next
 * but one, all others have come to the next one, and have read this. */
struct nccl_seat {
    _Atomic uint32_t taken, meetings, pieces; // numbers: of what is in the slots already
    _Atomic uint64_t lone;                    // what it waits for outside of a group; see moves
    struct nccl_words words[2];
    struct nccl_signature signature[2];
    _Alignas(64) char piece[2][NCCL_PIECE];
};

/** From one rank to another. */
struct nccl_channel {
    _Atomic uint32_t sent, taken; // pieces
    _Atomic uint32_t received;    // messages
    _Atomic uint32_t misfit;
    uint64_t bytes; // of the message
    int32_t type, registered;
    _Alignas(64) char piece[NCCL_PIECE];
};

struct nccl_region {
    uint64_t chance; // the id's
    _Atomic uint32_t bell;
    struct nccl_seat seats[NCCL_MOST_RANKS];
    struct nccl_channel channels[NCCL_MOST_RANKS][NCCL_MOST_RANKS]; // [from][to]
};

/** Makes a region that lives until its last user is gone, and this process has let go of it. */
ncclResult_t nccl_region_make(ncclUniqueId *id);
/** NULL: no rank holds it any more. */
struct nccl_region *nccl_region_join(const ncclUniqueId *id);
/** All ranks have joined, or no other will. */
void nccl_region_let_go(const ncclUniqueId *id);
void nccl_region_leave(struct nccl_region *region);

/** Wakes the ranks that sleep for something in the region: after each change. */
void nccl_region_ring(struct nccl_region *region);
/** Sleeps until it is rung since `bell` was read, or for a moment. */
void nccl_region_sleep(struct nccl_region *region, uint32_t bell);

/* ------------------------------------------------------------------ communicators */

struct nccl_faults {
    unsigned polls, delay_us, error, status, never, registers, ends_ms, ending;
    int rank; // -1: all
    int version;
};

struct nccl_operation {
    struct nccl_signature what; // root: of a message the other rank
    const char *from;
    char *to;
    unsigned number; // of this rank's, from 1
    // of messages:
    uint32_t message; // number in its channel, from 0
    size_t moved;
    bool begun, done;
};

/** A group, or one operation: what is one work of a stream. */
struct nccl_launch {
    struct ncclComm *comm;
    CUstream stream;
    unsigned number; // of this rank's, from 0
    bool grouped;
    size_t count;
    struct nccl_operation operations[];
};

struct nccl_registration {
    struct nccl_registration *next;
    void *memory;
    size_t bytes;
    bool window;
};

enum nccl_waits { NOTHING, A_MEETING, A_LAUNCH };

/** Lives as long as the process, so that a call after its end is seen. */
struct ncclComm {
    struct ncclComm *next;
    struct nccl_region *region;
    CUcontext context;
    int rank, ranks, device;
    bool blocks, finalized;
    struct nccl_faults faults;
    _Atomic bool gone, aborted;
    _Atomic int failure;          // ncclResult_t
    _Atomic uint32_t users;       // its owner, and launches that streams have
    struct ncclComm *ends;        // with it, in a group
    _Atomic(const void *) inside; // the thread that uses it, or has a group with it
    ncclUniqueId id;
    struct nccl_registration *registrations;
    // in progress:
    enum nccl_waits waits;
    unsigned polls;
    struct nccl_words said;
    struct nccl_launch *launch;
    struct ncclComm **split;
    bool split_blocks;
    struct nccl_registration *window;
    ncclWindow_t *window_out;
    // launches and operations that were given, and launches that are over:
    _Atomic unsigned launches;
    unsigned operations;
    uint32_t sends[NCCL_MOST_RANKS], receives[NCCL_MOST_RANKS];
    _Atomic uint32_t over;
    uint32_t chance; // of the launch whose turn it is
};

/** The driver's functions that are needed; NULL: there is none. */
struct nccl_driver {
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
    CUresult (*primary)(CUcontext *context, CUdevice device);
    CUresult (*call)(CUstream stream, CUhostFn function, void *user);
    CUresult (*alloc)(CUdeviceptr *memory, size_t bytes);
    CUresult (*free)(CUdeviceptr memory);
    CUresult (*error_text)(CUresult status, const char **text);
};
const struct nccl_driver *nccl_driver(void);

/** What ncclGetLastError() says from now on. */
__attribute__((format(printf, 1, 2))) void nccl_say(const char *format, ...);

/** Complains; the communicator, if there is one, has failed with this result, which it returns. */
__attribute__((format(printf, 3, 4))) ncclResult_t
nccl_refuse(struct ncclComm *comm, ncclResult_t result, const char *format, ...);

/** The communicator fails, without a complaint. */
void nccl_fail(struct ncclComm *comm, ncclResult_t result);

/** This thread uses the communicator until nccl_leave(), which is not there after an error. */
ncclResult_t nccl_enter(struct ncclComm *comm);
void nccl_leave(struct ncclComm *comm);
/** Entered, and ready for an operation or a management call. */
ncclResult_t nccl_enter_ready(struct ncclComm *comm);
/** The same of a management call: not in a group. */
ncclResult_t nccl_enter_managing(struct ncclComm *comm);

/** Has all ranks say `said`; afterwards the communicator is in progress, or it is done. */
ncclResult_t nccl_meet(struct ncclComm *comm, const struct nccl_words *said);

/** Gives a stream comm->launch, now or when it was asked for often enough. */
ncclResult_t nccl_give(struct ncclComm *comm);

/** Whether this thread has begun a group, and whether that has operations of the communicator. */
bool nccl_in_group(const struct ncclComm *comm, bool *has_any);

/** The end of communicators that were aborted in a group, or of one. */
ncclResult_t nccl_end(struct ncclComm *first);

/** Ends it when this thread's group ends. */
void nccl_end_with_group(struct ncclComm *comm);

/** One user less; the last one leaves the region. */
void nccl_drop(struct ncclComm *comm);

/** Registrations of a communicator: one more, and none any more; memories that there are. */
void nccl_register(struct ncclComm *comm, struct nccl_registration *registration);
void nccl_forget_registrations(struct ncclComm *comm);
/** Whether it has any, and none of this memory is in one. */
bool nccl_is_unregistered(struct ncclComm *comm, const char *at, size_t bytes);
unsigned nccl_memories(void);

/** The bytes of a type; 0: there is none. */
size_t nccl_type_bytes(int type);

/** Does a launch and frees it: what a stream calls. */
void nccl_perform(void *launch);

#endif
