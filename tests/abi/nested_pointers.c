/* Memory that the kernel reads or writes through pointers in structures, and memory whose size
 * depends on the request. Structures that programs usually have on the stack are on the stack. */
#include "abi.h"
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/user.h>
#include <elf.h>

#define LEN (64UL << 10)

static int udp(void)
{
    return MUST(socket(AF_INET, SOCK_DGRAM, 0));
}

/* One buffer is untouched managed memory, which has no pages. */
CASE(a_list_of_interfaces)
{
    char *old = memory(LEN, 1), *fresh = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = udp();
    /* The third buffer ends before an inaccessible page. */
    MUST(mprotect(old + LEN - PAGE, PAGE, PROT_NONE));
    char *buffers[] = {old, fresh + MIB, old + LEN - PAGE - sizeof(struct ifreq), (char *)8};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        struct ifconf list = {.ifc_len = i == 1 ? 2 * MIB : LEN / 2, .ifc_buf = buffers[i]};
        evict();
        RESULT(ioctl(fd, SIOCGIFCONF, &list));
        if (i < 2)
            say("%d bytes, %s", list.ifc_len, list.ifc_req->ifr_name);
    }
    struct ifconf *list = memory(LEN, 1);
    *list = (struct ifconf){.ifc_len = LEN / 2, .ifc_buf = old};
    evict();
    RESULT(ioctl(fd, SIOCGIFCONF, list));
    say("%d bytes, %s", list->ifc_len, list->ifc_req->ifr_name);
}

CASE(a_request_to_a_driver)
{
    struct ethtool_value *value = memory(LEN, 1);
    *value = (struct ethtool_value){.cmd = ETHTOOL_GLINK};
    struct ifreq one = {.ifr_name = "lo", .ifr_data = (char *)value};
    evict();
    RESULT(ioctl(udp(), SIOCETHTOOL, &one));
    say("%u", value->data);
}

/* The kernel reads a pointer of this request, which no table of softswap describes. */
CASE(a_request_that_nothing_describes)
{
    struct rtentry route = {.rt_flags = RTF_HOST, .rt_dev = strcpy(memory(LEN, 1), "none0")};
    ((struct sockaddr *)&route.rt_dst)->sa_family = AF_INET;
    int fd = udp();
    evict();
    RESULT(ioctl(fd, SIOCDELRT, &route));
    struct rtentry *managed = memory(LEN, 1);
    *managed = route;
    evict();
    RESULT(ioctl(fd, SIOCDELRT, managed));
    evict();
    RESULT(syscall(SYS_ioctl, fd, SIOCDELRT, &route));
    route.rt_dev = (char *)8;
    RESULT(ioctl(fd, SIOCDELRT, &route));
}

CASE(a_socket_filter)
{
    enum { COUNT = 1500 };
    struct sock_filter *code = memory(LEN, 1);
    for (int i = 0; i < COUNT; i++)
        code[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, 7);
    code[COUNT - 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0xffff);
    struct sock_fprog program = {COUNT, code};
    int fd = udp();
    evict();
    RESULT(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    /* The length is a number of instructions, which take 12,000 bytes. */
    char *got = memory(LEN, 2);
    socklen_t len = COUNT;
    evict();
    RESULT(getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, got, &len));
    say("%u, alike %d", len, !memcmp(got, code, COUNT * sizeof *code));
}

/* The structure contains the address of a buffer that the kernel fills. */
CASE(a_socket_option_with_a_buffer)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    int from = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)&at, len));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&at, &len));
    MUST(connect(from, (struct sockaddr *)&at, len));
    int to = MUST(accept(listener, NULL, NULL));
    char *buffer = memory(LEN, 1), sent[1000];
    memset(sent, 7, sizeof sent);
    for (int raw = 0; raw < 2; raw++) {
        MUST(send(from, sent, sizeof sent, 0));
        MUST(recv(to, sent, sizeof sent, MSG_PEEK | MSG_WAITALL));
        struct tcp_zerocopy_receive wish = {
            .copybuf_address = (unsigned long)buffer, .copybuf_len = LEN};
        len = sizeof wish;
        evict();
        if (raw)
            RESULT(syscall(SYS_getsockopt, to, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &wish, &len));
        else
            RESULT(getsockopt(to, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &wish, &len));
        say("%d bytes, alike %d", wish.copybuf_len, !memcmp(buffer, sent, sizeof sent));
    }
}

CASE(a_set_of_many_descriptors)
{
    enum { COUNT = 4000 };
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int ends[2];
    MUST(pipe(ends));
    int fd = fcntl(ends[1], F_DUPFD, COUNT - 1);
    if (fd < 0) {
        say("fewer descriptors are permitted");
        return;
    }
    char *set = (char *)memory(LEN, 1) + PAGE - 200;
    memset(set, 0, 1024);
    set[fd / 8] = 1 << fd % 8;
    evict();
    struct timeval none = {0};
    RESULT(select(fd + 1, NULL, (fd_set *)set, NULL, &none));
    say("%d", set[fd / 8]);
    evict();
    RESULT(select(-1, NULL, (fd_set *)set, NULL, &none));
    RESULT(select(1 << 30, NULL, (fd_set *)set, NULL, &none));
}

CASE(a_traced_child)
{
    char *got = memory(LEN, 1);
    pid_t child = MUST(fork());
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    struct iovec vector = {got, sizeof(struct user_regs_struct)};
    evict();
    RESULT(ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &vector));
    say("%zu, number of the call %lld", vector.iov_len,
        ((struct user_regs_struct *)got)->orig_rax == SYS_tgkill ? 1LL : 0);
    struct __ptrace_peeksiginfo_args *which = memory(LEN, 1);
    *which = (struct __ptrace_peeksiginfo_args){.nr = 4};
    evict();
    RESULT(ptrace(PTRACE_PEEKSIGINFO, child, which, got));
    RESULT(ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, NULL));
    kill(child, SIGKILL);
    say_end("child", child);
}

/* The records take two pages. */
CASE(signals_of_a_traced_child)
{
    enum { COUNT = 64 };
    siginfo_t *got = memory(LEN, 1);
    pid_t child = MUST(fork());
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    int status, alike = 0;
    MUST(waitpid(child, &status, 0));
    for (int i = 0; i < COUNT; i++)
        MUST(sigqueue(child, SIGRTMIN + 1, (union sigval){.sival_int = i}));
    struct __ptrace_peeksiginfo_args which = {.flags = PTRACE_PEEKSIGINFO_SHARED, .nr = COUNT};
    evict();
    RESULT(ptrace(PTRACE_PEEKSIGINFO, child, &which, got));
    for (int i = 0; i < COUNT; i++)
        alike += got[i].si_signo == SIGRTMIN + 1 && got[i].si_value.sival_int == i;
    say("alike %d", alike);
    which.nr = -1;
    evict();
    RESULT(ptrace(PTRACE_PEEKSIGINFO, child, &which, got));
    kill(child, SIGKILL);
    say_end("child", child);
}

struct waiter {
    uint64_t value, word;
    uint32_t flags, reserved;
};
enum { OF_32_BITS = 2, PRIVATE = 128 };

CASE(futexes_in_an_array)
{
    char *at = memory(LEN, 1);
    *(uint32_t *)at = 5;
    struct waiter waiters[2] = {{6, (uint64_t)at, OF_32_BITS | PRIVATE, 0},
                                {0, (uint64_t)(at + LEN / 2), OF_32_BITS | PRIVATE, 0}};
    evict();
    RESULT(syscall(SYS_futex_waitv, waiters, 1, 0, NULL, 0));
    waiters[0].value = 5;
    evict();
    RESULT(syscall(456, waiters, 0, 1, 1)); /* futex_requeue */
}

CASE(a_register)
{
    unsigned long *at = evicted_memory(LEN, 1);
    RESULT(syscall(SYS_arch_prctl, 0x1003, at)); /* ARCH_GET_FS */
    say("%d", *at == (unsigned long)__builtin_thread_pointer());
    RESULT(syscall(SYS_arch_prctl, 0x1002, *at)); /* ARCH_SET_FS */
}

CASE(a_set_of_semaphores)
{
    enum { COUNT = 8000 };
    unsigned short *values = memory(LEN, 1);
    int set = MUST(semget(IPC_PRIVATE, COUNT, 0600));
    memset(values, 0, COUNT * 2);
    values[COUNT - 1] = 77;
    evict();
    RESULT(semctl(set, 0, SETALL, values));
    memset(values, 1, COUNT * 2);
    evict();
    RESULT(semctl(set, 0, GETALL, values));
    say("%d", values[COUNT - 1]);
    semctl(set, 0, IPC_RMID);
}

CASE(a_long_key)
{
    if (geteuid()) {
        say("an unprivileged user has too few keys");
        return;
    }
    char *payload = memory(LEN, 1);
    long key = syscall(SYS_add_key, "user", "abi", payload, 20000, KEY_SPEC_PROCESS_KEYRING);
    if (key < 0) {
        say("no keys: %s", strerrorname_np(errno));
        return;
    }
    char *got = evicted_memory(LEN, 2);
    RESULT(syscall(SYS_keyctl, KEYCTL_READ, key, got, 20000));
    say("wrong %zu", wrong(got, 20000, 1));
}

CASE(a_policy_of_memory)
{
    char *at = memory(LEN, 1);
    int node = -1;
    evict();
    RESULT(syscall(SYS_get_mempolicy, &node, NULL, 0, at, 3)); /* MPOL_F_NODE | MPOL_F_ADDR */
    say("%d", node >= 0);
}

/* The values are at the boundary of two pages. Linux before 6.13 lacks both calls. */
CASE(an_attribute_of_a_file)
{
    enum { SET = 463, GET = 464, SIZE = 2000 }; /* setxattrat, getxattrat */
    char *set = (char *)memory(LEN, 1) + PAGE - SIZE / 2;
    char *got = (char *)memory(LEN, 2) + PAGE - SIZE / 2;
    struct { uint64_t value; uint32_t size, flags; } value = {(uint64_t)set, SIZE, 0},
        *managed = memory(LEN, 3);
    int fd = scratch_file(O_RDWR);
    evict();
    RESULT(syscall(SET, fd, "", AT_EMPTY_PATH, "user.abi", &value, sizeof value));
    value.value = (uint64_t)got;
    evict();
    RESULT(syscall(GET, fd, "", AT_EMPTY_PATH, "user.abi", &value, sizeof value));
    say("alike %d", !memcmp(got, set, SIZE));
    memset(got, 0, SIZE);
    *managed = value;
    evict();
    RESULT(syscall(GET, fd, "", AT_EMPTY_PATH, "user.abi", managed, sizeof value));
    say("alike %d", !memcmp(got, set, SIZE));
    value.value = 8;
    RESULT(syscall(GET, fd, "", AT_EMPTY_PATH, "user.abi", &value, sizeof value));
}

CASE(extents_of_a_file)
{
    int fd = scratch_file(O_RDWR);
    MUST(write(fd, memory(LEN, 1), LEN));
    MUST(fsync(fd));
    struct fiemap *map = memory(LEN, 1);
    memset(map, 0, LEN);
    map->fm_length = ~0UL, map->fm_extent_count = 1000;
    evict();
    int mapped = ioctl(fd, FS_IOC_FIEMAP, map);
    say("%s", mapped < 0 ? strerrorname_np(errno) : "done");
}

/* An array follows the structure. Only ext4 and xfs know the request. */
CASE(a_map_of_a_file_system)
{
    struct { unsigned head[4]; unsigned long reserved[6]; struct { unsigned device, flags;
        unsigned long physical, owner, offset, len, reserved[3]; } keys[2]; } *map = memory(8 * LEN, 1);
    memset(map, 0, 8 * LEN);
    map->head[2] = 4000;
    map->keys[1].device = map->keys[1].flags = ~0u;
    map->keys[1].physical = map->keys[1].owner = map->keys[1].offset = ~0ul;
    int fd = scratch_file(O_RDWR);
    evict();
    int got = ioctl(fd, 0xc0c0583b, map);
    say("%s", got < 0 && errno == EFAULT ? "EFAULT" : "no EFAULT");
}

CASE(a_scan_of_pages)
{
    struct {
        uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any,
            returned;
    } scan = {.size = sizeof scan, .vec_len = 4, .any = 10, .returned = 10};
    uint64_t *region = memory(LEN, 1);
    scan.start = (uint64_t)a_scan_of_pages & ~(PAGE - 1), scan.end = scan.start + PAGE;
    scan.vec = (uint64_t)region;
    int fd = MUST(open("/proc/self/pagemap", O_RDONLY));
    evict();
    RESULT(ioctl(fd, _IOWR('f', 16, scan), &scan));
}

CASE(a_program_for_the_kernel)
{
    struct bpf_insn *code = memory(LEN, 1);
    char *license = strcpy(memory(LEN, 1), "GPL");
    code[0] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K};
    code[1] = (struct bpf_insn){.code = BPF_JMP | BPF_EXIT};
    union bpf_attr attributes = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2};
    attributes.insns = (uint64_t)code, attributes.license = (uint64_t)license;
    evict();
    SUCCESS(syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof attributes));
}

/* The kernel reads attributes of any user, and writes the size that it knows. */
static void open_an_event_of_unknown_size(void)
{
    struct perf_event_attr *event = memory(LEN, 1);
    event->size = PAGE;
    evict();
    RESULT(syscall(SYS_perf_event_open, event, 0, -1, -1, 0));
    say("size %u", event->size);
}

/* Unless perf_event_paranoid or a filter forbids it, every user may count events of the own
 * thread. */
static void count_an_event(void)
{
    struct perf_event_attr *event = memory(LEN, 1);
    memset(event, 0, sizeof *event);
    event->size = sizeof *event, event->exclude_kernel = 1, event->exclude_hv = 1;
    event->type = PERF_TYPE_SOFTWARE, event->config = PERF_COUNT_SW_TASK_CLOCK;
    uint64_t *counted = memory(LEN, 0);
    *counted = 0;
    evict();
    int fd = syscall(SYS_perf_event_open, event, 0, -1, -1, 0);
    if (fd < 0) {
        say("skipped: this user may count no events: %s", strerrorname_np(errno));
        return;
    }
    RESULT(read(fd, counted, sizeof *counted));
    say("counted %d", *counted > 0);
    close(fd);
}

/* The path is behind a pointer of the attributes. Without CAP_PERFMON the kernel does not read it.
 */
CASE(an_event_in_a_program)
{
    open_an_event_of_unknown_size();
    count_an_event();
    char type[16] = {0}, *path = strcpy(memory(LEN, 1), "/nonexistent");
    int fd = open("/sys/bus/event_source/devices/uprobe/type", O_RDONLY);
    if (fd < 0 || read(fd, type, sizeof type - 1) < 1) {
        say("no probes are available");
        return;
    }
    struct perf_event_attr event = {.size = sizeof event, .uprobe_path = (uint64_t)path};
    event.type = atoi(type);
    evict();
    RESULT(syscall(SYS_perf_event_open, &event, getpid(), -1, -1, 0));
}
