#include "tests/cuda/driver_inner.h"

#include <string.h>

EXPORTED void cuda_driver_fail(const char *function, int status)
{
    pthread_mutex_lock(&driver.mutex);
    driver.failing = function;
    driver.spared = 0;
    driver.status = (CUresult)status;
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED void cuda_driver_spare(unsigned calls)
{
    pthread_mutex_lock(&driver.mutex);
    driver.spared = calls;
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED void cuda_driver_slow(int gpu, unsigned us)
{
    pthread_mutex_lock(&driver.mutex);
    driver.slow[gpu] = us;
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED void cuda_driver_room(int gpu, size_t bytes)
{
    pthread_mutex_lock(&driver.mutex);
    driver.room[gpu] = bytes;
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED void cuda_driver_keeps(size_t bytes)
{
    pthread_mutex_lock(&driver.mutex);
    driver.keeps = bytes;
    memset(driver.loaded, 0, sizeof driver.loaded);
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED void cuda_driver_jam(bool jams, bool entering)
{
    pthread_mutex_lock(&driver.mutex);
    driver.jams = jams;
    driver.jams_entering = entering;
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED bool cuda_driver_jammed(void)
{
    pthread_mutex_lock(&driver.mutex);
    const bool jammed = driver.jammed;
    pthread_mutex_unlock(&driver.mutex);
    return jammed;
}

EXPORTED unsigned cuda_driver_live(void)
{
    pthread_mutex_lock(&driver.mutex);
    unsigned live = driver.events + driver.modules;
    for (int i = 0; i < MOST_STREAMS; i++)
        live += driver.streams[i] != NULL;
    for (int i = 0; i < MOST_MEMORIES; i++)
        live += driver.memories[i].address != NULL;
    for (int i = 0; i < MOST_PINNED; i++)
        live += driver.pinned[i].address != NULL;
    pthread_mutex_unlock(&driver.mutex);
    return live;
}

EXPORTED size_t cuda_driver_bytes(void)
{
    size_t bytes = 0;
    pthread_mutex_lock(&driver.mutex);
    for (int i = 0; i < MOST_MEMORIES; i++)
        bytes += driver.memories[i].bytes;
    pthread_mutex_unlock(&driver.mutex);
    return bytes;
}

EXPORTED void cuda_driver_copied(size_t *up, size_t *down)
{
    pthread_mutex_lock(&driver.mutex);
    *up = driver.up;
    *down = driver.down;
    pthread_mutex_unlock(&driver.mutex);
}

EXPORTED unsigned cuda_driver_waits(const char **last)
{
    pthread_mutex_lock(&driver.mutex);
    *last = driver.waited;
    const unsigned waits = driver.waits;
    pthread_mutex_unlock(&driver.mutex);
    return waits;
}

EXPORTED const char *cuda_driver_complaint(void)
{
    pthread_mutex_lock(&driver.mutex);
    const char *complaint = driver.complaint;
    pthread_mutex_unlock(&driver.mutex);
    return complaint;
}
