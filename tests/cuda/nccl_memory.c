#include "tests/cuda/nccl_inner.h"

#include <pthread.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

// What ncclMemAlloc has given, and how many registrations are on it.
struct memory {
    struct memory *next;
    char *at;
    size_t bytes;
    unsigned registrations;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct memory *all;
static unsigned all_made, all_ended; // registrations

EXPORTED void nccl_double_registered(unsigned *made_by_now, unsigned *ended_by_now);

/* ------------------------------------------------------------------ mutex held */

static struct memory *memory_around(const char *at, size_t bytes)
{
    for (struct memory *memory = all; memory; memory = memory->next)
        if (at >= memory->at && at < memory->at + memory->bytes &&
            bytes <= memory->bytes - (size_t)(at - memory->at))
            return memory;
    return NULL;
}

static void count(const struct nccl_registration *registration, unsigned change)
{
    struct memory *memory = memory_around(registration->memory, registration->bytes);
    if (memory)
        memory->registrations += change;
}

/* ------------------------------------------------------------------ memory */

EXPORTED ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    const struct nccl_driver *driver = nccl_driver();
    struct memory *made = malloc(sizeof *made);
    CUdeviceptr address = 0;
    if (!driver || !made)
        abort();
    const CUresult status = driver->alloc(&address, bytes);
    if (status != CUDA_SUCCESS) {
        const char *text;
        driver->error_text(status, &text);
        nccl_say("Cuda failure %d '%s'", (int)status, text);
        *memory = made; // not there any more, as the range of addresses that NCCL has reserved
        free(made);
        return ncclUnhandledCudaError;
    }
    *memory = (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
    pthread_mutex_lock(&mutex);
    *made = (struct memory){all, *memory, bytes, 0};
    all = made;
    pthread_mutex_unlock(&mutex);
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclMemFree(void *address)
{
    struct memory *found = NULL;
    pthread_mutex_lock(&mutex);
    for (struct memory **at = &all; *at; at = &(*at)->next)
        if ((*at)->at == address) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&mutex);
    if (!found)
        return nccl_refuse(NULL, ncclInvalidArgument, "memory is freed that is not NCCL's: %p",
                           address);
    const bool registered = found->registrations > 0;
    free(found);
    const CUresult status = nccl_driver()->free((CUdeviceptr)(uintptr_t)address);
    if (registered)
        return nccl_refuse(NULL, ncclInvalidUsage, "memory is freed that is registered: %p",
                           address);
    return status == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

unsigned nccl_memories(void)
{
    unsigned memories = 0;
    pthread_mutex_lock(&mutex);
    for (const struct memory *memory = all; memory; memory = memory->next)
        memories++;
    pthread_mutex_unlock(&mutex);
    return memories;
}

/* ------------------------------------------------------------------ registrations */

static struct nccl_registration *registration_of(void *memory, size_t bytes, bool window)
{
    struct nccl_registration *made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = (struct nccl_registration){NULL, memory, bytes, window};
    return made;
}

void nccl_double_registered(unsigned *made_by_now, unsigned *ended_by_now)
{
    pthread_mutex_lock(&mutex);
    *made_by_now = all_made;
    *ended_by_now = all_ended;
    pthread_mutex_unlock(&mutex);
}

bool nccl_is_unregistered(struct ncclComm *comm, const char *at, size_t bytes)
{
    pthread_mutex_lock(&mutex);
    const struct nccl_registration *one = comm->registrations;
    const bool has_any = one != NULL && bytes > 0;
    while (one && !(at >= (char *)one->memory && at < (char *)one->memory + one->bytes &&
                    bytes <= one->bytes - (size_t)(at - (char *)one->memory)))
        one = one->next;
    pthread_mutex_unlock(&mutex);
    return has_any && !one;
}

void nccl_register(struct ncclComm *comm, struct nccl_registration *registration)
{
    pthread_mutex_lock(&mutex);
    all_made++;
    registration->next = comm->registrations;
    comm->registrations = registration;
    count(registration, 1);
    pthread_mutex_unlock(&mutex);
}

void nccl_forget_registrations(struct ncclComm *comm)
{
    pthread_mutex_lock(&mutex);
    while (comm->registrations) {
        struct nccl_registration *registration = comm->registrations;
        comm->registrations = registration->next;
        count(registration, -1U);
        free(registration);
    }
    pthread_mutex_unlock(&mutex);
}

static ncclResult_t deregister(struct ncclComm *comm, const void *handle, bool window)
{
    struct nccl_registration *found = NULL;
    pthread_mutex_lock(&mutex);
    for (struct nccl_registration **at = &comm->registrations; *at; at = &(*at)->next)
        if (*at == handle && (*at)->window == window) {
            found = *at;
            *at = found->next;
            count(found, -1U);
            all_ended++;
            break;
        }
    pthread_mutex_unlock(&mutex);
    if (!found)
        return nccl_refuse(comm, ncclInvalidArgument, "no registration: %p", handle);
    free(found);
    if (atomic_load(&comm->over) != comm->launches)
        return nccl_refuse(comm, ncclInvalidUsage, "a registration ends that may be in use");
    return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes,
                                       void **handle)
{
    ncclResult_t result = nccl_enter_managing(comm);
    if (result != ncclSuccess)
        return result;
    *handle = NULL;
    pthread_mutex_lock(&mutex);
    const bool is_ours = memory && bytes > 0 && memory_around(memory, bytes);
    pthread_mutex_unlock(&mutex);
    if (!is_ours) {
        result = nccl_refuse(comm, ncclInvalidArgument, "memory is registered that is not NCCL's");
    } else if (comm->faults.registers == 1 || comm->faults.registers == 2) {
        result = comm->faults.registers == 1 ? ncclSystemError : ncclSuccess;
    } else {
        struct nccl_registration *made = registration_of(memory, bytes, false);
        nccl_register(comm, made);
        *handle = made;
    }
    nccl_leave(comm);
    return result;
}

EXPORTED ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    ncclResult_t result = nccl_enter_managing(comm);
    if (result != ncclSuccess)
        return result;
    result = deregister(comm, handle, false);
    nccl_leave(comm);
    return result == ncclSuccess && comm->faults.registers == 3 ? ncclSystemError : result;
}

EXPORTED ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *at, size_t bytes,
                                             ncclWindow_t *window, int flags)
{
    ncclResult_t result = nccl_enter_managing(comm);
    if (result != ncclSuccess)
        return result;
    *window = NULL;
    pthread_mutex_lock(&mutex);
    const struct memory *memory = memory_around(at, bytes);
    const int64_t offset = memory ? (char *)at - memory->at : -1;
    pthread_mutex_unlock(&mutex);
    if (offset < 0 || bytes == 0 || (uintptr_t)at % NCCL_WIN_REQUIRED_ALIGNMENT != 0 ||
        (flags != NCCL_WIN_DEFAULT && flags != NCCL_WIN_COLL_SYMMETRIC)) {
        result = nccl_refuse(comm, ncclInvalidArgument, "no window: %zu bytes at %p", bytes, at);
    } else {
        comm->window = registration_of(at, bytes, true);
        comm->window_out = window;
        const struct nccl_words said = {.meeting = WINDOW, .word = {(int64_t)bytes, offset, flags}};
        result = nccl_meet(comm, &said);
    }
    nccl_leave(comm);
    return result;
}

EXPORTED ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    ncclResult_t result = nccl_enter_managing(comm);
    if (result != ncclSuccess)
        return result;
    result = deregister(comm, window, true);
    nccl_leave(comm);
    return result;
}
