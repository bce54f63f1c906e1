// An executable that defines functions of the C library and forwards calls to the C library's
// functions under another name, as Erlang's emulator does with sigaction. Link with -rdynamic.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int calls;

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

int sigaction(int signal, const struct sigaction *new, struct sigaction *old) {
    calls++;
    return ((int (*)(int, const struct sigaction *, struct sigaction *))next("__sigaction"))(signal, new, old);
}

void *mmap(void *address, size_t len, int prot, int flags, int fd, off_t offset) {
    calls++;
    return ((void *(*)(void *, size_t, int, int, int, off_t))next("mmap64"))(address, len, prot, flags, fd, offset);
}

static volatile int caught;

static void handler(int signal) { caught = signal; }

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    printf("sigaction: %d\n", sigaction(SIGUSR1, &action, NULL));
    raise(SIGUSR1);
    size_t len = 48 << 20;
    unsigned char *there = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long sum = 0;
    for (size_t at = 0; at < len; at += 4096)
        there[at] = at >> 12;
    for (size_t at = 0; at < len; at += 4096)
        sum += there[at];
    printf("caught %d, sum %lu, %d calls\n", caught, sum, calls);
    return 0;
}
