/*
 * A process stays asleep as long as it fits its budget. Each case runs in its own process, and
 * finally prints whether the process is awake. An awake process has the guard's filter.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "status.h"

static long filters_at_first;

static int is_awake(void)
{
    return of_status("Seccomp_filters:") > filters_at_first;
}

static void fill(void *at, size_t len, uint64_t seed)
{
    uint64_t *words = at, word = seed * 2654435761u + 1;
    for (size_t i = 0; i < len / 8; i++) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        words[i] = word;
    }
}

static void check(const void *at, size_t len, uint64_t seed, const char *what)
{
    const uint64_t *words = at;
    uint64_t word = seed * 2654435761u + 1;
    for (size_t i = 0; i < len / 8; i++) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        must(words[i] == word, what);
    }
}

static void *mapped(size_t len, int prot)
{
    void *at = mmap(NULL, len, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED, "mmap");
    return at;
}

/* Writes more than the budget, so that every page is swapped out. */
static void press(size_t mib)
{
    unsigned char *at = mapped(mib * MIB, PROT_READ | PROT_WRITE);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < mib; i++)
            fill(at + i * MIB, MIB, 1000 + i);
    for (size_t i = 0; i < mib; i++)
        check(at + i * MIB, MIB, 1000 + i, "memory written while awake");
    munmap(at, mib * MIB);
}

static void fits(void)
{
    char *blocks[20];
    for (int i = 0; i < 20; i++) {
        blocks[i] = malloc(MIB);
        fill(blocks[i], MIB, i);
    }
    for (int i = 0; i < 20; i++) {
        check(blocks[i], MIB, i, "a block");
        free(blocks[i]);
    }
    printf("threads %ld\n", of_status("Threads:"));
}

static int has_huge_mapping(void)
{
    char line[256];
    int has = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    must(file != NULL, "smaps");
    while (fgets(line, sizeof line, file))
        has |= !strncmp(line, "VmFlags:", 8) && strstr(line, " hg") != NULL;
    fclose(file);
    return has;
}

/* Allocates 76 MiB in small blocks. A kernel without huge pages refuses the advice to use them. */
static void blocks(void)
{
    static char *all[100000];
    const size_t len = 800;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i] = malloc(len);
        must(all[i] != NULL, "malloc");
        memset(all[i], (int)i, len);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        must(all[i][0] == (char)i && all[i][len - 1] == (char)i, "a block");
    int may_be_huge = access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0;
    printf("huge %d\n", has_huge_mapping() == may_be_huge);
}

/* Each kind of memory, written while the process is asleep. */
static void wakes(void)
{
    char *small[1000];
    for (int i = 0; i < 1000; i++) {
        small[i] = malloc(4096);
        fill(small[i], 4096, i);
    }
    char *read_only = mapped(MIB, PROT_READ | PROT_WRITE);
    fill(read_only, MIB, 1);
    mprotect(read_only, MIB, PROT_READ);
    char *closed = mapped(MIB, PROT_READ | PROT_WRITE);
    fill(closed, MIB, 2);
    mprotect(closed, MIB, PROT_NONE);
    char *halves = mapped(4 * MIB, PROT_READ | PROT_WRITE);
    fill(halves, MIB, 3);
    fill(halves + 3 * MIB, MIB, 4);
    must(munmap(halves + MIB, 2 * MIB) == 0, "munmap");
    char *shared = mmap(halves + MIB, MIB, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    must(shared == halves + MIB, "mmap MAP_SHARED");
    fill(shared, MIB, 5);
    char *moved = mapped(MIB, PROT_READ | PROT_WRITE);
    fill(moved, MIB, 6);
    moved = mremap(moved, MIB, 2 * MIB, MREMAP_MAYMOVE);
    must(moved != MAP_FAILED, "mremap");
    char *grown = malloc(100);
    for (size_t len = 1000; len <= 6 * MIB; len = len * 3 / 2)
        grown = realloc(grown, len);
    fill(grown, 3 * MIB, 7);
    char *end = sbrk(MIB);
    must(end != (void *)-1, "sbrk");
    end += -(uintptr_t)end % 8;
    fill(end, MIB - 8, 8);
    char *dropped = mapped(MIB, PROT_READ | PROT_WRITE);
    fill(dropped, MIB, 9);
    madvise(dropped, MIB, MADV_FREE);
    char *untouched = mapped(MIB, PROT_READ | PROT_WRITE);
    must(untouched[5] == 0, "fresh memory");
    char *locked = mapped(64 << 10, PROT_READ | PROT_WRITE);
    fill(locked, 64 << 10, 10);
    int is_locked = mlock(locked, 64 << 10) == 0;
    printf("asleep %d\n", !is_awake());
    press(150);
    for (int i = 0; i < 1000; i++)
        check(small[i], 4096, i, "a small block");
    check(read_only, MIB, 1, "read-only memory");
    mprotect(closed, MIB, PROT_READ);
    check(closed, MIB, 2, "closed memory");
    check(halves, MIB, 3, "memory before a shared mapping");
    check(halves + 3 * MIB, MIB, 4, "memory after a hole");
    check(shared, MIB, 5, "shared memory");
    check(moved, MIB, 6, "memory that was moved");
    grown = realloc(grown, 12 * MIB);
    check(grown, 3 * MIB, 7, "a block that grew");
    check(end, MIB - 8, 8, "the break");
    must(sbrk(MIB) != (void *)-1, "sbrk awake");
    for (size_t i = 0; i < MIB; i++)
        must(dropped[i] == 0, "dropped memory");
    for (size_t i = 0; i < MIB; i++)
        must(untouched[i] == 0, "untouched memory");
    if (is_locked)
        check(locked, 64 << 10, 10, "locked memory");
    munmap(read_only, MIB);
    munmap(halves, 4 * MIB);
}

/* Reservations do not wake the process. Only their committed parts count. */
static void reserves(void)
{
    char *at = mapped(4096 * MIB, PROT_NONE);
    must(mprotect(at, 8 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    fill(at, 8 * MIB, 1);
    printf("asleep %d\n", !is_awake());
    must(mprotect(at, 200 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    for (size_t i = 8; i < 200; i++)
        fill(at + i * MIB, MIB, i);
    check(at, 8 * MIB, 1, "the part that was committed first");
    for (size_t i = 8; i < 200; i++)
        check(at + i * MIB, MIB, i, "the part that was committed later");
}

/* A mapping of many times the budget, nearly all untouched. */
static void lazy(void)
{
    size_t len = 10240 * MIB;
    char *at = calloc(1, len);
    must(at != NULL, "calloc");
    for (size_t i = 0; i < len; i += 64 * MIB)
        at[i] = 1;
    for (size_t i = 0; i < len; i += 64 * MIB)
        must(at[i] == 1 && at[i + 1] == 0, "touched memory");
}

/* Children sleep and wake independently; the parent remains asleep. */
static void forks(void)
{
    char *at = mapped(10 * MIB, PROT_READ | PROT_WRITE);
    fill(at, 10 * MIB, 1);
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();
        must(pid >= 0, "fork");
        if (pid == 0) {
            check(at, 10 * MIB, 1, "what a child inherits");
            if (i % 2) {
                press(100);
                must(is_awake(), "a child that needs more wakes");
            }
            check(at, 10 * MIB, 1, "inherited memory, compared again");
            fill(at, MIB, 2);
            _exit(is_awake() == i % 2 ? 0 : 3);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status;
        must(wait(&status) > 0 && status == 0, "a child");
    }
    check(at, 10 * MIB, 1, "the parent's memory");
}

static int on_own_stack(void *argument)
{
    press(100);
    must(is_awake(), "a child of clone wakes");
    check(argument, 10 * MIB, 1, "memory in a child of clone");
    return 0;
}

/* Children of calls other than fork have a budget, too. */
static void clones(void)
{
    char *at = mapped(10 * MIB, PROT_READ | PROT_WRITE);
    static char stack[256 << 10] __attribute__((aligned(16)));
    fill(at, 10 * MIB, 1);
    for (int i = 0; i < 3; i++) {
        pid_t pid = i == 0   ? clone(on_own_stack, stack + sizeof stack, SIGCHLD, at)
                    : i == 1 ? syscall(SYS_fork)
                             : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        must(pid >= 0, "a child");
        if (pid == 0)
            _exit(on_own_stack(at));
        int status;
        must(waitpid(pid, &status, 0) == pid && status == 0, "a child");
    }
    check(at, 10 * MIB, 1, "the parent's memory");
}

/* The program's locks, and what it has said about children, apply after waking. Locked memory
 * beyond a quarter of the budget is unlocked. */
static void locks(void)
{
    char *large = mapped(20 * MIB, PROT_READ | PROT_WRITE), *small = mapped(MIB, PROT_READ);
    char *wiped = mapped(128 << 10, PROT_READ | PROT_WRITE);
    fill(large, 20 * MIB, 1);
    must(madvise(wiped, 128 << 10, MADV_WIPEONFORK) == 0, "madvise");
    int can_lock = mlock(large, 20 * MIB) == 0 && mlock(small, MIB) == 0;
    must(!is_awake(), "locked memory within the budget");
    press(100);
    check(large, 20 * MIB, 1, "memory that was locked");
    must(madvise(wiped, 128 << 10, MADV_KEEPONFORK) == 0, "madvise");
    fill(wiped, 128 << 10, 2);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        check(wiped, 128 << 10, 2, "memory that is no longer wiped in children");
        _exit(0);
    }
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0, "a child");
    if (can_lock) {
        must(munlock(large, 20 * MIB) == 0 && munlock(small, MIB) == 0, "munlock");
        must(of_status("VmLck:") < 1024, "nothing is locked");
    }
    must(munmap(large, 20 * MIB) == 0 && munmap(small, MIB) == 0, "munmap");
}

static volatile int handled;

static void on_signal(int number)
{
    handled += number;
}

static void *in_thread(void *argument)
{
    check(argument, 10 * MIB, 1, "what a thread sees");
    return argument;
}

/* A second thread wakes the process. Handlers, mask and alternate stack are kept. */
static void threads(void)
{
    char *at = mapped(10 * MIB, PROT_READ | PROT_WRITE);
    fill(at, 10 * MIB, 1);
    stack_t stack = {.ss_sp = mapped(64 << 10, PROT_READ | PROT_WRITE), .ss_size = 64 << 10};
    stack_t now;
    sigset_t mask;
    must(sigaltstack(&stack, NULL) == 0, "sigaltstack");
    signal(SIGBUS, on_signal);
    signal(SIGUSR1, on_signal);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    pthread_t thread;
    void *result;
    must(!is_awake(), "one thread sleeps");
    must(pthread_create(&thread, NULL, in_thread, at) == 0, "pthread_create");
    must(pthread_join(thread, &result) == 0 && result == at, "pthread_join");
    press(100);
    check(at, 10 * MIB, 1, "the memory of the first thread");
    raise(SIGBUS);
    raise(SIGUSR1);
    must(handled == SIGBUS + SIGUSR1, "handlers that were set before");
    must(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack.ss_sp, "the stack set before");
    sigprocmask(SIG_BLOCK, NULL, &mask);
    must(sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGBUS), "the mask set before");
}

static void *commits(void *argument)
{
    press(100);
    return argument;
}

static int commits_c11(void *argument)
{
    press(100);
    return *(int *)argument;
}

/* The engine starts in a thread with the smallest possible stack. */
static void small_stack(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    must(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
    must(pthread_attr_setstacksize(&attributes, 16384) == 0, "pthread_attr_setstacksize");
    must(pthread_create(&thread, &attributes, commits, NULL) == 0, "pthread_create");
    must(pthread_join(thread, NULL) == 0, "pthread_join");
}

static void c11_thread(void)
{
    thrd_t thread;
    int number = 7, result = 0;
    must(thrd_create(&thread, commits_c11, &number) == thrd_success, "thrd_create");
    must(thrd_join(thread, &result) == thrd_success && result == 7, "thrd_join");
}

/* A child of vfork shares this process's memory. System calls that read that memory succeed while
 * another thread wakes the process. */
static void vforks(void)
{
    pthread_t thread;
    char *path = malloc(70000);
    strcpy(path, "/dev/null");
    must(pthread_create(&thread, NULL, commits, NULL) == 0, "pthread_create");
    for (int i = 0; i < 200; i++) {
        pid_t pid = vfork();
        must(pid >= 0, "vfork");
        if (pid == 0)
            _exit(open(path, O_RDONLY) < 0);
        int status;
        must(waitpid(pid, &status, 0) == pid && status == 0, "a child of vfork");
    }
    must(pthread_join(thread, NULL) == 0, "pthread_join");
    free(path);
}

static volatile sig_atomic_t must_commit;

static void commit_in_handler(int number)
{
    (void)number;
    if (must_commit)
        press(100);
    must_commit = 0;
}

/* A thread that waits for data from a pipe. */
struct reader {
    pthread_t thread;
    int write_end;
};

static void *interrupts(void *argument)
{
    struct reader *reader = argument;
    until_others_sleep(getpid());
    must_commit = 1;
    pthread_kill(reader->thread, SIGUSR1);
    while (must_commit)
        usleep(1000);
    must(write(reader->write_end, "hello", 5) == 5, "write");
    return NULL;
}

/* A call is restarted after a handler in which the process woke. */
static void restarts(void)
{
    int fds[2];
    char *buffer = malloc(70000);
    struct iovec vectors[2] = {{buffer, 2}, {buffer + 40000, 10}};
    pthread_t thread;
    signal(SIGUSR1, commit_in_handler);
    must(pipe(fds) == 0, "pipe");
    struct reader reader = {.thread = pthread_self(), .write_end = fds[1]};
    must(pthread_create(&thread, NULL, interrupts, &reader) == 0, "pthread_create");
    must(readv(fds[0], vectors, 2) == 5, "readv");
    must(!memcmp(buffer, "he", 2) && !memcmp(buffer + 40000, "llo", 3), "the data of readv");
    must(pthread_join(thread, NULL) == 0, "pthread_join");
}

static volatile int is_pressing;

static void *presses(void *argument)
{
    (void)argument;
    is_pressing = 1;
    press(100);
    return NULL;
}

/* A thread is cancelled while the process wakes. The other threads continue. */
static void cancels(void)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, presses, NULL) == 0, "pthread_create");
    while (!is_pressing)
        ;
    must(pthread_cancel(thread) == 0, "pthread_cancel");
    must(pthread_join(thread, NULL) == 0, "pthread_join");
    press(100);
}

/* With RLIMIT_SIGPENDING 0 the kernel may drop siginfo. The signals by which the process wakes must
   still arrive with it. */
static void no_queue(void)
{
    struct rlimit none = {0, 0};
    int fds[2];
    char *buffer = malloc(70000);
    pthread_t thread;
    must(setrlimit(RLIMIT_SIGPENDING, &none) == 0, "setrlimit");
    must(pipe(fds) == 0, "pipe");
    must(pthread_create(&thread, NULL, presses, NULL) == 0, "pthread_create");
    while (!is_awake())
        must(getppid() > 0, "getppid");
    must(pthread_join(thread, NULL) == 0, "pthread_join");
    must(write(fds[1], "hello", 5) == 5 && read(fds[0], buffer, 5) == 5, "a pipe");
}

static void *stays(void *argument)
{
    press(100);
    printf("awake %d\nok %s\n", is_awake(), (char *)argument);
    fflush(stdout);
    _exit(0);
}

/* The first thread exits, and another one wakes the process. */
static void main_ends(void)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, stays, "main_ends") == 0, "pthread_create");
    pthread_exit(NULL);
}

/* All descriptors of the program are closed, and none of the engine's. */
static void closes(void)
{
    unsigned char *memory = mapped(100 * MIB, PROT_READ | PROT_WRITE);
    int file = open("/dev/null", O_RDONLY), copy = dup2(file, 77);
    fill(memory, 100 * MIB, 8);
    closefrom(3);
    must(file >= 3 && fcntl(file, F_GETFD) == -1 && errno == EBADF, "a closed descriptor");
    must(copy == 77 && fcntl(copy, F_GETFD) == -1 && errno == EBADF, "a copy");
    check(memory, 100 * MIB, 8, "memory after closefrom");
}

static int started_under(struct sock_filter *code, size_t len, char **arguments)
{
    struct sock_fprog filter = {.len = len, .filter = code};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "PR_SET_SECCOMP");
    execv(arguments[0], arguments);
    return 3;
}

/* Starts a program under a filter that refuses the calls that Docker's default profile refuses. */
static int contained(char **arguments)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return started_under(code, sizeof code / sizeof *code, arguments);
}

/* Starts a program under a filter that refuses what Linux 4.18 lacks: calls after rseq, the user
 * mode of userfaultfd, kinds of advice after MADV_KEEPONFORK, and MREMAP_DONTUNMAP. */
static int on_linux_4_18(char **arguments)
{
    enum { ADVICE = offsetof(struct seccomp_data, args[2]),
           FLAGS = offsetof(struct seccomp_data, args[3]) };
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_rseq, 8, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ADVICE),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, MADV_KEEPONFORK, 3, 5),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FLAGS),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MREMAP_DONTUNMAP, 0, 2),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return started_under(code, sizeof code / sizeof *code, arguments);
}

int main(int count, char **arguments)
{
    if (count > 2 && !strcmp(arguments[1], "contained"))
        return contained(arguments + 2);
    if (count > 2 && !strcmp(arguments[1], "on_linux_4_18"))
        return on_linux_4_18(arguments + 2);
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"fits", fits},   {"wakes", wakes}, {"reserves", reserves}, {"blocks", blocks},
                 {"lazy", lazy},   {"forks", forks}, {"threads", threads},
                 {"small_stack", small_stack}, {"c11_thread", c11_thread}, {"vforks", vforks},
                 {"restarts", restarts}, {"main_ends", main_ends},
                 {"cancels", cancels}, {"no_queue", no_queue},
                 {"closes", closes}, {"clones", clones}, {"locks", locks}};
    filters_at_first = of_status("Seccomp_filters:");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (count > 1 && !strcmp(arguments[1], cases[i].name)) {
            cases[i].run();
            printf("awake %d\nok %s\n", is_awake(), cases[i].name);
            return 0;
        }
    return 2;
}
