/* Resource limits: the values of getrlimit and prlimit, and the effect of reaching one. */
#include "abi.h"

static const struct { int number; const char *name; } limits[] = {
    {RLIMIT_AS, "AS"},           {RLIMIT_DATA, "DATA"},     {RLIMIT_STACK, "STACK"},
    {RLIMIT_NPROC, "NPROC"},     {RLIMIT_FSIZE, "FSIZE"},   {RLIMIT_MEMLOCK, "MEMLOCK"},
    {RLIMIT_NOFILE, "NOFILE"},   {RLIMIT_CORE, "CORE"},     {RLIMIT_CPU, "CPU"},
    {RLIMIT_SIGPENDING, "SIGPENDING"}, {RLIMIT_MSGQUEUE, "MSGQUEUE"}, {RLIMIT_NICE, "NICE"},
    {RLIMIT_RTPRIO, "RTPRIO"},   {RLIMIT_RTTIME, "RTTIME"}, {RLIMIT_LOCKS, "LOCKS"},
    {RLIMIT_RSS, "RSS"},
};
#define LIMITS (sizeof limits / sizeof *limits)

static void say_limit(const char *name, const struct rlimit *limit)
{
    say("%s: %llu of %llu", name, (unsigned long long)limit->rlim_cur,
        (unsigned long long)limit->rlim_max);
}

static int set_soft(int which, rlim_t value)
{
    struct rlimit limit;
    MUST(getrlimit(which, &limit));
    if (limit.rlim_max < value)
        value = limit.rlim_max;
    limit.rlim_cur = value;
    return setrlimit(which, &limit);
}

CASE(shown_by_getrlimit)
{
    for (size_t i = 0; i < LIMITS; i++) {
        struct rlimit limit;
        MUST(getrlimit(limits[i].number, &limit));
        say_limit(limits[i].name, &limit);
    }
}

CASE(shown_by_prlimit)
{
    for (size_t i = 0; i < LIMITS; i++) {
        struct rlimit limit;
        MUST(prlimit(0, limits[i].number, NULL, &limit));
        say_limit(limits[i].name, &limit);
    }
}

CASE(shown_by_the_raw_call)
{
    for (size_t i = 0; i < LIMITS; i++) {
        struct rlimit limit;
        MUST(syscall(SYS_prlimit64, 0, limits[i].number, NULL, &limit));
        say_limit(limits[i].name, &limit);
    }
}

CASE(shown_in_proc)
{
    char text[4096] = "";
    int fd = MUST(open("/proc/self/limits", O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        say("%s", line);
}

CASE(shown_of_itself_by_number)
{
    struct rlimit limit;
    RESULT(prlimit(getpid(), RLIMIT_NOFILE, NULL, &limit));
    say_limit("NOFILE", &limit);
}

CASE(shown_into_memory_that_is_out)
{
    char *data = memory(65 * PAGE, 1);
    struct rlimit *limit = (struct rlimit *)(data + 64 * PAGE);
    evict();
    RESULT(getrlimit(RLIMIT_NOFILE, limit));
    say_limit("NOFILE", limit);
    say("wrong: %zu", wrong(data, 64 * PAGE, 1));
}

CASE(set_from_memory_that_is_out)
{
    struct rlimit *limit = memory(64 * PAGE, 1);
    MUST(getrlimit(RLIMIT_CORE, limit));
    limit->rlim_cur = 0;
    evict();
    RESULT(setrlimit(RLIMIT_CORE, limit));
    evict();
    struct rlimit *old = (void *)((char *)limit + 32 * PAGE);
    RESULT(prlimit(0, RLIMIT_CORE, limit, old));
    say_limit("CORE", old);
}

/* Each limit can be lowered, and the calls then return the new value. */
static void lowered(int which, const char *name, rlim_t value)
{
    say_result("setrlimit", set_soft(which, value));
    struct rlimit limit;
    MUST(getrlimit(which, &limit));
    say_limit(name, &limit);
}
CASE(lowered_nproc) { lowered(RLIMIT_NPROC, "NPROC", 1000); }
CASE(lowered_fsize) { lowered(RLIMIT_FSIZE, "FSIZE", 1 << 20); }
CASE(lowered_memlock) { lowered(RLIMIT_MEMLOCK, "MEMLOCK", 8192); }
CASE(lowered_nofile) { lowered(RLIMIT_NOFILE, "NOFILE", 50); }
CASE(lowered_core) { lowered(RLIMIT_CORE, "CORE", 0); }
CASE(lowered_cpu) { lowered(RLIMIT_CPU, "CPU", 100); }
CASE(lowered_sigpending) { lowered(RLIMIT_SIGPENDING, "SIGPENDING", 10); }
CASE(lowered_stack) { lowered(RLIMIT_STACK, "STACK", 1 << 20); }

CASE(refused_soft_above_hard)
{
    struct rlimit limit = {.rlim_cur = 11, .rlim_max = 10};
    RESULT(setrlimit(RLIMIT_CPU, &limit));
}

CASE(refused_unknown)
{
    struct rlimit limit = {0};
    RESULT(getrlimit(99, &limit));
    RESULT(setrlimit(-1, &limit));
}

CASE(refused_bad_pointer)
{
    RESULT(syscall(SYS_prlimit64, 0, RLIMIT_CORE, 8, NULL));
    RESULT(syscall(SYS_prlimit64, 0, RLIMIT_CORE, NULL, 8));
}

CASE(hard_limit_raised_without_rights)
{
    struct rlimit limit = {.rlim_cur = 30, .rlim_max = 30};
    MUST(setrlimit(RLIMIT_SIGPENDING, &limit));
    IN_CHILD("child") {
        if (getuid() == 0)
            MUST(setresuid(65533, 65533, 65533));
        limit.rlim_max = 31;
        RESULT(setrlimit(RLIMIT_SIGPENDING, &limit));
    }
}

CASE(inherited_by_fork_and_exec)
{
    MUST(set_soft(RLIMIT_CPU, 77));
    MUST(set_soft(RLIMIT_CORE, 0));
    IN_CHILD("shell") {
        struct rlimit limit;
        MUST(getrlimit(RLIMIT_CPU, &limit));
        say("CPU: %llu", (unsigned long long)limit.rlim_cur);
        execl("/bin/sh", "sh", "-c", "ulimit -St; ulimit -Sc", NULL);
        _exit(1);
    }
}

static void seen_by_all_threads_body(void)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_CPU, &limit));
    say_limit("CPU", &limit);
}
static void *seen_by_thread(void *argument)
{
    (void)argument;
    seen_by_all_threads_body();
    return NULL;
}
CASE(seen_by_all_threads)
{
    MUST(set_soft(RLIMIT_CPU, 55));
    in_thread(seen_by_thread, NULL);
}

/* ---- files ------------------------------------------------------------------------- */

CASE(fsize_kills)
{
    IN_CHILD("child") {
        MUST(set_soft(RLIMIT_FSIZE, 4096));
        MUST(set_soft(RLIMIT_CORE, 0));
        int fd = scratch_file(0);
        char *data = memory(16 * PAGE, 1);
        RESULT(write(fd, data, 4096));
        RESULT(write(fd, data, 1));
    }
}

CASE(fsize_fails_where_ignored)
{
    signal(SIGXFSZ, SIG_IGN);
    MUST(set_soft(RLIMIT_FSIZE, 10000));
    int fd = scratch_file(0);
    char *data = evicted_memory(16 * PAGE, 1);
    RESULT(write(fd, data, 65536));
    RESULT(write(fd, data, 1));
    RESULT(pwrite(fd, data, 100, 9990));
    RESULT(ftruncate(fd, 10001));
    RESULT(fallocate(fd, 0, 0, 10001));
    RESULT(ftruncate(fd, 10000));
}

static volatile sig_atomic_t xfsz;
static void on_xfsz(int signal) { xfsz += signal == SIGXFSZ; }

CASE(fsize_signal_is_handled)
{
    signal(SIGXFSZ, on_xfsz);
    MUST(set_soft(RLIMIT_FSIZE, 0));
    int fd = scratch_file(0);
    long written = write(fd, "x", 1);
    int error = errno;
    /* Standard output may be a file, to which the limit also applies. */
    MUST(set_soft(RLIMIT_FSIZE, RLIM_INFINITY));
    say("write: %ld %s", written, strerrorname_np(error));
    say("signals: %d", (int)xfsz);
}

/* ---- descriptors ------------------------------------------------------------------- */

CASE(nofile_opens_so_many)
{
    MUST(set_soft(RLIMIT_NOFILE, 40));
    int last = -1, fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0)
        last = fd;
    say("last: %d, %s", last, strerrorname_np(errno));
    RESULT(dup(0));
    int pair[2];
    RESULT(pipe(pair));
    RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
}

CASE(nofile_bounds_numbers)
{
    MUST(set_soft(RLIMIT_NOFILE, 40));
    RESULT(dup2(0, 39));
    RESULT(dup2(0, 40));
    RESULT(dup3(0, 41, O_CLOEXEC));
    RESULT(fcntl(0, F_DUPFD, 40));
    RESULT(fcntl(0, F_DUPFD, 38));
}

CASE(nofile_leaves_what_is_open)
{
    MUST(dup2(1, 60));
    MUST(set_soft(RLIMIT_NOFILE, 20));
    RESULT(write(60, "", 0));
    RESULT(fcntl(60, F_GETFD));
    RESULT(close(60));
}

CASE(nofile_none_at_all)
{
    void *data = memory(4 * MIB, 5);
    MUST(set_soft(RLIMIT_NOFILE, 0));
    evict();
    say("wrong: %zu", wrong(data, 4 * MIB, 5));
    RESULT(open("/dev/null", O_RDONLY));
}

/* ---- processes, time, signals --------------------------------------------------------- */

CASE(nproc_forbids_more)
{
    IN_CHILD("child") {
        struct rlimit none = {0, 0};
        MUST(setrlimit(RLIMIT_NPROC, &none));
        if (getuid() == 0)
            MUST(setresuid(65532, 65532, 65532));
        pid_t more = fork();
        if (more == 0)
            _exit(0);
        say("fork: %s", more < 0 ? strerrorname_np(errno) : "done");
    }
}

CASE(core_of_none)
{
    MUST(set_soft(RLIMIT_CORE, 0));
    pid_t child = MUST(fork());
    if (child == 0)
        abort();
    int status;
    MUST(waitpid(child, &status, 0));
    say("signal %d, core %d", WTERMSIG(status), !!WCOREDUMP(status));
}

CASE(cpu_time_runs_out)
{
    IN_CHILD("child") {
        MUST(set_soft(RLIMIT_CORE, 0));
        MUST(set_soft(RLIMIT_CPU, 1));
        for (volatile unsigned long i = 0;; i++)
            ;
    }
}

CASE(sigpending_fills_up)
{
    MUST(set_soft(RLIMIT_SIGPENDING, 8));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    MUST(sigprocmask(SIG_BLOCK, &set, NULL));
    int queued = 0;
    union sigval value = {.sival_int = 0};
    while (queued < 100 && sigqueue(getpid(), SIGRTMIN + 1, value) == 0)
        queued++;
    say("all: %d, %s", queued == 100, strerrorname_np(errno));
}

/* ---- memory ------------------------------------------------------------------------ */

__attribute__((noinline)) static int deep(int levels)
{
    volatile char frame[4096];
    frame[0] = (char)levels;
    return levels == 0 ? 0 : deep(levels - 1) + frame[0] - (char)levels;
}

CASE(stack_ends_at_its_limit)
{
    IN_CHILD("child") {
        MUST(set_soft(RLIMIT_CORE, 0));
        MUST(set_soft(RLIMIT_STACK, 512 << 10));
        say("deep: %d", deep(50));
        say("deeper: %d", deep(1000));
    }
}

CASE(as_leaves_what_is_there)
{
    void *data = memory(4 * MIB, 7);
    MUST(set_soft(RLIMIT_AS, MIB));
    evict();
    say("wrong: %zu", wrong(data, 4 * MIB, 7));
}

/* Sets a limit of 1 GiB. Under softswap more than 1 GiB is mapped, so that the process cannot
 * map more memory. Its children have the same mappings. */
CASE(as_lowered_before_forking)
{
    unsigned char *at = evicted_memory(4 * MIB, 3);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_AS, &limit));
    limit.rlim_cur = limit.rlim_max = 1UL << 30;
    MUST(setrlimit(RLIMIT_AS, &limit));
    for (int i = 0; i < 3; i++) {
        IN_CHILD("child") {
            say("wrong %zu", wrong(at, 4 * MIB, 3));
            at[0]++;
            IN_CHILD("child's child") {
                say("wrong %zu", wrong(at, 4 * MIB, 3));
                _exit(4);
            }
            _exit(3);
        }
    }
    say("wrong %zu", wrong(at, 4 * MIB, 3));
}
