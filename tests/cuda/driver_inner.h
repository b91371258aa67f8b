/**
 * tests/cuda/driver_inner.h: what the files of the stand-in for NVIDIA's driver have in common:
 * driver_kernels.c has modules, functions and their launch, driver_asked.c what is told and asked
 * of it, driver.c all else.
 */
#ifndef TESTS_CUDA_DRIVER_INNER_H
#define TESTS_CUDA_DRIVER_INNER_H

#include "tests/cuda/driver.h"

#include <pthread.h>
#include <stdint.h>

#include <cuda.h>

#define EXPORTED __attribute__((visibility("default")))

enum {
    MOST_STREAMS = 64,
    MOST_WORK = 1024,
    MOST_CALLS = 56, // of functions of the host that come behind other work, as NVIDIA's on an H200
    MOST_MEMORIES = 256,
    MOST_PINNED = 256,
    MOST_RECORDS = 64, // of an event that are under way
};

struct on_host_kernel;

// Who waits for an event waits for where it was then, whatever becomes of it later, in other
// streams perhaps: for a record of a number.
struct event {
    uint64_t recorded; // how often
    uint64_t reached[MOST_RECORDS];
};

enum kind { COPY, SET, KERNEL, CALL, RECORD, WAIT };

struct work {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    bool behind; // other work, a call: counted
    const struct on_host_kernel *kernel;
    size_t blocks;
    void *argument; // this work's own
    CUhostFn call;
    void *user;
    struct event *event;
    uint64_t count; // of the event's
};

struct stream {
    bool exists, ends;
    int gpu;
    pthread_t thread;
    pthread_cond_t more;  // there is, or what it waits for has come
    unsigned given, done; // done: begins when it is over
    unsigned calls;       // behind other work that are not done
    bool worked;          // since the last call that was given
    struct work work[MOST_WORK];
};

struct memory {
    void *address;
    size_t bytes;
    int gpu; // of the host's: none
};

struct driver {
    pthread_mutex_t mutex;
    pthread_cond_t changed; // for the host's threads that wait: so many
    unsigned waiting;
    struct stream *streams[MOST_STREAMS];
    struct memory memories[MOST_MEMORIES];
    struct memory pinned[MOST_PINNED]; // of the host
    unsigned events, modules;
    unsigned working; // works that are being done: memory is open to them
    const char *failing;
    unsigned spared; // calls of it
    CUresult status;
    const char *complaint;
    unsigned waits;
    size_t up, down;    // bytes copied to GPUs, and from them
    const char *waited; // in this function
    uint32_t chance;
    bool jams, jams_entering, jammed; // calls wait for the one of this thread's
    pthread_t jammer;
    unsigned slow[CUDA_DRIVER_GPUS]; // microseconds that each MiB of a copy takes more
    size_t room[CUDA_DRIVER_GPUS];   // bytes of memory; 0: CUDA_DRIVER_ROOM
    size_t keeps;                    // of it, where a module has been loaded,
    bool loaded[CUDA_DRIVER_GPUS];   // as here
};
extern struct driver driver;

/** Bytes of a GPU's memory, and those of them that are free. With the mutex held. */
size_t driver_room(int gpu);
size_t driver_free(int gpu);

/** What a function that needs a context returns, if it could do what it is for. */
CUresult driver_in_context(const char *function);

/** Gives work to a stream of the GPU entered. */
CUresult driver_give(const char *function, CUstream handle, const struct work *work);

/** Counts modules that there are. */
void driver_count_modules(unsigned change);
/** What has been loaded here is kept. */
void driver_keep(void);

#endif
