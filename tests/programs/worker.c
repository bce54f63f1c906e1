/* A worker process that has changed to another user, like those of daemons. It must not be able
 * to read data that its parent writes after the fork, through any inherited descriptor, ring or
 * mapping. It must not be able to write to the parent's swap file.
 *
 * `worker fork` forks through the C library. `worker raw` forks with a system call instruction,
 * which bypasses softswap; then only memory is checked. A second argument is the size of the memory
 * in MiB. The worker makes system calls with its own instructions, and uses only its stack and
 * static memory, because after a raw fork it has no other memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define NOBODY 65534
#define LARGEST (8UL << 30)
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "worker.c:%d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

static unsigned long memory_bytes = 64UL << 20;

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
}

/* The marker XOR 85, so that this program's own memory does not contain it. */
static const volatile unsigned char HIDDEN[] = {
    'A' ^ 85, 'F' ^ 85, 'T' ^ 85, 'E' ^ 85, 'R' ^ 85, '-' ^ 85, 'F' ^ 85, 'O' ^ 85, 'R' ^ 85,
    'K' ^ 85, '-' ^ 85, 'S' ^ 85, 'E' ^ 85, 'C' ^ 85, 'R' ^ 85, 'E' ^ 85, 'T' ^ 85,
};

static int has_marker(const unsigned char *bytes, long len)
{
    const unsigned char *end = bytes + len - sizeof HIDDEN, *at = bytes;
    for (; at <= end && (at = memchr(at, HIDDEN[0] ^ 85, end - at + 1)); at++) {
        unsigned long same = 1;
        while (same < sizeof HIDDEN && (at[same] ^ 85) == HIDDEN[same])
            same++;
        if (same == sizeof HIDDEN)
            return 1;
    }
    return 0;
}

static unsigned char piece[64 << 10] __attribute__((aligned(4096)));
static char text[1 << 20];

/* Reads all of a file under /proc into `text`. */
static long read_text(const char *path)
{
    long file = raw(SYS_open, (long)path, O_RDONLY, 0, 0, 0, 0), len = 0, got;
    if (file < 0)
        return file;
    while ((got = raw(SYS_read, file, (long)text + len, sizeof text - 1 - len, 0, 0, 0)) > 0)
        len += got;
    raw(SYS_close, file, 0, 0, 0, 0, 0);
    text[len] = 0;
    return len;
}

static int fails(const char *what, const char *where)
{
    static char line[512];
    int len = snprintf(line, sizeof line, "worker: %s: %s\n", what, where);
    raw(SYS_write, 2, (long)line, len, 0, 0, 0);
    return 1;
}

/* Searches all memory that this process can read for the marker, and for rings. */
static int look_at_memory(void)
{
    int bad = 0;
    if (read_text("/proc/self/maps") <= 0)
        return fails("no maps", "");
    long self = raw(SYS_getpid, 0, 0, 0, 0, 0, 0);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        char *rest;
        unsigned long start = strtoul(line, &rest, 16), stop = strtoul(rest + 1, &rest, 16);
        /* The child's engine has its own ring, which is mapped read-only. */
        if (strstr(rest, "io_uring") && rest[2] == 'w')
            bad |= fails("a ring of the parent is mapped", line);
        if (rest[1] != 'r' || stop - start > LARGEST)
            continue;
        for (unsigned long at = start; at < stop;) {
            unsigned long len = stop - at < sizeof piece ? stop - at : sizeof piece;
            struct { void *base; unsigned long len; } to = {piece, len}, from = {(void *)at, len};
            long got = raw(SYS_process_vm_readv, self, (long)&to, 1, (long)&from, 1, 0);
            if (got > 0 && has_marker(piece, got)) {
                bad |= fails("memory contains data that the parent wrote", line);
                break;
            }
            at += got > 0 ? (unsigned long)got : PAGE;
        }
    }
    memset(piece, 0, sizeof piece);
    return bad;
}

/* Returns true for a file of /proc that shows the memory or the mappings of a process. */
static int shows_memory(const char *path)
{
    const char *last = strrchr(path, '/');
    return !strncmp(path, "/proc/", 6) && (!strcmp(last, "/mem") || !strcmp(last, "/maps"));
}

/* Tests each inherited descriptor, from 3 on, except `own`. */
static int look_at_descriptors(int own, const unsigned char *memory)
{
    int bad = 0, self = raw(SYS_getpid, 0, 0, 0, 0, 0, 0);
    for (int fd = 3; fd < 65536; fd++) {
        char path[64], to[256];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        long len = raw(SYS_readlink, (long)path, (long)to, sizeof to - 1, 0, 0, 0);
        if (len < 0 || fd == own)
            continue;
        to[len] = 0;
        if (strstr(to, "io_uring") || (shows_memory(to) && atoi(to + 6) != self))
            bad |= fails("a descriptor of the parent", to);
        if (raw(SYS_io_uring_enter, fd, 0, 0, 0, 0, 0) >= 0)
            bad |= fails("a ring", to);
        /* The parent's memory has the same addresses. */
        for (unsigned long at = 0; shows_memory(to) && at < memory_bytes; at += PAGE)
            if (raw(SYS_pread64, fd, (long)piece, PAGE, (long)memory + at, 0, 0) > 0 &&
                has_marker(piece, PAGE)) {
                bad |= fails("the parent's memory can be read", to);
                break;
            }
        if (!strstr(to, "(deleted)") || strstr(to, "memfd:"))
            continue;
        for (long at = 0, got; (got = raw(SYS_pread64, fd, (long)piece, sizeof piece, at, 0, 0)) > 0;
             at += got)
            if (has_marker(piece, got)) {
                bad |= fails("a file contains data that the parent wrote", to);
                break;
            }
        memset(piece, 'W', sizeof piece);
        if (raw(SYS_pwrite64, fd, (long)piece, PAGE, 0, 0, 0) >= 0)
            bad |= fails("the parent's file can be written", to);
        if (raw(SYS_ftruncate, fd, 0, 0, 0, 0, 0) >= 0)
            bad |= fails("the parent's file can be truncated", to);
    }
    return bad;
}

static int work(int ready, unsigned char *memory, int is_raw)
{
    if (raw(SYS_getuid, 0, 0, 0, 0, 0, 0) == 0 &&
        (raw(SYS_setgroups, 0, 0, 0, 0, 0, 0) || raw(SYS_setresgid, NOBODY, NOBODY, NOBODY, 0, 0, 0) ||
         raw(SYS_setresuid, NOBODY, NOBODY, NOBODY, 0, 0, 0)))
        return fails("cannot become another user", "");
    raw(SYS_prctl, 4 /* PR_SET_DUMPABLE */, 1, 0, 0, 0, 0); /* So that /proc can be read. */
    char byte;
    if (raw(SYS_read, ready, (long)&byte, 1, 0, 0, 0) != 1)
        return fails("the parent has exited", "");
    int bad = look_at_memory();
    if (is_raw)
        return bad;
    bad |= look_at_descriptors(ready, memory);
    /* Pages from before the fork are unchanged; some are read from the parent's area. */
    for (unsigned long at = 0; at < memory_bytes; at += PAGE) {
        if (*(unsigned long *)(memory + at) != (at ^ 0x5eed))
            return fails("a page from before the fork is wrong", "");
        if (has_marker(memory + at + 64, 64))
            return fails("the worker's memory contains data that the parent wrote", "");
    }
    return bad;
}

/* Checks that the child shares no ring, no userfaultfd and no view of the memory or the mappings
 * with its parent. */
static void check_files_in_common(pid_t child)
{
    DIR *all = opendir("/proc/self/fd");
    CHECK(all);
    for (struct dirent *it; (it = readdir(all));) {
        char path[300], to[256];
        snprintf(path, sizeof path, "/proc/self/fd/%s", it->d_name);
        long len = readlink(path, to, sizeof to - 1);
        if (len < 0)
            continue;
        to[len] = 0;
        if (!strstr(to, "io_uring") && !strstr(to, "userfaultfd") && !shows_memory(to))
            continue;
        for (int fd = 3; fd < 16384; fd++)
            CHECK(syscall(SYS_kcmp, getpid(), child, KCMP_FILE, atoi(it->d_name), fd) != 0);
    }
    closedir(all);
}

static void fill(unsigned char *memory, const char *marker)
{
    uint64_t x = 88172645463325252ULL;
    for (unsigned long at = 0; at < memory_bytes; at += PAGE) {
        for (unsigned long k = 8; k < PAGE; k += 8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *(uint64_t *)(memory + at + k) = x;
        }
        *(unsigned long *)(memory + at) = at ^ 0x5eed;
        if (marker)
            memcpy(memory + at + 64, marker, sizeof HIDDEN);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    if (argc > 2)
        memory_bytes = strtoul(argv[2], NULL, 10) << 20;
    int is_raw = !strcmp(argv[1], "raw"), ready[2];
    unsigned char *memory = mmap(0, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    fill(memory, NULL);
    CHECK(pipe(ready) == 0);
    pid_t child = is_raw ? raw(SYS_fork, 0, 0, 0, 0, 0, 0) : fork();
    CHECK(child >= 0);
    if (child == 0) {
        raw(SYS_close, ready[1], 0, 0, 0, 0, 0);
        raw(SYS_exit_group, work(ready[0], memory, is_raw), 0, 0, 0, 0, 0);
    }
    char marker[sizeof HIDDEN];
    for (unsigned long at = 0; at < sizeof HIDDEN; at++)
        marker[at] = HIDDEN[at] ^ 85;
    fill(memory, marker);
    if (!is_raw && syscall(SYS_kcmp, getpid(), child, KCMP_FILE, 0, 0) >= 0)
        check_files_in_common(child);
    CHECK(write(ready[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (unsigned long at = 0; at < memory_bytes; at += PAGE)
        CHECK(*(unsigned long *)(memory + at) == (at ^ 0x5eed) &&
              !memcmp(memory + at + 64, marker, sizeof marker));
    puts("ok worker");
    return 0;
}
