/**
 * tests/sweep.h: whether this is built with a sanitizer, and which cases of a long sweep it takes.
 *
 * A sweep's cases differ from their neighbours in little. The three builds of run.sh, which are
 * plain, for addresses and for threads, each take every third one, and none takes another's. Where
 * a sweep is long, those with a sanitizer take half as many, because each takes several times as
 * long there. A build that sets ZERO_TESTS_WHOLE, as the nightly one does, takes all.
 */
#ifndef TESTS_SWEEP_H
#define TESTS_SWEEP_H

#include <stdbool.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define TEST_SANITIZED 1
#elif defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#define TEST_RACES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_SANITIZED 1
#elif __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#define TEST_RACES 1
#endif
#endif

/** A sweep takes the cases TEST_PART, TEST_PART + TEST_STRIDE, ... */
#if defined(TEST_WHOLE)
enum { TEST_STRIDE = 1, TEST_PART = 0 };
#elif defined(TEST_RACES)
enum { TEST_STRIDE = 3, TEST_PART = 2 };
#elif defined(TEST_SANITIZED)
enum { TEST_STRIDE = 3, TEST_PART = 1 };
#else
enum { TEST_STRIDE = 3, TEST_PART = 0 };
#endif

/** The stride of sweeps that take seconds. */
#if defined(TEST_SANITIZED) && !defined(TEST_WHOLE)
enum { TEST_LONG_STRIDE = 2 * TEST_STRIDE };
#else
enum { TEST_LONG_STRIDE = TEST_STRIDE };
#endif

/** From this case on a sweep is long. */
enum { TEST_LONG = 18 };

/** Whether a sweep takes this transport: the thread sanitizer sees nothing of what goes on between
 * ranks that are processes. */
static inline bool test_takes_transport(const char *transport)
{
#ifdef TEST_RACES
    return strcmp(transport, "shm") != 0 && strcmp(transport, "tcp") != 0 &&
           strcmp(transport, "hosts") != 0;
#else
    (void)transport;
    return true;
#endif
}

/**
 * Whether a sweep takes its case of this number. Every third, because few loops count a multiple of
 * it: of two nested ones, numbered on through both or by the sum of their counters (over ranks and
 * stages, say), every value of each is still there. A place that has asked and has never been told
 * to take one fails the program as it exits, so that no sweep is empty.
 */
#define test_takes(number) test_takes_at(__FILE__, __LINE__, (number))
bool test_takes_at(const char *file, int line, int number);

#endif
