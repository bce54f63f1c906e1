/* POSIX asynchronous I/O: requests, and notification of their completion. */
#include "abi.h"
#include <aio.h>

#define LEN (300UL << 10)

/* Returns a request in evictable memory. */
static struct aiocb *request(int fd, void *buffer, size_t len, off_t offset)
{
    struct aiocb *made = memory(64 << 10, 0);
    memset(made, 0, sizeof *made);
    made->aio_fildes = fd;
    made->aio_buf = buffer;
    made->aio_nbytes = len;
    made->aio_offset = offset;
    made->aio_sigevent.sigev_notify = SIGEV_NONE;
    return made;
}

static void await(struct aiocb *made)
{
    const struct aiocb *list[] = {NULL, made};
    while (aio_error(made) == EINPROGRESS)
        if (aio_suspend(list, 2, NULL) == -1 && errno != EINTR)
            say("aio_suspend: %s", strerrorname_np(errno));
}

static void say_outcome(const char *what, struct aiocb *made)
{
    int error = aio_error(made);
    say("%s: %s", what, error ? strerrorname_np(error) : "no error");
    if (error != EINPROGRESS)
        say("%s: %zd", what, aio_return(made));
}

CASE(a_write_and_a_read)
{
    int file = scratch_file(O_RDWR);
    char *source = memory(LEN, 1), *target = memory(LEN, 2);
    struct aiocb *writes = request(file, source, LEN, 4096), *reads = request(file, target, LEN, 4096);
    evict();
    RESULT(aio_write(writes));
    await(writes);
    say_outcome("write", writes);
    evict();
    RESULT(aio_read(reads));
    evict();
    await(reads);
    say_outcome("read", reads);
    say("wrong: %zu", wrong(target, LEN, 1));
}

CASE(requests_about_one_file_keep_their_order)
{
    enum { COUNT = 40, EACH = 20000 };
    int file = scratch_file(O_RDWR | O_APPEND);
    struct aiocb *made[COUNT];
    for (int at = 0; at < COUNT; at++)
        made[at] = request(file, memory(64 << 10, at), EACH, 0);
    evict();
    for (int at = 0; at < COUNT; at++)
        if (aio_write(made[at]))
            say("aio_write: %s", strerrorname_np(errno));
    size_t bad = 0;
    char *back = memory(64 << 10, 99);
    for (int at = 0; at < COUNT; at++) {
        await(made[at]);
        bad += aio_return(made[at]) != EACH || pread(file, back, EACH, at * EACH) != EACH;
        bad += wrong(back, EACH, at);
    }
    say("bad: %zu", bad);
}

CASE(one_that_waits_for_a_pipe)
{
    int ends[2];
    MUST(pipe(ends));
    char *target = memory(LEN, 3);
    struct aiocb *reads = request(ends[0], target, LEN, 77);
    RESULT(aio_read(reads));
    const struct aiocb *list[] = {reads};
    struct timespec moment = {0, 30000000};
    RESULT(aio_suspend(list, 1, &moment));
    say_outcome("before", reads);
    evict();
    MUST(write(ends[1], "message of 13", 13));
    await(reads);
    say_outcome("after", reads);
    say("%.13s", target);
}

/* More requests than one thread can serve. Each request waits for a pipe, and the last pipe gets
   data first. */
CASE(many_that_wait)
{
    enum { COUNT = 16 };
    int ends[COUNT][2];
    struct aiocb *made[COUNT];
    char *target = memory(COUNT * PAGE * 4, 4);
    for (int at = 0; at < COUNT; at++) {
        MUST(pipe(ends[at]));
        made[at] = request(ends[at][0], target + at * PAGE * 4, 100, 0);
        MUST(aio_read(made[at]));
    }
    evict();
    for (int at = COUNT; at-- > 0;) {
        MUST(write(ends[at][1], &at, sizeof at));
        await(made[at]);
        int got;
        memcpy(&got, target + at * PAGE * 4, sizeof got);
        say("%zd %d", aio_return(made[at]), got);
    }
}

CASE(errors)
{
    char *buffer = memory(LEN, 5);
    struct aiocb *closed = request(999, buffer, 10, 0);
    RESULT(aio_read(closed));
    await(closed);
    say_outcome("closed", closed);
    int file = scratch_file(O_RDWR);
    struct aiocb *wild = request(file, (void *)8, 4096, 0);
    RESULT(aio_write(wild));
    await(wild);
    say_outcome("wild", wild);
    struct aiocb *eager = request(file, buffer, 10, 0);
    eager->aio_reqprio = 21;
    RESULT(aio_write(eager));
    say_outcome("eager", eager);
    struct aiocb *before = request(file, buffer, 10, -5);
    RESULT(aio_read(before));
    await(before);
    say_outcome("before", before);
    const struct aiocb *none[] = {NULL};
    RESULT(aio_suspend(none, -1, NULL));
    RESULT(aio_suspend(none, 1, NULL));
}

static volatile sig_atomic_t told;
static volatile int told_code, told_value;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    told_code = info->si_code;
    told_value = info->si_value.sival_int;
    told += info->si_pid == getpid() && info->si_uid == getuid();
}

static void listen_for(int signal)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    MUST(sigaction(signal, &action, NULL));
}

CASE(told_by_a_signal)
{
    int file = scratch_file(O_RDWR);
    struct aiocb *writes = request(file, memory(LEN, 6), LEN, 0);
    writes->aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    writes->aio_sigevent.sigev_signo = SIGRTMIN + 3;
    writes->aio_sigevent.sigev_value.sival_int = 4711;
    listen_for(SIGRTMIN + 3);
    evict();
    RESULT(aio_write(writes));
    WAIT_UNTIL(told);
    say("told %d, code %d, value %d", (int)told, told_code, told_value);
    say_outcome("write", writes);
}

static void tell(union sigval value)
{
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    told_code = sigismember(&mask, SIGUSR1) + sigismember(&mask, SIGBUS);
    told_value = *(int *)value.sival_ptr;
    told = 1;
}

CASE(told_in_a_thread)
{
    int file = scratch_file(O_RDWR), *value = memory(64 << 10, 0);
    struct aiocb *writes = request(file, memory(LEN, 7), LEN, 0);
    *value = 1234;
    writes->aio_sigevent.sigev_notify = SIGEV_THREAD;
    writes->aio_sigevent.sigev_notify_function = tell;
    writes->aio_sigevent.sigev_value.sival_ptr = value;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    evict();
    RESULT(aio_write(writes));
    WAIT_UNTIL(told);
    say("told %d, blocked %d, value %d", (int)told, told_code, told_value);
    say_outcome("write", writes);
}

CASE(a_signal_ends_the_wait)
{
    int ends[2];
    MUST(pipe(ends));
    struct aiocb *reads = request(ends[0], memory(LEN, 8), 10, 0);
    const struct aiocb *list[] = {reads};
    struct timespec long_time = {100, 0};
    listen_for(SIGALRM);
    MUST(aio_read(reads));
    /* Repeatedly: the first signal may arrive before the call waits. */
    ualarm(50000, 50000);
    RESULT(aio_suspend(list, 1, &long_time));
    ualarm(0, 0);
}

CASE(cancelling)
{
    int ends[2], file = scratch_file(O_RDWR);
    MUST(pipe(ends));
    char *buffer = memory(LEN, 9);
    struct aiocb *first = request(ends[0], buffer, 10, 0), *second = request(ends[0], buffer, 10, 0);
    struct aiocb *third = request(ends[0], buffer, 10, 0);
    MUST(aio_read(first));
    until_others_sleep(getpid());
    MUST(aio_read(second));
    MUST(aio_read(third));
    evict();
    say("second: %d", aio_cancel(ends[0], second) == AIO_CANCELED);
    say_outcome("second", second);
    say("first: %d", aio_cancel(ends[0], first) == AIO_NOTCANCELED);
    say("all: %d", aio_cancel(ends[0], NULL) == AIO_NOTCANCELED);
    say_outcome("third", third);
    MUST(write(ends[1], "abc", 3));
    await(first);
    say_outcome("first", first);
    /* The kernel removes a thread shortly after its exit. */
    WAIT_UNTIL(aio_cancel(ends[0], NULL) == AIO_ALLDONE);
    say("done: %d", aio_cancel(ends[0], first) == AIO_ALLDONE);
    say("nothing: %d", aio_cancel(ends[0], NULL) == AIO_ALLDONE);
    RESULT(aio_cancel(file, first));
    RESULT(aio_cancel(999, NULL));
}

CASE(lists)
{
    int file = scratch_file(O_RDWR);
    char *source = memory(LEN, 10), *target = memory(LEN, 11);
    struct aiocb *writes = request(file, source, LEN / 2, 0);
    struct aiocb *more = request(file, source + LEN / 2, LEN / 2, LEN / 2);
    struct aiocb *nothing = request(999, source, 1, 0);
    struct aiocb **list = memory(64 << 10, 0);
    writes->aio_lio_opcode = more->aio_lio_opcode = LIO_WRITE;
    nothing->aio_lio_opcode = LIO_NOP;
    list[0] = writes, list[1] = NULL, list[2] = more, list[3] = nothing;
    evict();
    RESULT(lio_listio(LIO_WAIT, list, 4, NULL));
    say_outcome("first", writes);
    say_outcome("second", more);
    struct aiocb *reads = request(file, target, LEN, 0), *bad = request(999, source, 5, 0);
    reads->aio_lio_opcode = bad->aio_lio_opcode = LIO_READ;
    list[0] = reads, list[1] = bad;
    RESULT(lio_listio(LIO_WAIT, list, 2, NULL));
    say_outcome("read", reads);
    say_outcome("bad", bad);
    say("wrong: %zu", wrong(target, LEN, 10));
    RESULT(lio_listio(17, list, 2, NULL));
}

CASE(a_list_that_tells)
{
    int file = scratch_file(O_RDWR);
    struct aiocb *list[8];
    for (int at = 0; at < 8; at++) {
        list[at] = request(file, memory(64 << 10, at), 64 << 10, at * (64L << 10));
        list[at]->aio_lio_opcode = LIO_WRITE;
    }
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    event.sigev_value.sival_int = 9;
    listen_for(SIGUSR2);
    evict();
    RESULT(lio_listio(LIO_NOWAIT, list, 8, &event));
    WAIT_UNTIL(told);
    say("told %d, code %d, value %d", (int)told, told_code, told_value);
    for (int at = 0; at < 8; at++)
        say_outcome("one", list[at]);
}

CASE(syncing)
{
    int file = scratch_file(O_RDWR), null = MUST(open("/dev/null", O_RDONLY));
    struct aiocb *writes = request(file, memory(LEN, 12), LEN, 0), *syncs = request(file, NULL, 0, 0);
    evict();
    MUST(aio_write(writes));
    RESULT(aio_fsync(O_SYNC, syncs));
    await(syncs);
    say_outcome("sync", syncs);
    say_outcome("write", writes);
    RESULT(aio_fsync(O_DSYNC, syncs));
    await(syncs);
    say_outcome("data", syncs);
    RESULT(aio_fsync(17, syncs));
    syncs->aio_fildes = null;
    RESULT(aio_fsync(O_SYNC, syncs));
    await(syncs);
    say_outcome("null", syncs);
    syncs->aio_fildes = 999;
    RESULT(aio_fsync(O_SYNC, syncs));
}

CASE(a_child_has_requests_of_its_own)
{
    int file = scratch_file(O_RDWR);
    struct aiocb *writes = request(file, memory(LEN, 13), LEN, 0);
    IN_CHILD("child") {
        MUST(aio_write(writes));
        await(writes);
        say_outcome("child", writes);
    }
    writes->aio_offset = LEN;
    MUST(aio_write(writes));
    IN_CHILD("another")
        _exit(wrong((void *)writes->aio_buf, LEN, 13) != 0);
    await(writes);
    say_outcome("parent", writes);
    char *back = memory(LEN, 15);
    for (int part = 0; part < 2; part++) {
        MUST(pread(file, back, LEN, part * LEN));
        say("wrong: %zu", wrong(back, LEN, 13));
    }
}

/* A deadline in the distant future, and one in the past. */
CASE(waiting_for_long)
{
    int ends[2];
    MUST(pipe(ends));
    struct aiocb *reads = request(ends[0], memory(LEN, 1), 1, 0);
    const struct aiocb *list[] = {reads};
    MUST(aio_read(reads));
    struct timespec over = {.tv_sec = -1}, far = {.tv_sec = 30000000000};
    RESULT(aio_suspend(list, 1, &over));
    MUST(write(ends[1], "x", 1));
    RESULT(aio_suspend(list, 1, &far));
    say_outcome("read", reads);
}
