/**
 * tests/cuda/fiber.h: where a fiber is, and going on there: a block's threads, which wait for each
 * other at certain places only, take turns on one thread of the processor. C++.
 */
#ifndef TESTS_CUDA_FIBER_H
#define TESTS_CUDA_FIBER_H

#include <cstddef>

#ifdef __x86_64__
// swapcontext() asks the kernel for the signal mask, each time. This goes on where `to` says, and
// has in *from how to go on here: what a function must leave as it was is on the stack.
extern "C" void on_host_switch(void **from, void *to);
__asm__(".text\n"
        ".type on_host_switch, @function\n"
        "on_host_switch:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n"
        ".size on_host_switch, . - on_host_switch\n");

typedef void *context;

static void go_to(context *from, const context *to)
{
    on_host_switch(from, *to);
}

/** The first switch to it begins `function`, which never returns, as if it had been called. */
static void begin_context(context *made, char *stack, size_t bytes, void (*function)(void))
{
    void **top = (void **)(void *)(stack + bytes) - 1;
    *--top = (void *)function;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    *made = top;
}
#else
#include <ucontext.h>

typedef ucontext_t context;

static void go_to(context *from, const context *to)
{
    swapcontext(from, to);
}

static void begin_context(context *made, char *stack, size_t bytes, void (*function)(void))
{
    getcontext(made);
    made->uc_stack.ss_sp = stack;
    made->uc_stack.ss_size = bytes;
    made->uc_link = nullptr;
    makecontext(made, function, 0);
}
#endif

#endif
