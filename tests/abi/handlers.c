/* Handlers run on the stack that Linux would use, with a complete frame. The context can be read
 * and changed. Jumps into and out of the handler work. Registers and the red zone are preserved. */
#include "abi.h"
#include <execinfo.h>
#include <linux/futex.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/ucontext.h>
#include <ucontext.h>

#define LEN (8 * MIB)
static unsigned char *data;

static void start(void)
{
    data = malloc(LEN);
    fill(data, LEN, 1);
    evict();
}

static void handle(int signal, int flags, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_flags = flags | SA_SIGINFO, .sa_sigaction = handler};
    MUST(sigaction(signal, &action, NULL));
}

static int is_on(const void *at, stack_t stack)
{
    return (char *)at >= (char *)stack.ss_sp && (char *)at < (char *)stack.ss_sp + stack.ss_size;
}

/* The stacks on which a handler may run. */
static stack_t thread_stack, alternate;
static void where(int signal, siginfo_t *info, void *context)
{
    char here;
    ucontext_t *interrupted = context;
    char *pointer = (char *)interrupted->uc_mcontext.gregs[REG_RSP];
    stack_t now;
    sigaltstack(NULL, &now);
    say("signal %d: runs on %s, interrupted %s, below it %d, frame beside it %d, flags %x, saved %d",
        signal == info->si_signo,
        is_on(&here, alternate) ? "alternate" : is_on(&here, thread_stack) ? "own" : "other",
        is_on(pointer, alternate) ? "alternate" : is_on(pointer, thread_stack) ? "own" : "other",
        &here < pointer, labs((char *)context - &here) < 16384, now.ss_flags,
        interrupted->uc_stack.ss_sp == alternate.ss_sp);
}

static void note_own_stack(void)
{
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &thread_stack.ss_sp, &thread_stack.ss_size);
}

static void *raise_both(void *argument)
{
    (void)argument;
    note_own_stack();
    raise(SIGUSR1);
    raise(SIGUSR2);
    alternate = (stack_t){.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
    RESULT(sigaltstack(&alternate, NULL));
    raise(SIGUSR1);
    raise(SIGUSR2);
    evict();
    raise(SIGUSR2);
    raise(SIGBUS);
    alternate.ss_flags = (int)(1U << 31); /* SS_AUTODISARM */
    RESULT(sigaltstack(&alternate, NULL));
    raise(SIGUSR2);
    stack_t after;
    sigaltstack(NULL, &after);
    say("after: %d, flags %x", after.ss_sp == alternate.ss_sp, (unsigned)after.ss_flags);
    return NULL;
}

CASE(stack_of_a_handler)
{
    start();
    handle(SIGUSR1, 0, where);
    handle(SIGUSR2, SA_ONSTACK, where);
    handle(SIGBUS, SA_ONSTACK, where);
    in_thread(raise_both, NULL);
    say("wrong %zu", wrong(data, LEN, 1));
}

/* A coroutine on a malloc'ed stack whose next page is swapped out. */
static ucontext_t outside, inside;
static void coroutine_raises(void)
{
    for (int i = 0; i < 3; i++) {
        evict();
        raise(SIGUSR1);
        raise(SIGBUS);
    }
}
static void run_coroutine(void (*body)(void))
{
    size_t len = 256 << 10;
    thread_stack = (stack_t){.ss_sp = malloc(len), .ss_size = len};
    memset(thread_stack.ss_sp, 1, len);
    getcontext(&inside);
    inside.uc_stack = thread_stack;
    inside.uc_link = &outside;
    makecontext(&inside, body, 0);
    swapcontext(&outside, &inside);
}
CASE(stack_of_a_coroutine)
{
    start();
    handle(SIGUSR1, 0, where);
    handle(SIGBUS, 0, where);
    run_coroutine(coroutine_raises);
    say("wrong %zu", wrong(data, LEN, 1));
}

static void edit(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    ucontext_t *interrupted = context;
    interrupted->uc_mcontext.gregs[REG_RBX] = 0x1234;
    interrupted->uc_mcontext.gregs[REG_RIP] += 2;
    interrupted->uc_mcontext.fpregs->_xmm[15].element[0] = 77;
    sigaddset(&interrupted->uc_sigmask, SIGUSR2);
}
CASE(edited_context_is_applied)
{
    start();
    handle(SIGILL, 0, edit);
    long kept = 1;
    int vector = 0;
    __asm__ volatile("mov $1, %%rbx; ud2; mov %%rbx, %0; movd %%xmm15, %1"
                     : "=r"(kept), "=r"(vector) : : "rbx", "xmm15", "memory");
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    say("rbx %lx, xmm15 %d, blocked %d", kept, vector, sigismember(&mask, SIGUSR2));
}

static void clobber(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    volatile char much[3000];
    memset((void *)much, 0xa5, sizeof much);
    double rounding = 1e300;
    __asm__ volatile("pcmpeqd %%xmm0, %%xmm0; pcmpeqd %%xmm9, %%xmm9; fldz; fldz; fninit; fldl %0"
                     : : "m"(rounding) : "xmm0", "xmm9", "st");
    __asm__ volatile("fstp %%st(0)" : : : "st");
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vxorps %%ymm9, %%ymm9, %%ymm9" : : : "xmm9");
}
CASE(registers_and_red_zone_are_kept)
{
    start();
    handle(SIGILL, 0, clobber);
    handle(SIGTRAP, 0, clobber);
    long red = 0;
    int vector = 0;
    double x87 = 0;
    /* The handler's frame must not overlap the red zone, which is in use. */
    __asm__ volatile("movq $4711, -64(%%rsp)\n\tmovq $4712, -128(%%rsp)\n\tmov $99, %%eax\n\t"
                     "movd %%eax, %%xmm9\n\tfldpi\n\tint3\n\tmov -64(%%rsp), %0\n\t"
                     "add -128(%%rsp), %0\n\tmovd %%xmm9, %1\n\tfstpl %2"
                     : "=r"(red), "=r"(vector), "=m"(x87) : : "rax", "xmm9", "memory");
    say("red zone %ld, xmm9 %d, x87 %.6f", red, vector, x87);
    if (__builtin_cpu_supports("avx")) {
        long upper = 0;
        __asm__ volatile("mov $123, %%rax\n\tmovq %%rax, %%xmm9\n\tvinsertf128 $1, %%xmm9, %%ymm9, %%ymm9\n\t"
                         "int3\n\tvextractf128 $1, %%ymm9, %%xmm9\n\tmovq %%xmm9, %0\n\tvzeroupper"
                         : "=r"(upper) : : "rax", "xmm9", "memory");
        say("upper half %ld", upper);
    }
}

static sigjmp_buf back;
static volatile int depth;
static void jump(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    if (++depth % 3 == 0)
        siglongjmp(back, signal);
    raise(SIGUSR1);
}
CASE(jumps_out_of_nested_handlers)
{
    start();
    handle(SIGUSR1, SA_NODEFER, jump);
    int jumps = 0;
    while (jumps < 200)
        if (sigsetjmp(back, 1) == 0)
            raise(SIGUSR1);
        else
            jumps++;
    say("jumps %d, depth %d, wrong %zu", jumps, depth, wrong(data, LEN, 1));
}

/* Two user threads that are switched in a handler, first with jumps, then with contexts. */
static sigjmp_buf at[2];
static ucontext_t contexts[2], second;
static volatile int current, started, by_contexts;
static volatile long loops[2], wrong_resumed;
static void tick(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    int me = current;
    current = !me;
    if (by_contexts) {
        swapcontext(&contexts[me], &contexts[!me]);
    } else if (sigsetjmp(at[me], 1) == 0) {
        if (started++)
            siglongjmp(at[!me], 1);
        setcontext(&second);
    }
}
static void user_thread(int id)
{
    for (int n = 0; n < 20; n++) {
        raise(SIGUSR1);
        wrong_resumed += current != id;
        loops[id]++;
        if (n % 5 == 0)
            evict();
    }
    say("loops %ld %ld, wrong thread resumed %ld times", loops[0], loops[1], wrong_resumed);
    _exit(wrong(data, LEN, 1) != 0);
}
static void switch_in_handlers(int which)
{
    start();
    by_contexts = which;
    handle(SIGUSR1, 0, tick);
    getcontext(&second);
    sigemptyset(&second.uc_sigmask);
    second.uc_stack.ss_sp = malloc(256 << 10);
    second.uc_stack.ss_size = 256 << 10;
    makecontext(&second, (void (*)(void))user_thread, 1, 1);
    contexts[1] = second;
    user_thread(0);
}
CASE(jumps_into_handlers) { switch_in_handlers(0); }
CASE(contexts_swapped_in_handlers) { switch_in_handlers(1); }

static void deep(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    volatile char much[5 * MIB];
    for (size_t i = sizeof much; i > 0; i -= PAGE)
        much[i - 1] = 1;
    say("deep %d", much[0] + much[PAGE - 1]);
}
CASE(handler_with_a_large_frame)
{
    start();
    handle(SIGUSR1, 0, deep);
    raise(SIGUSR1);
}

/* Stack overflow: with an alternate stack the handler runs; without one the signal kills the
 * process. */
__attribute__((noinline))
static int overflow(int n)
{
    volatile char much[4096];
    much[n % 4096] = (char)n;
    return overflow(n + 1) + much[0];
}
static void overflown(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    say("overflow: signal %d", signal);
    _exit(3);
}
static unsigned char small_stack[8 * PAGE] __attribute__((aligned(4096)));
static void start_program(int signal)
{
    execl("/not/there", "there", "argument", NULL);
    say("%d %s", signal == SIGUSR1, strerrorname_np(errno));
}

/* glibc needs a few hundred bytes for it. */
CASE(exec_on_a_small_stack)
{
    start();
    size_t below = 4 * PAGE;
    memset(small_stack, 0x5a, below);
    stack_t stack = {.ss_sp = small_stack + below, .ss_size = sizeof small_stack - below};
    MUST(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_flags = SA_ONSTACK, .sa_handler = start_program};
    MUST(sigaction(SIGUSR1, &action, NULL));
    raise(SIGUSR1);
    size_t changed = 0;
    for (size_t at = 0; at < below; at++)
        changed += small_stack[at] != 0x5a;
    say("changed %zu", changed);
}

CASE(stack_overflow)
{
    struct rlimit limit = {MIB, MIB};
    start();
    for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
        pid_t child = fork();
        if (child == 0) {
            setrlimit(RLIMIT_STACK, &limit);
            alternate = (stack_t){.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
            sigaltstack(&alternate, NULL);
            handle(SIGSEGV, flags, overflown);
            _exit(overflow(0));
        }
        int status;
        waitpid(child, &status, 0);
        say("flags %d: status %x", flags != 0, status & 0xff7f);
    }
}

/* A signal arrives while a thread waits in a call whose argument is in managed memory. */
static volatile int seen;
static void interrupted(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    char here;
    ucontext_t *state = context;
    unsigned char *next = (unsigned char *)state->uc_mcontext.gregs[REG_RIP];
    long result = state->uc_mcontext.gregs[REG_RAX];
    say("on own stack %d, interrupted there %d, at a call %d, result %s", is_on(&here, thread_stack),
        is_on((void *)state->uc_mcontext.gregs[REG_RSP], thread_stack),
        (next[0] == 0x0f && next[1] == 5) || (next[-2] == 0x0f && next[-1] == 5),
        result == -EINTR ? "EINTR" : result > 0 ? "number" : "other");
    seen = 1;
}
static int *word;
static int ends[2];
static volatile pid_t waiter;
static void *waits(void *how)
{
    note_own_stack();
    waiter = gettid();
    struct timespec forever = {1000, 0};
    errno = 0;
    if ((long)how == 0)
        say_result("futex", syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 1, &forever, NULL, 0));
    else
        say_result("read", read(ends[0], data + LEN / 2, 4));
    return NULL;
}
CASE(context_in_a_guarded_call)
{
    start();
    word = (int *)(data + LEN / 4);
    *word = 1;
    MUST(pipe(ends));
    for (long how = 0; how < 2; how++)
        for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
            pthread_t thread;
            seen = waiter = 0;
            handle(SIGUSR1, flags, interrupted);
            pthread_create(&thread, NULL, waits, (void *)how);
            WAIT_UNTIL(waiter && is_in_call(waiter, how ? SYS_read : SYS_futex,
                                            how ? (unsigned long)ends[0] : (unsigned long)word));
            pthread_kill(thread, SIGUSR1);
            while (!seen)
                sched_yield();
            if (flags && how == 0) {
                /* The argument changes while the call waits again. */
                __atomic_store_n(word, 2, __ATOMIC_SEQ_CST);
                syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
            } else if (flags) {
                MUST(write(ends[1], "abcd", 4));
            }
            pthread_join(thread, NULL);
        }
    memset(data + LEN / 2, 0, 4);
}

static sigjmp_buf out;
static void jump_out(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    seen++;
    siglongjmp(out, signal);
}
static void *kick(void *thread)
{
    until_others_sleep(getpid());
    pthread_kill((pthread_t)thread, SIGUSR1);
    return NULL;
}
CASE(jump_out_of_a_guarded_call)
{
    start();
    handle(SIGUSR1, 0, jump_out);
    MUST(pipe(ends));
    for (volatile int i = 0; i < 5; i++) {
        pthread_t thread;
        if (sigsetjmp(out, 1) == 0) {
            pthread_create(&thread, NULL, kick, (void *)pthread_self());
            RESULT(read(ends[0], data + LEN / 2, 4));
        }
        evict();
        pthread_join(thread, NULL);
    }
    say("jumps %d", seen);
    MUST(write(ends[1], "abcd", 4));
    RESULT(read(ends[0], data + LEN / 2, 4));
    say("%.4s", data + LEN / 2);
}

/* The mask that a call sets while it waits also applies in the handler. */
static volatile int order[4], count;
static void note_order(int signal, siginfo_t *info, void *context)
{
    (void)info;
    ucontext_t *state = context;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    if (signal == SIGUSR1)
        raise(SIGUSR2);
    say("signal %d: USR1 %d, USR2 %d, HUP %d; then USR2 %d", signal == SIGUSR1, sigismember(&mask, SIGUSR1),
        sigismember(&mask, SIGUSR2), sigismember(&mask, SIGHUP), sigismember(&state->uc_sigmask, SIGUSR2));
    count++;
}
CASE(mask_of_a_waiting_call)
{
    start();
    handle(SIGUSR1, 0, note_order);
    handle(SIGUSR2, 0, note_order);
    sigset_t all, *empty = (sigset_t *)data;
    sigemptyset(empty);
    sigemptyset(&all);
    sigaddset(&all, SIGUSR1);
    sigaddset(&all, SIGUSR2);
    sigaddset(&all, SIGHUP);
    sigprocmask(SIG_BLOCK, &all, NULL);
    raise(SIGUSR1);
    RESULT(sigsuspend(empty));
    sigset_t local = *empty;
    raise(SIGUSR1);
    RESULT(ppoll(NULL, 0, NULL, &local));
    raise(SIGUSR1);
    RESULT(syscall(SYS_rt_sigsuspend, empty, 8));
    raise(SIGUSR1);
    raise(SIGUSR2);
    RESULT(ppoll(NULL, 0, NULL, &local));
    say("handlers %d", count);
}

/* Unwinders find the caller of a call that waits. */
__attribute__((noinline)) static long wait_in(int how)
{
    static sigset_t empty;
    struct timespec forever = {1000, 0};
    long result = how == 0 ? sigsuspend(&empty)
                : how == 1 ? ppoll(NULL, 0, &forever, &empty)
                : how == 2 ? pselect(0, NULL, NULL, NULL, &forever, &empty)
                           : read(ends[0], data + LEN / 2, 4);
    return result;
}
__attribute__((noinline)) static void look_for_caller(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    void *frames[64];
    int depth = backtrace(frames, 64), found = 0;
    for (int i = 0; i < depth; i++)
        found |= (char *)frames[i] > (char *)wait_in && (char *)frames[i] < (char *)look_for_caller;
    say("caller found %d", found);
}
CASE(callers_of_waiting_calls_are_found)
{
    start();
    void *frame;
    backtrace(&frame, 1); /* loads the unwinder */
    handle(SIGUSR1, 0, look_for_caller);
    MUST(pipe(ends));
    for (int how = 0; how < 4; how++) {
        pthread_t thread;
        pthread_create(&thread, NULL, kick, (void *)pthread_self());
        RESULT(wait_in(how));
        pthread_join(thread, NULL);
    }
}
