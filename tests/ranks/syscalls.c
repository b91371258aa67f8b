#include "tests/ranks/syscalls.h"

#if defined(__x86_64__)

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_OFF 0
#define PR_SYS_DISPATCH_ON 1
#endif
enum { RESTORER = 0x04000000 }; // SA_RESTORER, which <signal.h> keeps to itself

// The kernel sends SIGSYS instead of making a call, but for calls from between these two labels:
// the handler's own, and its way back.
__asm__(".text\n"
        ".balign 16\n"
        "syscalls_allowed:\n"
        ".type syscalls_make, @function\n"
        "syscalls_make:\n" // of a register array: rax, rdi, rsi, rdx, r10, r8, r9
        "    mov (%rdi), %rax\n"
        "    mov 16(%rdi), %rsi\n"
        "    mov 24(%rdi), %rdx\n"
        "    mov 32(%rdi), %r10\n"
        "    mov 40(%rdi), %r8\n"
        "    mov 48(%rdi), %r9\n"
        "    mov 8(%rdi), %rdi\n"
        "    syscall\n"
        "    ret\n"
        ".type syscalls_return, @function\n"
        "syscalls_return:\n"
        "    mov $15, %eax\n" // rt_sigreturn
        "    syscall\n"
        "    nop\n"
        "syscalls_allowed_end:\n");

extern const char syscalls_allowed[], syscalls_allowed_end[];
long long syscalls_make(const long long registers[7]);
void syscalls_return(void);

/** struct sigaction as the kernel has it. */
struct action {
    void (*handler)(int signal, siginfo_t *info, void *context);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static volatile char selector; // 1: calls are caught
static volatile unsigned counts[SYSCALLS_KINDS], total;

static void count(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const long long registers[] = {g[REG_RAX], g[REG_RDI], g[REG_RSI], g[REG_RDX],
                                   g[REG_R10], g[REG_R8],  g[REG_R9]};
    if (info->si_syscall >= 0 && info->si_syscall < SYSCALLS_KINDS)
        counts[info->si_syscall]++;
    total++;
    g[REG_RAX] = syscalls_make(registers);
}

static bool dispatch(unsigned long mode)
{
    const bool on = mode == PR_SYS_DISPATCH_ON;
    return prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, on ? (uintptr_t)syscalls_allowed : 0,
                 on ? syscalls_allowed_end - syscalls_allowed : 0, on ? &selector : NULL) == 0;
}

bool syscalls_prepare(const char **why)
{
    const struct action action = {count, SA_SIGINFO | RESTORER, syscalls_return, 0};
    *why = "this kernel can't hand system calls to the program (Linux 5.11 can)";
    return syscall(SYS_rt_sigaction, SIGSYS, &action, NULL, sizeof action.mask) == 0 &&
           dispatch(PR_SYS_DISPATCH_ON) && dispatch(PR_SYS_DISPATCH_OFF);
}

void syscalls_begin(void)
{
    dispatch(PR_SYS_DISPATCH_ON);
    selector = 1;
}

void syscalls_end(void)
{
    selector = 0;
    dispatch(PR_SYS_DISPATCH_OFF);
}

unsigned syscalls_count(long number)
{
    return counts[number];
}

unsigned syscalls_total(void)
{
    return total;
}

#else

bool syscalls_prepare(const char **why)
{
    *why = "system calls can be counted on x86-64 only";
    return false;
}

void syscalls_begin(void)
{
}

void syscalls_end(void)
{
}

unsigned syscalls_count(long number)
{
    (void)number;
    return 0;
}

unsigned syscalls_total(void)
{
    return 0;
}

#endif
