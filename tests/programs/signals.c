/* The program's own signal handling works as if softswap did not use SIGBUS, SIGSYS, signal
 * masks or alternate stacks.
 *
 *   signals [--pressure MIB] [--milliseconds N]
 *   signals --die segv|unmapped|bus|sys|abort|kill is killed by that signal */
#include "check.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#define SIZE (2 * MIB)

static void handle(int signal, int flags, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | flags, .sa_sigaction = handler};
    sigfillset(&action.sa_mask);
    CALL(sigaction(signal, &action, NULL));
}

static void handle_default(int signal) {
    CALL(sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL));
}

/* Data that handlers read while it is swapped out. */
static char *watched;
static atomic_int calls;
static atomic_int last_signal, last_code;

static void look_at_watched(int signal, siginfo_t *info, void *context) {
    (void)context;
    atomic_store(&last_signal, signal);
    atomic_store(&last_code, info->si_code);
    int call = atomic_fetch_add(&calls, 1);
    size_t page = mix64((uint64_t)call) % (SIZE / PAGE);
    uint64_t got, expected = random_word(1, page * WORDS_PER_PAGE + 9);
    memcpy(&got, watched + page * PAGE + 72, 8);
    CHECK(got == expected, "in a handler: at %p expected %016llx, got %016llx",
          (void *)(watched + page * PAGE + 72), (unsigned long long)expected,
          (unsigned long long)got);
}

static void watch(void) {
    watched = filled(SIZE, 1);
    atomic_store(&calls, 0);
    atomic_store(&last_signal, 0);
}

static void unwatch(void) {
    verify_random("watched data", watched, SIZE, 1);
    CALL(munmap(watched, SIZE));
}

/* ---- signals that softswap uses ------------------------------------------------- */

static void bus_error_of_a_file(void) {
    const char *directory = getenv("TMPDIR");
    int file = CALL(open(directory ? directory : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    CALL(ftruncate(file, inject_now() ? 2 * (off_t)PAGE : (off_t)PAGE));
    char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    char *data = filled(SIZE, 2);
    for (int i = 0; i < 100; i++) {
        struct fault fault = touch((uint8_t *)at + PAGE + i, false);
        CHECK(fault.signal == SIGBUS && fault.address == at + PAGE + i &&
                  fault.code == BUS_ADRERR,
              "beyond the end of a file: signal %d, code %d at %p, expected SIGBUS at %p",
              fault.signal, fault.code, fault.address, (void *)(at + PAGE + i));
        if (i == 50) evict(data, SIZE);
    }
    verify_random("swapped data after a bus error", data, SIZE, 2);
    CALL(munmap(data, SIZE));
    CALL(munmap(at, 2 * PAGE));
    CALL(close(file));
}

static void handlers_of_our_own(void) {
    static const int signals[] = {SIGBUS, SIGSYS, SIGSEGV, SIGTRAP, SIGUSR1};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        watch();
        handle(signals[i], SA_RESTART, look_at_watched);
        evict_data(watched + 72, 1);
        CALL(raise(signals[i]));
        EXPECT(1, atomic_load(&calls));
        EXPECT(signals[i], atomic_load(&last_signal));
        EXPECT(SI_TKILL, atomic_load(&last_code));
        evict(watched, SIZE);
        CALL(kill(getpid(), signals[i]));
        EXPECT(2, atomic_load(&calls));
        EXPECT(SI_USER, atomic_load(&last_code));
        verify_random("after the handler", watched, SIZE, 1);

        struct sigaction ignore = {.sa_handler = SIG_IGN};
        CALL(sigaction(signals[i], &ignore, NULL));
        CALL(raise(signals[i]));
        EXPECT(2, atomic_load(&calls));
        evict(watched, SIZE);
        unwatch(); /* ignoring SIGBUS does not prevent swap-ins */
        handle_default(signals[i]);
    }
}

static void null_pointer(void) {
    char *data = filled(SIZE, 3);
    evict_data(data, SIZE);
    for (uintptr_t i = 0; i < 1000; i++) expect_segv("near NULL", (void *)(i + 8), i % 2);
    verify_random("after 1000 faults", data, SIZE, 3);
    CALL(munmap(data, SIZE));
}

static void sigaction_tells_what_was_set(void) {
    static const int signals[] = {SIGBUS, SIGSYS, SIGSEGV, SIGUSR1};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER}, got;
        action.sa_sigaction = look_at_watched;
        sigaddset(&action.sa_mask, SIGUSR2);
        CALL(sigaction(signals[i], NULL, &got));
        CHECK(got.sa_handler == SIG_DFL, "signal %d: expected the default, got %p", signals[i],
              (void *)got.sa_handler);
        CALL(sigaction(signals[i], &action, &got));
        CHECK(got.sa_handler == SIG_DFL, "signal %d: the old action is not the default",
              signals[i]);
        if (inject_now()) CALL(sigaction(signals[i], &got, NULL));
        CALL(sigaction(signals[i], NULL, &got));
        CHECK(got.sa_sigaction == look_at_watched, "signal %d: another handler came back: %p",
              signals[i], (void *)got.sa_handler);
        const int flags = SA_SIGINFO | SA_RESTART | SA_NODEFER | SA_ONSTACK | (int)SA_RESETHAND;
        EXPECT(action.sa_flags & flags, got.sa_flags & flags);
        EXPECT(1, sigismember(&got.sa_mask, SIGUSR2));
        EXPECT(0, sigismember(&got.sa_mask, SIGUSR1));
        CHECK((void *)signal(signals[i], SIG_IGN) == (void *)look_at_watched,
              "signal(): returned another handler");
        CHECK(signal(signals[i], SIG_DFL) == SIG_IGN, "signal(): not the ignored state");
    }
}

/* ---- masks ------------------------------------------------------------------------ */

static void *verify_blocked(void *data) {
    verify_random("in a thread started with all signals blocked", data, SIZE, 4);
    int ends[2];
    CALL(pipe2(ends, O_CLOEXEC));
    EXPECT(100, write(ends[1], data, 100));
    CALL(close(ends[0]));
    CALL(close(ends[1]));
    return NULL;
}

static void everything_blocked(void) {
    char *data = filled(SIZE, 4);
    sigset_t all, old, now;
    sigfillset(&all);
    evict_data(data, SIZE);
    CALL(sigprocmask(SIG_SETMASK, &all, &old));
    verify_random("with everything blocked (sigprocmask)", data, SIZE, 4);
    CALL(sigprocmask(SIG_SETMASK, NULL, &now));
    EXPECT(1, sigismember(&now, SIGUSR1));
    EXPECT(1, sigismember(&now, SIGINT));
    EXPECT(0, sigismember(&old, SIGUSR1));

    pthread_t thread;
    evict(data, SIZE);
    PTHREAD(pthread_create(&thread, NULL, verify_blocked, data));
    PTHREAD(pthread_join(thread, NULL));

    CALL(sigprocmask(SIG_SETMASK, &old, NULL));
    PTHREAD(pthread_sigmask(SIG_BLOCK, &all, &old));
    evict(data, SIZE);
    verify_random("with everything blocked (pthread_sigmask)", data, SIZE, 4);
    PTHREAD(pthread_sigmask(SIG_SETMASK, &old, NULL));

    /* System calls that replace the mask while they wait. */
    struct timespec moment = {0, 1000000};
    evict(data, SIZE);
    EXPECT(0, ppoll(NULL, 0, &moment, &all));
    watch();
    handle(SIGUSR1, 0, look_at_watched); /* the handler's mask also blocks everything */
    evict(watched, SIZE);
    sigemptyset(&now);
    sigaddset(&now, SIGUSR1);
    CALL(sigprocmask(SIG_BLOCK, &now, &old));
    CALL(raise(SIGUSR1));
    EXPECT(0, atomic_load(&calls));
    sigfillset(&now);
    sigdelset(&now, SIGUSR1);
    EXPECT_ERRNO(EINTR, sigsuspend(&now));
    EXPECT(1, atomic_load(&calls));
    CALL(sigprocmask(SIG_SETMASK, &old, NULL));
    handle_default(SIGUSR1);
    unwatch();
    verify_random("after all masks", data, SIZE, 4);
    CALL(munmap(data, SIZE));
}

static void masks_stay_as_set(void) {
    sigset_t set, now;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (!inject_now()) CALL(sigprocmask(SIG_BLOCK, &set, NULL));
    char *data = filled(SIZE, 5);
    evict(data, SIZE);
    verify_random("with SIGUSR1 blocked", data, SIZE, 5);
    expect_segv("with SIGUSR1 blocked", (void *)16, false);
    CALL(sigprocmask(SIG_UNBLOCK, NULL, &now));
    for (int signal = 1; signal < 32; signal++)
        CHECK(sigismember(&now, signal) == (signal == SIGUSR1), "signal %d: blocked %d", signal,
              sigismember(&now, signal));
    CALL(sigprocmask(SIG_UNBLOCK, &set, NULL));
    CALL(munmap(data, SIZE));
}

/* ---- alternate stacks ------------------------------------------------------------- */

static char *stack_low, *thread_low, *thread_high;
static atomic_bool on_alternate_stack;

static void note_stack(int signal, siginfo_t *info, void *context) {
    char here;
    atomic_store(&on_alternate_stack, &here < thread_low || &here >= thread_high);
    look_at_watched(signal, info, context);
}

static __attribute__((noinline)) int recurse(volatile int depth) {
    volatile char frame[4096];
    frame[0] = (char)depth;
    if (depth < 0) return 0; /* never: the stack overflows first */
    return recurse(depth + 1) + frame[0];
}

static void escape(int signal, siginfo_t *info, void *context) {
    note_stack(signal, info, context);
    siglongjmp(fault_return, 1);
}

/* Finds the thread's own stack, on which the handler must not run. The alternate stack may be
 * softswap's. */
static void find_thread_stack(void) {
    pthread_attr_t attributes;
    void *base;
    size_t size;
    PTHREAD(pthread_getattr_np(pthread_self(), &attributes));
    PTHREAD(pthread_attr_getstack(&attributes, &base, &size));
    PTHREAD(pthread_attr_destroy(&attributes));
    thread_low = base;
    thread_high = thread_low + size;
}

static void alternate_stack_in_the_heap(void) {
    enum { STACK = 128 * 1024 };
    watch();
    stack_low = allocate(STACK);
    stack_t stack = {.ss_sp = stack_low, .ss_size = STACK}, got;
    CALL(sigaltstack(&stack, NULL));
    find_thread_stack();
    CALL(sigaltstack(NULL, &got));
    CHECK(got.ss_sp == stack_low && got.ss_size == STACK && got.ss_flags == 0,
          "sigaltstack: got %p, %zu, flags %d", got.ss_sp, got.ss_size, got.ss_flags);
    handle(SIGUSR1, SA_ONSTACK, note_stack);
    for (int i = 0; i < 3; i++) {
        evict(stack_low, STACK);
        evict_data(watched + mix64((uint64_t)i) % (SIZE / PAGE) * PAGE + 72, 1);
        CALL(raise(SIGUSR1));
        CHECK(atomic_load(&on_alternate_stack), "the handler ran on another stack");
        EXPECT(i + 1, atomic_load(&calls));
    }
    handle_default(SIGUSR1);

    /* Handle a stack overflow, the usual purpose of alternate stacks. */
    handle(SIGSEGV, SA_ONSTACK, escape);
    for (int i = 0; i < 3; i++) {
        evict(stack_low, STACK);
        if (sigsetjmp(fault_return, 1) == 0) recurse(0);
        CHECK(atomic_load(&on_alternate_stack), "overflow was handled on another stack");
        EXPECT(4 + i, atomic_load(&calls));
    }
    handle_default(SIGSEGV);
    stack.ss_flags = SS_DISABLE;
    CALL(sigaltstack(&stack, NULL));
    CALL(sigaltstack(NULL, &got));
    EXPECT(SS_DISABLE, got.ss_flags);
    free(stack_low);
    unwatch();
}

static void *handle_on_own_stack(void *argument) {
    enum { STACK = 64 * 1024 };
    (void)argument;
    char *memory = allocate(STACK);
    stack_t stack = {.ss_sp = memory, .ss_size = STACK};
    CALL(sigaltstack(&stack, NULL));
    for (int i = 0; i < 5; i++) {
        evict(memory, STACK);
        PTHREAD(pthread_kill(pthread_self(), SIGUSR1));
    }
    stack.ss_flags = SS_DISABLE;
    CALL(sigaltstack(&stack, NULL));
    free(memory);
    return NULL;
}

static void alternate_stack_per_thread(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    watch();
    handle(SIGUSR1, SA_ONSTACK, look_at_watched);
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, handle_on_own_stack, NULL));
    for (int i = 0; i < THREADS; i++) PTHREAD(pthread_join(threads[i], NULL));
    if (inject_now()) atomic_fetch_add(&calls, 1);
    EXPECT(THREADS * 5, atomic_load(&calls));
    handle_default(SIGUSR1);
    unwatch();
}

/* ---- signals at any moment ----------------------------------------------------------- */

static void timer(void) {
    watch();
    char *data = filled(8 * MIB, 6), *copy = filled(8 * MIB, 6);
    handle(SIGALRM, SA_RESTART, look_at_watched);
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    CALL(setitimer(ITIMER_REAL, &every, NULL));
    struct timespec start, now;
    CALL(clock_gettime(CLOCK_MONOTONIC, &start));
    long milliseconds = (long)option_number("milliseconds", 500);
    uint64_t seed = 6;
    int rounds = 0;
    do {
        evict_data(data, 8 * MIB);
        verify_random("while a timer runs", data, 8 * MIB, seed);
        memcpy(copy, data, 8 * MIB);
        fill_random(data, 8 * MIB, ++seed);
        evict(copy, 8 * MIB);
        verify_random("copy made while a timer runs", copy, 8 * MIB, seed - 1);
        CALL(clock_gettime(CLOCK_MONOTONIC, &now));
        rounds++;
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 <
                 milliseconds ||
             (atomic_load(&calls) <= 20 && rounds < 1000));
    CALL(setitimer(ITIMER_REAL, &never, NULL));
    handle_default(SIGALRM);
    /* Some signals arrive in each round, even on a busy machine. */
    CHECK(atomic_load(&calls) > 20, "only %d ticks", atomic_load(&calls));
    CALL(munmap(data, 8 * MIB));
    CALL(munmap(copy, 8 * MIB));
    unwatch();
}

static void leave_handlers_by_jump(void) {
    char *data = filled(SIZE, 7);
    for (int i = 0; i < 200; i++) {
        char *page = data + (size_t)i * PAGE;
        CALL(mprotect(page, PAGE, PROT_NONE));
        expect_segv("closed page", page + 5, i % 2);
        CALL(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
        if (i % 50 == 0) evict_data(data, SIZE);
        sigset_t now;
        CALL(sigprocmask(SIG_BLOCK, NULL, &now));
        EXPECT(0, sigismember(&now, SIGSEGV));
        EXPECT(0, sigismember(&now, SIGBUS));
    }
    verify_random("after jumping out of 200 handlers", data, SIZE, 7);
    CALL(munmap(data, SIZE));
}

/* A write barrier with SIGSEGV and mprotect, like that of a garbage collector. */
static char *barrier_at;
static void open_barrier(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    size_t page = ((uintptr_t)info->si_addr - (uintptr_t)barrier_at) / PAGE;
    CHECK(page < SIZE / PAGE, "barrier: fault at %p, outside of %p", info->si_addr,
          (void *)barrier_at);
    CALL(mprotect(barrier_at + page * PAGE, PAGE, PROT_READ | PROT_WRITE));
    atomic_fetch_add(&calls, 1);
}

static void write_barrier(void) {
    barrier_at = filled(SIZE, 8);
    atomic_store(&calls, 0);
    handle(SIGSEGV, 0, open_barrier);
    for (int round = 0; round < 3; round++) {
        CALL(mprotect(barrier_at, SIZE, PROT_READ));
        evict(barrier_at, SIZE);
        fill_random(barrier_at, SIZE, 9 + (uint64_t)round);
        EXPECT((round + 1) * (int)(SIZE / PAGE), atomic_load(&calls));
        evict_data(barrier_at, SIZE);
        verify_random("behind the barrier", barrier_at, SIZE, 9 + (uint64_t)round);
    }
    handle_default(SIGSEGV);
    CALL(munmap(barrier_at, SIZE));
}

/* ---- interrupted system calls ------------------------------------------------------------ */

struct sender {
    pthread_t reader;
    int file;
    const char *data;
    /* The thread sends signals until this number of them has interrupted the read. */
    int wanted;
    atomic_int interruptions;
};

static void *interrupt_then_write(void *argument) {
    struct sender *sender = argument;
    /* The reader may not run immediately. The limit of 100 s only detects hangs. */
    for (int i = 0; i < 20 || (i < 20000 && atomic_load(&sender->interruptions) < sender->wanted);
         i++) {
        usleep(5000);
        PTHREAD(pthread_kill(sender->reader, SIGUSR1));
    }
    until_others_sleep(getpid());
    EXPECT(PAGE, write(sender->file, sender->data, PAGE));
    return NULL;
}

static void interrupted_read(bool restart) {
    int ends[2];
    CALL(pipe2(ends, O_CLOEXEC));
    watch();
    char *source = filled(PAGE, 20), *target = allocate(3 * PAGE);
    handle(SIGUSR1, restart ? SA_RESTART : 0, look_at_watched);
    evict_data(source, PAGE);
    evict(target, 3 * PAGE);
    struct sender sender = {pthread_self(), ends[1], source, restart ? 0 : 1, 0};
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, interrupt_then_write, &sender));
    ssize_t got;
    while ((got = read(ends[0], target + PAGE / 2, 2 * PAGE)) == -1 && errno == EINTR)
        atomic_fetch_add(&sender.interruptions, 1);
    EXPECT(PAGE, got);
    int interruptions = atomic_load(&sender.interruptions);
    CHECK(restart ? interruptions == 0 : interruptions > 0, "%d interruptions", interruptions);
    verify_random("read that was interrupted", target + PAGE / 2, PAGE, 20);
    PTHREAD(pthread_join(thread, NULL));
    CHECK(atomic_load(&calls) > 0, "no signal arrived");
    handle_default(SIGUSR1);
    free(target);
    CALL(munmap(source, PAGE));
    CALL(close(ends[0]));
    CALL(close(ends[1]));
    unwatch();
}

static void read_restarted(void) { interrupted_read(true); }
static void read_interrupted(void) { interrupted_read(false); }

/* ---- fatal signals --------------------------------------------------------------------- */

/* Much data is swapped out, so that the exit takes some time. */
static int die(const char *how) {
    char *data = filled(16 * MIB, 30);
    evict(data, 16 * MIB);
    verify_random("before dying", data, 16 * MIB, 30);
    volatile uintptr_t nowhere = 16;
    if (strcmp(how, "segv") == 0) *(volatile int *)nowhere = 1;
    if (strcmp(how, "bus") == 0) raise(SIGBUS);
    if (strcmp(how, "sys") == 0) raise(SIGSYS);
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    if (strcmp(how, "unmapped") == 0) {
        munmap(data, 16 * MIB);
        *(volatile char *)(data + MIB) = 1;
    }
    fprintf(stderr, "signals: survived --die %s\n", how);
    return 1;
}

static const struct check_case cases[] = {
    {"bus-error-of-a-file", bus_error_of_a_file},
    {"handlers-of-our-own", handlers_of_our_own},
    {"null-pointer", null_pointer},
    {"sigaction-tells-what-was-set", sigaction_tells_what_was_set},
    {"everything-blocked", everything_blocked},
    {"masks-stay-as-set", masks_stay_as_set},
    {"alternate-stack-in-the-heap", alternate_stack_in_the_heap},
    {"alternate-stack-per-thread", alternate_stack_per_thread},
    {"timer", timer},
    {"leave-handlers-by-jump", leave_handlers_by_jump},
    {"write-barrier", write_barrier},
    {"read-restarted", read_restarted},
    {"read-interrupted", read_interrupted},
};

int main(int argc, char **argv) {
    check_start(argc, argv);
    const char *how = option_text("die", NULL);
    return how ? die(how) : check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
