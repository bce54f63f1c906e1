/* Messages keep their boundaries, with any size of buffer and any number of waiting threads. */
#include "abi.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <termios.h>

#define LONG 150000UL

static void pair(int type, int ends[2])
{
    MUST(socketpair(AF_UNIX, type, 0, ends));
    int size = 1 << 20;
    for (int end = 0; end < 2; end++) {
        setsockopt(ends[end], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(ends[end], SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    }
}

/* Prints the content of a buffer after `got` bytes of seed 7 should have arrived. */
static void say_buffer(const unsigned char *buffer, size_t len, long got)
{
    size_t arrived = got < 0 ? 0 : (size_t)got < len ? (size_t)got : len;
    size_t untouched = 0;
    for (size_t at = arrived; at < len; at++)
        untouched += buffer[at] == pattern(at, 3);
    say("wrong %zu, untouched %zu of %zu", wrong(buffer, arrived, 7), untouched, len - arrived);
}

static long by_read(int fd, void *at, size_t len, int flags) { (void)flags; return read(fd, at, len); }
static long by_recv(int fd, void *at, size_t len, int flags) { return recv(fd, at, len, flags); }
static long by_recvfrom(int fd, void *at, size_t len, int flags)
{
    struct sockaddr_un from;
    socklen_t from_len = sizeof from;
    long got = recvfrom(fd, at, len, flags, (void *)&from, &from_len);
    say("address of %u", (unsigned)from_len);
    return got;
}
static long by_readv(int fd, void *at, size_t len, int flags)
{
    (void)flags;
    struct iovec parts[3] = {{at, 1000}, {(char *)at + 1000, 70000}, {(char *)at + 71000, len - 71000}};
    return readv(fd, parts, 3);
}
static long by_recvmsg(int fd, void *at, size_t len, int flags)
{
    struct iovec parts[2] = {{at, 90001}, {(char *)at + 90001, len - 90001}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    long got = recvmsg(fd, &message, flags);
    say("flags %#x", message.msg_flags & ~MSG_CMSG_CLOEXEC);
    return got;
}

typedef long (*receiver)(int, void *, size_t, int);

static void receive(int type, receiver how, size_t sent, size_t len, int flags)
{
    int ends[2];
    pair(type, ends);
    unsigned char *source = memory(1 << 20, 7), *target = memory(1 << 20, 3);
    evict();
    RESULT(send(ends[0], source, sent, 0));
    evict();
    long got = RESULT(how(ends[1], target, len, flags));
    say_buffer(target, len, got);
    RESULT(recv(ends[1], target, len, MSG_DONTWAIT));
}

CASE(datagram_read) { receive(SOCK_DGRAM, by_read, LONG, 1 << 20, 0); }
CASE(datagram_recv) { receive(SOCK_DGRAM, by_recv, LONG, 1 << 20, 0); }
CASE(datagram_recv_exact) { receive(SOCK_DGRAM, by_recv, LONG, LONG, 0); }
CASE(datagram_recvfrom) { receive(SOCK_DGRAM, by_recvfrom, LONG, 1 << 20, 0); }
CASE(datagram_readv) { receive(SOCK_DGRAM, by_readv, LONG, 1 << 20, 0); }
CASE(datagram_recvmsg) { receive(SOCK_DGRAM, by_recvmsg, LONG, 1 << 20, 0); }
CASE(datagram_too_long) { receive(SOCK_DGRAM, by_recv, LONG, 100000, 0); }
CASE(datagram_truncated) { receive(SOCK_DGRAM, by_recv, LONG, 100000, MSG_TRUNC); }
CASE(datagram_message_truncated)
{
    receive(SOCK_DGRAM, by_recvmsg, LONG, 120000, MSG_TRUNC);
}
CASE(packet_read) { receive(SOCK_SEQPACKET, by_read, LONG, 1 << 20, 0); }
CASE(packet_recv) { receive(SOCK_SEQPACKET, by_recv, LONG, 1 << 20, 0); }
CASE(packet_readv) { receive(SOCK_SEQPACKET, by_readv, LONG, 1 << 20, 0); }
CASE(packet_recvmsg) { receive(SOCK_SEQPACKET, by_recvmsg, LONG, 1 << 20, 0); }
CASE(packet_truncated) { receive(SOCK_SEQPACKET, by_recv, LONG, 70000, MSG_TRUNC); }
CASE(stream_recv) { receive(SOCK_STREAM, by_recv, LONG, 1 << 20, 0); }
CASE(stream_read) { receive(SOCK_STREAM, by_read, LONG, 1 << 20, 0); }

CASE(peeked)
{
    int ends[2];
    pair(SOCK_DGRAM, ends);
    unsigned char *source = memory(LONG, 7), *target = memory(1 << 20, 3);
    RESULT(send(ends[0], source, LONG, 0));
    evict();
    RESULT(recv(ends[1], target, 1 << 20, MSG_PEEK));
    say("wrong %zu", wrong(target, LONG, 7));
    memset(target, 0, 1 << 20);
    evict();
    RESULT(recv(ends[1], target, 1 << 20, 0));
    say("wrong %zu", wrong(target, LONG, 7));
}

/* A buffer of 512 MiB uses only as much memory as the received data. */
CASE(huge_buffer)
{
    int ends[2];
    pair(SOCK_SEQPACKET, ends);
    size_t len = 512 * MIB;
    void *target = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *source = memory(LONG, 7);
    RESULT(send(ends[0], source, LONG, 0));
    RESULT(read(ends[1], target, len));
    say("wrong %zu", wrong(target, LONG, 7));
}

struct waiter {
    pthread_t thread;
    int fd;
    unsigned char *buffer;
    size_t len;
    long got;
};
static void *wait_for_it(void *argument)
{
    struct waiter *w = argument;
    w->got = read(w->fd, w->buffer, w->len);
    return NULL;
}

/* Many threads wait, each with a buffer; each gets one complete datagram. */
static void many_wait(int type, int threads, size_t len, size_t sent)
{
    int ends[2];
    pair(type, ends);
    static struct waiter waiters[300];
    unsigned char *source = memory(MIB, 7);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (int i = 0; i < threads; i++) {
        waiters[i] = (struct waiter){.fd = ends[1], .buffer = memory(len, 3), .len = len};
        MUST(-!!pthread_create(&waiters[i].thread, &attributes, wait_for_it, &waiters[i]));
    }
    until_others_sleep(getpid());
    int sends = 0;
    for (int i = 0; i < threads; i++)
        sends += send(ends[0], source, sent, 0) == (long)sent;
    size_t whole = 0, bad = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(waiters[i].thread, NULL);
        whole += waiters[i].got == (long)sent;
        if (waiters[i].got > 0)
            bad += wrong(waiters[i].buffer, waiters[i].got, 7);
    }
    say("sent %d, whole %zu of %d, wrong %zu", sends, whole, threads, bad);
}
CASE(many_wait_for_datagrams) { many_wait(SOCK_DGRAM, 280, 64 << 10, 20000); }
CASE(some_wait_for_datagrams) { many_wait(SOCK_DGRAM, 60, 64 << 10, 20000); }
CASE(many_wait_for_packets) { many_wait(SOCK_SEQPACKET, 100, 200000, 150000); }

/* One datagram is sent from managed memory while many threads wait. It must arrive complete. */
CASE(sent_while_many_wait)
{
    int ends[2], other[2];
    pair(SOCK_DGRAM, ends);
    MUST(pipe(other));
    static struct waiter waiters[280];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (int i = 0; i < 280; i++) {
        waiters[i] = (struct waiter){.fd = other[0], .buffer = memory(64 << 10, 3), .len = 64 << 10};
        MUST(-!!pthread_create(&waiters[i].thread, &attributes, wait_for_it, &waiters[i]));
    }
    until_others_sleep(getpid());
    unsigned char *source = memory(LONG, 7), *target = memory(LONG, 3);
    RESULT(send(ends[0], source, 20000, 0));
    RESULT(recv(ends[1], target, LONG, MSG_DONTWAIT));
    RESULT(recv(ends[1], target, LONG, MSG_DONTWAIT));
    RESULT(write(ends[0], source, LONG));
    RESULT(read(ends[1], target, LONG));
    say("wrong %zu", wrong(target, LONG, 7));
    close(other[1]);
    size_t ended = 0;
    for (int i = 0; i < 280; i++) {
        pthread_join(waiters[i].thread, NULL);
        ended += waiters[i].got == 0;
    }
    say("ended %zu", ended);
}

CASE(packet_pipe)
{
    int ends[2];
    MUST(pipe2(ends, O_DIRECT));
    unsigned char *source = memory(LONG, 7), *target = memory(MIB, 3);
    evict();
    RESULT(write(ends[1], source, 3000));
    RESULT(write(ends[1], source, 10));
    RESULT(write(ends[1], source, 9000));
    evict();
    for (int i = 0; i < 5; i++)
        RESULT(read(ends[0], target, MIB));
    RESULT(write(ends[1], source, 4096));
    RESULT(read(ends[0], target, 100));
    fcntl(ends[0], F_SETFL, O_NONBLOCK | O_DIRECT);
    RESULT(read(ends[0], target, MIB));
}

CASE(byte_pipe)
{
    int ends[2];
    MUST(pipe(ends));
    unsigned char *source = memory(LONG, 7), *target = memory(MIB, 3);
    evict();
    RESULT(write(ends[1], source, 60000));
    evict();
    long got = RESULT(read(ends[0], target, MIB));
    say_buffer(target, LONG, got);
}

/* A write of at most PIPE_BUF bytes is atomic, however many buffers it has. */
CASE(short_writes_to_a_full_pipe)
{
    enum { PARTS = 601 };
    int ends[2];
    MUST(pipe2(ends, O_NONBLOCK));
    MUST(fcntl(ends[1], F_SETPIPE_SZ, 4096));
    unsigned char *at = memory(4 * MIB, 7);
    struct iovec parts[PARTS];
    for (size_t i = 0; i + 1 < PARTS; i++)
        parts[i] = (struct iovec){at + i * PAGE, 1};
    parts[PARTS - 1] = (struct iovec){at + PARTS * PAGE + PAGE - 100, 2900};
    RESULT(write(ends[1], at, 3000));
    evict();
    RESULT(writev(ends[1], parts, PARTS));
    RESULT(read(ends[0], at, 4 * PAGE));
    RESULT(writev(ends[1], parts, PARTS));
    RESULT(read(ends[0], at, 4 * PAGE));
}

CASE(netlink_dump)
{
    int fd = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    struct {
        struct nlmsghdr header;
        struct rtgenmsg message;
    } *request = memory(64 << 10, 0);
    memset(request, 0, 64 << 10);
    request->header.nlmsg_len = NLMSG_LENGTH(sizeof request->message);
    request->header.nlmsg_type = RTM_GETLINK;
    request->header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    evict();
    SUCCESS(send(fd, request, request->header.nlmsg_len, 0));
    char *answer = evicted_memory(256 << 10, 0);
    long got = recv(fd, answer, 256 << 10, 0);
    struct nlmsghdr *first = (void *)answer;
    say("an answer: %d, type %d, whole: %d", got > 0, got > 0 ? first->nlmsg_type : 0,
        got > 0 && first->nlmsg_len <= got);
}

CASE(terminal)
{
    int master, slave;
    MUST(openpty(&master, &slave, NULL, NULL, NULL));
    char *buffer = memory(1 << 20, 0);
    memset(buffer, 0, 1 << 20);
    RESULT(write(master, "first\nsecond\n", 13));
    evict();
    RESULT(read(slave, buffer, 1 << 20));
    RESULT(read(slave, buffer, 1 << 20));
    struct termios raw;
    tcgetattr(slave, &raw);
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
    tcflush(master, TCIOFLUSH);
    RESULT(write(master, "bytes", 5));
    RESULT(read(slave, buffer, 1 << 20));
}

CASE(counters)
{
    uint64_t *word = memory(1 << 20, 0);
    int event = MUST(eventfd(5, 0));
    evict();
    RESULT(read(event, word, 1 << 20));
    say("value %lu", (unsigned long)*word);
    *word = 3;
    evict();
    RESULT(write(event, word, 8));
    RESULT(read(event, word, 8));
    say("value %lu", (unsigned long)*word);
    int timer = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
    struct itimerspec soon = {.it_value = {0, 1000000}};
    timerfd_settime(timer, 0, &soon, NULL);
    evict();
    RESULT(read(timer, word, 1 << 20));
    say("value %lu", (unsigned long)*word);
}

CASE(signals_by_descriptor)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = MUST(signalfd(-1, &set, 0));
    struct signalfd_siginfo *info = memory(1 << 20, 0);
    raise(SIGUSR1);
    raise(SIGUSR2);
    evict();
    RESULT(read(fd, info, 1 << 20));
    say("signals %u %u", info[0].ssi_signo, info[1].ssi_signo);
}

CASE(watched_directory)
{
    int fd = MUST(inotify_init1(IN_NONBLOCK));
    const char *dir = getenv("TMPDIR");
    char path[4096];
    MUST(inotify_add_watch(fd, dir ? dir : ".", IN_CREATE | IN_DELETE));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/watched-%d", dir ? dir : ".", i);
        close(MUST(open(path, O_CREAT | O_RDWR, 0600)));
        unlink(path);
    }
    char *buffer = evicted_memory(1 << 20, 0);
    RESULT(read(fd, buffer, 1 << 20));
    RESULT(read(fd, buffer, 1 << 20));
}

CASE(one_message_of_many_parts)
{
    int ends[2];
    pair(SOCK_DGRAM, ends);
    enum { PARTS = 1000 };
    unsigned char *source = memory(MIB, 7), *target = memory(MIB, 3);
    struct iovec *parts = (void *)memory(64 << 10, 0);
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct iovec){source + i * 200, 200};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = PARTS};
    evict();
    RESULT(sendmsg(ends[0], &message, 0));
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct iovec){target + i * 200, 200};
    evict();
    RESULT(recvmsg(ends[1], &message, 0));
    say("wrong %zu", wrong(target, 200 * PARTS, 7));
    message.msg_iovlen = 1025;
    RESULT(sendmsg(ends[0], &message, 0));
    RESULT(recvmsg(ends[1], &message, MSG_DONTWAIT));
}

CASE(with_a_descriptor)
{
    int ends[2];
    pair(SOCK_SEQPACKET, ends);
    unsigned char *source = memory(MIB, 7), *target = memory(MIB, 3);
    struct {
        struct cmsghdr header;
        int fd;
    } *control = (void *)memory(64 << 10, 0);
    *control = (__typeof__(*control)){{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}, 1};
    struct iovec part = {source, LONG};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = CMSG_SPACE(sizeof(int))};
    evict();
    RESULT(sendmsg(ends[0], &message, 0));
    part = (struct iovec){target, MIB};
    memset(control, 0, 64);
    message.msg_controllen = 4096;
    evict();
    RESULT(recvmsg(ends[1], &message, 0));
    say("wrong %zu, control %zu, type %d, a descriptor %d", wrong(target, LONG, 7),
        (size_t)message.msg_controllen, control->header.cmsg_type, fcntl(control->fd, F_GETFD) >= 0);
}

static void many_messages(int count, size_t len, int flags)
{
    int ends[2];
    pair(SOCK_DGRAM, ends);
    unsigned char *source = memory(4 * MIB, 7), *target = memory(4 * MIB, 3);
    struct mmsghdr *messages = (void *)memory(128 << 10, 0);
    struct iovec *parts = (void *)memory(64 << 10, 0);
    memset(messages, 0, 128 << 10);
    for (int i = 0; i < count; i++) {
        parts[i] = (struct iovec){source + i * len, len};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    evict();
    int sent = RESULT(sendmmsg(ends[0], messages, count, 0));
    long total = 0;
    for (int i = 0; i < sent; i++)
        total += messages[i].msg_len;
    say("sent %ld", total);
    for (int i = 0; i < count; i++) {
        parts[i] = (struct iovec){target + i * len, len};
        messages[i].msg_len = 0;
    }
    struct timespec time = {1, 0};
    evict();
    int got = RESULT(recvmmsg(ends[1], messages, count, flags, flags & MSG_DONTWAIT ? NULL : &time));
    total = 0;
    for (int i = 0; i < got; i++)
        total += messages[i].msg_len;
    say("received %ld, wrong %zu", total, got > 0 ? wrong(target, got * len, 7) : 0);
}
CASE(few_messages) { many_messages(8, 5000, MSG_DONTWAIT); }
CASE(long_messages) { many_messages(5, 100000, MSG_WAITFORONE); }
CASE(hundred_messages) { many_messages(200, 100, MSG_DONTWAIT); }

CASE(nothing_comes)
{
    int ends[2];
    pair(SOCK_DGRAM, ends);
    struct timeval time = {0, 50000};
    setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    void *target = evicted_memory(MIB, 3);
    RESULT(recv(ends[1], target, MIB, 0));
    RESULT(read(ends[1], target, 100));
    RESULT(recv(ends[1], target, MIB, MSG_DONTWAIT));
    say("wrong %zu", wrong(target, MIB, 3));
}

static void on_signal(int signal) { (void)signal; }

CASE(interrupted)
{
    int ends[2];
    pair(SOCK_STREAM, ends);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, NULL);
    /* Repeatedly: the first signal may arrive before the call waits. */
    struct itimerval often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    void *target = memory(MIB, 3);
    unsigned char *source = evicted_memory(MIB, 7);
    setitimer(ITIMER_REAL, &often, NULL);
    RESULT(recv(ends[1], target, MIB, 0));
    setitimer(ITIMER_REAL, &never, NULL);
    RESULT(send(ends[0], source, 70000, 0));
    setitimer(ITIMER_REAL, &often, NULL);
    RESULT(recv(ends[1], target, MIB, MSG_WAITALL));
    setitimer(ITIMER_REAL, &never, NULL);
    say("wrong %zu", wrong(target, 70000, 7));
}

static void *send_slowly(void *argument)
{
    static unsigned char bytes[600000];
    fill(bytes, sizeof bytes, 7);
    for (int i = 0; i < 6; i++) {
        until_others_sleep(getpid());
        if (send(*(int *)argument, bytes + i * 100000, 100000, 0) != 100000)
            _exit(96);
    }
    return NULL;
}

CASE(waits_for_all)
{
    int ends[2];
    pair(SOCK_STREAM, ends);
    unsigned char *target = memory(MIB, 3);
    pthread_t thread;
    MUST(-!!pthread_create(&thread, NULL, send_slowly, &ends[0]));
    long got = RESULT(recv(ends[1], target, 600000, MSG_WAITALL));
    say_buffer(target, MIB, got);
    pthread_join(thread, NULL);
}

/* With TCP, MSG_TRUNC drops the data that it reports as received. */
CASE(dropped_by_tcp)
{
    int listening = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    MUST(bind(listening, (void *)&address, len));
    MUST(listen(listening, 1));
    MUST(getsockname(listening, (void *)&address, &len));
    int out = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(out, (void *)&address, len));
    int in = MUST(accept(listening, NULL, NULL));
    unsigned char *source = memory(MIB, 7), *target = memory(MIB, 3);
    evict();
    RESULT(send(out, source, 10000, 0));
    int unread = 0;
    WAIT_UNTIL(ioctl(in, FIONREAD, &unread) == 0 && unread == 10000);
    RESULT(recv(in, target, MIB, MSG_TRUNC));
    say("untouched %d", wrong(target, MIB, 3) == 0);
    RESULT(send(out, source, 10000, 0));
    RESULT(recv(in, target, 10000, MSG_WAITALL));
    say("wrong %zu", wrong(target, 10000, 7));
}

CASE(broken_connection)
{
    int ends[2];
    pair(SOCK_STREAM, ends);
    signal(SIGPIPE, SIG_IGN);
    unsigned char *source = evicted_memory(4 * MIB, 7);
    close(ends[1]);
    RESULT(write(ends[0], source, 4 * MIB));
    RESULT(send(ends[0], source, 4 * MIB, 0));
    signal(SIGPIPE, SIG_DFL);
    RESULT(send(ends[0], source, 4 * MIB, MSG_NOSIGNAL));
    RESULT(send(ends[0], source, 4 * MIB, 0));
}

CASE(long_stream)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    unsigned char *source = evicted_memory(9 * MIB, 7);
    pid_t child = fork();
    if (!child) {
        close(ends[0]);
        static unsigned char piece[100000];
        size_t at = 0, bad = 0;
        long got;
        while ((got = read(ends[1], piece, sizeof piece)) > 0)
            for (long i = 0; i < got; i++)
                bad += piece[i] != pattern(at++, 7);
        say("received %zu, wrong %zu", at, bad);
        _exit(0);
    }
    close(ends[1]);
    struct iovec parts[2] = {{source, 5 * MIB}, {source + 5 * MIB, 4 * MIB}};
    RESULT(writev(ends[0], parts, 2));
    close(ends[0]);
    say_end("the reader", child);
}

CASE(too_long_for_a_datagram)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    unsigned char *source = memory(20 * MIB, 7);
    RESULT(send(ends[0], source, 20 * MIB, 0));
    RESULT(recv(ends[1], source, MIB, MSG_DONTWAIT));
}

static void *read_for_ever(void *argument)
{
    char *target = memory(MIB, 3);
    if (read(*(int *)argument, target, MIB) != 0)
        say("read something");
    return NULL;
}

CASE(cancelled)
{
    int ends[2];
    pair(SOCK_DGRAM, ends);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        MUST(-!!pthread_create(&thread, NULL, read_for_ever, &ends[1]));
        until_others_sleep(getpid());
        pthread_cancel(thread);
        void *result;
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            say("not cancelled");
    }
    say("done");
}

CASE(random_bytes)
{
    unsigned char *target = memory(9 * MIB, 3);
    int fd = MUST(open("/dev/urandom", O_RDONLY));
    evict();
    RESULT(read(fd, target, 9 * MIB));
    size_t same = wrong(target, 9 * MIB, 3);
    say("mostly new: %d", same > 8 * MIB);
    fd = MUST(open("/dev/zero", O_RDONLY));
    RESULT(read(fd, target, 9 * MIB));
    size_t zeroes = 0;
    for (size_t at = 0; at < 9 * MIB; at++)
        zeroes += !target[at];
    say("zeroes %zu", zeroes);
    RESULT(write(MUST(open("/dev/null", O_WRONLY)), target, 9 * MIB));
    RESULT(write(MUST(open("/dev/full", O_WRONLY)), target, 9 * MIB));
}

CASE(pseudo_files)
{
    char *target = memory(MIB, 0), *other = memory(MIB, 0);
    const char *paths[] = {"/proc/self/limits", "/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int fd = MUST(open(paths[i], O_RDONLY)), again = MUST(open(paths[i], O_RDONLY));
        evict();
        long got = read(fd, target, MIB), small = 0, more;
        static char piece[8192];
        while ((more = read(again, piece, sizeof piece)) > 0) {
            memcpy(other + small, piece, more);
            small += more;
        }
        say("%s: all %d, same %d, then %zd", paths[i], got == small,
            got > 0 && !memcmp(target, other, got), read(fd, target, MIB));
    }
}

/* The kernel writes three fields of a header, and does not change the others. */
CASE(a_static_header_keeps_its_pointers)
{
    static struct msghdr header;
    static struct sockaddr_storage name;
    static struct iovec vector;
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    vector = (struct iovec){memory(128 << 10, 1), 100};
    header = (struct msghdr){.msg_name = &name, .msg_namelen = sizeof name,
                             .msg_iov = &vector, .msg_iovlen = 1};
    for (int round = 0; round < 2; round++) {
        evict();
        MUST(write(ends[0], "word", 4));
        RESULT(recvmsg(ends[1], &header, 0));
        say("name kept: %d, vectors kept: %d", header.msg_name == &name,
            header.msg_iov == &vector && header.msg_iovlen == 1);
    }
}
