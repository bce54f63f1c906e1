/* Transfers marked memory with calls that transfer more than a call may pin. At the same time,
 * another thread makes the kernel write back all dirty pages of DIR's file system. The data
 * that arrives is compared with the data sent.
 *
 *   transfers DIR OUT
 *
 * OUT is a directory for the files written. Exits with 1 if a byte is wrong, and with 2 if a
 * call fails or transfers less than requested. */
#include "check.h"
#include <aio.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define LEN ((size_t)20 << 20)
#define PAGES (LEN / PAGE)

static unsigned char *source;
static char marker[32];
static volatile int is_over;

static void fail(const char *call, long moved) {
    fprintf(stderr, "%s moved %ld: %s\n", call, moved, strerror(errno));
    exit(2);
}

static void expect(const char *call, long moved) {
    if (moved != (long)LEN) fail(call, moved);
}

/* Random data, so that no page compresses, with the marker in each page. */
static void fill(uint64_t seed) {
    for (size_t page = 0; page < PAGES; page++) {
        fill_random((uint64_t *)(source + page * PAGE), PAGE, seed << 32 | page);
        memcpy(source + page * PAGE + 1000, marker, sizeof marker);
    }
}

static void compare(const char *call, const unsigned char *got, uint64_t seed) {
    uint64_t page_of[WORDS_PER_PAGE];
    for (size_t page = 0; page < PAGES; page++) {
        fill_random(page_of, PAGE, seed << 32 | page);
        memcpy((char *)page_of + 1000, marker, sizeof marker);
        if (memcmp(page_of, got + page * PAGE, PAGE) != 0)
            check_fail(__FILE__, __LINE__, "%s: page %zu is wrong", call, page);
    }
}

static void *write_back(void *directory) {
    while (!is_over) {
        syncfs(*(int *)directory);
        usleep(2000);
    }
    return NULL;
}

/* Reads a file back into untouched memory. */
static void compare_file(const char *call, int fd, uint64_t seed) {
    unsigned char *got = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect("pread", pread(fd, got, LEN, 0));
    compare(call, got, seed);
    munmap(got, LEN);
}

struct end {
    int fd;
    const char *call;
    long (*receive)(int fd, unsigned char *got, size_t len);
    uint64_t seed;
};

/* Receives into untouched memory. */
static void *receive(void *argument) {
    struct end *end = argument;
    unsigned char *got = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t done = 0; done < LEN;) {
        long moved = end->receive(end->fd, got + done, LEN - done);
        if (moved <= 0) fail("receiving", moved);
        done += moved;
    }
    compare(end->call, got, end->seed);
    munmap(got, LEN);
    return NULL;
}

static struct iovec *parts(void) {
    static struct iovec parts[3];
    parts[0] = (struct iovec){source, 5 * PAGE + 7};
    parts[1] = (struct iovec){source + 5 * PAGE + 7, LEN / 2};
    parts[2] = (struct iovec){source + 5 * PAGE + 7 + LEN / 2, LEN - LEN / 2 - 5 * PAGE - 7};
    return parts;
}
static struct iovec *pages(void) {
    static struct iovec pages[2];
    pages[0] = (struct iovec){source, LEN / 4};
    pages[1] = (struct iovec){source + LEN / 4, LEN - LEN / 4};
    return pages;
}

static long by_write(int fd) { return write(fd, source, LEN); }
static long by_writev(int fd) { return writev(fd, parts(), 3); }
static long by_pwrite(int fd) { return pwrite(fd, source, LEN, 0); }
static long by_pwritev(int fd) { return pwritev(fd, parts(), 3, 0); }
static long by_pwritev2(int fd) { return pwritev2(fd, parts(), 3, 0, RWF_DSYNC); }
static long by_pwritev_pages(int fd) { return pwritev(fd, pages(), 2, 0); }
static long by_fwrite(int fd) {
    FILE *file = fdopen(dup(fd), "w");
    long moved = fwrite(source, 1, LEN, file);
    return fclose(file) == 0 ? moved : -1;
}
static long by_aio_write(int fd) {
    struct aiocb request = {.aio_fildes = fd, .aio_buf = source, .aio_nbytes = LEN};
    const struct aiocb *list[] = {&request};
    if (aio_write(&request) != 0) return -1;
    while (aio_error(&request) == EINPROGRESS) aio_suspend(list, 1, NULL);
    return aio_return(&request);
}

static long by_send(int fd) { return send(fd, source, LEN, 0); }
static long by_sendmsg(int fd) {
    struct msghdr message = {.msg_iov = parts(), .msg_iovlen = 3};
    return sendmsg(fd, &message, 0);
}
static long by_sendmmsg(int fd) {
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = pages(), .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = pages() + 1, .msg_iovlen = 1}}};
    return sendmmsg(fd, messages, 2, 0) == 2 ? messages[0].msg_len + (long)messages[1].msg_len : -1;
}
static long by_vmsplice(int fd) {
    size_t done = 0;
    while (done < LEN) {
        struct iovec part = {source + done, LEN - done};
        long moved = vmsplice(fd, &part, 1, 0);
        if (moved <= 0) return moved;
        done += moved;
    }
    return done;
}
static long by_messages(int fd) {
    for (size_t done = 0; done < LEN; done += 64 << 10)
        if (send(fd, source + done, 64 << 10, 0) != 64 << 10) return -1;
    return LEN;
}

static long to_read(int fd, unsigned char *got, size_t len) { return read(fd, got, len); }
static long to_recv(int fd, unsigned char *got, size_t len) {
    return recv(fd, got, len, MSG_WAITALL);
}
static long to_readv(int fd, unsigned char *got, size_t len) {
    struct iovec parts[2] = {{got, len / 3}, {got + len / 3, len - len / 3}};
    return readv(fd, parts, 2);
}
static long to_recvmsg(int fd, unsigned char *got, size_t len) {
    struct iovec parts[2] = {{got, len / 3}, {got + len / 3, len - len / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return recvmsg(fd, &message, MSG_WAITALL);
}
static long to_recvmmsg(int fd, unsigned char *got, size_t len) {
    struct iovec part = {got, len};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    return recvmmsg(fd, &message, 1, 0, NULL) == 1 ? (long)message.msg_len : -1;
}

static int stream(int ends[2]) { return socketpair(AF_UNIX, SOCK_STREAM, 0, ends); }
static int packets(int ends[2]) { return socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends); }
static int tcp(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, len) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &len) || connect(ends[1], (void *)&address, len))
        return -1;
    ends[0] = accept(listener, NULL, NULL);
    close(listener);
    return ends[0] < 0 ? -1 : 0;
}

static const struct {
    const char *call;
    int flags;
    long (*send)(int fd);
} to_files_by[] = {
    {"write", 0, by_write},
    {"pwrite", 0, by_pwrite},
    {"pwritev", 0, by_pwritev},
    {"pwritev2", 0, by_pwritev2},
    {"writev to the end", O_APPEND, by_writev},
    {"fwrite", 0, by_fwrite},
    {"aio_write", 0, by_aio_write},
    {"write past the cache", O_DIRECT, by_write},
    {"pwritev past the cache", O_DIRECT, by_pwritev_pages},
};

static const struct {
    const char *call;
    int (*open)(int ends[2]);
    long (*send)(int fd);
    long (*receive)(int fd, unsigned char *got, size_t len);
} to_threads_by[] = {
    {"sendmsg and recv", stream, by_sendmsg, to_recv},
    {"send and read", stream, by_send, to_read},
    {"sendmmsg and recvmsg", stream, by_sendmmsg, to_recvmsg},
    {"writev and recvmmsg", stream, by_writev, to_recvmmsg},
    {"write and recv by TCP", tcp, by_write, to_recv},
    {"sendmsg and readv by TCP", tcp, by_sendmsg, to_readv},
    {"messages", packets, by_messages, to_recv},
    {"messages in parts", packets, by_messages, to_recvmsg},
    {"write and read by a pipe", pipe, by_write, to_read},
    {"writev and readv by a pipe", pipe, by_writev, to_readv},
    {"vmsplice", pipe, by_vmsplice, to_read},
};

#define COUNT(list) (sizeof list / sizeof *list)

static void to_files(const char *out) {
    char path[4096];
    snprintf(path, sizeof path, "%s/transfers", out);
    for (size_t i = 0; i < COUNT(to_files_by); i++) {
        int fd = open(path, O_CREAT | O_RDWR | to_files_by[i].flags, 0600);
        unlink(path);
        if (fd < 0 && errno == EINVAL) continue;
        if (fd < 0) fail("open", fd);
        fill(i);
        expect(to_files_by[i].call, to_files_by[i].send(fd));
        compare_file(to_files_by[i].call, fd, i);
        close(fd);
    }
}

static void to_threads(void) {
    for (size_t i = 0; i < COUNT(to_threads_by); i++) {
        int ends[2];
        if (to_threads_by[i].open(ends) != 0) fail(to_threads_by[i].call, -1);
        fill(100 + i);
        struct end end = {ends[0], to_threads_by[i].call, to_threads_by[i].receive, 100 + i};
        pthread_t thread;
        pthread_create(&thread, NULL, receive, &end);
        expect(end.call, to_threads_by[i].send(ends[1]));
        pthread_join(thread, NULL);
        close(ends[0]), close(ends[1]);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: transfers DIR OUT");
    /* Computed, so that the executable does not contain the marker. */
    const char *volatile text = "-DEKRAM";
    for (size_t i = 0; i < sizeof marker; i++) marker[i] = text[6 - i % 7];
    source = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(source != MAP_FAILED, "mmap");
    int directory = open(argv[1], O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0, "%s cannot be opened", argv[1]);
    pthread_t thread;
    pthread_create(&thread, NULL, write_back, &directory);
    to_files(argv[2]);
    to_threads();
    is_over = 1;
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
