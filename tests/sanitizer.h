/**
 * tests/sanitizer.h: whether this is built with a sanitizer, and what long sweeps then leave out.
 *
 * There everything is several times slower, and what is looked for is what code does with memory
 * and threads: a case of a sweep differs from its neighbours in that far less than in its numbers,
 * which the other builds check in all cases.
 */
#ifndef TESTS_SANITIZER_H
#define TESTS_SANITIZER_H

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

#ifdef TEST_SANITIZED
enum { TEST_STRIDE = 3 };
#else
enum { TEST_STRIDE = 1 };
#endif

/** Whether a sweep takes this transport: the thread sanitizer sees nothing of what goes on between
 * ranks that are processes. */
static inline bool test_takes_transport(const char *transport)
{
#ifdef TEST_RACES
    return strcmp(transport, "shm") != 0;
#else
    (void)transport;
    return true;
#endif
}

/**
 * Whether a sweep takes its case of this number: all, or with a sanitizer every third. Three,
 * because few loops count a multiple of it: of two nested ones, numbered on through both or by the
 * sum of their counters (over ranks and stages, say), every value of each is still there.
 */
static inline bool test_takes(int number)
{
    return number % TEST_STRIDE == 0;
}

#endif
