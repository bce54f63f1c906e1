/* Calls that do not return, because the thread is cancelled or a handler jumps out of the call.
 * Their buffers must be unpinned afterwards. A handler may also jump within itself; the buffer
 * of the interrupted call must then remain pinned. */
#pragma GCC optimize("exceptions") /* destructors run when a thread is cancelled */
#include "abi.h"
#include <poll.h>
#include <setjmp.h>

#define LEN (1 * MIB)
#define MANY 300
#define BUFFER (128 * 1024UL)

static int ends[2];
static char *data;

static void start(void)
{
    MUST(pipe(ends));
    data = evicted_memory(LEN, 1);
}

static int cleanups;
static void clean_up(void *argument)
{
    (void)argument;
    cleanups++;
}

struct work {
    char *buffer;
    int kind;
};

static long block_in(int kind, char *buffer)
{
    struct iovec vectors[2] = {{buffer, 8192}, {buffer + 65536, 8192}};
    struct pollfd *fds = (void *)buffer;
    *fds = (struct pollfd){.fd = ends[0], .events = POLLIN};
    switch (kind) {
    case 0: return read(ends[0], buffer, BUFFER);
    case 1: return readv(ends[0], vectors, 2);
    case 2: return poll(fds, 1, -1);
    case 3: return ppoll(fds, 1, NULL, NULL);
    case 5: return recvmsg(ends[0], &(struct msghdr){.msg_iov = vectors, .msg_iovlen = 2}, 0);
    case 6: return preadv2(ends[0], vectors, 2, -1, 0);
    case 7: /* Until the pipe or the socket is full. */
        while (writev(ends[1], vectors, 2) > 0)
            ;
        return 0;
    case 8:
        while (sendmsg(ends[1], &(struct msghdr){.msg_iov = vectors, .msg_iovlen = 2}, 0) > 0)
            ;
        return 0;
    default: return recv(ends[0], buffer, BUFFER, 0);
    }
}

static void *blocked_reader(void *argument)
{
    struct work *work = argument;
    pthread_cleanup_push(clean_up, NULL);
    block_in(work->kind, work->buffer);
    pthread_cleanup_pop(0);
    return NULL;
}

/* Cancels many threads that wait forever, each with its own buffer. All buffers together exceed
 * the budget. */
static void cancel_many(int kind)
{
    static pthread_t threads[MANY];
    start();
    if (kind == 4 || kind == 5 || kind == 8)
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    char *buffers = memory(MANY * BUFFER, 2);
    int cancelled = 0;
    for (int i = 0; i < MANY; i++) {
        struct work work = {buffers + i * BUFFER, kind};
        pthread_create(threads + i, NULL, blocked_reader, &work);
        /* Cancel some threads before they wait, and some while they wait. */
        if (i % 8 == 0)
            until_others_sleep(getpid());
        else
            sched_yield();
        pthread_cancel(threads[i]);
        void *result;
        pthread_join(threads[i], &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    say("cancelled %d", cancelled);
    evict();
    size_t bad = 0;
    for (int i = 0; i < MANY; i++)
        bad += wrong(buffers + i * BUFFER + 16, 4096, 0) == 0;
    say("odd %zu, wrong %zu", bad, wrong(data, LEN, 1));
}

CASE(cancelled_in_read) { cancel_many(0); }
CASE(cancelled_in_poll) { cancel_many(2); }
CASE(cancelled_in_ppoll) { cancel_many(3); }
CASE(cancelled_in_recv) { cancel_many(4); }

/* In these calls, the argument points to a structure with the buffer's address. */
CASE(cancelled_in_readv) { cancel_many(1); }
CASE(cancelled_in_recvmsg) { cancel_many(5); }
CASE(cancelled_in_preadv2) { cancel_many(6); }
CASE(cancelled_in_writev) { cancel_many(7); }
CASE(cancelled_in_sendmsg) { cancel_many(8); }

/* A thread with a pending cancellation exits at the next cancellation point, even if data is
 * available. */
static void *reads_once(void *argument)
{
    struct iovec vector = {argument, 100};
    while (!__atomic_load_n(&cleanups, __ATOMIC_ACQUIRE))
        sched_yield();
    return (void *)readv(ends[0], &vector, 1);
}
CASE(cancelled_before_readv)
{
    start();
    char *buffer = evicted_memory(BUFFER, 3);
    MUST(write(ends[1], "data", 4));
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, reads_once, buffer);
    pthread_cancel(thread);
    __atomic_store_n(&cleanups, 1, __ATOMIC_RELEASE);
    pthread_join(thread, &result);
    say("cancelled %d", result == PTHREAD_CANCELED);
    RESULT(read(ends[0], buffer, 100));
}

CASE(cleanups_run)
{
    start();
    pthread_t thread;
    struct work work = {memory(BUFFER, 3), 0};
    for (int i = 0; i < 5; i++) {
        pthread_create(&thread, NULL, blocked_reader, &work);
        until_others_sleep(getpid());
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    say("cleanups %d", cleanups);
}

static void note_scope(int *value)
{
    (void)value;
    cleanups += 100;
}
static void *reader_with_scope(void *argument)
{
    int __attribute__((cleanup(note_scope))) scope = 1;
    read(ends[0], argument, BUFFER);
    return (void *)(long)scope;
}
CASE(scopes_are_left)
{
    start();
    pthread_t thread;
    pthread_create(&thread, NULL, reader_with_scope, memory(BUFFER, 3));
    until_others_sleep(getpid());
    evict();
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    say("cleanups %d", cleanups);
}

static void *asynchronous(void *argument)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    volatile char *at = argument;
    for (size_t i = 0;; i += PAGE)
        at[i % LEN] = at[i % LEN];
    return NULL;
}
CASE(asynchronous_cancel_while_pages_come_in)
{
    start();
    for (int i = 0; i < 30; i++) {
        pthread_t thread;
        void *result;
        if (i % 10 == 0)
            evict();
        pthread_create(&thread, NULL, asynchronous, data);
        usleep(500);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            say("not cancelled");
    }
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
}

static void *disabled(void *argument)
{
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    long got = read(ends[0], argument, BUFFER);
    pthread_setcancelstate(old, NULL);
    say("read %ld", got);
    pthread_testcancel();
    say("not here");
    return NULL;
}
CASE(disabled_cancel_waits)
{
    start();
    pthread_t thread;
    char *buffer = evicted_memory(BUFFER, 4);
    pthread_create(&thread, NULL, disabled, buffer);
    until_others_sleep(getpid());
    pthread_cancel(thread);
    until_others_sleep(getpid());
    MUST(write(ends[1], "hello", 5));
    void *result;
    pthread_join(thread, &result);
    say("cancelled %d, %.5s", result == PTHREAD_CANCELED, buffer);
}

/* ---- jumps ------------------------------------------------------------------ */

static sigjmp_buf out, within;
static volatile sig_atomic_t inner;

static void jump_out(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

static void interrupt_soon(long us)
{
    struct itimerspec when = {.it_value = {0, us * 1000}};
    static timer_t timer;
    static int made;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    if (!made++)
        MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    MUST(timer_settime(timer, 0, &when, NULL));
}

static void jump_out_of(int kind)
{
    start();
    char *buffers = memory(MANY * BUFFER, 2);
    signal(SIGUSR1, jump_out);
    volatile int jumped = 0;
    for (volatile int i = 0; i < MANY; i++) {
        if (sigsetjmp(out, 1)) {
            jumped++;
            continue;
        }
        interrupt_soon(300);
        block_in(kind, buffers + i * BUFFER);
        say("not here");
    }
    say("jumped %d", jumped);
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
}

CASE(jumping_out_of_read) { jump_out_of(0); }
CASE(jumping_out_of_readv) { jump_out_of(1); }
CASE(jumping_out_of_poll) { jump_out_of(2); }

/* Set when a handler has begun. */
static volatile sig_atomic_t begun;

static void jump_within(int signal)
{
    (void)signal;
    begun = 1;
    for (volatile int i = 0; i < 3; i++)
        if (!sigsetjmp(within, 1)) {
            evict();
            siglongjmp(within, 1);
        }
    inner++;
    evict();
}

/* Writes some microseconds after a handler has begun. */
static void *feed(void *argument)
{
    WAIT_UNTIL(begun);
    usleep(*(int *)argument);
    if (write(ends[1], "0123456789abcdef", 16) != 16)
        say("write failed");
    return NULL;
}

/* The handler jumps within itself while a read waits: the buffer of the waiting read must remain
 * pinned. */
static void jump_within_a_handler(int kind)
{
    start();
    if (kind == 4 || kind == 5 || kind == 8)
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    struct sigaction action = {.sa_flags = SA_RESTART, .sa_handler = jump_within};
    sigaction(SIGUSR1, &action, NULL);
    char *buffer = memory(BUFFER, 5);
    int later = 40000;
    pthread_t feeder;
    evict();
    pthread_create(&feeder, NULL, feed, &later);
    interrupt_soon(20000);
    long got = block_in(kind, buffer);
    pthread_join(feeder, NULL);
    say("got %ld %.16s, in handlers %d", got, kind == 2 ? "" : buffer, inner > 0);
    evict();
    fill(buffer, 65536 + 8192, 5);
    say("wrong %zu, %zu", wrong(buffer, BUFFER, 5), wrong(data, LEN, 1));
}

CASE(jumping_within_a_handler_of_read) { jump_within_a_handler(0); }
CASE(jumping_within_a_handler_of_readv) { jump_within_a_handler(1); }
CASE(jumping_within_a_handler_of_recv) { jump_within_a_handler(4); }

static void read_in_handler(int signal)
{
    (void)signal;
    begun = 1;
    static char *mine;
    if (!mine)
        mine = memory(BUFFER, 6);
    int other[2];
    MUST(pipe(other));
    MUST(write(other[1], data, 1000));
    evict();
    long got = read(other[0], mine, BUFFER);
    say("in the handler: %ld, wrong %zu", got, wrong(mine, 1000, 1));
    close(other[0]);
    close(other[1]);
}

/* Reads data that is sent `later` microseconds after a handler has begun. */
static char *read_while_interrupted(int later)
{
    char *buffer = memory(BUFFER, 5);
    pthread_t feeder;
    pthread_create(&feeder, NULL, feed, &later);
    interrupt_soon(20000);
    long got = read(ends[0], buffer, BUFFER);
    pthread_join(feeder, NULL);
    say("got %ld %.16s", got, buffer);
    return buffer;
}

CASE(reading_in_a_handler_of_read)
{
    start();
    struct sigaction action = {.sa_flags = SA_RESTART, .sa_handler = read_in_handler};
    sigaction(SIGUSR1, &action, NULL);
    read_while_interrupted(60000);
}

static void jump_out_of_inner(int signal)
{
    if (signal == SIGUSR2)
        siglongjmp(within, 1);
    begun = 1;
    char *mine = memory(BUFFER, 7);
    int other[2];
    MUST(pipe(other));
    if (!sigsetjmp(within, 1)) {
        alarm(0);
        struct itimerspec when = {.it_value = {0, 5000000}};
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
        event._sigev_un._tid = (int)syscall(SYS_gettid);
        MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
        MUST(timer_settime(timer, 0, &when, NULL));
        read(other[0], mine, BUFFER);
        say("not here");
    }
    evict();
    say("out of the inner read");
    close(other[0]);
    close(other[1]);
}

/* A handler interrupts a read, starts its own read, and jumps out of its own read. The outer
 * read continues. */
CASE(jumping_out_of_an_inner_read)
{
    start();
    struct sigaction action = {.sa_flags = SA_RESTART, .sa_handler = jump_out_of_inner};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    char *buffer = read_while_interrupted(80000);
    evict();
    fill(buffer, 16, 5);
    say("wrong %zu", wrong(buffer, BUFFER, 5));
}

static void *exit_in_handler(void *argument)
{
    read(ends[0], argument, BUFFER);
    return NULL;
}
static void leave_thread(int signal)
{
    (void)signal;
    pthread_exit((void *)5);
}
CASE(threads_that_exit_in_a_handler_of_read)
{
    start();
    signal(SIGUSR1, leave_thread);
    char *buffers = memory(60 * BUFFER, 2);
    int left = 0;
    for (int i = 0; i < 60; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, exit_in_handler, buffers + i * BUFFER);
        until_others_sleep(getpid());
        pthread_kill(thread, SIGUSR1);
        pthread_join(thread, &result);
        left += result == (void *)5;
    }
    say("left %d", left);
    evict();
    say("wrong %zu", wrong(data, LEN, 1));
}

/* A call in which a thread will be interrupted. */
struct waiting {
    pthread_t thread;
    pid_t id;
    long number;
    unsigned long argument;
};

static void *interrupt_call(void *argument)
{
    struct waiting *call = argument;
    WAIT_UNTIL(is_in_call(call->id, call->number, call->argument));
    pthread_kill(call->thread, SIGUSR1);
    return NULL;
}

/* Makes a call that waits for ever, with this number and first argument. Another thread sends
 * SIGUSR1 once the call waits. */
#define INTERRUPT(call, system_call, first)                                                  \
    do {                                                                                     \
        struct waiting in = {pthread_self(), gettid(), system_call, (unsigned long)(first)}; \
        pthread_t interrupter;                                                               \
        pthread_create(&interrupter, NULL, interrupt_call, &in);                             \
        RESULT(call);                                                                        \
        pthread_join(interrupter, NULL);                                                     \
    } while (0)

CASE(interrupted_calls_end)
{
    start();
    struct sigaction action = {.sa_handler = read_in_handler};
    sigaction(SIGUSR1, &action, NULL);
    char *buffer = memory(BUFFER, 5);
    INTERRUPT(read(ends[0], buffer, BUFFER), SYS_read, ends[0]);
    INTERRUPT(poll((struct pollfd *)buffer, 0, -1), SYS_poll, buffer);
    struct timespec *times = (void *)buffer;
    times[0] = (struct timespec){1000, 0};
    /* The C library's nanosleep makes this call. */
    INTERRUPT(nanosleep(times, times + 1), SYS_clock_nanosleep, CLOCK_REALTIME);
    say("left %d", times[1].tv_sec > 0 && times[1].tv_sec <= 1000);
}
