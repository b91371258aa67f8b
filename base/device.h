/**
 * base/device.h: where tensors live and kernels run, behind one table of operations.
 *
 * A device has memory, streams (work in the order it was given) and events (points in a stream).
 * Functions that take a stream only give the work; it is done when the stream or an event
 * recorded behind it was waited for. A device whose work is done at once (the CPU) says so in
 * `synchronous`, has one stream, NULL, and events that are always reached. All functions may be
 * called by any thread, also by several at a time.
 *
 * A machine may have several of a kind, by number from 0. A thread says with enter() which one it
 * is about to use; everything below that is called until its leave() is about that one.
 *
 * A new device is one file in base/device/ and one line in the list of base/device.c.
 */
#ifndef BASE_DEVICE_H
#define BASE_DEVICE_H

#include "base/error.h"

#include <stdbool.h>

/** Memory of a device, in bytes. */
struct base_device_memory {
    size_t free, total;         /**< what an alloc() could have at most, and all there is */
    unsigned char identity[16]; /**< tells the device from all others, on whatever host, and is the
                                     same to all its users; zeros: nothing does */
};

/** A device's operations; every function is there. Errors: ZERO_E_NOMEM, ZERO_E_DEVICE; messages
 * name the call that failed, and why. */
struct base_device {
    size_t size;      /**< sizeof(struct base_device) of the code that filled it */
    const char *name; /**< "cpu", "cuda" */
    bool synchronous; /**< work is done when the call that gives it returns */

    /** How many of this kind there are: at least one, or it is an error that says what is missing;
     * *count is 0 then. ZERO_E_UNSUPPORTED. */
    zero_result (*count)(int *count, struct base_error *error);
    /** This thread uses device `number` until leave(), where it goes back to what it used before.
     * Pairs nest. ZERO_E_UNSUPPORTED: there is no such device; after an error there is no leave().
     */
    zero_result (*enter)(int number, struct base_error *error);
    void (*leave)(void);

    /** What memory there is, as of now. Of the CPU: what this process may have of the host's. */
    zero_result (*memory)(struct base_device_memory *memory, struct base_error *error);
    /** Memory of `bytes` bytes, uninitialised, aligned to at least 256; *memory NULL on error. */
    zero_result (*alloc)(void **memory, size_t bytes, struct base_error *error);
    /** Frees memory of alloc; accepts NULL. Nothing may be under way on it. */
    void (*free)(void *memory);
    /** Fixes memory of the host, all of whose pages are there: copies from and to it need no
     * processor. */
    zero_result (*pin)(void *memory, size_t bytes, struct base_error *error);
    /** Undoes it, by the address; accepts NULL. */
    void (*unpin)(void *memory);
    /** Copies between memories of this device and the host's, which don't overlap. */
    zero_result (*copy)(void *to, const void *from, size_t bytes, void *stream,
                        struct base_error *error);
    /** Fills with zero bytes. */
    zero_result (*zero)(void *memory, size_t bytes, void *stream, struct base_error *error);

    /** A stream beside all others; urgent: its work goes before that of streams that are not, where
     * both could begin. */
    zero_result (*stream_create)(void **stream, bool urgent, struct base_error *error);
    /** Waits until everything given to the stream is done. */
    zero_result (*stream_sync)(void *stream, struct base_error *error);
    /** Nothing may be under way in it. Accepts NULL, as event_destroy does. */
    void (*stream_destroy)(void *stream);

    /** An event that is reached until it is recorded. */
    zero_result (*event_create)(void **event, struct base_error *error);
    /** Moves the event behind what the stream was given so far; who waits for it already waits for
     * where it was. */
    zero_result (*event_record)(void *event, void *stream, struct base_error *error);
    /** What the stream is given from now on waits for the event. */
    zero_result (*event_wait)(void *event, void *stream, struct base_error *error);
    /** ZERO_OK if the event is reached, ZERO_AGAIN if not yet. */
    zero_result (*event_query)(void *event, struct base_error *error);
    /** Waits until the event is reached. */
    zero_result (*event_sync)(void *event, struct base_error *error);
    void (*event_destroy)(void *event);
};

/** The CPU: memory is the host's, everything happens at once. */
extern const struct base_device base_device_cpu;

#ifdef ZERO_WITH_CUDA
/** NVIDIA's GPUs. The driver is loaded by the first count() or enter(). Streams and events are the
 * driver's, and so the runtime's, and memory is in each GPU's primary context: what a program that
 * uses CUDA itself has there can be given to these functions, and the other way round. */
extern const struct base_device base_device_cuda;
#endif

/** The device called `name`; NULL if this build has none. *Local*, any thread. */
const struct base_device *base_device_find(const char *name);

/** Device number `index` of this build, from 0; NULL beyond the last. *Local*, any thread. */
const struct base_device *base_device_at(size_t index);

#endif
