/* Processes that together need more memory than there is. In some cases they wait for each other.
 *
 *   takers [--mib N] [--processes N] [--rounds N] [--touches N] [--only CASE]
 *
 * Each fills memory of its own, then touches random pages of it and verifies them. A round is
 * --touches touches. */
#include "check.h"
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MAX_PROCESSES 16

static size_t pages, processes, rounds, touches;
static uint64_t *memory, state;
/* All processes begin together. Otherwise one could end before the next one starts. */
static pthread_barrier_t *started;

static void touch_some(size_t self) {
    for (size_t i = 0; i < touches; i++) {
        size_t page = next_random(&state) % pages;
        uint64_t got = memory[page * WORDS_PER_PAGE], expected = random_word(self, page);
        CHECK(got == expected, "page %zu of process %zu: expected %016llx, got %016llx", page, self,
              (unsigned long long)expected, (unsigned long long)got);
    }
}

static void make_barrier(void) {
    started = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(started != MAP_FAILED, "mmap: %s", strerror(errno));
    pthread_barrierattr_t shared;
    PTHREAD(pthread_barrierattr_init(&shared));
    PTHREAD(pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED));
    PTHREAD(pthread_barrier_init(started, &shared, (unsigned)processes));
}

static void each(void (*work)(size_t)) {
    pages = option_number("mib", 16) * MIB / PAGE;
    processes = option_number("processes", 3);
    rounds = option_number("rounds", 20);
    touches = option_number("touches", 200);
    CHECK(processes > 1 && processes <= MAX_PROCESSES, "%zu processes", processes);
    make_barrier();
    for (size_t self = 0; self < processes; self++) {
        if (CALL(fork()) == 0) {
            /* If a process fails, the parent exits, and processes that wait for it die. */
            CALL(prctl(PR_SET_PDEATHSIG, SIGKILL));
            memory = filled(pages * PAGE, self);
            for (size_t page = 0; page < pages; page++)
                memory[page * WORDS_PER_PAGE] = random_word(self, page);
            if (self == 0 && inject_now()) memory[0] ^= 1, touches = pages * 64;
            state = self << 32;
            pthread_barrier_wait(started);
            work(self);
            _exit(0);
        }
    }
    for (size_t ended = 0; ended < processes; ended++) {
        int status, child = CALL(wait(&status));
        CHECK(status == 0, "process %d: status %x", child, status);
    }
}

static void alone(size_t self) {
    for (size_t round = 0; round < rounds; round++) touch_some(self);
}

static void readers(void) { each(alone); }

static int tokens[MAX_PROCESSES][2];

static void pass_token(size_t self) {
    char byte = 't';
    for (size_t round = 0; round < rounds; round++) {
        if (self > 0 || round > 0) EXPECT(1, read(tokens[self][0], &byte, 1));
        touch_some(self);
        bool is_last = self + 1 == processes && round + 1 == rounds;
        if (!is_last) EXPECT(1, write(tokens[(self + 1) % processes][1], &byte, 1));
    }
}

static void pipe_ring(void) {
    for (size_t i = 0; i < MAX_PROCESSES; i++) CALL(pipe(tokens[i]));
    each(pass_token);
    for (size_t i = 0; i < MAX_PROCESSES; i++) close(tokens[i][0]), close(tokens[i][1]);
}

/* In every second round a process holds the lock that all use. */
static pthread_mutex_t *mutex;

static void hold_lock(size_t self) {
    for (size_t round = 0; round < rounds; round++) {
        bool is_locked = (self + round) % 2;
        if (is_locked) PTHREAD(pthread_mutex_lock(mutex));
        touch_some(self);
        if (is_locked) PTHREAD(pthread_mutex_unlock(mutex));
    }
}

static void lock(void) {
    mutex = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(mutex != MAP_FAILED, "mmap: %s", strerror(errno));
    pthread_mutexattr_t shared;
    PTHREAD(pthread_mutexattr_init(&shared));
    PTHREAD(pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED));
    PTHREAD(pthread_mutex_init(mutex, &shared));
    each(hold_lock);
}

/* The processes wait for each other after each round. */
static atomic_uint *arrived;

static void meet(size_t self) {
    for (size_t round = 0; round < rounds; round++) {
        touch_some(self);
        unsigned all = (unsigned)((round + 1) * processes);
        unsigned now = atomic_fetch_add(arrived, 1) + 1;
        if (now == all) syscall(SYS_futex, arrived, FUTEX_WAKE, MAX_PROCESSES, NULL, NULL, 0);
        while ((now = atomic_load(arrived)) < all)
            syscall(SYS_futex, arrived, FUTEX_WAIT, now, NULL, NULL, 0);
    }
}

static void barrier(void) {
    arrived = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arrived != MAP_FAILED, "mmap: %s", strerror(errno));
    each(meet);
}

static const struct check_case cases[] = {
    {"readers", readers}, {"pipe_ring", pipe_ring}, {"lock", lock}, {"barrier", barrier}};
CHECK_MAIN(cases)
