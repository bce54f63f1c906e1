/* Signals: all functions that install a handler, and the arguments of handlers. Pages are
 * faulted in even if the program handles SIGBUS or SIGSYS. */
#include "abi.h"
#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <ucontext.h>

#define LEN (1 * MIB)

static char *data;
static volatile sig_atomic_t calls, last;
static size_t looked_wrong;

static void look(int signal)
{
    calls++;
    last = signal;
    looked_wrong += wrong(data, LEN, 1);
}

static void look_info(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    look(signal);
}

static void start(void)
{
    data = evicted_memory(LEN, 1);
}

static void say_calls(const char *what)
{
    say("%s: %d calls, last %s, wrong %zu", what, (int)calls, last ? sigabbrev_np(last) : "none",
        looked_wrong);
    calls = last = looked_wrong = 0;
}

static const char *name_of(sighandler_t handler)
{
    return handler == SIG_DFL   ? "default"
           : handler == SIG_IGN ? "ignore"
           : handler == SIG_ERR ? "error"
           : handler == SIG_HOLD ? "hold"
           : handler == look     ? "look"
           : handler == (sighandler_t)(void (*)(void))look_info ? "look_info"
                                                : "another";
}

static void say_action(int signal)
{
    struct sigaction got;
    memset(&got, 0x55, sizeof got);
    RESULT(sigaction(signal, NULL, &got));
    say("%s: %s flags %x", sigabbrev_np(signal), name_of(got.sa_handler), got.sa_flags);
    for (int other = 1; other < 65; other++)
        if (sigismember(&got.sa_mask, other) == 1)
            say("  masks %d", other);
}

/* Sends a signal to the process. One of softswap's threads may take it first and pass it on. */
static void send_and_await(int signal)
{
    kill(getpid(), signal);
    WAIT_UNTIL(calls);
}

/* Installs a handler with `install`, raises the signal twice with memory swapped out, and checks
 * the memory's content. */
#define BY_ENTRY(install)                                                     \
    start();                                                                  \
    static const int signals[] = {SIGBUS, SIGSYS, SIGUSR1};                   \
    for (int i = 0; i < 3; i++) {                                             \
        int s = signals[i];                                                   \
        say("before: %s", name_of((sighandler_t)(install)));                  \
        say_action(s);                                                        \
        evict();                                                            \
        raise(s);                                                             \
        say_calls(sigabbrev_np(s));                                           \
        say_action(s);                                                        \
        say("again: %s", name_of((sighandler_t)(install)));                   \
        evict();                                                            \
        send_and_await(s);                                                    \
        say_calls("by kill");                                                 \
        signal(s, SIG_IGN);                                                   \
        raise(s);                                                             \
        say_calls("ignored");                                                 \
        evict();                                                            \
        say("wrong %zu", wrong(data, LEN, 1));                                \
        signal(s, SIG_DFL);                                                   \
    }

extern sighandler_t bsd_signal(int, sighandler_t);
extern sighandler_t __sysv_signal(int, sighandler_t);
extern sighandler_t sysv_signal(int, sighandler_t);
extern int __sigaction(int, const struct sigaction *, struct sigaction *);

CASE(by_signal) { BY_ENTRY(signal(s, look)) }
CASE(by_bsd_signal) { BY_ENTRY(bsd_signal(s, look)) }
CASE(by_ssignal) { BY_ENTRY(ssignal(s, look)) }
CASE(by_sysv_signal) { BY_ENTRY(sysv_signal(s, look)) }
CASE(by_underscored_sysv_signal) { BY_ENTRY(__sysv_signal(s, look)) }
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CASE(by_sigset) { BY_ENTRY(sigset(s, look)) }

static sighandler_t by_action(int signal, int flags, int siginfo)
{
    struct sigaction action = {.sa_flags = flags}, old;
    if (siginfo)
        action.sa_sigaction = look_info;
    else
        action.sa_handler = look;
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaddset(&action.sa_mask, SIGBUS);
    int result = siginfo ? __sigaction(signal, &action, &old) : sigaction(signal, &action, &old);
    return result ? SIG_ERR : old.sa_handler;
}
CASE(by_sigaction) { BY_ENTRY(by_action(s, SA_RESTART | SA_ONSTACK, 0)) }
CASE(by_underscored_sigaction) { BY_ENTRY(by_action(s, SA_SIGINFO | SA_NODEFER, 1)) }
CASE(by_sigaction_once) { BY_ENTRY(by_action(s, SA_RESETHAND | SA_RESTART, 0)) }

struct kernel_action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static sighandler_t by_number(int signal, struct kernel_action *action, struct kernel_action *old)
{
    struct sigaction now;
    sigaction(signal, NULL, &now);
    /* Get the restorer of the C library. */
    struct sigaction probe = {.sa_handler = look}, got;
    sigaction(SIGUSR2, &probe, NULL);
    sigaction(SIGUSR2, NULL, &got);
    *action = (struct kernel_action){look, 0x04000000 | SA_RESTART, got.sa_restorer, ~0UL};
    return syscall(SYS_rt_sigaction, signal, action, old, 8) ? SIG_ERR : old->handler;
}

static sighandler_t by_raw(int signal)
{
    struct kernel_action action, old;
    return by_number(signal, &action, &old);
}
CASE(by_raw_call) { BY_ENTRY(by_raw(s)) }

static sighandler_t by_raw_in_memory(int signal)
{
    static struct kernel_action *both;
    if (!both)
        both = memory(LEN, 3);
    evict();
    return by_number(signal, both, both + 1000);
}
CASE(by_raw_call_in_managed_memory) { BY_ENTRY(by_raw_in_memory(s)) }

CASE(raw_call_refuses)
{
    struct kernel_action action = {look, 0x04000000, NULL, 0}, old;
    RESULT(syscall(SYS_rt_sigaction, SIGBUS, &action, NULL, 16));
    RESULT(syscall(SYS_rt_sigaction, 0, &action, NULL, 8));
    RESULT(syscall(SYS_rt_sigaction, 65, &action, NULL, 8));
    RESULT(syscall(SYS_rt_sigaction, SIGKILL, &action, NULL, 8));
    RESULT(syscall(SYS_rt_sigaction, SIGKILL, NULL, &old, 8));
    RESULT(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8));
    RESULT(syscall(SYS_rt_sigaction, SIGBUS, (void *)8, NULL, 8));
    RESULT(syscall(SYS_rt_sigaction, SIGUSR1, NULL, (void *)8, 8));
}

CASE(functions_refuse)
{
    struct sigaction action = {.sa_handler = look}, old;
    static const int bad[] = {-1, 0, 32, 33, 65, 1000, SIGKILL, SIGSTOP};
    for (int i = 0; i < 8; i++) {
        say("signal %d", bad[i]);
        RESULT(sigaction(bad[i], &action, NULL));
        RESULT(sigaction(bad[i], NULL, &old));
        SUCCESS(signal(bad[i], look));
        SUCCESS(sysv_signal(bad[i], look));
        SUCCESS(sigset(bad[i], look));
        RESULT(sigignore(bad[i]));
        RESULT(siginterrupt(bad[i], 1));
        RESULT(sighold(bad[i]));
        RESULT(sigrelse(bad[i]));
    }
    SUCCESS(signal(SIGUSR1, SIG_ERR));
    SUCCESS(sysv_signal(SIGBUS, SIG_ERR));
    SUCCESS(sigset(SIGUSR1, SIG_ERR));
}

CASE(sigignore_keeps_pages_coming)
{
    start();
    RESULT(sigignore(SIGBUS));
    RESULT(sigignore(SIGSYS));
    say_action(SIGBUS);
    say_action(SIGSYS);
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
    raise(SIGBUS);
    raise(SIGSYS);
    int ends[2];
    MUST(pipe(ends));
    evict();
    RESULT(write(ends[1], data, 1000));
}

CASE(sigset_holds)
{
    start();
    say("%s", name_of(sigset(SIGBUS, look)));
    say("%s", name_of(sigset(SIGBUS, SIG_HOLD)));
    evict();
    raise(SIGBUS);
    say_calls("held");
    say("wrong %zu", wrong(data, LEN, 1));
    say("%s", name_of(sigset(SIGBUS, look)));
    say_calls("released");
    RESULT(sighold(SIGSYS));
    RESULT(sighold(SIGUSR1));
    say("%s", name_of(sigset(SIGSYS, look)));
    say("%s", name_of(sigset(SIGUSR1, look)));
    say("%s", name_of(sigset(SIGUSR1, SIG_DFL)));
}

CASE(siginterrupt_interrupts)
{
    for (int i = 0; i < 3; i++) {
        int s = i == 0 ? SIGUSR1 : i == 1 ? SIGBUS : SIGSYS;
        signal(s, look);
        say_action(s);
        RESULT(siginterrupt(s, 1));
        say_action(s);
        signal(s, look);
        say_action(s);
        RESULT(siginterrupt(s, 0));
        say_action(s);
        signal(s, look);
        say_action(s);
    }
}

/* ---- arguments of handlers ------------------------------------------------ */

static void say_blocked(const char *what)
{
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    char line[200] = "";
    for (int s = 1; s < 65; s++)
        if (sigismember(&now, s) == 1)
            snprintf(line + strlen(line), sizeof line - strlen(line), " %d", s);
    say("%s: blocked%s", what, line);
}

static void say_mask_in_handler(int signal)
{
    (void)signal;
    say_blocked("in the handler");
}

CASE(mask_in_a_handler)
{
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++)
        for (int nodefer = 0; nodefer < 2; nodefer++) {
            struct sigaction action = {.sa_flags = nodefer ? SA_NODEFER : 0};
            action.sa_handler = say_mask_in_handler;
            sigaddset(&action.sa_mask, SIGBUS);
            sigaddset(&action.sa_mask, SIGTERM);
            sigaction(signals[i], &action, NULL);
            raise(signals[i]);
            say_blocked("after it");
        }
}

static void change_context(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    ucontext_t *at = context;
    say("in the context: BUS %d, USR2 %d", sigismember(&at->uc_sigmask, SIGBUS),
        sigismember(&at->uc_sigmask, SIGUSR2));
    if (sigismember(&at->uc_sigmask, SIGBUS)) {
        sigdelset(&at->uc_sigmask, SIGBUS);
        sigdelset(&at->uc_sigmask, SIGUSR2);
    } else {
        sigaddset(&at->uc_sigmask, SIGBUS);
        sigaddset(&at->uc_sigmask, SIGSYS);
        sigaddset(&at->uc_sigmask, SIGUSR2);
    }
}

CASE(handler_changes_the_mask_it_returns_to)
{
    start();
    struct sigaction action = {.sa_flags = SA_SIGINFO, .sa_sigaction = change_context};
    static const int signals[] = {SIGUSR1, SIGTRAP};
    for (int i = 0; i < 2; i++) {
        sigaction(signals[i], &action, NULL);
        for (int round = 0; round < 3; round++) {
            raise(signals[i]);
            say_blocked("after the handler");
            evict();
            say("wrong %zu", wrong(data, LEN, 1));
        }
    }
}

CASE(handler_of_bus_changes_the_mask_it_returns_to)
{
    start();
    struct sigaction action = {.sa_flags = SA_SIGINFO, .sa_sigaction = change_context};
    sigaction(SIGSYS, &action, NULL);
    raise(SIGSYS);
    say_blocked("after the handler");
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
}

static void details_of_a_queued_signal(int signal, siginfo_t *info, void *context)
{
    (void)context;
    say("%s: code %d value %d from me %d", sigabbrev_np(signal), info->si_code,
        info->si_value.sival_int, info->si_pid == getpid());
}

CASE(details_reach_handlers)
{
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++) {
        struct sigaction action = {.sa_flags = SA_SIGINFO};
        action.sa_sigaction = details_of_a_queued_signal;
        sigaction(signals[i], &action, NULL);
        union sigval value = {.sival_int = 42 + i};
        RESULT(sigqueue(getpid(), signals[i], value));
    }
}

CASE(reset_hand_resets)
{
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++) {
        IN_CHILD("twice") {
            data = memory(LEN, 1);
            by_action(signals[i], SA_RESETHAND, 0);
            say_action(signals[i]);
            raise(signals[i]);
            say_calls("once");
            say_action(signals[i]);
            raise(signals[i]);
            say("still here");
        }
    }
}

static volatile sig_atomic_t depth, deepest, raised;
static void nested(int signal)
{
    if (++depth > deepest)
        deepest = depth;
    looked_wrong += wrong(data, LEN, 1);
    if (raised++ < 4)
        raise(signal);
    depth--;
}

CASE(handlers_nest_with_nodefer)
{
    start();
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++)
        for (int nodefer = 0; nodefer < 2; nodefer++) {
            struct sigaction action = {.sa_flags = nodefer ? SA_NODEFER : 0, .sa_handler = nested};
            sigaction(signals[i], &action, NULL);
            deepest = raised = 0;
            evict();
            raise(signals[i]);
            say("%s nodefer %d: %d deep, wrong %zu", sigabbrev_np(signals[i]), nodefer,
                (int)deepest, looked_wrong);
        }
}

/* ---- exit ------------------------------------------------------------------ */

static void ends(void (*how)(void), const char *what)
{
    IN_CHILD(what)
        how();
}

static char *beyond_a_file(void)
{
    int file = scratch_file(O_RDWR);
    return mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}
static void die_beyond_a_file(void) { *beyond_a_file() = 1; }
static void die_beyond_a_file_ignoring(void)
{
    signal(SIGBUS, SIG_IGN);
    *beyond_a_file() = 1;
}
static void die_beyond_a_file_blocking(void)
{
    signal(SIGBUS, look);
    sighold(SIGBUS);
    *beyond_a_file() = 1;
}
static void die_of_sent_bus(void) { raise(SIGBUS); }
static void die_of_sent_sys(void) { raise(SIGSYS); }
static void survive_blocked(void)
{
    sighold(SIGBUS);
    sighold(SIGSYS);
    raise(SIGBUS);
    raise(SIGSYS);
    say("blocked");
}
static void die_unblocking(void)
{
    survive_blocked();
    sigrelse(SIGSYS);
}
static void survive_ignoring_pending(void)
{
    survive_blocked();
    signal(SIGBUS, SIG_IGN);
    sigrelse(SIGBUS);
    say("gone");
}
static void die_of_null(void) { *(volatile char *)8 = 1; }
static void die_of_abort(void) { abort(); }

CASE(ends_are_the_same)
{
    data = memory(LEN, 1);
    ends(die_beyond_a_file, "beyond a file");
    ends(die_beyond_a_file_ignoring, "beyond a file, ignored");
    ends(die_beyond_a_file_blocking, "beyond a file, blocked");
    ends(die_of_sent_bus, "BUS sent");
    ends(die_of_sent_sys, "SYS sent");
    ends(survive_blocked, "blocked");
    ends(die_unblocking, "unblocked");
    ends(survive_ignoring_pending, "ignored while pending");
    ends(die_of_null, "null");
    ends(die_of_abort, "abort");
}

/* ---- children of vfork ------------------------------------------------------ */

CASE(vfork_child_leaves_its_parents_handlers)
{
    start();
    signal(SIGUSR1, look);
    signal(SIGBUS, look);
    say_blocked("before");
    pid_t child = vfork();
    if (!child) {
        sigset_t all;
        sigfillset(&all);
        for (int s = 1; s < 32; s++)
            if (s != SIGKILL && s != SIGSTOP)
                signal(s, SIG_DFL);
        sigprocmask(SIG_SETMASK, &all, NULL);
        _exit(3);
    }
    say_end("child", child);
    say_blocked("after");
    say_action(SIGUSR1);
    say_action(SIGBUS);
    raise(SIGUSR1);
    raise(SIGBUS);
    say_calls("both");
}

CASE(fork_child_has_its_parents_handlers)
{
    start();
    signal(SIGUSR1, look);
    signal(SIGBUS, look);
    sighold(SIGSYS);
    IN_CHILD("child") {
        say_action(SIGBUS);
        say_blocked("child");
        raise(SIGUSR1);
        raise(SIGBUS);
        say_calls("both");
        signal(SIGBUS, SIG_IGN);
    }
    say_action(SIGBUS);
}

/* ---- stacks ----------------------------------------------------------------- */

CASE(sigaltstack_tells)
{
    stack_t got, set = {.ss_sp = memory(LEN, 9), .ss_size = LEN};
    RESULT(sigaltstack(NULL, &got));
    say("flags %d size %zu", got.ss_flags, got.ss_size);
    RESULT(sigaltstack(&set, NULL));
    RESULT(sigaltstack(NULL, &got));
    say("flags %d size %zu same %d", got.ss_flags, got.ss_size, got.ss_sp == set.ss_sp);
    set.ss_size = 100;
    RESULT(sigaltstack(&set, NULL));
    set.ss_size = LEN;
    set.ss_flags = 77;
    RESULT(sigaltstack(&set, NULL));
    set.ss_flags = SS_ONSTACK;
    RESULT(sigaltstack(&set, NULL));
    RESULT(sigaltstack(NULL, &got));
    say("flags %d", got.ss_flags);
    set.ss_flags = SS_DISABLE;
    RESULT(sigaltstack(&set, &got));
    RESULT(sigaltstack(NULL, &got));
    say("flags %d size %zu none %d", got.ss_flags, got.ss_size, got.ss_sp == NULL);
}

static stack_t in_handler;
static int change_result, change_errno;
static void ask_stack(int signal)
{
    (void)signal;
    sigaltstack(NULL, &in_handler);
    stack_t other = {.ss_flags = SS_DISABLE};
    change_result = sigaltstack(&other, NULL);
    change_errno = errno;
}

CASE(sigaltstack_in_a_handler_on_it)
{
    stack_t set = {.ss_sp = memory(LEN, 9), .ss_size = LEN}, got;
    MUST(sigaltstack(&set, NULL));
    struct sigaction action = {.sa_flags = SA_ONSTACK, .sa_handler = ask_stack};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    say("flags %d size %zu same %d, change %d %s", in_handler.ss_flags, in_handler.ss_size,
        in_handler.ss_sp == set.ss_sp, change_result, strerrorname_np(change_errno));
    sigaltstack(NULL, &got);
    say("flags %d", got.ss_flags);
}

CASE(sigaltstack_in_a_handler_beside_it)
{
    stack_t set = {.ss_sp = memory(LEN, 9), .ss_size = LEN};
    MUST(sigaltstack(&set, NULL));
    struct sigaction action = {.sa_handler = ask_stack};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    say("flags %d size %zu, change %d", in_handler.ss_flags, in_handler.ss_size, change_result);
}

/* ---- other programs ----------------------------------------------------------- */

CASE(timers_strike_while_pages_come_in)
{
    start();
    sysv_signal(SIGALRM, SIG_IGN);
    struct sigaction action = {.sa_flags = SA_RESTART, .sa_handler = look};
    sigfillset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    size_t bad = 0;
    for (int i = 0; i < 10; i++) {
        evict();
        bad += wrong(data, LEN, 1);
    }
    while (!calls)
        pause();
    setitimer(ITIMER_REAL, &never, NULL);
    say("wrong %zu, in handlers %zu", bad, looked_wrong);
}

CASE(zstd_like_handlers)
{
    /* Like compression programs: signal() for many signals, a large heap and threads. */
    start();
    static const int signals[] = {SIGINT, SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT};
    for (int i = 0; i < 6; i++)
        say("%s", name_of(__sysv_signal(signals[i], look)));
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
    for (int i = 0; i < 6; i++)
        say("%s", name_of(__sysv_signal(signals[i], SIG_DFL)));
}

static void *raise_here(void *argument)
{
    (void)argument;
    raise(SIGBUS);
    raise(SIGUSR1);
    return NULL;
}

CASE(threads_handle_signals)
{
    start();
    signal(SIGBUS, look);
    signal(SIGUSR1, look);
    for (int i = 0; i < 4; i++) {
        evict();
        in_thread(raise_here, NULL);
    }
    say_calls("four threads");
}

static void *leave_from_handler(void *argument)
{
    (void)argument;
    raise(SIGUSR1);
    return (void *)1;
}
static void leave(int signal)
{
    (void)signal;
    pthread_exit((void *)7);
}
CASE(pthread_exit_from_a_handler)
{
    start();
    signal(SIGUSR1, leave);
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, leave_from_handler, NULL);
    pthread_join(thread, &result);
    say("%ld", (long)result);
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
}
