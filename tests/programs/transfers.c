/* Moves marked memory by calls that are longer than what calls may hold, while another thread
 * has the kernel write back all that is dirty on the file system of DIR. Whatever arrives is
 * compared with what was sent.
 *
 *   transfers DIR OUT
 *
 * OUT is a directory for a file past the page cache. Exits with 1 if a byte is wrong, and with 2
 * if a call fails or moves less. */
#include "check.h"
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

/* Random data, so that no page is packed, with the marker in each page. */
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

/* Reads a file back through memory that nobody has touched. */
static void compare_file(const char *call, int fd, uint64_t seed) {
    unsigned char *got = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect("pread", pread(fd, got, LEN, 0));
    compare(call, got, seed);
    munmap(got, LEN);
}

struct end {
    int fd;
    const char *call;
    uint64_t seed;
};

static void *receive(void *argument) {
    struct end *end = argument;
    unsigned char *got = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t done = 0;
    while (done < LEN) {
        long moved = read(end->fd, got + done, LEN - done);
        if (moved <= 0) fail("read", moved);
        done += moved;
    }
    compare(end->call, got, end->seed);
    munmap(got, LEN);
    return NULL;
}

static void *receive_all(void *argument) {
    struct end *end = argument;
    unsigned char *got = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect("recv", recv(end->fd, got, LEN, MSG_WAITALL));
    compare(end->call, got, end->seed);
    munmap(got, LEN);
    return NULL;
}

/* Sends to a thread that receives. */
static void to_thread(int ends[2], const char *call, void *(*how)(void *), uint64_t seed,
                      long (*send)(int fd)) {
    struct end end = {ends[0], call, seed};
    pthread_t thread;
    pthread_create(&thread, NULL, how, &end);
    expect(call, send(ends[1]));
    pthread_join(thread, NULL);
    close(ends[0]), close(ends[1]);
}

static struct iovec *parts(void) {
    static struct iovec parts[3];
    parts[0] = (struct iovec){source, 5 * PAGE + 7};
    parts[1] = (struct iovec){source + 5 * PAGE + 7, LEN / 2};
    parts[2] = (struct iovec){source + 5 * PAGE + 7 + LEN / 2, LEN - LEN / 2 - 5 * PAGE - 7};
    return parts;
}
static long by_sendmsg(int fd) {
    struct msghdr message = {.msg_iov = parts(), .msg_iovlen = 3};
    return sendmsg(fd, &message, 0);
}
static long by_send(int fd) { return send(fd, source, LEN, 0); }
static long by_write(int fd) { return write(fd, source, LEN); }
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

static void to_files(const char *out) {
    int file = memfd_create("transfers", 0), append = memfd_create("appended", 0);
    fcntl(append, F_SETFL, O_APPEND);
    fill(1);
    expect("write", write(file, source, LEN));
    compare_file("write", file, 1);
    fill(2);
    expect("pwritev", pwritev(file, parts(), 3, 0));
    compare_file("pwritev", file, 2);
    fill(3);
    expect("writev", writev(append, parts(), 3));
    compare_file("writev", append, 3);
    char path[4096];
    snprintf(path, sizeof path, "%s/past-the-cache", out);
    int direct = open(path, O_CREAT | O_RDWR | O_DIRECT, 0600);
    if (direct < 0) return;
    unlink(path);
    fill(4);
    expect("write past the cache", write(direct, source, LEN));
    compare_file("write past the cache", direct, 4);
    close(file), close(append), close(direct);
}

static void to_threads(void) {
    int ends[2];
    fill(5);
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    to_thread(ends, "sendmsg", receive_all, 5, by_sendmsg);
    fill(6);
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    to_thread(ends, "send", receive, 6, by_send);
    fill(7);
    if (pipe(ends) != 0) exit(2);
    to_thread(ends, "write to a pipe", receive, 7, by_write);
    fill(8);
    if (pipe(ends) != 0) exit(2);
    to_thread(ends, "vmsplice", receive, 8, by_vmsplice);
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: transfers DIR OUT");
    /* Not in the program's file. */
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
