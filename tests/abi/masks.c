/* Signal masks: the program sees each signal that it has blocked as blocked. Page faults are
 * handled with every mask. */
#include "abi.h"
#include <poll.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <ucontext.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define LEN (1 * MIB)

extern char **environ;
static char *data;
static volatile sig_atomic_t calls;
static size_t looked_wrong;

static void look(int signal)
{
    (void)signal;
    calls++;
    looked_wrong += wrong(data, LEN, 1);
}

static void say_calls(const char *what)
{
    say("%s: %d calls, wrong %zu", what, (int)calls, looked_wrong);
    calls = looked_wrong = 0;
}

static void start(void)
{
    data = evicted_memory(LEN, 1);
}

static void check(const char *what)
{
    evict();
    say("%s: wrong %zu", what, wrong(data, LEN, 1));
}

static void say_set(const char *what, const sigset_t *set)
{
    char line[400] = "";
    for (int s = 1; s < 65; s++)
        if (sigismember(set, s) == 1)
            snprintf(line + strlen(line), sizeof line - strlen(line), " %d", s);
    say("%s:%s", what, line);
}

static void say_blocked(const char *what)
{
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    say_set(what, &now);
}

static sigset_t set_of(int a, int b, int c)
{
    sigset_t set;
    sigemptyset(&set);
    if (a)
        sigaddset(&set, a);
    if (b)
        sigaddset(&set, b);
    if (c)
        sigaddset(&set, c);
    return set;
}

static sigset_t full(void)
{
    sigset_t set;
    sigfillset(&set);
    return set;
}

CASE(sigprocmask_tells)
{
    start();
    sigset_t all = full(), some = set_of(SIGBUS, SIGUSR1, SIGSYS), old;
    RESULT(sigprocmask(SIG_BLOCK, &some, &old));
    say_set("old", &old);
    say_blocked("now");
    check("blocked");
    RESULT(sigprocmask(SIG_SETMASK, &all, &old));
    say_set("old", &old);
    check("all blocked");
    some = set_of(SIGBUS, 0, 0);
    RESULT(sigprocmask(SIG_UNBLOCK, &some, &old));
    say_blocked("now");
    RESULT(sigprocmask(77, &some, &old));
    RESULT(sigprocmask(77, NULL, &old));
    say_blocked("now");
}

CASE(pthread_sigmask_tells)
{
    start();
    sigset_t all = full(), old;
    RESULT(pthread_sigmask(SIG_SETMASK, &all, &old));
    say_set("old", &old);
    say_blocked("now");
    check("all blocked");
    RESULT(pthread_sigmask(99, &all, &old));
    RESULT(pthread_sigmask(SIG_UNBLOCK, &all, &old));
    say_set("old", &old);
    say_blocked("now");
}

CASE(old_calls_tell)
{
    start();
    say("%x", sigblock(1 << (SIGBUS - 1) | 1 << (SIGUSR1 - 1)));
    say("%x", siggetmask());
    say_blocked("now");
    check("sigblock");
    say("%x", sigsetmask(-1));
    say("%x", siggetmask());
    say_blocked("now");
    check("sigsetmask");
    say("%x", sigsetmask(0));
    say_blocked("now");
    RESULT(sighold(SIGBUS));
    RESULT(sighold(SIGSYS));
    say_blocked("now");
    check("sighold");
    RESULT(sigrelse(SIGBUS));
    say_blocked("now");
}

CASE(raw_call_tells)
{
    start();
    unsigned long all = ~0UL, old = 5, none = 0;
    RESULT(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8));
    say("%lx", old);
    RESULT(syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &old, 8));
    say("%lx", old);
    check("all blocked");
    RESULT(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, &old, 8));
    say("%lx", old);
    RESULT(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 4));
    RESULT(syscall(SYS_rt_sigprocmask, 9, &all, &old, 8));
    RESULT(syscall(SYS_rt_sigprocmask, 9, NULL, &old, 8));
    RESULT(syscall(SYS_rt_sigprocmask, SIG_BLOCK, (void *)8, NULL, 8));
    RESULT(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, (void *)8, 8));
}

CASE(raw_call_in_managed_memory)
{
    start();
    unsigned long *at = memory(LEN, 2);
    at[0] = ~0UL;
    at[70000] = 0;
    evict();
    RESULT(syscall(SYS_rt_sigprocmask, SIG_SETMASK, at, at + 70000, 8));
    say("%lx", at[70000]);
    say_blocked("now");
    check("all blocked");
    evict();
    at[1000] = 1UL << (SIGBUS - 1);
    RESULT(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, at + 1000, at + 70000, 8));
    say_blocked("now");
    evict();
    RESULT(syscall(SYS_rt_sigpending, at + 3000, 8));
    say("%lx", at[3000]);
}

/* ---- pending signals ------------------------------------------------------ */

static void say_pending(const char *what)
{
    sigset_t now;
    sigpending(&now);
    say_set(what, &now);
}

CASE(blocked_signals_wait)
{
    start();
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++) {
        int s = signals[i];
        signal(s, look);
        sighold(s);
        raise(s);
        raise(s);
        kill(getpid(), s);
        say_calls("held");
        say_pending("pending");
        unsigned long raw = 0;
        RESULT(syscall(SYS_rt_sigpending, &raw, 8));
        say("%lx", raw);
        check("held");
        sigrelse(s);
        say_calls("released");
        say_pending("pending");
    }
}

CASE(ignored_signals_do_not_wait)
{
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++) {
        sighold(signals[i]);
        raise(signals[i]);
        say_pending("pending");
        signal(signals[i], SIG_IGN);
        say_pending("ignored");
        sigrelse(signals[i]);
    }
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static void *stay_blocked(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&turn);
    pthread_mutex_unlock(&turn);
    say_blocked("thread");
    check("thread");
    raise(SIGBUS);
    say_pending("thread");
    return NULL;
}

CASE(threads_inherit_masks)
{
    start();
    sigset_t some = set_of(SIGBUS, SIGUSR2, SIGSYS);
    sigprocmask(SIG_BLOCK, &some, NULL);
    in_thread(stay_blocked, NULL);
    say_pending("main");
    say_blocked("main");
}

CASE(threads_get_masks_by_attribute)
{
    start();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    sigset_t all = full(), none = set_of(0, 0, 0), got;
    RESULT(pthread_attr_setsigmask_np(&attributes, &all));
    RESULT(pthread_attr_getsigmask_np(&attributes, &got));
    say_set("attribute", &got);
    pthread_t thread;
    evict();
    pthread_mutex_lock(&turn);
    say("result %d", pthread_create(&thread, &attributes, stay_blocked, NULL));
    pthread_mutex_unlock(&turn);
    pthread_join(thread, NULL);
    sigprocmask(SIG_SETMASK, &all, NULL);
    pthread_attr_setsigmask_np(&attributes, &none);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGBUS, &ignore, NULL);
    pthread_mutex_lock(&turn);
    say("result %d", pthread_create(&thread, &attributes, stay_blocked, NULL));
    pthread_mutex_unlock(&turn);
    pthread_join(thread, NULL);
    say_blocked("main");
}

/* ---- waiting with a mask --------------------------------------------------- */

static void *kick(void *main_thread)
{
    until_others_sleep(getpid());
    pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
    return NULL;
}

/* Waits with `call`, with all signals blocked except SIGUSR1, whose handler reads swapped-out
 * memory. */
#define WAIT(call)                                                            \
    do {                                                                      \
        pthread_t me = pthread_self(), kicker;                                \
        pthread_create(&kicker, NULL, kick, &me);                             \
        evict();                                                            \
        RESULT(call);                                                         \
        pthread_join(kicker, NULL);                                           \
        say_calls("handler");                                                 \
    } while (0)

static sigset_t only_usr1;
static void prepare_wait(void)
{
    start();
    signal(SIGUSR1, look);
    sighold(SIGUSR1);
    only_usr1 = full();
    sigdelset(&only_usr1, SIGUSR1);
}

CASE(sigsuspend_with_a_full_mask)
{
    prepare_wait();
    WAIT(sigsuspend(&only_usr1));
    say_blocked("after");
}
CASE(sigpause_with_a_full_mask)
{
    extern int __sigpause(int, int), __xpg_sigpause(int);
    prepare_wait();
    WAIT(__sigpause(~(1 << (SIGUSR1 - 1)), 0));
    sigset_t all = full();
    sigprocmask(SIG_SETMASK, &all, NULL);
    WAIT(__xpg_sigpause(SIGUSR1));
    RESULT(__xpg_sigpause(0));
    RESULT(__xpg_sigpause(65));
    say_blocked("after");
}
CASE(ppoll_with_a_full_mask)
{
    prepare_wait();
    WAIT(ppoll(NULL, 0, NULL, &only_usr1));
    struct timespec moment = {0, 1000};
    RESULT(ppoll(NULL, 0, &moment, &only_usr1));
    say_blocked("after");
}
CASE(pselect_with_a_full_mask)
{
    prepare_wait();
    WAIT(pselect(0, NULL, NULL, NULL, NULL, &only_usr1));
    say_blocked("after");
}
CASE(epoll_with_a_full_mask)
{
    prepare_wait();
    int poll = MUST(epoll_create1(0));
    struct epoll_event event;
    WAIT(epoll_pwait(poll, &event, 1, -1, &only_usr1));
    WAIT(epoll_pwait2(poll, &event, 1, NULL, &only_usr1));
    say_blocked("after");
}
CASE(raw_waits_with_a_full_mask)
{
    prepare_wait();
    int poll = MUST(epoll_create1(0));
    struct epoll_event event;
    unsigned long mask = ~(1UL << (SIGUSR1 - 1));
    struct {
        unsigned long *mask, size;
    } pair = {&mask, 8};
    WAIT(syscall(SYS_rt_sigsuspend, &mask, 8));
    WAIT(syscall(SYS_ppoll, NULL, 0, NULL, &mask, 8));
    WAIT(syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, &pair));
    WAIT(syscall(SYS_epoll_pwait, poll, &event, 1, -1, &mask, 8));
    WAIT(syscall(SYS_epoll_pwait2, poll, &event, 1, NULL, &mask, 8));
    say("mask %lx, pair kept %d", mask, pair.mask == &mask);
    say_blocked("after");
    RESULT(syscall(SYS_rt_sigsuspend, &mask, 4));
    RESULT(syscall(SYS_ppoll, NULL, 0, NULL, (void *)8, 8));
    RESULT(syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, (void *)8));
}
CASE(raw_waits_in_managed_memory)
{
    prepare_wait();
    int poll = MUST(epoll_create1(0));
    unsigned long *at = memory(LEN, 2);
    struct epoll_event *events = (void *)(at + 100000);
    at[0] = ~(1UL << (SIGUSR1 - 1));
    at[5000] = (unsigned long)&at[0];
    at[5001] = 8;
    WAIT(syscall(SYS_rt_sigsuspend, at, 8));
    WAIT(syscall(SYS_ppoll, events, 0, NULL, at, 8));
    WAIT(syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, at + 5000));
    WAIT(syscall(SYS_epoll_pwait, poll, events, 1, -1, at, 8));
    WAIT(ppoll(NULL, 0, NULL, (sigset_t *)at));
    say("mask %lx", at[0]);
}
CASE(sigsuspend_frees_what_was_held)
{
    start();
    signal(SIGBUS, look);
    sighold(SIGBUS);
    raise(SIGBUS);
    say_calls("held");
    sigset_t none = set_of(0, 0, 0);
    RESULT(sigsuspend(&none));
    say_calls("suspended");
    say_blocked("after");
    raise(SIGBUS);
    RESULT(ppoll(NULL, 0, NULL, &none));
    say_calls("polled");
    say_pending("after");
}

/* ---- waiting for a signal --------------------------------------------------- */

CASE(sigwait_takes_what_is_held)
{
    start();
    sigset_t set = set_of(SIGUSR1, SIGBUS, SIGSYS);
    sigprocmask(SIG_BLOCK, &set, NULL);
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++) {
        int got = 0;
        raise(signals[i]);
        RESULT(sigwait(&set, &got));
        say("got %s", sigabbrev_np(got));
        siginfo_t info = {0};
        union sigval value = {.sival_int = 7 + i};
        sigqueue(getpid(), signals[i], value);
        evict();
        RESULT(sigwaitinfo(&set, &info));
        say("value %d code %d", info.si_value.sival_int, info.si_code);
        struct timespec moment = {0, 1000000};
        RESULT(sigtimedwait(&set, &info, &moment));
        kill(getpid(), signals[i]);
        RESULT(sigtimedwait(&set, NULL, &moment));
        check("waited");
    }
}

static void *wait_for_all(void *argument)
{
    sigset_t all = full();
    int *got = argument;
    for (int i = 0; i < 4; i++) {
        if (sigwait(&all, got + i))
            break;
        __atomic_store_n(got + 4, i + 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

CASE(a_thread_waits_for_everything)
{
    start();
    sigset_t all = full();
    sigprocmask(SIG_SETMASK, &all, NULL);
    int got[5] = {0};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_all, got);
    static const int signals[] = {SIGTERM, SIGBUS, SIGSYS, SIGUSR2};
    for (int i = 0; i < 4; i++) {
        if (i % 2)
            until_others_sleep(getpid());
        evict();
        kill(getpid(), signals[i]);
        WAIT_UNTIL(__atomic_load_n(got + 4, __ATOMIC_SEQ_CST) > i);
        say("got %s", sigabbrev_np(got[i]));
    }
    pthread_join(thread, NULL);
    check("after");
}

CASE(signalfd_with_a_full_mask)
{
    start();
    sigset_t all = full();
    sigprocmask(SIG_SETMASK, &all, NULL);
    int fd = MUST(signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
    struct signalfd_siginfo *info = (void *)memory(LEN, 4);
    const int signals[] = {SIGTERM, SIGUSR1, SIGRTMIN + 3};
    for (int i = 0; i < 3; i++) {
        kill(getpid(), signals[i]);
        evict();
        RESULT(read(fd, info, sizeof *info) == sizeof *info);
        say("got %d", info->ssi_signo - (i == 2 ? SIGRTMIN : 0));
    }
    check("after");
}

/* ---- jumps -------------------------------------------------------------------- */

static sigjmp_buf place;
static void jump(int signal)
{
    say_blocked("in the handler");
    siglongjmp(place, signal);
}

CASE(siglongjmp_restores_masks)
{
    start();
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int saves = 0; saves < 2; saves++)
        for (int i = 0; i < 3; i++) {
            struct sigaction action = {.sa_handler = jump};
            action.sa_mask = set_of(SIGBUS, SIGUSR2, 0);
            sigaction(signals[i], &action, NULL);
            int got = sigsetjmp(place, saves);
            if (!got) {
                evict();
                raise(signals[i]);
                say("not here");
            }
            say("saves %d: %s", saves, sigabbrev_np(got));
            say_blocked("after");
            check("after");
            sigset_t none = set_of(0, 0, 0);
            sigprocmask(SIG_SETMASK, &none, NULL);
        }
}

CASE(siglongjmp_restores_what_was_blocked)
{
    start();
    sighold(SIGBUS);
    sighold(SIGUSR2);
    if (!sigsetjmp(place, 1)) {
        sigrelse(SIGBUS);
        sigrelse(SIGUSR2);
        say_blocked("released");
        siglongjmp(place, 1);
    }
    say_blocked("after");
    check("after");
}

static void *managed_place(void *argument)
{
    sigjmp_buf *there = argument;
    if (!sigsetjmp(*there, 1)) {
        evict();
        siglongjmp(*there, 1);
    }
    say_blocked("after");
    return NULL;
}
CASE(jump_buffers_in_managed_memory)
{
    start();
    sighold(SIGSYS);
    managed_place(memory(LEN, 5));
    check("after");
}

static ucontext_t first, second;
static void on_another_stack(void)
{
    say_blocked("second");
    check("second");
    swapcontext(&second, &first);
    say_blocked("second again");
    check("second again");
    setcontext(&first);
}

CASE(contexts_keep_masks)
{
    start();
    getcontext(&second);
    second.uc_stack.ss_sp = memory(LEN, 6);
    second.uc_stack.ss_size = LEN;
    second.uc_link = &first;
    sigfillset(&second.uc_sigmask);
    makecontext(&second, on_another_stack, 0);
    sighold(SIGUSR1);
    swapcontext(&first, &second);
    say_blocked("first");
    check("first");
    sighold(SIGSYS);
    swapcontext(&first, &second);
    say_blocked("first again");
    check("first again");
}

CASE(setcontext_puts_a_mask_in_force)
{
    start();
    static volatile int round;
    getcontext(&first);
    say_blocked("here");
    check("here");
    if (round++ < 3) {
        if (round == 1)
            sigfillset(&first.uc_sigmask);
        if (round == 2)
            sigdelset(&first.uc_sigmask, SIGUSR1);
        if (round == 3)
            sigemptyset(&first.uc_sigmask);
        setcontext(&first);
    }
}

/* ---- inherited masks ------------------------------------------------------------ */


/* Other cases start this program as `PROGRAM started`. Prints the mask of its start. */
CASE(started)
{
    data = memory(LEN, 1);
    say_blocked("started with");
    say_pending("pending");
    static const int signals[] = {SIGUSR1, SIGBUS, SIGSYS};
    for (int i = 0; i < 3; i++) {
        struct sigaction got;
        sigaction(signals[i], NULL, &got);
        say("%s %s", sigabbrev_np(signals[i]),
            got.sa_handler == SIG_IGN ? "ignored" : got.sa_handler == SIG_DFL ? "default" : "odd");
    }
    check("started");
}

static char *self(void)
{
    static char path[4096];
    ssize_t len = MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    path[len] = 0;
    return path;
}

static void start_by_exec(void)
{
    char *argv[] = {self(), "started", NULL};
    execv(argv[0], argv);
    _exit(9);
}

CASE(exec_passes_masks_on)
{
    start();
    sigset_t all = full();
    sigprocmask(SIG_SETMASK, &all, NULL);
    IN_CHILD("all blocked")
        start_by_exec();
    sigset_t none = set_of(0, 0, 0);
    sigprocmask(SIG_SETMASK, &none, NULL);
    IN_CHILD("none blocked")
        start_by_exec();
    sighold(SIGBUS);
    check("before");
    start_by_exec();
}

CASE(exec_passes_what_is_ignored_on)
{
    start();
    signal(SIGUSR1, SIG_IGN);
    signal(SIGBUS, SIG_IGN);
    signal(SIGSYS, look);
    IN_CHILD("ignored")
        start_by_exec();
    check("after");
}

CASE(exec_that_fails_changes_nothing)
{
    start();
    sigset_t all = full();
    sigprocmask(SIG_SETMASK, &all, NULL);
    char *argv[] = {"/nonexistent", NULL};
    RESULT(execv(argv[0], argv));
    check("execv");
    RESULT(execvp("nonexistent-program", argv));
    check("execvp");
    say_blocked("after");
}

static void spawn(const char *what, const posix_spawnattr_t *attributes)
{
    char *argv[] = {self(), "started", NULL};
    pid_t child = 0;
    evict();
    int result = posix_spawn(&child, argv[0], NULL, attributes, argv, environ);
    say_end(what, child);
    say("result %d", result);
}

CASE(posix_spawn_passes_masks_on)
{
    start();
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t all = full(), none = set_of(0, 0, 0);
    spawn("none", NULL);
    sighold(SIGBUS);
    spawn("inherited", NULL);
    spawn("inherited with attributes", &attributes);
    posix_spawnattr_setsigmask(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    spawn("all by attribute", &attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    spawn("none by attribute", &attributes);
    signal(SIGBUS, look);
    signal(SIGUSR1, SIG_IGN);
    spawn("with a handler", &attributes);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    spawn("defaults by attribute", &attributes);
    check("after");
}

CASE(vfork_and_exec_with_a_mask)
{
    start();
    sighold(SIGUSR2);
    pid_t child = vfork();
    if (!child) {
        sigset_t all = full();
        sigprocmask(SIG_SETMASK, &all, NULL);
        start_by_exec();
    }
    say_end("child", child);
    say_blocked("parent");
    check("parent");
}

CASE(system_with_a_mask)
{
    start();
    char command[4200];
    snprintf(command, sizeof command, "'%s' started", self());
    sighold(SIGBUS);
    RESULT(system(command));
    say_blocked("after");
    check("after");
}
