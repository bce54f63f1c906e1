/* Memory that the kernel reads or writes after a call has returned. A program that cannot create
 * a ring or a context uses plain reads, and must read the same data. */
#include "abi.h"
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#define LEN (256UL << 10)

struct ring_parameters {
    uint32_t sq_entries, cq_entries, flags, thread_cpu, thread_idle, features, wq_fd, resv[3];
    uint32_t sq[10], cq[10];
};

/* Creates a ring with one fixed buffer, and reads into it while other memory is touched. Without
 * a ring, uses pread. */
CASE(a_ring_with_fixed_buffers)
{
    int file = scratch_file(O_RDWR);
    char *source = memory(LEN, 1), *buffer = memory(LEN, 2);
    MUST(pwrite(file, source, LEN, 0));
    struct ring_parameters parameters = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring >= 0) {
        struct iovec vector = {buffer, LEN};
        size_t sq_len = parameters.sq[6] + parameters.sq_entries * 4;
        char *sq = mmap(NULL, sq_len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
        char *entries = mmap(NULL, parameters.sq_entries * 64, PROT_READ | PROT_WRITE, MAP_SHARED,
                             ring, 0x10000000);
        MUST(syscall(SYS_io_uring_register, ring, 0, &vector, 1));
        evict();
        memset(entries, 0, 64);
        entries[0] = 4; /* READ_FIXED */
        *(int *)(entries + 4) = file;
        *(uint64_t *)(entries + 16) = (uint64_t)buffer;
        *(uint32_t *)(entries + 24) = LEN;
        *(uint32_t *)(sq + parameters.sq[6]) = 0;
        __atomic_store_n((uint32_t *)(sq + parameters.sq[1]), 1, __ATOMIC_RELEASE);
        MUST(syscall(SYS_io_uring_enter, ring, 1, 1, 1, NULL, 0));
    } else {
        evict();
        MUST(pread(file, buffer, LEN, 0));
    }
    evict();
    say("wrong %zu", wrong(buffer, LEN, 1));
}

/* Like databases: asynchronous reads if available, otherwise plain reads. */
CASE(asynchronous_reads)
{
    int file = scratch_file(O_RDWR);
    char *source = memory(LEN, 3), *buffer = memory(LEN, 4);
    MUST(pwrite(file, source, LEN, 0));
    unsigned long context = 0;
    evict();
    if (syscall(SYS_io_setup, 4, &context) == 0) {
        uint64_t request[8] = {0}, event[4] = {0};
        *(uint32_t *)((char *)request + 20) = file;
        request[3] = (uint64_t)buffer, request[4] = LEN;
        uint64_t *list[1] = {request};
        MUST(syscall(SYS_io_submit, context, 1, list));
        MUST(syscall(SYS_io_getevents, context, 1, 1, event, NULL));
        say("read %ld", (long)event[2]);
        MUST(syscall(SYS_io_destroy, context));
    } else {
        say("read %ld", (long)pread(file, buffer, LEN, 0));
    }
    evict();
    say("wrong %zu", wrong(buffer, LEN, 3));
}

/* If the call fails, its error must be one that Linux returns. */
CASE(a_ring_is_made_or_refused)
{
    struct ring_parameters parameters = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &parameters);
    say("as Linux may: %d", ring >= 0 || errno == EPERM || errno == ENOSYS);
    unsigned long context = 0;
    int made = syscall(SYS_io_setup, 4, &context);
    say("as Linux may: %d", made == 0 || errno == ENOSYS);
}

CASE(a_name_of_ones_own)
{
    /* softswap must not replace the program's function with the name of a library function. */
    extern int io_setup(int, int);
    say("own: %d", io_setup(20, 22));
}
__attribute__((noinline)) int io_setup(int a, int b)
{
    return a + b;
}

static void splice_into_a_pipe(unsigned flags)
{
    char *at = memory(32 << 10, 5), got[4096];
    int ends[2];
    MUST(pipe(ends));
    evict();
    struct iovec vectors[2] = {{at, 16 << 10}, {at + (16 << 10), 16 << 10}};
    RESULT(vmsplice(ends[1], vectors, 2, flags));
    evict();
    size_t off = 0, count = 0;
    while (off < 32 << 10) {
        ssize_t len = read(ends[0], got, sizeof got);
        if (len <= 0)
            break;
        for (ssize_t i = 0; i < len; i++)
            count += (unsigned char)got[i] != pattern(off + i, 5);
        off += len;
    }
    say("got %zu, wrong %zu", off, count);
    say("wrong %zu", wrong(at, 32 << 10, 5));
}

CASE(pages_spliced_into_a_pipe) { splice_into_a_pipe(0); }

CASE(pages_given_to_a_pipe) { splice_into_a_pipe(SPLICE_F_GIFT); }

CASE(spliced_memory_is_unmapped)
{
    char *at = memory(LEN, 6), got[8192];
    int ends[2];
    MUST(pipe(ends));
    evict();
    struct iovec vector = {at, sizeof got};
    RESULT(vmsplice(ends[1], &vector, 1, 0));
    MUST(munmap(at, LEN));
    char *other = evicted_memory(LEN, 7);
    RESULT(read(ends[0], got, sizeof got));
    say("wrong %zu, %zu", wrong(got, sizeof got, 6), wrong(other, LEN, 7));
}

CASE(vmsplice_refused)
{
    char *at = memory(LEN, 8);
    int file = scratch_file(O_RDWR), ends[2];
    MUST(pipe(ends));
    evict();
    struct iovec vector = {at, LEN}, none = {at, 0};
    RESULT(vmsplice(file, &vector, 1, 0));
    RESULT(vmsplice(ends[1], &vector, 1, 0x100));
    RESULT(vmsplice(ends[1], &none, 1, 0));
    RESULT(vmsplice(-1, &vector, 1, 0));
    RESULT(vmsplice(ends[0], &none, 1, SPLICE_F_NONBLOCK));
}

CASE(spliced_out_of_a_pipe)
{
    char *at = memory(LEN, 9), *into = memory(LEN, 10);
    int ends[2];
    MUST(pipe(ends));
    evict();
    MUST(write(ends[1], at, 20000));
    struct iovec vector = {into, 20000};
    evict();
    RESULT(vmsplice(ends[0], &vector, 1, 0));
    evict();
    say("wrong %zu", wrong(into, 20000, 9));
}

CASE(sent_without_a_copy)
{
    int pair[2];
    char *at = memory(LEN, 11), *got = memory(LEN, 12);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    int on = 1;
    RESULT(setsockopt(pair[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    evict();
    RESULT(send(pair[0], at, 20000, MSG_ZEROCOPY));
    evict();
    RESULT(recv(pair[1], got, 20000, MSG_WAITALL));
    say("wrong %zu", wrong(got, 20000, 11));
}

static void *drains(void *argument)
{
    int fd = *(int *)argument;
    static char buffer[1 << 16];
    size_t sum = 0;
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
        sum += got;
    return (void *)sum;
}

/* The kernel numbers the notifications by calls. */
CASE(a_long_send_without_a_copy)
{
    size_t len = 6 * MIB;
    char *at = memory(len, 14);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_len = sizeof address;
    int server = MUST(socket(AF_INET, SOCK_STREAM, 0)), fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(server, (void *)&address, sizeof address));
    MUST(listen(server, 1));
    MUST(getsockname(server, (void *)&address, &address_len));
    MUST(connect(fd, (void *)&address, sizeof address));
    int peer = MUST(accept(server, NULL, NULL)), on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    pthread_t thread;
    pthread_create(&thread, NULL, drains, &peer);
    evict();
    RESULT(send(fd, at, len, MSG_ZEROCOPY));
    shutdown(fd, SHUT_WR);
    void *drained;
    pthread_join(thread, &drained);
    say("drained %zu", (size_t)drained);
    /* The peer has received all, so all notifications are queued or about to be. */
    char control[256];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    while (recvmsg(fd, &message, MSG_ERRQUEUE) < 0 && errno == EAGAIN)
        sched_yield();
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    struct sock_extended_err *error = first ? (void *)CMSG_DATA(first) : NULL;
    say("last number %d", error ? (int)error->ee_data : -1);
}

CASE(a_userfaultfd_over_managed_memory)
{
    char *at = memory(LEN, 13);
    struct { uint64_t api, features, ioctls; } api = {0xaa, 0, 0};
    struct { uint64_t start, len, mode, ioctls; } range = {0};
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    if (fd >= 0 && ioctl(fd, 0xc018aa3f, &api) == 0) {
        range.start = (uint64_t)(size_t)mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        range.len = 4 * PAGE, range.mode = 1;
        RESULT(ioctl(fd, 0xc020aa00, &range));
    }
    evict();
    say("wrong %zu", wrong(at, LEN, 13));
}

CASE(written_by_another_process)
{
    char *at = memory(LEN, 14);
    int to[2];
    MUST(pipe(to));
    pid_t pid = MUST(fork());
    if (!pid) {
        char byte;
        (void)!read(to[0], &byte, 1);
        char mine[100];
        memset(mine, 'm', sizeof mine);
        struct iovec local = {mine, sizeof mine}, remote = {at, sizeof mine};
        RESULT(process_vm_writev(getppid(), &local, 1, &remote, 1, 0));
        _exit(0);
    }
    memset(at, 'x', PAGE);
    MUST(write(to[1], "x", 1));
    say_end("child", pid);
    say("%c%c%c", at[0], at[99], at[100]);
}

CASE(read_directly)
{
    int file = scratch_file(O_RDWR);
    char *source = memory(LEN, 15), *into = memory(LEN, 16);
    MUST(pwrite(file, source, LEN, 0));
    int flags = fcntl(file, F_GETFL);
    if (fcntl(file, F_SETFL, flags | O_DIRECT) == -1 && errno != EINVAL)
        say("setting up: O_DIRECT");
    evict();
    RESULT(pread(file, into, LEN, 0));
    evict();
    say("wrong %zu", wrong(into, LEN, 15));
}
