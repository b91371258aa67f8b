/**
 * tests/cuda/driver.h: a driver in place of NVIDIA's, for where there is no GPU: a library of the
 * same name, which a test finds before any other. Work is done late: by a thread for each stream,
 * which now and then takes its time, so that streams overtake each other wherever no event forbids
 * it. Memory of the GPUs can be reached by work only: who touches it meanwhile gets a signal, and
 * so does work that goes beyond its end, but for the bytes up to a multiple of 256. The kernels are
 * those of base/kernels/kernels_cuda.cu, compiled for the processor (on_host.h).
 *
 * A test that wants more of it than a driver's functions finds these by their names, with dlsym().
 */
#ifndef TESTS_CUDA_DRIVER_H
#define TESTS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

/** The library. */
#define CUDA_DRIVER "libcuda.so.1"

/** Has the next call of this function of the driver fail with this status of <cuda.h>. */
typedef void (*cuda_driver_fail_fn)(const char *function, int status);
#define CUDA_DRIVER_FAIL "cuda_driver_fail"

/** Has so many calls of it go well before. */
typedef void (*cuda_driver_spare_fn)(unsigned calls);
#define CUDA_DRIVER_SPARE "cuda_driver_spare"

/** Has each copy that a stream of this GPU does take so long for each MiB of it; 0: no longer than
 * it takes. */
typedef void (*cuda_driver_slow_fn)(int gpu, unsigned us);
#define CUDA_DRIVER_SLOW "cuda_driver_slow"

/** Has this GPU have so many bytes of memory in all; 0, as at first: CUDA_DRIVER_ROOM. */
typedef void (*cuda_driver_room_fn)(int gpu, size_t bytes);
#define CUDA_DRIVER_SET_ROOM "cuda_driver_room"
#define CUDA_DRIVER_ROOM ((size_t)1 << 36)

/** Has each GPU keep so many bytes of it from when a module is loaded there next; 0, as at first:
 * none. */
typedef void (*cuda_driver_keeps_fn)(size_t bytes);
#define CUDA_DRIVER_KEEPS "cuda_driver_keeps"

/** Has a stream that the calling thread launches this kernel in call a function first, at the n-th
 * launch from here on, 0: at none. Returns how many the thread has made since it asked last. */
typedef unsigned (*cuda_driver_before_fn)(const char *kernel, unsigned launch,
                                          void (*call)(void *user));
#define CUDA_DRIVER_BEFORE "cuda_driver_before"

/** From now on a call that frees memory waits until all streams have done what they were given, and
 * as long as one does, all other calls wait for it, those that enter a GPU too, or not; or it does
 * not any more. And whether one does. */
typedef void (*cuda_driver_jam_fn)(bool jams, bool entering);
#define CUDA_DRIVER_JAM "cuda_driver_jam"
typedef bool (*cuda_driver_jammed_fn)(void);
#define CUDA_DRIVER_JAMMED "cuda_driver_jammed"

/** Memories, pinned ones of the host included, streams, events and modules that there are. */
typedef unsigned (*cuda_driver_live_fn)(void);
#define CUDA_DRIVER_LIVE "cuda_driver_live"

/** Bytes of all memories. */
typedef size_t (*cuda_driver_bytes_fn)(void);
#define CUDA_DRIVER_BYTES "cuda_driver_bytes"

/** Bytes so far that copies bring to a GPU from memory of the host, and back. */
typedef void (*cuda_driver_copied_fn)(size_t *up, size_t *down);
#define CUDA_DRIVER_COPIED "cuda_driver_copied"

/** Calls so far that a program waits in: for a stream or an event, for memory or its end, and of
 * copies from or to memory of the host that is not pinned. *last is the last one's function, or
 * NULL. */
typedef unsigned (*cuda_driver_waits_fn)(const char **last);
#define CUDA_DRIVER_WAITS "cuda_driver_waits"

/** What was done that may not be; NULL if nothing was. */
typedef const char *(*cuda_driver_complaint_fn)(void);
#define CUDA_DRIVER_COMPLAINT "cuda_driver_complaint"

/** So many GPUs are there; the environment may say another number, up to this one. */
#define CUDA_DRIVER_GPUS 4
#define CUDA_DRIVER_GPUS_VARIABLE "CUDA_DRIVER_GPUS"

#endif
