// Maps and transfers memory with a library's own system calls and checks its content. If the argument is a
// number, it prints a line if more than that many MiB are resident at the same time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
#define LEN (64 * MIB)
#define STEP 4096

static long (*map)(long, long, long, long);
static long (*protect)(long, long, long);
static long (*unmap)(long, long);
static long (*remap)(long, long, long, long);
static long (*advise)(long, long, long);
static long (*call)(long, long, long, long, long, long, long);

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(2);
    }
    return found;
}

static void fill(unsigned long *words, long len, unsigned long seed) {
    for (long at = 0; at < len / 8; at++)
        words[at] = (at + seed) * 0x9e3779b97f4a7c15UL;
}

static long wrong(unsigned long *words, long len, unsigned long seed) {
    long count = 0;
    for (long at = 0; at < len / 8; at++)
        count += words[at] != (at + seed) * 0x9e3779b97f4a7c15UL;
    return count;
}

static long resident_mib(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %ld kB", &kib);
    fclose(status);
    return kib >> 10;
}

// Transfers the first bytes of memory, most of which is swapped out, by arrays on the stack.
static void transfer(char *memory) {
    enum { COUNT = 4, PIECE = 5000 };
    struct iovec from[COUNT], into[COUNT];
    int pipes[2], sockets[2];
    for (int at = 0; at < COUNT; at++) {
        from[at] = (struct iovec){memory + at * MIB, PIECE};
        into[at] = (struct iovec){memory + (at + COUNT) * MIB, PIECE};
    }
    struct msghdr sent = {.msg_iov = from, .msg_iovlen = COUNT};
    struct msghdr received = {.msg_iov = into, .msg_iovlen = COUNT};
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        exit(4);
    long written = call(SYS_writev, pipes[1], (long)from, COUNT, 0, 0, 0);
    long read = call(SYS_readv, pipes[0], (long)into, COUNT, 0, 0, 0);
    printf("array: %ld %ld, %d\n", written, read, memcmp(memory, memory + COUNT * MIB, PIECE));
    memory += 2 * COUNT * MIB;
    for (int at = 0; at < COUNT; at++)
        from[at].iov_base = memory + at * MIB, into[at].iov_base = memory + (at + COUNT) * MIB;
    written = call(SYS_sendmsg, sockets[0], (long)&sent, 0, 0, 0, 0);
    read = call(SYS_recvmsg, sockets[1], (long)&received, 0, 0, 0, 0);
    printf("message: %ld %ld, %d\n", written, read, memcmp(memory, memory + COUNT * MIB, PIECE));
    long waiting = call(SYS_ioctl, sockets[1], FIONREAD, (long)(memory + 20 * MIB), 0, 0, 0);
    printf("waiting: %ld %d\n", waiting, *(int *)(memory + 20 * MIB));
    for (int at = 0; at < 2; at++)
        close(pipes[at]), close(sockets[at]);
}

int main(int count, char **words) {
    void *library = words[1][0] ? dlopen(words[1], RTLD_NOW) : RTLD_DEFAULT;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    map = find(library, "inline_mmap");
    protect = find(library, "inline_mprotect");
    unmap = find(library, "inline_munmap");
    remap = find(library, "inline_mremap");
    advise = find(library, "inline_madvise");
    call = find(library, "inline_call");

    long there = map(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    fill((void *)there, LEN, 1);
    // Commit a reservation in pieces.
    long reserved = map(0, 4 * LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    for (long at = 0; at < LEN; at += 8 * MIB)
        if (protect(reserved + at, 8 * MIB, PROT_READ | PROT_WRITE))
            return 3;
    fill((void *)reserved, LEN, 2);
    printf("wrong: %ld %ld\n", wrong((void *)there, LEN, 1), wrong((void *)reserved, LEN, 2));
    if (count > 2 && resident_mib() > atol(words[2]))
        printf("%ld MiB are resident\n", resident_mib());

    transfer((char *)there);
    fill((void *)there, LEN, 1);

    long longer = remap(there, LEN, LEN + MIB, MREMAP_MAYMOVE);
    printf("moved: %ld wrong, then %d\n", wrong((void *)longer, LEN, 1), ((char *)longer)[LEN]);
    printf("discarded: %ld, %d\n", advise(longer, LEN, MADV_DONTNEED), *(char *)longer);
    printf("given back: %ld %ld\n", unmap(longer, LEN + MIB), unmap(reserved, 4 * LEN));
    printf("refused: %ld %ld\n", unmap(1, STEP), map(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS));
    printf("a file: %ld\n", map(0, STEP, PROT_READ, MAP_PRIVATE));
    fflush(stdout);
    int status = system("echo a child runs");
    pid_t child = fork();
    if (child == 0)
        _exit(map(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS) < 0);
    int ended;
    waitpid(child, &ended, 0);
    printf("children: %d %d\n", status, ended);
    return 0;
}
