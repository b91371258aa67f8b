#include "tests/sweep.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_PLACES = 32 };

static struct place {
    const char *file;
    int line;
    bool taken;
} places[MOST_PLACES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // ranks that are threads ask too
static pid_t owner;

// What a forked rank has asked so far says nothing of the whole sweep.
static void check(void)
{
    bool good = true;
    if (getpid() != owner)
        return;
    for (const struct place *place = places; place < places + MOST_PLACES && place->file; place++)
        if (!place->taken) {
            fprintf(stderr, "%s:%d: a sweep has taken no case\n", place->file, place->line);
            good = false;
        }
    fflush(NULL);
    if (!good)
        _exit(1);
}

static struct place *place_of(const char *file, int line)
{
    struct place *place = places;
    if (!places[0].file) {
        owner = getpid();
        atexit(check);
    }
    while (place->file && (place->line != line || strcmp(place->file, file) != 0))
        if (++place == places + MOST_PLACES)
            abort();
    place->file = file;
    place->line = line;
    return place;
}

bool test_takes_at(const char *file, int line, int number)
{
    const int stride = number < TEST_LONG ? TEST_STRIDE : TEST_LONG_STRIDE;
    const bool takes = number % stride == TEST_PART;
    pthread_mutex_lock(&mutex);
    place_of(file, line)->taken |= takes;
    pthread_mutex_unlock(&mutex);
    return takes;
}
