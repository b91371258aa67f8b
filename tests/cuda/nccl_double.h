/**
 * tests/cuda/nccl_double.h: a library in place of NCCL, for where there is no GPU: a libnccl.so.2
 * which a test finds before any other, and which works with the driver of driver.h only. Ranks are
 * processes of one machine or threads of one process. They meet in shared memory that has no name,
 * so that nothing stays behind, whatever rank dies. What is enqueued is done by the stream's thread
 * and moves the data; a send is over when it has been received, not sooner.
 *
 * Where NCCL has a choice, this takes the worse one:
 *   - a communicator that does not block is in progress after each call that may say so, until it
 *     has been asked some times, and only then gets the stream what was enqueued;
 *   - sums of 16-bit floats go round the ring and are rounded at each rank;
 *   - what has failed completes nothing any more: all that was enqueued stays until the abort, and
 *     the others wait for it until theirs. So they do for a rank that is dead;
 *   - where there is no memory there is an address all the same;
 *   - the end of what is aborted waits until its GPU is at rest. If another communicator holds that
 *     which is aborted only then, it is complained of: all belong in one group, at the end of which
 *     what was aborted in it ends.
 *
 * A call that may not be is complained of, returns ncclInvalidUsage or ncclInvalidArgument, and is
 * the communicator's asynchronous error from then on. So is what ranks do that does not fit
 * together: other counts, types, operations or an other order, sizes of sends and receives, sends
 * and receives outside of a group that all wait for each other. Not allowed either, although NCCL
 * would bear it: several streams in a group, collectives beside their buffers' overlap with those
 * of another operation of the group, management calls inside a group but for ncclCommAbort.
 *
 * There are: init (Rank, RankConfig), split, finalize, destroy, abort, groups, all-gather,
 * broadcast, send and receive of all types; all-reduce: sum of 64-bit integers, float32 and
 * float64, maximum and minimum of int64; reduce and reduce-scatter: sum of float32, float16 and
 * bfloat16; memory, registrations, windows. Two ranks of a communicator on one GPU are refused as
 * NCCL does, unless NCCL_HOSTID differs, or NCCL_MULTI_RANK_GPU_ENABLE is 1 (that is of 2.30).
 *
 * Only memory of ncclMemAlloc may be registered. Where a communicator has any registered, all its
 * operations have to stay within, and the other ranks' too.
 *
 * A test that wants more of it finds these functions by their names, with dlsym().
 */
#ifndef TESTS_CUDA_NCCL_DOUBLE_H
#define TESTS_CUDA_NCCL_DOUBLE_H

/** The library. */
#define NCCL_DOUBLE "libnccl.so.2"

/**
 * What goes wrong in communicators that are made afterwards, in place of what was said before; ""
 * is nothing. Settings, with commas between:
 *
 *     polls=<k>        in progress for so many questions more than needed (2)
 *     delay=<us>       operations and their pieces wait at random, up to so long (0)
 *     error=<n>        the rank's n-th operation, from 1, ends in an asynchronous error instead
 *     status=<result>  which is this one of <nccl.h> (6, ncclRemoteError)
 *     never=<n>        the rank does not come to its n-th operation
 *     rank=<r>         all this for rank r only
 *     version=<v>      what ncclGetVersion says, at once (22809)
 *     register=<n>     ncclCommRegister fails (1), or registers nothing and says so by NULL (2), or
 *                      ncclCommDeregister fails (3)
 *     ends=<ms>        the end of what is aborted takes so long (0), and
 *     ending=<result>  returns this one of <nccl.h> (0)
 *
 * The environment says so too, before the first call.
 */
typedef void (*nccl_double_inject_fn)(const char *settings);
#define NCCL_DOUBLE_INJECT "nccl_double_inject"
#define NCCL_DOUBLE_VARIABLE "NCCL_DOUBLE"

/** The first thing that was done since the last question and may not be; NULL if nothing was. The
 * text is this thread's until it asks again. It is on stderr too. */
typedef const char *(*nccl_double_complaint_fn)(void);
#define NCCL_DOUBLE_COMPLAINT "nccl_double_complaint"

/** Communicators, registrations, windows and memories that there are. */
typedef unsigned (*nccl_double_live_fn)(void);
#define NCCL_DOUBLE_LIVE "nccl_double_live"

/** Registrations, windows included, that were made by now, and that were ended by the rank that
 * made them.
 */
typedef void (*nccl_double_registered_fn)(unsigned *made, unsigned *ended);
#define NCCL_DOUBLE_REGISTERED "nccl_double_registered"

#endif
