/* Helpers of the test programs: checks that print the difference, reproducible data, memory
 * pressure, and injected faults that show that every check can fail.
 *
 * A program is a list of named cases. Each case prepares data, evicts it from DRAM, uses it and
 * compares. `--corrupt CASE` runs one case with a fault injected between "prepared" and
 * "compared": the program must then exit 1. `--require-out` fails if at most a quarter of the
 * data was swapped out when it was used, so that a run under softswap cannot pass without
 * swapping. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "waiting.h"

/* Programs use only some of the helpers. */
#define HELPER __attribute__((unused)) static

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define WORDS_PER_PAGE (PAGE / sizeof(uint64_t))

struct check_case {
    const char *name;
    void (*run)(void);
};

static const char *check_program = "";
static const char *check_current = "";
static const char *check_corrupted_case;
static int check_failure_status = 1; /* a forked child may need its own */
static int check_argc;
static char **check_argv;

/* ---- failing ---------------------------------------------------------- */

__attribute__((unused, noreturn, format(printf, 3, 4))) static void
check_fail(const char *file, int line, const char *format, ...) {
    /* _exit, so that atexit functions, destructors or other threads cannot turn a failure into a
     * hang or a second message. */
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char message[768];
    int length = snprintf(message, sizeof message, "FAILED %s %s (%s:%d): %s\n", check_program,
                          check_current, file, line, text);
    ssize_t ignored = write(STDERR_FILENO, message, (size_t)length);
    (void)ignored;
    _exit(check_failure_status);
}

#define FAIL(...) check_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition, ...) \
    do { \
        if (!(condition)) FAIL(__VA_ARGS__); \
    } while (0)
/* A call that reports failure by a negative result and errno. */
#define CALL(expression) \
    ({ \
        __typeof__(expression) result_ = (expression); \
        CHECK(result_ >= 0, "%s: %s", #expression, strerror(errno)); \
        result_; \
    })
/* A call whose result must be exactly `wanted`. */
#define EXPECT(wanted, expression) \
    do { \
        long long wanted_ = (long long)(wanted), got_ = (long long)(expression); \
        CHECK(got_ == wanted_, "%s: expected %lld, got %lld (errno %s)", #expression, wanted_, \
              got_, strerror(errno)); \
    } while (0)
/* A call that must fail with `code`. */
#define EXPECT_ERRNO(code, expression) \
    do { \
        errno = 0; \
        long long got_ = (long long)(expression); \
        int errno_ = errno; \
        CHECK(got_ == -1 && errno_ == (code), "%s: expected -1 with %s, got %lld with %s", \
              #expression, strerror(code), got_, strerror(errno_)); \
    } while (0)
/* pthread functions return the error. */
#define PTHREAD(expression) \
    do { \
        int error_ = (expression); \
        CHECK(error_ == 0, "%s: %s", #expression, strerror(error_)); \
    } while (0)

/* ---- options ----------------------------------------------------------- */

HELPER const char *option_text(const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < check_argc; i++)
        if (strncmp(check_argv[i], "--", 2) == 0 && strcmp(check_argv[i] + 2, name) == 0)
            return check_argv[i + 1];
    return otherwise;
}

HELPER size_t option_number(const char *name, size_t otherwise) {
    const char *text = option_text(name, NULL);
    if (!text) return otherwise;
    char *end;
    size_t value = strtoull(text, &end, 10);
    CHECK(*text && !*end, "--%s wants a number, not '%s'", name, text);
    return value;
}

/* Work that lasts for --seconds. With 0 it lasts until the file "done" exists in the directory
 * SOFTSWAP_RUNTIME_DIR: a test that observes the program creates the file when it has seen enough,
 * at any speed of the machine. */
struct work {
    time_t end, looked;
    char done[256];
};

HELPER struct work begin_work(void) {
    struct work work = {0, time(NULL), ""};
    size_t seconds = option_number("seconds", 1);
    const char *dir = getenv("SOFTSWAP_RUNTIME_DIR");
    if (seconds > 0) work.end = work.looked + (time_t)seconds;
    else if (dir) snprintf(work.done, sizeof work.done, "%s/done", dir);
    return work;
}

HELPER bool work_goes_on(struct work *work) {
    time_t now = time(NULL);
    if (work->end) return now < work->end;
    if (now == work->looked) return true;
    work->looked = now;
    return !work->done[0] || access(work->done, F_OK) != 0;
}

HELPER bool option_flag(const char *name) {
    for (int i = 1; i < check_argc; i++)
        if (strncmp(check_argv[i], "--", 2) == 0 && strcmp(check_argv[i] + 2, name) == 0)
            return true;
    return false;
}

/* True once, in the case that --corrupt names. */
static atomic_bool check_injected;
HELPER bool inject_now(void) {
    return check_corrupted_case && strcmp(check_current, check_corrupted_case) == 0 &&
           !atomic_exchange(&check_injected, true);
}

/* ---- reproducible data -------------------------------------------------- */

/* A bijection whose output looks random: distinct inputs, distinct words. */
HELPER uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

HELPER uint64_t next_random(uint64_t *state) { return mix64((*state)++); }

HELPER uint64_t random_word(uint64_t seed, size_t index) { return mix64(mix64(seed) + index); }

HELPER void fill_random(void *at, size_t bytes, uint64_t seed) {
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = random_word(seed, i);
        memcpy((char *)at + i * 8, &word, 8);
    }
    uint64_t word = random_word(seed, words);
    memcpy((char *)at + words * 8, &word, bytes % 8);
}

HELPER void verify_random(const char *what, const void *at, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i * 8 < bytes; i++) {
        uint64_t expected = random_word(seed, i), got = 0;
        size_t size = bytes - i * 8 < 8 ? bytes - i * 8 : 8;
        memcpy(&got, (const char *)at + i * 8, size);
        if (size < 8) expected &= ((uint64_t)1 << (8 * size)) - 1;
        CHECK(got == expected, "%s: at %p (byte %zu of %zu) expected %016llx, got %016llx", what,
              (const void *)((const char *)at + i * 8), i * 8, bytes,
              (unsigned long long)expected, (unsigned long long)got);
    }
}

HELPER void verify_bytes(const char *what, const void *at, size_t bytes, uint8_t expected) {
    for (size_t i = 0; i < bytes; i++) {
        uint8_t got = ((const volatile uint8_t *)at)[i];
        CHECK(got == expected, "%s: at %p (byte %zu of %zu) expected %02x, got %02x", what,
              (const void *)((const char *)at + i), i, bytes, expected, got);
    }
}

HELPER void *map_pages(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap of %zu bytes: %s", bytes, strerror(errno));
    return at;
}

/* A mapping filled with data of `seed`. */
HELPER void *filled(size_t bytes, uint64_t seed) {
    void *at = map_pages(bytes);
    fill_random(at, bytes, seed);
    return at;
}

/* Memory for expected values, which must not be swapped: shared memory is never managed. */
HELPER void *map_unmanaged(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "shared mmap of %zu bytes: %s", bytes, strerror(errno));
    return at;
}

/* The memory is filled, because untouched pages would count as swapped out. */
HELPER void *allocate(size_t bytes) {
    void *at = malloc(bytes);
    CHECK(at != NULL, "malloc of %zu bytes: %s", bytes, strerror(errno));
    return memset(at, 0xa5, bytes);
}

/* ---- pressure ------------------------------------------------------------ */

static struct {
    uint64_t *at;
    size_t pages;
    uint64_t generation;
    atomic_ulong sweeps;
    atomic_bool churning, stop;
    pthread_t thread;
    pthread_mutex_t lock;
} pressure = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_ulong pages_seen_out, pages_looked_at;

/* Rewrites every page of a buffer that should be larger than the budget, after checking the
 * content of the last sweep. Each page repeats one word, so that a sweep costs faults rather than
 * disk bandwidth. */
HELPER void sweep(void) {
    pthread_mutex_lock(&pressure.lock);
    if (!pressure.at) {
        pressure.pages = option_number("pressure", 16) * MIB / PAGE;
        pressure.at = map_pages(pressure.pages * PAGE + PAGE);
    }
    uint64_t last = pressure.generation++;
    for (size_t page = 0; page < pressure.pages; page++) {
        uint64_t *words = pressure.at + page * WORDS_PER_PAGE;
        uint64_t expected = last ? mix64(last ^ page << 20) : 0;
        size_t probe = (page * 7 + last) % WORDS_PER_PAGE;
        CHECK(words[probe] == expected,
              "pressure buffer: at %p (page %zu) expected %016llx, got %016llx",
              (void *)&words[probe], page, (unsigned long long)expected,
              (unsigned long long)words[probe]);
        uint64_t word = mix64(pressure.generation ^ page << 20);
        for (size_t i = 0; i < WORDS_PER_PAGE; i++) words[i] = word;
    }
    atomic_fetch_add(&pressure.sweeps, 1);
    pthread_mutex_unlock(&pressure.lock);
}

HELPER void *churn_loop(void *unused) {
    (void)unused;
    while (!atomic_load(&pressure.stop)) sweep();
    return NULL;
}

/* Starts a thread that sweeps continuously until churn_stop. */
HELPER void churn_start(void) {
    atomic_store(&pressure.stop, false);
    atomic_store(&pressure.churning, true);
    PTHREAD(pthread_create(&pressure.thread, NULL, churn_loop, NULL));
}

HELPER void churn_stop(void) {
    atomic_store(&pressure.stop, true);
    PTHREAD(pthread_join(pressure.thread, NULL));
    atomic_store(&pressure.churning, false);
}

/* Counts the pages that are not mapped, as the kernel reports them. */
HELPER void count_out(const void *at, size_t bytes) {
    static int pagemap = -1;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    uint64_t entries[64];
    size_t first = (uintptr_t)at / PAGE, last = ((uintptr_t)at + bytes - 1) / PAGE;
    pthread_mutex_lock(&lock);
    if (pagemap < 0) pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    pthread_mutex_unlock(&lock);
    while (pagemap >= 0 && first <= last) {
        size_t count = last - first + 1 < 64 ? last - first + 1 : 64;
        ssize_t got = pread(pagemap, entries, count * 8, (off_t)(first * 8));
        if (got <= 0) break;
        for (size_t i = 0; i < (size_t)got / 8; i++)
            if (!(entries[i] >> 63)) atomic_fetch_add(&pages_seen_out, 1);
        atomic_fetch_add(&pages_looked_at, (unsigned long)got / 8);
        first += (size_t)got / 8;
    }
}

/* Puts memory under pressure until `at` should be swapped out. */
HELPER void evict(const void *at, size_t bytes) {
    if (atomic_load(&pressure.churning)) {
        unsigned long until = atomic_load(&pressure.sweeps) + 2;
        while (atomic_load(&pressure.sweeps) < until) usleep(1000);
    } else {
        sweep();
    }
    count_out(at, bytes);
}

/* Like evict, for memory whose content the case compares afterwards. `--corrupt` flips a bit
 * of the memory. */
HELPER void evict_data(void *at, size_t bytes) {
    evict(at, bytes);
    if (inject_now()) ((volatile uint8_t *)at)[bytes / 2] ^= 0x10;
}

/* ---- faults of the program ----------------------------------------------- */

struct fault {
    int signal;
    int code;
    void *address;
};
static __thread sigjmp_buf fault_return;
static __thread struct fault fault_seen;

HELPER void note_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    fault_seen = (struct fault){signal, info->si_code, info->si_addr};
    siglongjmp(fault_return, 1);
}

/* Returns the signal that an access to `at` raises (0: none). */
HELPER struct fault touch(volatile uint8_t *at, bool write) {
    struct sigaction action = {.sa_flags = SA_SIGINFO}, old_segv, old_bus;
    action.sa_sigaction = note_fault;
    CALL(sigaction(SIGSEGV, &action, &old_segv));
    CALL(sigaction(SIGBUS, &action, &old_bus));
    fault_seen = (struct fault){0, 0, NULL};
    if (sigsetjmp(fault_return, 1) == 0) {
        uint8_t value = *at;
        if (write) *at = value;
    }
    CALL(sigaction(SIGSEGV, &old_segv, NULL));
    CALL(sigaction(SIGBUS, &old_bus, NULL));
    return fault_seen;
}

HELPER void expect_segv(const char *what, volatile void *at, bool write) {
    struct fault fault = touch(at, write);
    CHECK(fault.signal == SIGSEGV, "%s: %s %p: expected SIGSEGV, got signal %d", what,
          write ? "write to" : "read of", (void *)at, fault.signal);
    CHECK(fault.address == at, "%s: expected si_addr %p, got %p", what, (void *)at,
          fault.address);
}

/* ---- main ------------------------------------------------------------------ */

HELPER bool is_listed(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at && *at;) {
        const char *end = strchrnul(at, ',');
        if ((size_t)(end - at) == length && strncmp(at, name, length) == 0) return true;
        at = *end ? end + 1 : end;
    }
    return false;
}

HELPER void check_start(int argc, char **argv) {
    check_argc = argc;
    check_argv = argv;
    const char *slash = strrchr(argv[0], '/');
    check_program = slash ? slash + 1 : argv[0];
    check_corrupted_case = option_text("corrupt", NULL);
}

HELPER int check_end(size_t cases) {
    unsigned long out = atomic_load(&pages_seen_out), seen = atomic_load(&pages_looked_at);
    check_current = "";
    /* Pages of streams are read ahead of their use, so require only a quarter. */
    CHECK(!option_flag("require-out") || out * 4 > seen,
          "only %lu of %lu pages had left DRAM when they were used: nothing was tested", out,
          seen);
    printf("ok %s: %zu cases, %lu of %lu pages were out\n", check_program, cases, out, seen);
    return 0;
}

/* Options of every program: --list, --only A,B, --skip A,B, --corrupt CASE,
 * --pressure MIB, --require-out. */
HELPER int check_main(int argc, char **argv, const struct check_case *cases, size_t count) {
    check_start(argc, argv);
    const char *only = check_corrupted_case ? check_corrupted_case : option_text("only", NULL);
    const char *skip = option_text("skip", NULL);
    size_t ran = 0;
    for (size_t i = 0; i < count; i++) {
        if (option_flag("list")) {
            puts(cases[i].name);
            continue;
        }
        if ((only && !is_listed(only, cases[i].name)) || is_listed(skip, cases[i].name)) continue;
        check_current = cases[i].name;
        /* After a hang or crash, the last line of output names the case. */
        printf("%s\n", check_current);
        fflush(stdout);
        cases[i].run();
        ran++;
    }
    if (option_flag("list")) return 0;
    if (ran == 0) {
        fprintf(stderr, "%s: no case has the name '%s'\n", check_program, only ? only : "");
        return 2;
    }
    /* An injected fault that no case detected must not look like success, nor like the expected
     * failure. */
    if (check_corrupted_case) {
        fprintf(stderr, "%s: no check detected the fault injected into '%s'\n", check_program,
                check_corrupted_case);
        return 3;
    }
    return check_end(ran);
}

#define CHECK_MAIN(cases) \
    int main(int argc, char **argv) { \
        return check_main(argc, argv, cases, sizeof(cases) / sizeof((cases)[0])); \
    }

#endif
