/* A call with a bad pointer fails with the error of Linux. The pointer refers to unmapped,
 * inaccessible or read-only memory, managed or unmanaged. */
#include "abi.h"

#define BAD ((void *)0x10)

static char *managed, *inaccessible, *read_only, *unmapped;

static void set_up(void)
{
    /* Map the memory for the pressure first, so that it does not use the addresses that must
     * remain unmapped. */
    evict();
    managed = memory(MIB, 7);
    inaccessible = memory(MIB, 7);
    MUST(mprotect(inaccessible, MIB, PROT_NONE));
    read_only = memory(MIB, 7);
    MUST(mprotect(read_only, MIB, PROT_READ));
    unmapped = memory(MIB, 7);
    MUST(munmap(unmapped, MIB));
    evict();
}

static void each(void (*with)(void *))
{
    set_up();
    void *pointers[] = {BAD, inaccessible, read_only, unmapped, (void *)-4096L};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        with(pointers[i]);
}

static int bytes_to_read(void)
{
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "some bytes", 10));
    return ends[0];
}
static int place_to_write(void) { return scratch_file(0); }
static int datagrams(void)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    MUST(send(ends[1], "some bytes", 10, 0));
    return ends[0];
}

static void one_read(void *at) { RESULT(read(bytes_to_read(), at, 100)); }
static void one_long_read(void *at) { RESULT(recv(datagrams(), at, MIB, 0)); }
static void one_write(void *at) { RESULT(write(place_to_write(), at, 100) > 0); }
static void one_array(void *at) { RESULT(readv(bytes_to_read(), at, 2) > 0); }
static void one_array_out(void *at)
{
    if (at != read_only)
        RESULT(writev(place_to_write(), at, 2));
}
static void one_vector(void *at)
{
    struct iovec parts[2] = {{managed, 5}, {at, 100}};
    RESULT(readv(bytes_to_read(), parts, 2));
}
static void one_vector_out(void *at)
{
    struct iovec parts[2] = {{managed, 5}, {at, 100}};
    RESULT(writev(place_to_write(), parts, 2));
}
static void one_header_out(void *at)
{
    if (at != read_only)
        RESULT(sendmsg(datagrams(), at, 0));
}
static void one_header(void *at)
{
    if (at != read_only)
        RESULT(recvmsg(datagrams(), at, MSG_DONTWAIT));
}
static void one_inner_array(void *at)
{
    if (at == read_only)
        return;
    struct msghdr message = {.msg_iov = at, .msg_iovlen = 1};
    RESULT(sendmsg(datagrams(), &message, 0));
    RESULT(recvmsg(datagrams(), &message, MSG_DONTWAIT));
}
static void one_message_data(void *at)
{
    struct iovec part = {at, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    RESULT(sendmsg(datagrams(), &message, 0));
    RESULT(recvmsg(datagrams(), &message, MSG_DONTWAIT));
}
static void one_of_many(void *at)
{
    struct iovec part = {managed, 10};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = at, .msg_iovlen = 1}}};
    if (at == read_only)
        return;
    RESULT(sendmmsg(datagrams(), at, 1, 0));
    RESULT(sendmmsg(datagrams(), messages, 2, 0));
}
static void one_path(void *at)
{
    if (at == read_only)
        return;
    RESULT(open(at, O_RDONLY));
    RESULT(unlink(at));
}
static void one_status(void *at)
{
    RESULT(syscall(SYS_fstat, 1, at));
    RESULT(syscall(SYS_newfstatat, AT_FDCWD, "/", at, 0));
}
static void one_exec(void *at)
{
    char *arguments[] = {"true", NULL}, *bad[] = {"true", at, NULL};
    if (at == read_only)
        return;
    RESULT(execve(at, arguments, arguments));
    RESULT(execve("/bin/true", at, arguments));
    RESULT(execve("/bin/true", bad, arguments));
    RESULT(execve("/bin/true", arguments, at));
    RESULT(execve("/nowhere", bad, arguments));
}
static void half_mapped(void *at)
{
    (void)at;
    char *two = memory(2 * MIB, 7);
    MUST(munmap(two + MIB, MIB));
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    RESULT(send(ends[0], two + MIB - 100, 200, 0));
    RESULT(send(ends[0], two + MIB - 100, 100, 0));
    int fd = scratch_file(0);
    RESULT(write(fd, two + MIB - 5000, 10000));
    RESULT(pread(fd, two + MIB - 50, 100, 0));
    RESULT(pread(fd, two + MIB, 100, 0));
}

static void one_advice(void *bad)
{
    int self = MUST(syscall(SYS_pidfd_open, getpid(), 0));
    RESULT(process_madvise(self, bad, 1, MADV_COLD, 0));
    RESULT(process_madvise(self, bad, 3, MADV_WILLNEED, 0));
    RESULT(syscall(SYS_process_madvise, self, bad, 1, MADV_COLD, 0));
    close(self);
}

CASE(bad_read) { each(one_read); }
CASE(bad_long_read) { each(one_long_read); }
CASE(bad_write) { each(one_write); }
CASE(bad_array) { each(one_array); }
CASE(bad_array_out) { each(one_array_out); }
CASE(bad_vector) { each(one_vector); }
CASE(bad_vector_out) { each(one_vector_out); }
CASE(bad_header) { each(one_header); }
CASE(bad_header_out) { each(one_header_out); }
CASE(bad_inner_array) { each(one_inner_array); }
CASE(bad_message_data) { each(one_message_data); }
CASE(bad_among_many) { each(one_of_many); }
CASE(bad_path) { each(one_path); }
CASE(bad_status) { each(one_status); }
CASE(bad_exec) { each(one_exec); }
CASE(bad_advice) { each(one_advice); }
CASE(half) { half_mapped(NULL); }
