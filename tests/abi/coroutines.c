/* A coroutine can make the same calls as a thread. Its stack is allocated, so it is managed
 * memory. Pages of the stack may be swapped out or untouched. */
#include "abi.h"
#include <aio.h>
#include <dlfcn.h>
#include <linux/sched.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <ucontext.h>

#define LEN (4 * MIB)
#define STACK_LEN (512UL << 10)
static unsigned char *data;
extern char **environ;

static ucontext_t outside, inside;
static void (*body)(void);

/* Runs `body` repeatedly, at increasing depth in an untouched stack. */
static void at_depth(void)
{
    for (size_t depth = 1; depth < 5; depth++) {
        volatile char *room = __builtin_alloca(depth * 1500);
        room[0] = 1;
        body();
        evict();
        body();
    }
}

static void in_coroutine(void (*what)(void))
{
    data = malloc(LEN);
    fill(data, LEN, 1);
    evict();
    body = what;
    getcontext(&inside);
    inside.uc_stack.ss_sp = malloc(STACK_LEN);
    inside.uc_stack.ss_size = STACK_LEN;
    inside.uc_link = &outside;
    makecontext(&inside, at_depth, 0);
    swapcontext(&outside, &inside);
    say("wrong %zu", wrong(data, LEN, 1));
}

static volatile int stops;
static void *evict_repeatedly(void *argument)
{
    while (!stops) {
        evict();
        usleep(1000);
    }
    return argument;
}

/* Another thread evicts pages during the calls. */
static void while_pages_are_evicted(void (*what)(void))
{
    pthread_t thread;
    evict();
    MUST(-(pthread_create(&thread, NULL, evict_repeatedly, NULL) != 0));
    in_coroutine(what);
    stops = 1;
    pthread_join(thread, NULL);
}

static volatile int prepared, in_parent, in_child;
static void on_prepare(void) { prepared++; }
static void on_parent(void) { in_parent++; }
static void on_child(void) { in_child++; }
static int in_clone(void *local)
{
    data[3] ^= 1;
    IN_CHILD("grandchild")
        _exit(wrong(local, 3000, 7) + wrong(data, LEN, 1) + in_child);
    data[3] ^= 1;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    return 10 + wrong(local, 3000, 7) + wrong(data, LEN, 1) + 20 * sigismember(&mask, SIGUSR1) +
           40 * sigismember(&mask, SIGTERM) + 80 * sigismember(&mask, SIGBUS);
}
static void clone_with(char *local, int signal)
{
    sigset_t some, before;
    sigemptyset(&some);
    if (signal)
        sigaddset(&some, signal);
    sigprocmask(SIG_BLOCK, &some, &before);
    char *stack = malloc(STACK_LEN);
    pid_t pid = MUST(clone(in_clone, stack + STACK_LEN, SIGCHLD, local));
    say_end("clone", pid);
    free(stack);
    sigprocmask(SIG_SETMASK, &before, NULL);
}
static void start_daemon(char *local)
{
    int ends[2];
    char text[64] = "";
    MUST(pipe(ends));
    IN_CHILD("before the daemon") {
        close(ends[0]);
        MUST(daemon(0, 0));
        dprintf(ends[1], "wrong %zu", wrong(local, 3000, 7) + wrong(data, LEN, 1));
    }
    close(ends[1]);
    RESULT(read(ends[0], text, sizeof text - 1));
    close(ends[0]);
    say("daemon: %s", text);
}
static pid_t fork_by(int way)
{
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    switch (way) {
    case 0:
        return fork();
    case 1:
        return _Fork();
    case 2:
        return syscall(SYS_fork);
    default:
        return syscall(SYS_clone3, &arguments, sizeof arguments);
    }
}
static void fork_repeatedly(void)
{
    char local[3000];
    fill(local, sizeof local, 7);
    for (int way = 0; way < 4; way++) {
        pid_t pid = fork_by(way);
        if (pid == 0) {
            data[way] ^= 1;
            IN_CHILD("grandchild")
                _exit(wrong(local, sizeof local, 7) + wrong(data, LEN, 1) + in_child);
            data[way] ^= 1;
            _exit(10 + wrong(local, sizeof local, 7) + wrong(data, LEN, 1));
        }
        if (pid > 0)
            say_end("child", pid);
        else
            say("way %d: %s", way, strerrorname_np(errno));
    }
    say("wrong %zu", wrong(local, sizeof local, 7));
}
static void fork_all_ways(void)
{
    char local[3000];
    fill(local, sizeof local, 7);
    fork_repeatedly();
    pid_t pid = vfork();
    if (pid == 0)
        _exit(5);
    say_end("vfork", pid);
    clone_with(local, 0);
    clone_with(local, SIGUSR1);
    clone_with(local, SIGBUS);
    start_daemon(local);
    int terminal;
    pid = forkpty(&terminal, NULL, NULL, NULL);
    if (pid == 0)
        _exit(20 + wrong(local, sizeof local, 7) + wrong(data, LEN, 1));
    if (pid > 0) {
        say_end("forkpty", pid);
        close(terminal);
    } else {
        say("forkpty: %s", strerrorname_np(errno));
    }
    say("handlers %d %d %d, wrong %zu", prepared, in_parent, in_child, wrong(local, sizeof local, 7));
}
CASE(forks)
{
    pthread_atfork(on_prepare, on_parent, on_child);
    in_coroutine(fork_all_ways);
}
CASE(forks_while_pages_are_evicted) { while_pages_are_evicted(fork_repeatedly); }

static void map_all_ways(void)
{
    char *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(at, MIB, 3);
    RESULT(mprotect(at, MIB / 2, PROT_READ));
    RESULT(madvise(at + MIB / 2, PAGE, MADV_DONTNEED));
    say("zero %d", at[MIB / 2] == 0);
    RESULT(mprotect(at, MIB / 2, PROT_READ | PROT_WRITE));
    char *moved = mremap(at, MIB, 2 * MIB, MREMAP_MAYMOVE);
    say("wrong %zu", wrong(moved, MIB / 2, 3));
    unsigned char there[16];
    RESULT(mincore(moved, 4 * PAGE, there));
    RESULT(mlock(moved, PAGE));
    RESULT(munlock(moved, PAGE));
    RESULT(msync(moved, PAGE, MS_SYNC));
    RESULT(munmap(moved, 2 * MIB));
    char *block = malloc(300000);
    memset(block, 5, 300000);
    block = realloc(block, 3000000);
    say("block %d %d", block[0], block[299999]);
    free(block);
    say("break %d", sbrk(PAGE) != (void *)-1);
}
CASE(memory_calls) { in_coroutine(map_all_ways); }

static void start_all_ways(void)
{
    char first[] = "sh", second[] = "-c", third[] = "exit 4";
    char *const arguments[] = {first, second, third, NULL};
    pid_t pid;
    RESULT(posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ));
    say_end("posix_spawn", pid);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    RESULT(posix_spawnp(&pid, "sh", &actions, NULL, arguments, environ));
    posix_spawn_file_actions_destroy(&actions);
    say_end("posix_spawnp", pid);
    say("system %x", system("exit 6"));
    FILE *pipe = popen("echo out", "r");
    char line[64] = "";
    say("popen %s", fgets(line, sizeof line, pipe) ? line : strerrorname_np(errno));
    say("pclose %x", pclose(pipe));
    pid = fork();
    if (pid == 0) {
        execv("/bin/sh", arguments);
        _exit(9);
    }
    say_end("exec", pid);
    pid = vfork();
    if (pid == 0) {
        execve("/bin/sh", arguments, environ);
        _exit(9);
    }
    say_end("exec after vfork", pid);
    RESULT(execve("/nonexistent/program", arguments, environ));
}
CASE(programs) { in_coroutine(start_all_ways); }
CASE(programs_while_pages_are_evicted) { while_pages_are_evicted(start_all_ways); }

/* Starts a program that prints which signals it has inherited as blocked. */
static void show_mask(const char *what, const posix_spawnattr_t *attributes)
{
    char first[] = "grep", second[] = "SigBlk", third[] = "/proc/self/status";
    char *const arguments[] = {first, second, third, NULL};
    pid_t pid;
    int error = posix_spawn(&pid, "/bin/grep", NULL, attributes, arguments, environ);
    say_end(what, pid);
    say("%s: %d", what, error);
}
static void inherit_masks(void)
{
    sigset_t some, all, before;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    RESULT(sigprocmask(SIG_BLOCK, &some, &before));
    show_mask("posix_spawn", NULL);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    show_mask("with default actions", &attributes);
    posix_spawnattr_setsigmask(&attributes, &before);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    show_mask("with a mask", &attributes);
    posix_spawnattr_destroy(&attributes);
    say("there is a shell: %d", system(NULL) != 0);
    RESULT(sigprocmask(SIG_SETMASK, &before, NULL));
}
CASE(masks_of_programs) { in_coroutine(inherit_masks); }

static void *says_its_mask(void *argument)
{
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    *(int *)argument += sigismember(&mask, SIGUSR1) + 10 * sigismember(&mask, SIGUSR2) +
                        100 * sigismember(&mask, SIGBUS) + 1000 * sigismember(&mask, SIGTERM);
    return argument;
}
static void make_threads(void)
{
    sigset_t some, before;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigaddset(&some, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &some, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    for (int way = 0; way < 3; way++) {
        pthread_t thread;
        int sum = 0;
        void *result = NULL;
        if (way == 2) {
            sigemptyset(&some);
            sigaddset(&some, SIGUSR2);
            pthread_attr_setsigmask_np(&attributes, &some);
        }
        RESULT(pthread_create(&thread, way ? &attributes : NULL, says_its_mask, &sum));
        RESULT(pthread_join(thread, &result));
        say("way %d: mask %d, its argument %d", way, sum, result == &sum);
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
CASE(threads) { in_coroutine(make_threads); }
CASE(threads_while_pages_are_evicted) { while_pages_are_evicted(make_threads); }

static volatile int handled;
static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    handled += signal == SIGUSR1 ? 1 : signal == SIGBUS ? 10 : 100;
}
static void signal_all_ways(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO, .sa_sigaction = on_signal}, old;
    RESULT(sigaction(SIGUSR1, &action, &old));
    RESULT(sigaction(SIGBUS, &action, &old));
    RESULT(sigaction(SIGSYS, &action, &old));
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGBUS);
    sigaddset(&set, SIGSYS);
    RESULT(sigprocmask(SIG_BLOCK, &set, NULL));
    raise(SIGUSR1), raise(SIGBUS), raise(SIGSYS);
    sigpending(&pending);
    say("handled %d, pending %d %d %d", handled, sigismember(&pending, SIGUSR1),
        sigismember(&pending, SIGBUS), sigismember(&pending, SIGSYS));
    siginfo_t info;
    struct timespec none = {0, 0};
    sigdelset(&set, SIGUSR1);
    say("took %d", sigtimedwait(&set, &info, &none) == SIGBUS);
    RESULT(sigprocmask(SIG_SETMASK, &(sigset_t){0}, NULL));
    say("handled %d", handled);
    union sigval value = {.sival_int = 3};
    RESULT(sigqueue(getpid(), SIGUSR1, value));
    stack_t stack = {.ss_sp = data + LEN / 2, .ss_size = 64 << 10}, disabled = {.ss_flags = SS_DISABLE};
    RESULT(sigaltstack(&stack, NULL));
    action.sa_flags |= SA_ONSTACK;
    RESULT(sigaction(SIGUSR1, &action, NULL));
    raise(SIGUSR1);
    RESULT(sigaltstack(&disabled, NULL));
    fill(data, LEN, 1);
    say("handled %d", handled);
}
CASE(signals) { in_coroutine(signal_all_ways); }

static void move_data(void)
{
    char local[20000];
    fill(local, sizeof local, 2);
    int fd = scratch_file(0), ends[2];
    RESULT(write(fd, local, sizeof local));
    memset(local, 0, sizeof local);
    evict();
    RESULT(pread(fd, local, sizeof local, 0));
    say("wrong %zu", wrong(local, sizeof local, 2));
    struct aiocb request = {.aio_fildes = fd, .aio_buf = local, .aio_nbytes = 5000};
    const struct aiocb *list[] = {&request};
    RESULT(aio_read(&request));
    while (aio_error(&request) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    RESULT(aio_return(&request));
    RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    struct iovec vector = {local, sizeof local};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    RESULT(sendmsg(ends[0], &message, 0));
    struct pollfd poll_for = {ends[1], POLLIN, 0};
    RESULT(poll(&poll_for, 1, 1000));
    RESULT(recvmsg(ends[1], &message, MSG_WAITALL));
    say("wrong %zu", wrong(local, sizeof local, 2));
    close(fd), close(ends[0]), close(ends[1]);
}
CASE(transfers) { in_coroutine(move_data); }

static void load(void)
{
    void *library = dlopen("libm.so.6", RTLD_NOW);
    say("dlopen %d, dlsym %d", library != NULL, dlsym(library, "cos") != NULL);
    RESULT(dlclose(library));
    char text[200];
    time_t when = 86400;
    struct tm parts;
    gmtime_r(&when, &parts);
    strftime(text, sizeof text, "%Y-%m-%d", &parts);
    char *copy = NULL;
    say("%s %d %s", text, asprintf(&copy, "%0900d", 7), strerror(ENOENT));
    free(copy);
}
CASE(library_calls) { in_coroutine(load); }
