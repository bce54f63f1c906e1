/* Many concurrent calls, whose buffers exceed the budget. Each call proceeds in turn, and its
 * writes are complete. No call kills the program. Afterwards all buffers are unpinned. */
#include "abi.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/time.h>

#define LEN (2 * MIB)
#define MOST 16
#define EACH 2

/* Installs a filter that allows all calls. softswap cannot see that the filter allows them. */
static void install_filter(void)
{
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

struct work {
    pthread_t thread;
    pthread_barrier_t *together;
    unsigned char *memory;
    unsigned seed;
    size_t len;
    int fd;
    long (*call)(struct work *work);
    int bad;
};

static void *do_work(void *argument)
{
    struct work *work = argument;
    pthread_barrier_wait(work->together);
    for (int i = 0; i < EACH; i++)
        work->bad += work->call(work) != (long)work->len;
    return NULL;
}

static struct work works[MOST];

/* Makes calls in several threads at the same time, each with its own swapped-out memory. Prints
 * how many calls transferred less than requested, and how many bytes of the memory are then
 * wrong. */
static void at_once(int count, size_t len, int flags, long (*call)(struct work *))
{
    pthread_barrier_t together;
    pthread_barrier_init(&together, NULL, count);
    for (int i = 0; i < count; i++)
        works[i] = (struct work){.together = &together, .memory = memory(len, i + 1), .len = len,
                                 .seed = i + 1, .fd = scratch_file(flags), .call = call};
    evict();
    for (int i = 0; i < count; i++)
        pthread_create(&works[i].thread, NULL, do_work, works + i);
    int bad = 0;
    size_t wrong_bytes = 0;
    for (int i = 0; i < count; i++)
        pthread_join(works[i].thread, NULL), bad += works[i].bad;
    for (int i = 0; i < count; i++)
        wrong_bytes += wrong(works[i].memory, len, works[i].seed);
    say("bad %d, wrong %zu", bad, wrong_bytes);
}

/* Prints how many bytes of the files are wrong. A file of a wrong length counts as one byte. */
static void say_files(int count, size_t len, int times)
{
    static unsigned char piece[64 << 10];
    size_t bad = 0;
    for (int i = 0; i < count; i++) {
        off_t end = lseek(works[i].fd, 0, SEEK_END);
        bad += end != (off_t)len * times;
        for (off_t at = 0; at < end; at += sizeof piece) {
            size_t got = MUST(pread(works[i].fd, piece, sizeof piece, at));
            for (size_t in = 0; in < got; in++)
                bad += piece[in] != pattern((at + in) % len, works[i].seed);
        }
    }
    say("bad bytes in files %zu", bad);
}

static long by_write(struct work *work) { return write(work->fd, work->memory, work->len); }
static long by_pwrite(struct work *work) { return pwrite(work->fd, work->memory, work->len, 0); }
static long by_writev(struct work *work)
{
    struct iovec parts[3] = {{work->memory, 10000}, {work->memory + 10000, MIB},
                             {work->memory + 10000 + MIB, work->len - 10000 - MIB}};
    return writev(work->fd, parts, 3);
}
static long by_send(struct work *work)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) < 0)
        return -1;
    long sent = send(ends[0], work->memory, work->len, 0);
    close(ends[0]), close(ends[1]);
    return sent;
}

CASE(many_write)
{
    at_once(MOST, LEN, 0, by_write);
    say_files(MOST, LEN, EACH);
}

CASE(many_append)
{
    at_once(12, LEN, O_APPEND, by_write);
    say_files(12, LEN, EACH);
}

CASE(many_write_vectors)
{
    at_once(12, LEN, 0, by_writev);
    say_files(12, LEN, EACH);
}

CASE(many_write_at_a_position)
{
    at_once(12, LEN, 0, by_pwrite);
    say_files(12, LEN, 1);
}

/* The amount that one call pins with a budget of 8 MiB. */
CASE(many_write_what_one_may_pin)
{
    at_once(MOST, MIB, 0, by_write);
    say_files(MOST, MIB, EACH);
}

CASE(many_write_little)
{
    at_once(MOST, 60 << 10, 0, by_write);
    say_files(MOST, 60 << 10, EACH);
}

/* Under a filter, softswap has no copy of the descriptor. */
CASE(many_write_under_a_filter)
{
    install_filter();
    at_once(MOST, MIB, 0, by_write);
    say_files(MOST, MIB, EACH);
}

CASE(many_append_under_a_filter)
{
    install_filter();
    at_once(MOST, MIB, O_APPEND, by_write);
    say_files(MOST, MIB, EACH);
}

CASE(many_send_under_a_filter)
{
    install_filter();
    at_once(MOST, 100 << 10, 0, by_send);
}

CASE(a_long_write_under_a_filter)
{
    install_filter();
    at_once(1, 12 * MIB, 0, by_write);
    say_files(1, 12 * MIB, EACH);
}

static long by_read(struct work *work)
{
    lseek(work->fd, 0, SEEK_SET);
    return read(work->fd, work->memory, work->len);
}
static long write_and_read(struct work *work)
{
    if (pwrite(work->fd, work->memory, work->len, 0) != (long)work->len)
        return -1;
    memset(work->memory, 0, work->len);
    return by_read(work);
}

CASE(many_read) { at_once(12, LEN, 0, write_and_read); }
CASE(many_read_under_a_filter)
{
    install_filter();
    at_once(MOST, MIB, 0, write_and_read);
}
CASE(a_long_read_under_a_filter)
{
    install_filter();
    at_once(1, 12 * MIB, 0, write_and_read);
}

static long by_populating(struct work *work)
{
    return madvise(work->memory, work->len, MADV_POPULATE_WRITE) ? -1 : (long)work->len;
}
CASE(many_populate) { at_once(12, LEN, 0, by_populating); }

/* Long arrays, of which the kernel writes only a part. */
#define EVENTS 100000
static int event_set;
static long by_waiting_for_events(struct work *work)
{
    struct epoll_event *events = (void *)work->memory;
    int got = epoll_wait(event_set, events, EVENTS, -1);
    if (got == 1 && events->data.u32 == 77)
        return work->len;
    return -1;
}
CASE(many_wait_for_events)
{
    int ends[2];
    MUST(pipe(ends));
    event_set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 77};
    MUST(epoll_ctl(event_set, EPOLL_CTL_ADD, ends[0], &event));
    pthread_barrier_t together;
    pthread_barrier_init(&together, NULL, MOST + 1);
    size_t len = EVENTS * sizeof event;
    for (int i = 0; i < MOST; i++)
        works[i] = (struct work){.together = &together, .memory = memory(len, i), .len = len,
                                 .call = by_waiting_for_events};
    evict();
    for (int i = 0; i < MOST; i++)
        pthread_create(&works[i].thread, NULL, do_work, works + i);
    pthread_barrier_wait(&together);
    until_others_sleep(getpid());
    MUST(write(ends[1], "x", 1));
    int bad = 0;
    size_t wrong_bytes = 0;
    for (int i = 0; i < MOST; i++) {
        pthread_join(works[i].thread, NULL), bad += works[i].bad;
        wrong_bytes += wrong(works[i].memory + sizeof event, len - sizeof event, i) == 0;
    }
    say("bad %d, odd %zu", bad, wrong_bytes);
}

static long by_polling(struct work *work)
{
    struct pollfd *polled = (void *)work->memory;
    size_t count = work->len / sizeof *polled;
    for (size_t i = 0; i < count; i++)
        polled[i] = (struct pollfd){.fd = -1};
    polled[count - 1] = (struct pollfd){.fd = work->fd, .events = POLLIN};
    return poll(polled, count, -1) == 1 && polled[count - 1].revents == POLLIN ? (long)work->len
                                                                              : -1;
}
CASE(many_poll_long_arrays)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    size_t len = (limit.rlim_cur < 12000 ? limit.rlim_cur : 12000) * sizeof(struct pollfd);
    at_once(MOST, len, 0, by_polling);
}

/* A child does not have the parent's other threads, so it must not have the pins of their calls. */
static int blocked[2];
static void *block(void *argument)
{
    return (void *)read(blocked[0], argument, 64 << 10);
}
CASE(a_child_while_many_wait)
{
    static pthread_t threads[60];
    MUST(pipe(blocked));
    char *buffers = memory(60 * (64UL << 10), 1);
    for (int i = 0; i < 60; i++)
        pthread_create(threads + i, NULL, block, buffers + i * (64UL << 10));
    until_others_sleep(getpid());
    for (int i = 0; i < 3; i++) {
        IN_CHILD("child") {
            int fd = scratch_file(0);
            char *data = memory(MIB, 5);
            size_t bad = 0;
            for (int j = 0; j < 8; j++) {
                bad += write(fd, data, MIB) != MIB;
                bad += pread(fd, buffers, MIB, j * MIB) != MIB;
                bad += wrong(buffers, MIB, 5);
            }
            say("bad %zu", bad);
        }
    }
    MUST(close(blocked[1]));
    for (int i = 0; i < 60; i++)
        pthread_join(threads[i], NULL);
    say("wrong %zu", wrong(buffers, 60 * (64UL << 10), 1));
}

/* Signals arrive while many threads wait for their turn. */
static volatile int ticks;
static void tick(int number) { (void)number, ticks++; }
CASE(signals_meanwhile)
{
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {{0, 2000}, {0, 2000}};
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    at_once(12, LEN, 0, by_pwrite);
    say_files(12, LEN, 1);
    say("ticks %d", ticks > 0);
}
