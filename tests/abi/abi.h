/* Helpers for the programs of the differential suite.
 *
 * A case makes system calls and prints the results: return values, errno, data, signals. It runs
 * without and under softswap, each case in its own process. Both runs must print the same lines
 * and have the same exit status. So a case prints nothing that differs between runs: no
 * addresses, PIDs or times.
 *
 * A case has no assertions: the run without softswap is the reference.
 */
#ifndef ABI_H
#define ABI_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "waiting.h"

#define PAGE 4096UL
#define MIB (1UL << 20)

/* Prints one line of results with a single write call, from a buffer on the stack. */
__attribute__((format(printf, 1, 2), unused))
static void say(const char *format, ...)
{
    char line[1024];
    va_list list;
    va_start(list, format);
    int len = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (len > (int)sizeof line - 2)
        len = sizeof line - 2;
    line[len] = '\n';
    if (write(1, line, len + 1) < 0)
        _exit(99);
}

/* Prints a result, and errno if the result is -1. */
__attribute__((unused))
static long say_result(const char *what, long result)
{
    int error = errno;
    if (result == -1)
        say("%s: -1 %s", what, strerrorname_np(error));
    else
        say("%s: %ld", what, result);
    errno = error;
    return result;
}
#define RESULT(call) (errno = 0, say_result(#call, (long)(call)))

/* Prints whether a call succeeded. For calls whose results differ between runs, such as
 * addresses. */
__attribute__((unused))
static long say_success(const char *what, long result)
{
    int error = errno;
    if (result == -1)
        say("%s: -1 %s", what, strerrorname_np(error));
    else
        say("%s: done", what);
    errno = error;
    return result;
}
#define SUCCESS(call) (errno = 0, say_success(#call, (long)(call)))

/* Prints whether memory was mapped, and whether it is at the requested address. */
__attribute__((unused))
static void *say_place(const char *what, void *got, void *wanted)
{
    int error = errno;
    if (got == MAP_FAILED)
        say("%s: %s", what, strerrorname_np(error));
    else
        say("%s: %s", what, !wanted ? "done" : got == wanted ? "there" : "elsewhere");
    return got;
}

/* Exits if the setup of a case fails, because this is not a result of the tested calls. */
__attribute__((unused))
static long must_(const char *what, long result)
{
    if (result == -1) {
        say("setting up: %s: %s", what, strerrorname_np(errno));
        _exit(98);
    }
    return result;
}
#define MUST(call) must_(#call, (long)(call))

/* Returns the byte at offset `at` of a buffer filled with `seed`. */
static inline unsigned char pattern(size_t at, unsigned seed)
{
    return (unsigned char)((at * 2654435761u >> 7) ^ (at >> 12) * 31 ^ seed * 97);
}

__attribute__((unused))
static void fill(void *memory, size_t len, unsigned seed)
{
    for (size_t at = 0; at < len; at++)
        ((unsigned char *)memory)[at] = pattern(at, seed);
}

/* Returns the number of wrong bytes. */
__attribute__((unused))
static size_t wrong(const void *memory, size_t len, unsigned seed)
{
    size_t count = 0;
    for (size_t at = 0; at < len; at++)
        count += ((const unsigned char *)memory)[at] != pattern(at, seed);
    return count;
}

/* Returns true if memory can be read, according to the kernel. */
__attribute__((unused))
static int is_readable(void *at)
{
    int ends[2];
    MUST(pipe(ends));
    int can = write(ends[1], at, 1) == 1;
    close(ends[0]), close(ends[1]);
    return can;
}

__attribute__((unused))
static size_t not_zero(const char *at, size_t len)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i++)
        count += at[i] != 0;
    return count;
}

__attribute__((unused))
static unsigned long checksum(const void *memory, size_t len)
{
    unsigned long sum = 14695981039346656037UL;
    for (size_t at = 0; at < len; at++)
        sum = (sum ^ ((const unsigned char *)memory)[at]) * 1099511628211UL;
    return sum;
}

/* Maps private anonymous memory, filled with `seed`. softswap manages it if it has at least 64
 * KiB. */
__attribute__((unused))
static void *memory(size_t len, unsigned seed)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        must_("mmap", -1);
    fill(at, len, seed);
    return at;
}

/* Writes 1/`parts` of ABI_PRESSURE_MIB of other memory. With 1 this evicts all pages that were not
 * touched recently. Does nothing without softswap: the variable is then unset or 0. The memory
 * remains mapped for further calls. */
__attribute__((unused))
static void apply_pressure(size_t parts)
{
    static unsigned char *other;
    static size_t len;
    if (!other) {
        const char *text = getenv("ABI_PRESSURE_MIB");
        len = (text ? strtoul(text, NULL, 10) : 0) * MIB;
        if (!len)
            return;
        other = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (other == MAP_FAILED)
            must_("mmap", -1);
    }
    uint64_t word = 88172645463325252UL;
    for (size_t at = 0; at < len / parts; at += PAGE)
        for (size_t in = 0; in < PAGE; in += 512) {
            word ^= word << 13, word ^= word >> 7, word ^= word << 17;
            *(uint64_t *)(other + at + in) = word;
        }
}

__attribute__((unused))
static void evict(void)
{
    apply_pressure(1);
}

/* Returns memory filled with `seed` that was swapped out. */
__attribute__((unused))
static void *evicted_memory(size_t len, unsigned seed)
{
    void *at = memory(len, seed);
    evict();
    return at;
}

/* Writes other content to memory, and compares it after it was swapped out. */
__attribute__((unused))
static void rewrite(void *at, size_t len, unsigned seed)
{
    fill(at, len, seed);
    evict();
    say("wrong %zu", wrong(at, len, seed));
}

/* Creates an unnamed file in the directory for temporary files. */
__attribute__((unused))
static int scratch_file(int flags)
{
    char path[4096];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/abi-XXXXXX", dir ? dir : "/tmp");
    int fd = MUST(mkostemp(path, flags));
    unlink(path);
    return fd;
}

/* Waits for a child and prints its exit status. */
__attribute__((unused))
static void say_end(const char *what, pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid)
        say("%s: lost", what);
    else if (WIFEXITED(status))
        say("%s: exited with %d", what, WEXITSTATUS(status));
    else
        say("%s: ended by %s", what, sigabbrev_np(WTERMSIG(status)));
}

/* Runs the next statement or block in a child, which exits with 0 at its end, and prints its exit
 * status. */
#define IN_CHILD(what)                                                        \
    for (pid_t child_ = MUST(fork()), runs_ = 1; runs_;                       \
         child_ ? say_end(what, child_) : _exit(0), runs_ = 0)                \
        if (child_ == 0)

/* Runs a function in a thread, and waits for its end. */
__attribute__((unused))
static void in_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    MUST(-(pthread_create(&thread, NULL, run, argument) != 0));
    pthread_join(thread, NULL);
}

/* Makes a system call with the program's own instruction. */
static inline long own_call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

struct abi_case {
    const char *name;
    void (*run)(void);
};

/* Begins the definition of a case: CASE(name) { ... } */
#define CASE(name)                                                                      \
    static void name(void);                                                             \
    static const struct abi_case *const case_##name                                     \
        __attribute__((used, section("abi_cases"))) =                                   \
            &(const struct abi_case){#name, name};                                      \
    static void name(void)

extern const struct abi_case *const __start_abi_cases[], *const __stop_abi_cases[];

/* `PROGRAM --list` names the cases, `PROGRAM NAME` runs one. */
int main(int argc, char **argv)
{
    int is_list = argc == 2 && !strcmp(argv[1], "--list");
    for (const struct abi_case *const *it = __start_abi_cases; it < __stop_abi_cases; it++) {
        if (is_list)
            puts((*it)->name);
        else if (argc == 2 && !strcmp(argv[1], (*it)->name)) {
            (*it)->run();
            return 0;
        }
    }
    return is_list ? 0 : 97;
}

#endif
