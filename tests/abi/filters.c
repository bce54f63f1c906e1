/* The program's seccomp filters apply to the program's calls, but not to the calls that softswap
 * makes. */
#include "abi.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <ucontext.h>

extern char **environ;

#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define IF(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise)
#define NUMBER offsetof(struct seccomp_data, nr)
#define ARGUMENT(n) (offsetof(struct seccomp_data, args) + 8 * (n))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Installs a filter from any address. */
static long install(const struct sock_filter *code, size_t len)
{
    struct sock_fprog program = {.len = len, .filter = (struct sock_filter *)code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Installs a filter that applies `action` to one call and allows all other calls. */
static void only(long number, unsigned action)
{
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(number, 0, 1), RETURN(action), RETURN(SECCOMP_RET_ALLOW),
    };
    MUST(install(code, COUNT(code)));
}

/* Allows only these calls, like a sandbox. All other calls get `action`. */
static void allow(const long *numbers, size_t count, unsigned action)
{
    struct sock_filter *code = malloc((count + 8) * sizeof *code);
    size_t len = 0;
    code[len++] = (struct sock_filter)LOAD(offsetof(struct seccomp_data, arch));
    code[len++] = (struct sock_filter)IF(AUDIT_ARCH_X86_64, 1, 0);
    code[len++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
    code[len++] = (struct sock_filter)LOAD(NUMBER);
    for (size_t i = 0; i < count; i++)
        code[len++] = (struct sock_filter)IF(numbers[i], count - i, 0);
    code[len++] = (struct sock_filter)RETURN(action);
    code[len++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    MUST(install(code, len));
    free(code);
}
#define ALLOW(action, ...)                                                    \
    do {                                                                      \
        static const long numbers[] = {__VA_ARGS__};                          \
        allow(numbers, COUNT(numbers), action);                               \
    } while (0)

/* Returns swapped-out memory. */
static unsigned char *out(size_t len)
{
    unsigned char *at = evicted_memory(len, 1);
    return at;
}

/* --- lists of allowed calls */

CASE(a_list_that_kills)
{
    unsigned char *at = out(4 * MIB);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group);
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
}

CASE(a_list_that_kills_threads)
{
    unsigned char *at = out(4 * MIB);
    ALLOW(SECCOMP_RET_KILL_THREAD, SYS_write, SYS_exit_group);
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
}

CASE(a_list_with_errors)
{
    unsigned char *at = out(4 * MIB);
    ALLOW(SECCOMP_RET_ERRNO | EPERM, SYS_write, SYS_exit_group);
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
    RESULT(getppid());
    RESULT(close(77));
}

CASE(a_list_that_traps)
{
    unsigned char *at = out(4 * MIB);
    ALLOW(SECCOMP_RET_TRAP, SYS_write, SYS_exit_group);
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
    say("%ld", syscall(SYS_getppid));
}

CASE(going_out_under_a_list)
{
    unsigned char *at = out(4 * MIB);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group);
    for (unsigned round = 2; round < 5; round++) {
        rewrite(at, 4 * MIB, round);
    }
}

CASE(an_allocator_under_a_list)
{
    evict();
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group, SYS_brk, SYS_mmap, SYS_munmap,
          SYS_mremap, SYS_madvise, SYS_mprotect);
    enum { BLOCKS = 300 };
    static unsigned char *blocks[BLOCKS];
    size_t bad = 0;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(1000 + i * 300);
        fill(blocks[i], 1000 + i * 300, i);
    }
    evict();
    for (int i = 0; i < BLOCKS; i++)
        bad += wrong(blocks[i], 1000 + i * 300, i);
    for (int i = 0; i < BLOCKS; i += 2)
        free(blocks[i]);
    unsigned char *large = malloc(200000);
    fill(large, 200000, 3);
    large = realloc(large, 6 * MIB);
    bad += wrong(large, 200000, 3);
    say("wrong: %zu", bad);
}

CASE(a_list_checks_its_arguments)
{
    char *text = strdup("a line from the heap\n");
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_exit_group, 4, 0), IF(SYS_write, 0, 2), LOAD(ARGUMENT(0)),
        IF(1, 1, 0), RETURN(SECCOMP_RET_ERRNO | EACCES), RETURN(SECCOMP_RET_ALLOW),
    };
    evict();
    MUST(install(code, COUNT(code)));
    RESULT(write(1, text, strlen(text)));
    RESULT(write(2, text, 0));
    RESULT(getppid());
}

CASE(reading_and_writing_under_a_list)
{
    int fd = scratch_file(O_RDWR);
    unsigned char *from = out(2 * MIB), *to = memory(2 * MIB, 2);
    evict();
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_lseek, SYS_exit_group);
    RESULT(write(fd, from, 2 * MIB));
    RESULT(lseek(fd, 0, SEEK_SET));
    evict();
    RESULT(read(fd, to, 2 * MIB));
    say("wrong: %zu", wrong(to, 2 * MIB, 1));
}

CASE(a_pipe_under_a_list)
{
    int ends[2];
    MUST(pipe(ends));
    unsigned char *at = out(MIB);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_exit_group);
    RESULT(write(ends[1], at, 5000));
    memset(at, 0, 5000);
    evict();
    RESULT(read(ends[0], at, MIB));
    say("wrong: %zu", wrong(at, MIB, 1));
}

CASE(stdio_under_a_list)
{
    FILE *file = fdopen(scratch_file(O_RDWR), "r+");
    setvbuf(file, NULL, _IOFBF, 8192);
    fputs("x", file);
    fflush(file);
    evict();
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_read, SYS_write, SYS_lseek, SYS_exit_group, SYS_fstat,
          SYS_newfstatat, SYS_brk, SYS_mmap, SYS_munmap);
    for (int i = 0; i < 5000; i++)
        fprintf(file, "%d\n", i);
    RESULT(fflush(file));
    say("at %ld", ftell(file));
}

/* Approximately the filters of sshd's child and of file(1). */
CASE(a_list_as_programs_have_it)
{
    unsigned char *at = out(4 * MIB);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_brk, SYS_clock_gettime, SYS_close, SYS_exit,
          SYS_exit_group, SYS_futex, SYS_getpgid, SYS_getpid, SYS_getrandom, SYS_gettid,
          SYS_gettimeofday, SYS_getuid, SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap,
          SYS_munmap, SYS_nanosleep, SYS_clock_nanosleep, SYS_poll, SYS_ppoll, SYS_pselect6,
          SYS_read, SYS_rt_sigprocmask, SYS_select, SYS_shutdown, SYS_time, SYS_write, SYS_writev);
    for (unsigned round = 2; round < 4; round++) {
        fill(at, 4 * MIB, round);
        free(malloc(MIB));
        evict();
        say("wrong: %zu", wrong(at, 4 * MIB, round));
    }
    struct iovec parts[] = {{at, 0}, {at, 0}};
    RESULT(writev(1, parts, 2));
}

/* --- functions that install a filter */

static const struct sock_filter no_parent[] = {
    LOAD(NUMBER), IF(SYS_getppid, 0, 1), RETURN(SECCOMP_RET_ERRNO | EXDEV),
    RETURN(SECCOMP_RET_ALLOW),
};

static struct sock_fprog *in_heap(void)
{
    struct sock_fprog *program = malloc(sizeof *program);
    program->len = COUNT(no_parent);
    program->filter = malloc(sizeof no_parent);
    memcpy(program->filter, no_parent, sizeof no_parent);
    return program;
}

CASE(from_the_heap_by_prctl)
{
    struct sock_fprog *program = in_heap();
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program));
    RESULT(getppid());
}

CASE(from_the_heap_by_seccomp)
{
    struct sock_fprog *program = in_heap();
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program));
    RESULT(getppid());
}

CASE(from_the_heap_by_an_instruction)
{
    struct sock_fprog *program = in_heap();
    unsigned char *at = memory(MIB, 1);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    say("%ld", own_call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)program));
    say("wrong: %zu", wrong(at, MIB, 1));
    RESULT(getppid());
}

CASE(prctl_from_the_heap_by_an_instruction)
{
    struct sock_fprog *program = in_heap();
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    say("%ld", own_call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)program));
    RESULT(getppid());
}

CASE(pointers_that_are_bad)
{
    struct sock_fprog program = {.len = 3, .filter = NULL};
    unsigned char *gone = memory(MIB, 1);
    munmap(gone, MIB);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, gone));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 8));
    program.filter = (void *)gone;
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, gone));
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 20, NULL));
}

CASE(filters_that_are_none)
{
    struct sock_filter code[] = {LOAD(NUMBER), IF(1, 9, 9), RETURN(SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = 3, .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    program.len = 0;
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    program.len = 5000;
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    program.len = 1;
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 20, &program));
    RESULT(syscall(SYS_seccomp, 99, 0, &program));
    RESULT(prctl(PR_SET_SECCOMP, 99, &program));
}

CASE(a_long_filter)
{
    enum { LONG = 3800 };
    struct sock_filter *code = malloc(LONG * sizeof *code);
    for (int i = 0; i < LONG; i++)
        code[i] = (struct sock_filter)LOAD(NUMBER);
    memcpy(code + LONG - COUNT(no_parent), no_parent, sizeof no_parent);
    RESULT(install(code, LONG));
    RESULT(getppid());
}

/* The accumulator is 0 at the start of a filter. */
CASE(a_filter_that_loads_nothing)
{
    struct sock_filter code[] = {
        IF(0, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS), RETURN(SECCOMP_RET_ALLOW),
    };
    RESULT(install(code, COUNT(code)));
    RESULT(close(77));
}

CASE(a_filter_that_counts_in_scratch_memory)
{
    struct sock_filter code[] = {
        LOAD(NUMBER), BPF_STMT(BPF_ST, 3), BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, 1),
        BPF_STMT(BPF_LD | BPF_W | BPF_MEM, 3), BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),
        IF(SYS_getppid + 1, 0, 1), RETURN(SECCOMP_RET_ERRNO | ENODATA), RETURN(SECCOMP_RET_ALLOW),
    };
    RESULT(install(code, COUNT(code)));
    RESULT(getppid());
    RESULT(close(77));
}

CASE(without_the_right_to)
{
    struct sock_fprog program = {.len = COUNT(no_parent), .filter = (void *)no_parent};
    if (getuid() != 0)
        return;
    MUST(setresuid(65534, 65534, 65534));
    RESULT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    RESULT(getppid());
}

CASE(which_mode)
{
    RESULT(prctl(PR_GET_SECCOMP));
    only(SYS_getppid, SECCOMP_RET_ERRNO | EXDEV);
    RESULT(prctl(PR_GET_SECCOMP));
    RESULT(syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0));
}

CASE(which_actions)
{
    uint32_t *action = malloc(sizeof *action);
    *action = SECCOMP_RET_TRAP;
    evict();
    RESULT(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, action));
    *action = 0x12340000;
    RESULT(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, action));
    struct seccomp_notif_sizes *sizes = malloc(sizeof *sizes);
    evict();
    RESULT(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, sizes));
    say("%d %d", sizes->seccomp_notif, sizes->seccomp_notif_resp);
}

/* --- errors */

CASE(an_error_for_a_path_in_the_heap)
{
    char *path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_ERRNO | ENOTTY);
    RESULT(open(path, O_RDONLY));
    RESULT(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY));
    say("%ld", own_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY));
    RESULT(access(path, R_OK));
}

CASE(no_error_at_all)
{
    char *path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_ERRNO);
    RESULT(open(path, O_RDONLY));
}

CASE(an_error_for_vectors)
{
    char *text = strdup("some text");
    struct iovec parts[] = {{text, 4}, {text + 4, 5}};
    evict();
    only(SYS_writev, SECCOMP_RET_ERRNO | EMLINK);
    RESULT(writev(1, parts, 2));
}

CASE(an_error_for_messages)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    char *text = strdup("some text");
    struct iovec part = {text, 9};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    evict();
    only(SYS_sendmsg, SECCOMP_RET_ERRNO | EMLINK);
    RESULT(sendmsg(pair[0], &message, 0));
    RESULT(send(pair[0], text, 9, 0));
}

CASE(logged_and_allowed)
{
    char *path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_LOG);
    SUCCESS(open(path, O_RDONLY));
}

CASE(the_strictest_of_two_counts)
{
    char *path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_ERRNO | EMLINK);
    only(SYS_openat, SECCOMP_RET_ALLOW);
    RESULT(open(path, O_RDONLY));
    only(SYS_access, SECCOMP_RET_ERRNO | EXDEV);
    RESULT(access(path, R_OK));
    RESULT(open(path, O_RDONLY));
}

CASE(no_further_filter)
{
    struct sock_fprog *program = in_heap();
    only(SYS_seccomp, SECCOMP_RET_ERRNO | EBUSY);
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program));
    RESULT(getppid() < 0);
    RESULT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program));
    RESULT(getppid());
}

/* A filter refuses writable and executable memory. */
CASE(no_code_in_memory)
{
    unsigned char *at = out(MIB);
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_mprotect, 0, 3), LOAD(ARGUMENT(2)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1), RETURN(SECCOMP_RET_ERRNO | EPERM),
        RETURN(SECCOMP_RET_ALLOW),
    };
    MUST(install(code, COUNT(code)));
    RESULT(mprotect(at, MIB, PROT_READ | PROT_EXEC));
    RESULT(mprotect(at, MIB, PROT_READ));
    RESULT(mprotect(at, MIB, PROT_READ | PROT_WRITE));
    RESULT(syscall(SYS_mprotect, at, MIB, PROT_READ | PROT_WRITE | PROT_EXEC));
    say("wrong: %zu", wrong(at, MIB, 1));
    at[5] = 0;
}

CASE(no_moving_of_memory)
{
    unsigned char *at = out(MIB);
    only(SYS_mremap, SECCOMP_RET_ERRNO | EPERM);
    RESULT((long)mremap(at, MIB, 2 * MIB, MREMAP_MAYMOVE));
    say("wrong: %zu", wrong(at, MIB, 1));
}

/* --- killing */

static char *kept_path;

static void open_kept_path(void)
{
    RESULT(open(kept_path, O_RDONLY));
}

CASE(killed_for_a_path_in_the_heap)
{
    kept_path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_KILL_PROCESS);
    open_kept_path();
}

CASE(killed_thread_for_a_path_in_the_heap)
{
    kept_path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_KILL_THREAD);
    open_kept_path();
}

CASE(killed_for_mprotect)
{
    unsigned char *at = out(MIB);
    only(SYS_mprotect, SECCOMP_RET_KILL_PROCESS);
    RESULT(mprotect(at, MIB, PROT_READ));
}

CASE(trapped_without_a_handler)
{
    kept_path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_TRAP);
    open_kept_path();
}

CASE(trapped_and_ignored)
{
    signal(SIGSYS, SIG_IGN);
    kept_path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_TRAP);
    open_kept_path();
}

CASE(children_are_killed_too)
{
    kept_path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_KILL_PROCESS);
    IN_CHILD("opens")
        open_kept_path();
    say("here still");
}

/* --- traps */

static volatile int traps;
static volatile long expected_path;

static void on_trap(int signal, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    traps++;
    say("trap %d: code %d, call %d, data %d, arch %x", signal, info->si_code, info->si_syscall,
        info->si_errno, info->si_arch);
    say("at its instruction: %d, path as given: %d", info->si_call_addr == (void *)registers[REG_RIP],
        !expected_path || registers[REG_RSI] == expected_path);
    registers[REG_RAX] = -EDOM;
}

static void handle(void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    MUST(sigaction(SIGSYS, &action, NULL));
}

CASE(a_trap_for_a_path_on_the_stack)
{
    char path[] = "/dev/null";
    handle(on_trap, 0);
    only(SYS_openat, SECCOMP_RET_TRAP | 7);
    say("%ld", own_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY));
    RESULT(open(path, O_RDONLY));
}

CASE(a_trap_for_a_path_in_the_heap)
{
    char *path = strdup("/dev/null");
    handle(on_trap, 0);
    evict();
    only(SYS_openat, SECCOMP_RET_TRAP | 7);
    expected_path = (long)path;
    say("%ld", own_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY));
    RESULT(open(path, O_RDONLY));
    RESULT(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY));
    say("traps: %d", traps);
}

CASE(a_trap_for_a_number_that_looks_like_an_address)
{
    char *path = strdup("/dev/null");
    handle(on_trap, 0);
    only(SYS_lseek, SECCOMP_RET_TRAP | 8);
    RESULT(lseek(1, (long)path, SEEK_SET));
}

CASE(a_trap_for_reading)
{
    int fd = MUST(open("/dev/zero", O_RDONLY));
    unsigned char *at = out(2 * MIB);
    handle(on_trap, 0);
    only(SYS_read, SECCOMP_RET_TRAP | 9);
    expected_path = (long)at;
    RESULT(read(fd, at, 2 * MIB));
    say("wrong: %zu, traps: %d", wrong(at, 2 * MIB, 1), traps);
}

CASE(a_trap_for_vectors)
{
    int fd = MUST(open("/dev/zero", O_RDONLY));
    unsigned char *at = out(MIB);
    struct iovec parts[] = {{at, 5000}, {at + 9000, 5000}};
    handle(on_trap, 0);
    only(SYS_readv, SECCOMP_RET_TRAP | 9);
    RESULT(readv(fd, parts, 2));
    say("wrong: %zu, traps: %d", wrong(at, MIB, 1), traps);
}

CASE(a_trap_for_mprotect)
{
    unsigned char *at = out(MIB);
    handle(on_trap, 0);
    only(SYS_mprotect, SECCOMP_RET_TRAP | 9);
    RESULT(mprotect(at, MIB, PROT_READ));
    at[0] = 1;
    say("traps: %d", traps);
}

static sigjmp_buf back;

static void jump(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    siglongjmp(back, 1);
}

CASE(jumping_out_of_a_trap)
{
    char *path = strdup("/dev/null");
    unsigned char *at = memory(MIB, 1);
    handle(jump, 0);
    evict();
    only(SYS_openat, SECCOMP_RET_TRAP);
    for (volatile int round = 0; round < 3; round++) {
        if (sigsetjmp(back, 1) == 0)
            RESULT(open(path, O_RDONLY));
        else
            say("back");
    }
    RESULT(access(path, R_OK));
    say("wrong: %zu", wrong(at, MIB, 1));
}

static void plain_handler(int signal)
{
    say("signal %d", signal);
}

CASE(a_handler_of_one_argument)
{
    char *path = strdup("/dev/null");
    signal(SIGSYS, plain_handler);
    evict();
    only(SYS_openat, SECCOMP_RET_TRAP);
    /* The call returns the content of its register: its number. */
    RESULT(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY));
}

/* Like a broker process: the handler makes another call instead of the trapped one. */
static void broker(int signal, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)signal, (void)info;
    long result = access((char *)registers[REG_RSI], R_OK);
    registers[REG_RAX] = result == 0 ? 1000 : -errno;
}

CASE(a_broker)
{
    char *path = strdup("/dev/null"), *none = strdup("/nowhere/at/all");
    handle(broker, SA_NODEFER);
    evict();
    only(SYS_openat, SECCOMP_RET_TRAP);
    for (int round = 0; round < 3; round++) {
        RESULT(open(path, O_RDONLY));
        RESULT(open(none, O_RDONLY));
        evict();
    }
}

CASE(a_trap_inside_a_trap)
{
    char *path = strdup("/dev/null");
    handle(broker, SA_NODEFER);
    evict();
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_openat, 2, 0), IF(SYS_statfs, 1, 0), RETURN(SECCOMP_RET_ALLOW),
        RETURN(SECCOMP_RET_TRAP),
    };
    MUST(install(code, COUNT(code)));
    RESULT(open(path, O_RDONLY));
    struct statfs *info = malloc(sizeof *info);
    evict();
    /* The second argument of statfs is not a path. */
    memset(info, 0, sizeof *info);
    RESULT(statfs(path, info));
}

/* --- threads, children, programs */

static void *opens(void *path)
{
    RESULT(open(path, O_RDONLY));
    return NULL;
}

CASE(threads_made_later_have_it)
{
    char *path = strdup("/dev/null");
    evict();
    only(SYS_openat, SECCOMP_RET_ERRNO | EMLINK);
    in_thread(opens, path);
    RESULT(open(path, O_RDONLY));
}

static pthread_barrier_t barrier;

static void *waits_and_opens(void *path)
{
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    int fd = open(path, O_RDONLY);
    say("%s", fd < 0 ? strerrorname_np(errno) : "opened");
    return NULL;
}

static void earlier_thread(unsigned flags)
{
    char *path = strdup("/dev/null");
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, waits_and_opens, path);
    pthread_barrier_wait(&barrier);
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_openat, 0, 1), RETURN(SECCOMP_RET_ERRNO | EMLINK),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT(code), .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    RESULT(open(path, O_RDONLY));
}

CASE(earlier_threads_have_it_not)
{
    earlier_thread(0);
}

CASE(all_threads_can_have_it)
{
    earlier_thread(SECCOMP_FILTER_FLAG_TSYNC);
}

static void *takes_a_filter(void *unused)
{
    only(SYS_getppid, SECCOMP_RET_ERRNO | EXDEV);
    RESULT(getppid());
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

CASE(a_thread_with_another_one_cannot_follow)
{
    pthread_t thread;
    struct sock_fprog *program = in_heap();
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, takes_a_filter, NULL);
    pthread_barrier_wait(&barrier);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program);
    say("a thread's number: %d", result > 0);
    say("a parent: %d", getppid() > 0);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
}

static unsigned char *kept;

static void look_at_kept(void)
{
    say("wrong: %zu", wrong(kept, 4 * MIB, 1));
    fill(kept, 4 * MIB, 2);
    say("wrong: %zu", wrong(kept, 4 * MIB, 2));
    RESULT(getppid());
}

CASE(a_child_sees_its_memory)
{
    kept = out(4 * MIB);
    only(SYS_getppid, SECCOMP_RET_ERRNO | EXDEV);
    IN_CHILD("child")
        look_at_kept();
    say("wrong: %zu", wrong(kept, 4 * MIB, 1));
}

CASE(after_exec)
{
    unsigned char *at = out(4 * MIB);
    char *path = strdup("/dev/null");
    evict();
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
    SUCCESS(open(path, O_RDONLY));
    errno = 0;
    say("parent: %s", getppid() < 0 ? strerrorname_np(errno) : "there");
}

CASE(a_program_starts_with_it)
{
    only(SYS_getppid, SECCOMP_RET_ERRNO | EXDEV);
    execl("/proc/self/exe", "filters", "after_exec", (char *)NULL);
}

CASE(a_program_starts_with_many)
{
    for (int i = 0; i < 5; i++)
        only(SYS_getppid, SECCOMP_RET_ERRNO | (EXDEV + i));
    execl("/proc/self/exe", "filters", "after_exec", (char *)NULL);
}

CASE(a_child_starts_a_program_with_it)
{
    kept = out(MIB);
    IN_CHILD("program")
        a_program_starts_with_it();
    say("a parent: %d, wrong: %zu", getppid() > 0, wrong(kept, MIB, 1));
}

CASE(memory_under_many_filters)
{
    unsigned char *at = out(2 * MIB);
    for (int i = 0; i < 20; i++)
        only(SYS_getppid, SECCOMP_RET_ERRNO | (i + 1));
    say("wrong: %zu", wrong(at, 2 * MIB, 1));
    RESULT(getppid());
}

static int listener = -1, sent = -1;

static void *answers(void *unused)
{
    struct seccomp_notif *request = calloc(1, 256);
    struct seccomp_notif_resp *response = calloc(1, 256);
    evict();
    RESULT(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, request));
    say("call %d", request->data.nr);
    say("path: %s", (char *)request->data.args[1]);
    response->id = request->id;
    response->val = 4711;
    sent = ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, response);
    return unused;
}

/* A supervisor process returns the results of calls instead of the kernel. */
CASE(a_supervisor)
{
    pthread_t thread;
    char *path = strdup("/dev/null");
    struct sock_filter *code = malloc(4 * sizeof *code);
    struct sock_filter own[] = {
        LOAD(NUMBER), IF(SYS_openat, 0, 1), RETURN(SECCOMP_RET_USER_NOTIF),
        RETURN(SECCOMP_RET_ALLOW),
    };
    memcpy(code, own, sizeof own);
    struct sock_fprog program = {.len = 4, .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                       &program);
    say("listener: %d", listener >= 0);
    pthread_create(&thread, NULL, answers, NULL);
    RESULT(open(path, O_RDONLY));
    pthread_join(thread, NULL);
    say("sent: %d", sent);
}

CASE(signals_under_a_list)
{
    unsigned char *at = out(2 * MIB);
    signal(SIGUSR1, plain_handler);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group, SYS_getpid, SYS_gettid,
          SYS_tgkill, SYS_rt_sigprocmask, SYS_rt_sigreturn);
    RESULT(raise(SIGUSR1));
    say("wrong: %zu", wrong(at, 2 * MIB, 1));
}

/* The filter denies the call, so no pipe is created. softswap must not make the call itself. */
CASE(what_is_denied_is_not_done)
{
    int *ends = malloc(2 * sizeof *ends);
    ends[0] = ends[1] = -5;
    evict();
    only(SYS_pipe2, SECCOMP_RET_ERRNO | EMFILE);
    RESULT(pipe2(ends, 0));
    say("%d %d", ends[0], ends[1]);
}

/* --- the engine's system call instruction, called by an attacker */

typedef long (*any_call)(long, long, long, long, long, long, long);
static any_call gate;

/* Finds a page of code that is not mapped from a file. A run without softswap has no such page. */
static void find_gate(void)
{
    char line[512], access[8], path[64];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end, inode;
        int fields = sscanf(line, "%lx-%lx %7s %*x %*s %lu %63s", &start, &end, access, &inode, path);
        if (fields == 4 && inode == 0 && !strcmp(access, "r-xp") && end - start == PAGE)
            gate = (any_call)start;
    }
    if (maps)
        fclose(maps);
}

/* Makes a system call by a jump to the engine's instruction. Without softswap, makes an ordinary
 * call. */
static long by_gate(long number, long a, long b, long c, long d, long e)
{
    if (gate)
        return gate(number, a, b, c, d, e, 0);
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define TRY(what, number, a, b, c, d, e)                                                \
    say("%s: %ld", what, by_gate(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e)))

/* Starts a child that waits, and exits with its parent. */
static pid_t victim(void)
{
    pid_t maker = getpid(), pid = MUST(fork());
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* The case may have exited before the child ran. */
        while (getppid() == maker)
            pause();
        _exit(0);
    }
    return pid;
}

static void strict(void)
{
    ALLOW(SECCOMP_RET_ERRNO | EPERM, SYS_write, SYS_exit_group);
}

CASE(the_gate_enters_no_rings)
{
    unsigned char *at = out(4 * MIB);
    find_gate();
    strict();
    int entered = 0;
    for (int fd = 3; fd < 1100; fd++)
        entered += by_gate(SYS_io_uring_enter, fd, 0, 0, 0, 0) != -EPERM;
    say("%d can be entered", entered);
    TRY("set up", SYS_io_uring_setup, 1, 0, 0, 0, 0);
    TRY("register", SYS_io_uring_register, 1, 0, 0, 0, 0);
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
}

CASE(the_gate_kills_for_rings)
{
    find_gate();
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group);
    by_gate(SYS_io_uring_enter, 77, 0, 0, 0, 0);
    say("here still");
}

static void reach_for(pid_t pid, int pidfd)
{
    char there[8] = "there", here[8] = "";
    struct iovec from = {there, 6}, to = {here, 6};
    struct rlimit limit;
    cpu_set_t set;
    siginfo_t info = {.si_signo = SIGTERM, .si_code = SI_QUEUE};
    TRY("tgkill", SYS_tgkill, pid, pid, SIGTERM, 0, 0);
    TRY("tkill", SYS_tkill, pid, SIGTERM, 0, 0, 0);
    TRY("kill", SYS_kill, pid, SIGTERM, 0, 0, 0);
    TRY("queued", SYS_rt_sigqueueinfo, pid, SIGTERM, &info, 0, 0);
    TRY("queued for a thread", SYS_rt_tgsigqueueinfo, pid, pid, SIGTERM, &info, 0);
    TRY("by its descriptor", SYS_pidfd_send_signal, pidfd, SIGTERM, &info, 0, 0);
    TRY("reading", SYS_process_vm_readv, pid, &to, 1, &from, 1);
    TRY("writing", SYS_process_vm_writev, pid, &to, 1, &from, 1);
    TRY("advice", SYS_process_madvise, pidfd, &from, 1, MADV_COLD, 0);
    TRY("limits", SYS_prlimit64, pid, RLIMIT_NOFILE, 0, &limit, 0);
    TRY("processors", SYS_sched_getaffinity, pid, sizeof set, &set, 0, 0);
    TRY("binding", SYS_sched_setaffinity, pid, sizeof set, &set, 0, 0);
    TRY("robust list", SYS_get_robust_list, pid, &from, &to, 0, 0);
    say("read: %s", here);
}

CASE(the_gate_reaches_no_other_process)
{
    pid_t pid = victim();
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    find_gate();
    ALLOW(SECCOMP_RET_ERRNO | EPERM, SYS_write, SYS_exit_group, SYS_wait4);
    reach_for(pid, pidfd);
    RESULT(waitpid(pid, NULL, WNOHANG));
}

static pid_t parent;
static int parents_pidfd;

static void reach_for_parent(void)
{
    reach_for(parent, parents_pidfd);
}

CASE(nor_from_a_child)
{
    parent = getpid();
    parents_pidfd = syscall(SYS_pidfd_open, parent, 0);
    find_gate();
    ALLOW(SECCOMP_RET_ERRNO | EPERM, SYS_write, SYS_exit_group, SYS_wait4, SYS_clone);
    IN_CHILD("child")
        reach_for_parent();
}

CASE(the_gate_makes_no_code)
{
    int fd = MUST(open("/proc/self/exe", O_RDONLY));
    char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    find_gate();
    strict();
    TRY("new", SYS_mmap, 0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    TRY("of a file", SYS_mmap, 0, PAGE, PROT_READ, MAP_PRIVATE, fd);
    TRY("run", SYS_mprotect, at, PAGE, PROT_READ | PROT_EXEC, 0, 0);
    TRY("run and write", SYS_mprotect, at, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0);
    TRY("moving", SYS_mremap, at, PAGE, 2 * PAGE, MREMAP_MAYMOVE, 0);
    TRY("advice", SYS_madvise, at, PAGE, MADV_FREE, 0, 0);
    TRY("advice that wipes", SYS_madvise, at, PAGE, MADV_WIPEONFORK, 0, 0);
    TRY("faults of the kernel's", SYS_userfaultfd, 0, 0, 0, 0, 0);
}

CASE(the_gate_changes_no_files)
{
    int fd = scratch_file(O_RDWR);
    char text[] = "text";
    struct rlimit few = {64, 64};
    MUST(pwrite(fd, "file", 4, 0));
    find_gate();
    strict();
    TRY("pwrite", SYS_pwrite64, fd, text, 4, 0, 0);
    TRY("pread", SYS_pread64, fd, text, 4, 0, 0);
    TRY("ftruncate", SYS_ftruncate, fd, 0, 0, 0, 0);
    TRY("fallocate", SYS_fallocate, fd, 0, 0, 4096, 0);
    TRY("lseek", SYS_lseek, fd, 2, SEEK_SET, 0, 0);
    TRY("from here", SYS_lseek, fd, 2, SEEK_CUR, 0, 0);
    TRY("flags", SYS_fcntl, fd, F_SETFL, O_APPEND, 0, 0);
    TRY("owner", SYS_fcntl, fd, F_SETOWN, 1, 0, 0);
    TRY("lease", SYS_fcntl, fd, F_SETLEASE, F_RDLCK, 0, 0);
    TRY("a byte for the terminal", SYS_ioctl, fd, 0x5412, text, 0, 0);
    TRY("discard", SYS_ioctl, fd, 0x1277, text, 0, 0);
    TRY("open", SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0, 0);
    TRY("run", SYS_execve, "/bin/true", 0, 0, 0, 0);
    TRY("limit", SYS_prlimit64, 0, RLIMIT_NOFILE, &few, 0, 0);
    TRY("errors of a socket", SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, text, 0);
    TRY("segments", SYS_shmctl, 0, 0, 0, 0, 0);
    TRY("another's turn", SYS_futex, text, 5, 1, 1, 0);
    say("%s", text);
}

/* --- long runs under a filter */

static void *works(void *seed)
{
    size_t bad = 0;
    unsigned char *at = memory(MIB, (long)seed);
    for (int round = 0; round < 3; round++) {
        unsigned char *block = malloc(20000);
        fill(block, 20000, round);
        if ((long)seed == 1 && round == 1)
            evict();
        bad += wrong(at, MIB, (long)seed) + wrong(block, 20000, round);
        free(block);
    }
    munmap(at, MIB);
    return (void *)bad;
}

CASE(threads_under_a_list)
{
    pthread_t threads[6];
    unsigned char *at = out(4 * MIB);
    size_t bad = 0;
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group, SYS_exit, SYS_clone, SYS_clone3,
          SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_set_robust_list, SYS_rseq,
          SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_futex, SYS_brk);
    for (int turn = 0; turn < 2; turn++) {
        for (long i = 0; i < 6; i++)
            pthread_create(&threads[i], NULL, works, (void *)(i + 1));
        for (int i = 0; i < 6; i++) {
            void *result;
            pthread_join(threads[i], &result);
            bad += (size_t)result;
        }
    }
    say("wrong: %zu, %zu", bad, wrong(at, 4 * MIB, 1));
}

/* The filter is installed while the existing threads work. */
static volatile int enough;

static void *works_on(void *seed)
{
    size_t bad = 0;
    while (!enough)
        bad += (size_t)works(seed);
    return (void *)bad;
}

CASE(a_list_for_threads_at_work)
{
    pthread_t threads[4];
    size_t bad = 0;
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, works_on, (void *)(i + 2));
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_io_uring_enter, 4, 0), IF(SYS_pwrite64, 3, 0), IF(SYS_pread64, 2, 0),
        IF(SYS_process_vm_readv, 1, 0), RETURN(SECCOMP_RET_ALLOW),
        RETURN(SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = COUNT(code), .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    evict();
    for (int i = 0; i < 2; i++) {
        RESULT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
        evict();
    }
    enough = 1;
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (size_t)result;
    }
    say("wrong: %zu", bad);
}

/* The changed memory must fit the budget: the child has no swap area. */
static void child_of_a_list(void)
{
    size_t bad = wrong(kept, 4 * MIB, 1);
    fill(kept, 2 * MIB, 2);
    apply_pressure(2);
    bad += wrong(kept, 2 * MIB, 2);
    mprotect(kept, MIB, PROT_NONE);
    apply_pressure(2);
    mprotect(kept, MIB, PROT_READ | PROT_WRITE);
    say("wrong: %zu", bad + wrong(kept, 2 * MIB, 2));
}

static void child_with_a_child(void)
{
    child_of_a_list();
    fill(kept, 4 * MIB, 1);
    IN_CHILD("its child")
        child_of_a_list();
    say("wrong: %zu", wrong(kept, 4 * MIB, 1));
}

CASE(forks_under_a_list)
{
    kept = out(4 * MIB);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group, SYS_clone, SYS_wait4,
          SYS_set_robust_list, SYS_mmap, SYS_mprotect);
    for (int i = 0; i < 2; i++) {
        IN_CHILD("child")
            child_of_a_list();
        fill(kept, 4 * MIB, 1);
        evict();
    }
    IN_CHILD("child")
        child_with_a_child();
    say("wrong: %zu", wrong(kept, 4 * MIB, 1));
}

static void bad_touch(void)
{
    volatile char *gone = memory(MIB, 1);
    munmap((void *)gone, MIB);
    say("%d", *gone);
}

/* A segmentation fault kills a child as it would without softswap. */
CASE(a_child_of_a_list_touches_what_is_not_there)
{
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group, SYS_clone, SYS_wait4,
          SYS_set_robust_list, SYS_mmap, SYS_munmap, SYS_rt_sigaction);
    IN_CHILD("child")
        bad_touch();
}

static void bad_pointers_in_a_child(void)
{
    struct iovec *parts = (struct iovec *)kept;
    parts[0] = (struct iovec){kept, 0};
    evict();
    RESULT(writev(1, parts, 1));
    struct iovec *volatile bad = (void *)8;
    RESULT(writev(1, bad, 1));
    munmap(kept, MIB);
    RESULT(writev(1, parts, 1));
}

CASE(pointers_under_a_list)
{
    kept = out(4 * MIB);
    ALLOW(SECCOMP_RET_KILL_PROCESS, SYS_write, SYS_exit_group, SYS_clone, SYS_wait4,
          SYS_set_robust_list, SYS_mmap, SYS_munmap, SYS_writev);
    IN_CHILD("child")
        bad_pointers_in_a_child();
}

/* A program starts under a filter that forbids some calls. */
CASE(a_program_starts_under_a_list_that_kills)
{
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_io_uring_setup, 7, 0), IF(SYS_io_uring_enter, 6, 0),
        IF(SYS_io_uring_register, 5, 0), IF(SYS_process_vm_readv, 4, 0), IF(SYS_tgkill, 3, 0),
        IF(SYS_pwrite64, 2, 0), IF(SYS_socket, 1, 0), RETURN(SECCOMP_RET_ALLOW),
        RETURN(SECCOMP_RET_KILL_PROCESS),
    };
    MUST(install(code, COUNT(code)));
    execl("/proc/self/exe", "filters", "after_exec_killed", (char *)NULL);
}

CASE(after_exec_killed)
{
    unsigned char *at = out(4 * MIB);
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
    rewrite(at, 4 * MIB, 2);
}

/* If softswap stops a program that has closed standard error, the message must not trigger the
 * program's filter. */
CASE(no_terminal_is_opened_for_a_message)
{
    if (!getenv("ABI_AGAIN")) {
        char *argv[] = {"again", "no_terminal_is_opened_for_a_message", NULL};
        pid_t pid;
        int status;
        setenv("ABI_AGAIN", "1", 1);
        if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
            must_("posix_spawn", -1);
        MUST(waitpid(pid, &status, 0));
        say("by the filter: %d", WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
        return;
    }
    unsigned char *at = out(4 * MIB);
    close(2);
    MUST(open("/dev/null", O_WRONLY));
    only(SYS_openat, SECCOMP_RET_KILL_PROCESS);
    /* softswap must stop the program. */
    own_call(SYS_close_range, 3, ~0U, 0);
    _exit(wrong(at, 4 * MIB, 1) != 0);
}

/* The filter also applies to the calls that the C library's functions make. */
CASE(no_masks)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    unsigned char *at = out(2 * MIB);
    only(SYS_rt_sigprocmask, SECCOMP_RET_ERRNO | EMLINK);
    RESULT(sigprocmask(SIG_BLOCK, &set, NULL));
    say("%d", pthread_sigmask(SIG_BLOCK, &set, NULL));
    say("wrong: %zu", wrong(at, 2 * MIB, 1));
}

CASE(no_handlers)
{
    struct sigaction action = {.sa_handler = plain_handler};
    unsigned char *at = out(2 * MIB);
    stack_t stack = {.ss_sp = at, .ss_size = 65536};
    struct sock_filter code[] = {
        LOAD(NUMBER), IF(SYS_sigaltstack, 3, 0), IF(SYS_rt_sigaction, 0, 3), LOAD(ARGUMENT(0)),
        IF(SIGUSR1, 0, 1), RETURN(SECCOMP_RET_ERRNO | EMLINK), RETURN(SECCOMP_RET_ALLOW),
    };
    MUST(install(code, COUNT(code)));
    RESULT(sigaction(SIGUSR1, &action, NULL));
    RESULT(sigaction(SIGUSR2, &action, NULL));
    RESULT(sigaltstack(&stack, NULL));
    say("wrong: %zu", wrong(at, 2 * MIB, 1));
}

CASE(no_locking)
{
    unsigned char *at = out(MIB);
    only(SYS_mlock, SECCOMP_RET_ERRNO | EMLINK);
    RESULT(mlock(at, PAGE));
    RESULT(mlock2(at, PAGE, MLOCK_ONFAULT));
    only(SYS_mlock2, SECCOMP_RET_ERRNO | EXDEV);
    RESULT(mlock2(at, PAGE, MLOCK_ONFAULT));
    RESULT(munlock(at, PAGE));
    only(SYS_munlock, SECCOMP_RET_ERRNO | EDOM);
    RESULT(munlock(at, PAGE));
}

CASE(locking_in_the_other_way)
{
    unsigned char *at = out(MIB);
    only(SYS_mlock2, SECCOMP_RET_KILL_PROCESS);
    RESULT(mlock(at, PAGE));
    RESULT(munlock(at, PAGE));
    say("wrong: %zu", wrong(at, MIB, 1));
}
