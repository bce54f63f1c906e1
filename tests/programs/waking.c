/*
 * A process with many threads wakes while they run: they touch memory, map and unmap it, make
 * all kinds of calls, fork, start threads and programs, and take signals. All threads compare
 * their data. No call fails that would succeed without softswap.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "status.h"

extern char **environ;
static atomic_int ends;
static atomic_int rounds;

static uint64_t next(uint64_t *word)
{
    *word ^= *word << 13, *word ^= *word >> 7, *word ^= *word << 17;
    return *word;
}

/* Writes to random positions of its own memory, and compares the content there. */
static void *touches(void *argument)
{
    enum { PAGES = 256 };
    uint64_t seed = 88172645463325252u + (uintptr_t)argument * 977, *at = malloc(PAGES * PAGE);
    uint64_t last[PAGES] = {0};
    memset(at, 0, PAGES * PAGE);
    while (!ends) {
        size_t page = next(&seed) % PAGES, word = page * (PAGE / 8) + page % 512;
        must(at[word] == last[page], "what a thread wrote");
        at[word] = last[page] = seed;
        atomic_fetch_add_explicit(&rounds, 1, memory_order_relaxed);
    }
    free(at);
    return NULL;
}

/* First touches, continuously. */
static void *maps(void *argument)
{
    size_t len = 64 * PAGE;
    while (!ends) {
        char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(at != MAP_FAILED, "mmap");
        for (size_t i = 0; i < len; i += PAGE) {
            must(at[i] == 0, "fresh memory");
            at[i] = (char)(i / PAGE);
        }
        at = mremap(at, len, 2 * len, MREMAP_MAYMOVE);
        must(at != MAP_FAILED, "mremap");
        must(madvise(at, PAGE, MADV_DONTNEED) == 0, "madvise");
        must(at[0] == 0, "dropped memory");
        for (size_t i = PAGE; i < len; i += PAGE)
            must(at[i] == (char)(i / PAGE), "memory that was moved");
        must(mprotect(at, len, PROT_READ) == 0, "mprotect");
        must(munmap(at, 2 * len) == 0, "munmap");
    }
    return argument;
}

static void *spins(void *argument)
{
    volatile uint64_t count = 0;
    while (!ends)
        count++;
    return argument;
}

/* Thread that waits in a call until the process is awake. */
struct waiting {
    const char *name;
    int ends[2];
    pthread_t thread;
};

static void *reads(void *argument)
{
    struct waiting *it = argument;
    char *buffer = malloc(300000);
    must(read(it->ends[0], buffer, 300000) == 5 && !memcmp(buffer, "hello", 5), "read");
    free(buffer);
    return NULL;
}

static void *reads_vectors(void *argument)
{
    struct waiting *it = argument;
    char *first = malloc(70000), *second = malloc(70000);
    struct iovec vectors[2] = {{first, 2}, {second, 70000}};
    must(readv(it->ends[0], vectors, 2) == 5, "readv");
    must(!memcmp(first, "he", 2) && !memcmp(second, "llo", 3), "the data of readv");
    free(first), free(second);
    return NULL;
}

static void *receives(void *argument)
{
    struct waiting *it = argument;
    char *buffer = malloc(70000), *control = malloc(70000);
    struct iovec vector = {buffer, 70000};
    struct msghdr *header = calloc(1, 70000);
    header->msg_iov = &vector, header->msg_iovlen = 1;
    header->msg_control = control, header->msg_controllen = 1000;
    must(recvmsg(it->ends[0], header, 0) == 5 && !memcmp(buffer, "hello", 5), "recvmsg");
    must(header->msg_controllen == 0, "the length of recvmsg's control data");
    free(buffer), free(control), free(header);
    return NULL;
}

static void *polls(void *argument)
{
    struct waiting *it = argument;
    struct pollfd *fds = calloc(1, 70000);
    fds->fd = it->ends[0], fds->events = POLLIN;
    must(poll(fds, 1, 1200000) == 1 && fds->revents == POLLIN, "poll");
    free(fds);
    return NULL;
}

static void *waits_for_events(void *argument)
{
    struct waiting *it = argument;
    struct epoll_event *event = calloc(1, 70000), wanted = {.events = EPOLLIN, .data.u64 = 7};
    int fd = epoll_create1(0);
    must(epoll_ctl(fd, EPOLL_CTL_ADD, it->ends[0], &wanted) == 0, "epoll_ctl");
    must(epoll_wait(fd, event, 100, 1200000) == 1 && event->data.u64 == 7, "epoll_wait");
    close(fd), free(event);
    return NULL;
}

static void *naps(void *argument)
{
    while (!ends) {
        struct timespec time = {.tv_nsec = 300000}, *left = malloc(70000);
        must(nanosleep(&time, left) == 0, "nanosleep");
        must(poll(NULL, 0, 1) == 0, "poll for a time");
        free(left);
    }
    return argument;
}

/* Blocks that are sent through a pipe. */
static void *writes(void *argument)
{
    int fds[2];
    char *out = malloc(40000), *in = malloc(40000);
    must(pipe(fds) == 0, "pipe");
    for (unsigned char round = 0; !ends; round++) {
        struct iovec vectors[2] = {{out, 100}, {out + 20000, 100}};
        memset(out, round, 40000);
        must(write(fds[1], out, 40000) == 40000, "write");
        must(writev(fds[1], vectors, 2) == 200, "writev");
        size_t got = 0;
        while (got < 40200) {
            ssize_t more = read(fds[0], in, 40000);
            must(more > 0, "read what was written");
            for (ssize_t i = 0; i < more; i++)
                must((unsigned char)in[i] == round, "data from a pipe");
            got += more;
        }
    }
    free(out), free(in);
    return argument;
}

static pthread_mutex_t *lock;
static pthread_cond_t *changed;
static int turn;

static void *takes_turns(void *argument)
{
    int own = (int)(uintptr_t)argument;
    while (!ends) {
        pthread_mutex_lock(lock);
        while (turn != own && !ends)
            pthread_cond_wait(changed, lock);
        turn = !own;
        pthread_cond_broadcast(changed);
        pthread_mutex_unlock(lock);
    }
    return NULL;
}

static void *returns(void *argument)
{
    return argument;
}

static void *starts_threads(void *argument)
{
    while (!ends) {
        pthread_t thread;
        void *result;
        must(pthread_create(&thread, NULL, returns, &ends) == 0, "pthread_create");
        must(pthread_join(thread, &result) == 0 && result == &ends, "pthread_join");
    }
    return argument;
}

static void *forks(void *argument)
{
    uint64_t *at = malloc(70000);
    for (uint64_t round = 1; !ends; round++) {
        int status;
        at[5000] = round;
        pid_t pid = fork();
        must(pid >= 0, "fork");
        if (pid == 0)
            _exit(at[5000] == round ? 0 : 3);
        must(waitpid(pid, &status, 0) == pid && status == 0, "a child");
        char *arguments[] = {strdup("/bin/true"), NULL};
        must(posix_spawn(&pid, arguments[0], NULL, NULL, arguments, environ) == 0, "posix_spawn");
        must(waitpid(pid, &status, 0) == pid && status == 0, "a program");
        free(arguments[0]);
    }
    return argument;
}

static atomic_int handled;

static void on_signal(int number)
{
    handled += number == SIGUSR1;
}

static void *is_told(void *argument)
{
    for (int sent = 1; !ends; sent++) {
        int before = handled;
        must(pthread_kill(pthread_self(), SIGUSR1) == 0, "pthread_kill");
        must(handled == before + 1, "a signal");
    }
    return argument;
}

/* A thread that blocks SIGUSR1 and SIGBUS: it touches memory, and still sees its mask. */
static void *is_blocked(void *argument)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGBUS);
    must(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0, "pthread_sigmask");
    touches(argument);
    must(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0, "pthread_sigmask");
    must(sigismember(&set, SIGBUS) == 1, "a mask");
    return argument;
}

int main(int count, char **arguments)
{
    static void *(*const kinds[])(void *) = {maps,        maps,        spins,  naps,
                                             naps,        writes,      writes, takes_turns,
                                             takes_turns, starts_threads, forks,  is_told,
                                             is_blocked};
    static struct waiting waiting[5] = {
        {.name = "read"}, {.name = "readv"}, {.name = "recvmsg"}, {.name = "poll"}, {.name = "epoll"}};
    static void *(*const waits[])(void *) = {reads, reads_vectors, receives, polls,
                                             waits_for_events};
    enum { KINDS = sizeof kinds / sizeof *kinds, TOUCHERS = 14 };
    size_t budget_mib = count > 1 ? (size_t)atoi(arguments[1]) : 64;
    pthread_t threads[KINDS + TOUCHERS];
    long filters = of_status("Seccomp_filters:");
    signal(SIGUSR1, on_signal);
    lock = calloc(1, 70000), changed = calloc(1, 70000);
    pthread_mutex_init(lock, NULL), pthread_cond_init(changed, NULL);
    for (int i = 0; i < KINDS; i++) {
        void *argument = (void *)(uintptr_t)(kinds[i] == takes_turns ? i % 2 : i);
        must(pthread_create(&threads[i], NULL, kinds[i], argument) == 0, "pthread_create");
    }
    for (int i = 0; i < TOUCHERS; i++)
        must(pthread_create(&threads[KINDS + i], NULL, touches, (void *)(uintptr_t)(i + 100)) == 0,
             "pthread_create");
    for (int i = 0; i < 5; i++) {
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, waiting[i].ends) == 0, "socketpair");
        must(pthread_create(&waiting[i].thread, NULL, waits[i], &waiting[i]) == 0, "pthread_create");
    }
    WAIT_UNTIL(rounds > 100);
    must(of_status("Seccomp_filters:") == filters, "threads do not wake");
    /* Allocate a quarter of the budget first, then more than the budget. */
    uint64_t seed = 7, *at = malloc(budget_mib * MIB / 4);
    for (size_t i = 0; i < budget_mib * MIB / 32; i++)
        at[i] = next(&seed);
    char *more = malloc(budget_mib * MIB);
    for (size_t i = 0; i < budget_mib * MIB; i += PAGE)
        more[i] = 1;
    must(of_status("Seccomp_filters:") > filters, "more than the budget wakes");
    int before = rounds;
    WAIT_UNTIL(rounds - before >= 1000);
    seed = 7;
    for (size_t i = 0; i < budget_mib * MIB / 32; i++)
        must(at[i] == next(&seed), "memory written while asleep");
    for (int i = 0; i < 5; i++)
        must(write(waiting[i].ends[1], "hello", 5) == 5, "write");
    for (int i = 0; i < 5; i++)
        must(pthread_join(waiting[i].thread, NULL) == 0, "pthread_join");
    ends = 1;
    pthread_mutex_lock(lock);
    pthread_cond_broadcast(changed);
    pthread_mutex_unlock(lock);
    for (int i = 0; i < KINDS + TOUCHERS; i++)
        must(pthread_join(threads[i], NULL) == 0, "pthread_join");
    puts("ok waking");
    return 0;
}
