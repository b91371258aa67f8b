/**
 * base/forked.h: what a child that was made by fork() may not have of its parent's.
 *
 * A child shares all open files of its parent. While it lives, the kernel keeps the connections of
 * a dead parent open, and its locks taken. So descriptors are guarded: in a child something inert
 * takes their place (reads are at the end, writes fail with EBADF) before fork() returns there. The
 * numbers stay taken, so that a child that closes them hits nothing else.
 *
 * pthread_atfork() does that. A child that is made by the system call itself, by vfork() or by
 * posix_spawn() keeps the descriptors until it calls exec.
 */
#ifndef BASE_FORKED_H
#define BASE_FORKED_H

#include <stdbool.h>
#include <stdint.h>

/** How many fork() calls lie between the process that loaded this library and this one. Equal to
 * what it was as long as this process is the same. *Local, from any thread.* */
uint32_t base_generation(void);

/** Makes base_generation() count. Returns 0 or an errno: ENOMEM. *Local, from any thread.* */
int base_forked_watch(void);

/**
 * Guards a descriptor until base_forked_release(). Returns 0 or an errno: ENOMEM, or EMFILE for a
 * descriptor above 2^20, as no kernel gives unless its limit was raised. *Local, from any thread.*
 */
int base_forked_guard(int fd);

/** To be called before a guarded descriptor is closed. Accepts any number, -1 too. *Local.* */
void base_forked_release(int fd);

#endif
