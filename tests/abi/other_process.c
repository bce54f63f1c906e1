/* Copies of memory between processes, where parts of both sides are swapped out. */
#include "abi.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>

#define LARGE (6 * MIB)

typedef ssize_t copy_call(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                          unsigned long, unsigned long);

static ssize_t copy(copy_call *call, pid_t pid, void *own, void *theirs, size_t len)
{
    struct iovec local = {own, len}, remote = {theirs, len};
    return call(pid, &local, 1, &remote, 1, 0);
}

static ssize_t by_number(pid_t pid, const struct iovec *own, unsigned long count,
                         const struct iovec *theirs, unsigned long their_count,
                         unsigned long flags)
{
    return syscall(SYS_process_vm_writev, pid, own, count, theirs, their_count, flags);
}

static void *copy_by_thread(void *memory)
{
    char from[100];
    fill(from, sizeof from, 4);
    evict();
    RESULT(copy(process_vm_writev, gettid(), from, memory, sizeof from));
    say("wrong %zu", wrong(memory, sizeof from, 4));
    return NULL;
}

CASE(own_memory)
{
    char *a = memory(LARGE, 1), *b = memory(LARGE, 2), on_stack[100];
    fill(on_stack, sizeof on_stack, 3);
    evict();
    RESULT(copy(process_vm_writev, getpid(), on_stack, a + 5000, sizeof on_stack));
    say("wrong %zu", wrong(a + 5000, sizeof on_stack, 3));
    evict();
    RESULT(copy(process_vm_writev, getpid(), b, a, LARGE));
    evict();
    say("wrong %zu", wrong(a, LARGE, 2));
    rewrite(a, LARGE, 5);
    evict();
    RESULT(copy(process_vm_readv, getpid(), b, a, LARGE));
    evict();
    say("wrong %zu", wrong(b, LARGE, 5));
    rewrite(b, PAGE * 4, 6);
    evict();
    RESULT(copy(by_number, getpid(), b, a, PAGE * 4));
    say("wrong %zu", wrong(a, PAGE * 4, 6));
    in_thread(copy_by_thread, a);
}

CASE(own_ranges)
{
    char *a = memory(LARGE, 1), *b = memory(LARGE, 2);
    struct iovec from[] = {{a + 100, 5 * MIB}, {a, 0}, {a + 5 * MIB + 77, 9000}, {a, 7}};
    struct iovec into[] = {{b, 3}, {b + PAGE, MIB}, {b + 2 * MIB, LARGE - 2 * MIB - PAGE}};
    evict();
    RESULT(process_vm_writev(getpid(), from, 4, into, 3, 0));
    say("%lx", checksum(b, LARGE));
    evict();
    RESULT(process_vm_readv(getpid(), into, 3, from, 4, 0));
    say("%lx", checksum(b, LARGE));
    /* The kernel stops at the first page that it may not access. */
    MUST(mprotect(a + 3 * MIB, PAGE, PROT_NONE));
    evict();
    RESULT(copy(process_vm_readv, getpid(), b, a, LARGE));
    MUST(mprotect(a + 3 * MIB, PAGE, PROT_READ));
    evict();
    RESULT(copy(process_vm_writev, getpid(), b, a, LARGE));
    RESULT(copy(process_vm_writev, getpid(), b, a + 3 * MIB, 8));
    RESULT(copy(process_vm_readv, getpid(), b, (void *)8, 8));
    say("%lx", checksum(a, LARGE));
}

/* A started program writes an address, and waits until its input ends. */
static void be_the_other(void)
{
    char *at = evicted_memory(LARGE, 7), byte;
    MUST(write(1, &at, sizeof at));
    while (read(0, &byte, 1) == 1)
        ;
    evict();
    _exit(wrong(at, LARGE, 8) != 0);
}

/* Reads a word of each of several pages of a process, and writes it back. */
static void trace_words(pid_t pid, long *theirs, const long *expected)
{
    enum { WORDS = PAGE / sizeof *theirs, COUNT = 64 * WORDS };
    int status;
    RESULT(ptrace(PTRACE_ATTACH, pid, NULL, NULL));
    MUST(waitpid(pid, &status, 0));
    for (size_t at = 0; at < COUNT; at += WORDS) {
        errno = 0;
        long word = ptrace(PTRACE_PEEKDATA, pid, theirs + at, NULL);
        long back = ptrace(PTRACE_POKEDATA, pid, theirs + at + WORDS / 2, expected[at + WORDS / 2]);
        if (word != expected[at] || back || errno)
            say("word %zu: %lx, %ld, error %d", at, word, back, errno);
    }
    RESULT(ptrace(PTRACE_PEEKDATA, pid, (void *)8, NULL));
    RESULT(ptrace(PTRACE_DETACH, pid, NULL, NULL));
}

CASE(a_started_program)
{
    if (getenv("ABI_OTHER"))
        be_the_other();
    int from[2], to[2];
    char *at;
    MUST(pipe2(from, O_CLOEXEC)), MUST(pipe2(to, O_CLOEXEC));
    pid_t pid = MUST(fork());
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        MUST(dup2(from[1], 1)), MUST(dup2(to[0], 0));
        MUST(setenv("ABI_OTHER", "1", 1));
        MUST(execl("/proc/self/exe", "abi", "a_started_program", NULL));
    }
    MUST(read(from[0], &at, sizeof at));
    char *mine = memory(LARGE, 8);
    evict();
    RESULT(copy(process_vm_writev, pid, mine + PAGE, at + PAGE, 100));
    RESULT(copy(process_vm_writev, pid, mine, at, LARGE));
    memset(mine, 0, LARGE);
    evict();
    RESULT(copy(process_vm_readv, pid, mine, at, LARGE));
    say("wrong %zu", wrong(mine, LARGE, 8));
    RESULT(copy(process_vm_writev, pid, mine, (void *)8, 8));
    trace_words(pid, (long *)at, (long *)mine);
    close(to[1]);
    say_end("the program", pid);
}
