/* System calls get buffers, structures and paths on swapped-out pages, and must behave as with
 * resident pages. Calls with a bad pointer must still fail with EFAULT.
 *
 *   guard [--pressure MIB] [--threads T] [--rounds R] */
#include "check.h"

#include <aio.h>
#include <dirent.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <linux/futex.h>

static char directory[PATH_MAX];
static atomic_ulong unique;

/* Returns a heap block that shares no page with other blocks, filled with random data of `seed`. */
static void *block(size_t bytes, uint64_t seed) {
    void *at = allocate(bytes);
    fill_random(at, bytes, seed);
    return at;
}

/* A heap copy of a small structure. */
static void *heap_copy(const void *value, size_t bytes) {
    return memcpy(allocate(bytes), value, bytes);
}
#define HEAP(value) ((__typeof__(value) *)heap_copy(&(value), sizeof(value)))

/* A fresh path inside the test directory, as a string in the heap. */
static char *fresh_path(const char *name) {
    char *path;
    CALL(asprintf(&path, "%s/%s-%lu", directory, name, atomic_fetch_add(&unique, 1)));
    return path;
}

static void close_pair(const int pair[2]) {
    CALL(close(pair[0]));
    CALL(close(pair[1]));
}

/* ---- streams -------------------------------------------------------------- */

static void pipes(void) {
    enum { BYTES = 60000 };
    int *ends = allocate(2 * sizeof(int));
    evict(ends, 2 * sizeof(int));
    CALL(pipe2(ends, O_CLOEXEC));
    char *source = block(BYTES, 1), *target = block(BYTES, 2);
    evict_data(source, BYTES);
    evict(target, BYTES);
    EXPECT(BYTES, write(ends[1], source, BYTES));
    EXPECT(BYTES, read(ends[0], target, BYTES));
    verify_random("pipe", target, BYTES, 1);
    close_pair(ends);
    free(ends);
    free(source);
    free(target);
}

static void large_file(void) {
    size_t bytes = 8 * MIB + 123;
    char *path = fresh_path("large"), *source = block(bytes, 3), *target = block(bytes, 4);
    evict(path, strlen(path));
    int file = CALL(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    evict_data(source, bytes);
    EXPECT(bytes, write(file, source, bytes));
    evict(target, bytes);
    EXPECT(0, lseek(file, 0, SEEK_SET));
    EXPECT(bytes, read(file, target, bytes));
    verify_random("read of a file", target, bytes, 3);

    fill_random(source, bytes, 5);
    evict(source, bytes);
    EXPECT(MIB, pwrite(file, source, MIB, 4096));
    evict(target, bytes);
    EXPECT(MIB, pread(file, target, MIB, 4096));
    verify_random("pread", target, MIB, 5);
    CALL(close(file));
    CALL(unlink(path));
    free(path);
    free(source);
    free(target);
}

static void stdio(void) {
    size_t bytes = MIB + 77;
    char *path = fresh_path("stdio"), *source = block(bytes, 6), *target = block(bytes, 7);
    char *buffer = allocate(256 * 1024);
    FILE *file = fopen(path, "w+e");
    CHECK(file != NULL, "fopen: %s", strerror(errno));
    EXPECT(0, setvbuf(file, buffer, _IOFBF, 256 * 1024));
    evict_data(source, bytes);
    evict(buffer, 256 * 1024);
    for (size_t at = 0; at < bytes; at += 1000) {
        size_t size = bytes - at < 1000 ? bytes - at : 1000;
        EXPECT(size, fwrite(source + at, 1, size, file));
    }
    evict(buffer, 256 * 1024);
    rewind(file);
    evict(target, bytes);
    EXPECT(bytes, fread(target, 1, bytes, file));
    verify_random("fread", target, bytes, 6);
    EXPECT(0, fclose(file));
    CALL(unlink(path));
    free(path);
    free(buffer);
    free(source);
    free(target);
}

static void vectors(void) {
    enum { PARTS = 20, BYTES = 2500 };
    int ends[2];
    CALL(pipe2(ends, O_CLOEXEC));
    char *path = fresh_path("vectors");
    int file = CALL(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    struct iovec *out = allocate(PARTS * sizeof *out), *in = allocate(PARTS * sizeof *in);
    for (size_t i = 0; i < PARTS; i++) {
        out[i] = (struct iovec){block(BYTES, 10 + i), BYTES};
        in[i] = (struct iovec){block(BYTES, 99), BYTES};
    }
    evict_data(out[PARTS / 2].iov_base, BYTES);
    evict(out, PARTS * sizeof *out);
    EXPECT(PARTS * BYTES, writev(ends[1], out, PARTS));
    evict(in, PARTS * sizeof *in);
    EXPECT(PARTS * BYTES, readv(ends[0], in, PARTS));
    for (size_t i = 0; i < PARTS; i++)
        verify_random("readv", in[i].iov_base, BYTES, 10 + i);

    for (size_t i = 0; i < PARTS; i++) fill_random(in[i].iov_base, BYTES, 98);
    evict(out, PARTS * sizeof *out);
    EXPECT(PARTS * BYTES, pwritev(file, out, PARTS, 100));
    evict(in, PARTS * sizeof *in);
    EXPECT(PARTS * BYTES, preadv(file, in, PARTS, 100));
    for (size_t i = 0; i < PARTS; i++) {
        verify_random("preadv", in[i].iov_base, BYTES, 10 + i);
        free(in[i].iov_base);
        free(out[i].iov_base);
    }
    free(in);
    free(out);
    close_pair(ends);
    CALL(close(file));
    CALL(unlink(path));
    free(path);
}

/* More memory than one call may pin. The call must still transfer all of it. */
static void long_vectors(void) {
    size_t bytes = 16 * MIB, parts = 3;
    char *path = fresh_path("long"), *source = block(bytes, 20), *target = block(bytes, 21);
    int file = CALL(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    struct iovec out[3] = {
        {source, 100}, {source + 100, bytes - 5100}, {source + bytes - 5000, 5000}};
    struct iovec in[3] = {
        {target, bytes / 2}, {target + bytes / 2, 7}, {target + bytes / 2 + 7, bytes / 2 - 7}};
    evict_data(source, bytes);
    EXPECT(bytes, writev(file, out, (int)parts));
    EXPECT(0, lseek(file, 0, SEEK_SET));
    evict(target, bytes);
    EXPECT(bytes, readv(file, in, (int)parts));
    verify_random("long readv", target, bytes, 20);
    EXPECT(0, readv(file, in, (int)parts));

    fill_random(source, bytes, 22);
    evict(source, bytes);
    EXPECT(bytes, pwritev(file, out, (int)parts, 4096));
    EXPECT(bytes, lseek(file, 0, SEEK_CUR));
    evict(target, bytes);
    EXPECT(bytes, preadv(file, in, (int)parts, 4096));
    verify_random("long preadv", target, bytes, 22);
    EXPECT(bytes - 4096, preadv2(file, in, (int)parts, 8192, 0));
    CALL(close(file));
    CALL(unlink(path));
    free(path);
    free(source);
    free(target);
}

struct delayed_write {
    int file;
    const char *data;
    size_t bytes;
};

static void *write_later(void *argument) {
    struct delayed_write *later = argument;
    /* The reader now sleeps inside the system call: its buffer must remain valid under memory
     * pressure. */
    usleep(20000);
    evict(later->data, later->bytes);
    EXPECT(later->bytes, write(later->file, later->data, later->bytes));
    return NULL;
}

static void blocked_reader(void) {
    enum { BYTES = 40000 };
    int ends[2];
    CALL(pipe2(ends, O_CLOEXEC));
    char *source = block(BYTES, 30), *target = block(BYTES, 31);
    evict_data(source, BYTES);
    evict(target, BYTES);
    struct delayed_write later = {ends[1], source, BYTES};
    pthread_t writer;
    PTHREAD(pthread_create(&writer, NULL, write_later, &later));
    EXPECT(BYTES, read(ends[0], target, BYTES));
    verify_random("read that waited", target, BYTES, 30);
    PTHREAD(pthread_join(writer, NULL));
    close_pair(ends);
    free(source);
    free(target);
}

static void copies_between_files(void) {
    enum { BYTES = 100000 };
    char *path = fresh_path("copies"), *source = block(BYTES, 32), *target = block(BYTES, 33);
    int file = CALL(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    int other = CALL(open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    evict_data(source, BYTES);
    EXPECT(BYTES, write(file, source, BYTES));
    off_t zero = 0;
    off_t *offset = HEAP(zero);
    evict(offset, sizeof *offset);
    EXPECT(BYTES, sendfile(other, file, offset, BYTES));
    EXPECT(BYTES, *offset);
    evict(target, BYTES);
    EXPECT(BYTES, pread(other, target, BYTES, 0));
    verify_random("sendfile", target, BYTES, 32);
    CALL(close(file));
    CALL(close(other));
    CALL(unlink(path));
    free(offset);
    free(path);
    free(source);
    free(target);
}

/* ---- sockets ---------------------------------------------------------------- */

static void sockets(void) {
    enum { BYTES = 9000 };
    int *pair = allocate(2 * sizeof(int));
    evict(pair, 2 * sizeof(int));
    CALL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    char *source = block(BYTES, 40), *target = block(BYTES, 41);

    evict_data(source, BYTES);
    evict(target, BYTES);
    EXPECT(BYTES, send(pair[0], source, BYTES, 0));
    EXPECT(BYTES, recv(pair[1], target, BYTES, MSG_WAITALL));
    verify_random("recv", target, BYTES, 40);

    fill_random(target, BYTES, 42);
    evict(source, BYTES);
    evict(target, BYTES);
    EXPECT(BYTES, sendto(pair[1], source, BYTES, 0, NULL, 0));
    EXPECT(BYTES, recvfrom(pair[0], target, BYTES, MSG_WAITALL, NULL, NULL));
    verify_random("recvfrom", target, BYTES, 40);
    close_pair(pair);
    free(pair);
    free(source);
    free(target);
}

static void socket_messages(void) {
    enum { BYTES = 5000, CONTROL = CMSG_SPACE(sizeof(int)) };
    int pair[2];
    CALL(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair));
    struct msghdr *out = calloc(1, sizeof *out), *in = calloc(1, sizeof *in);
    char *source = block(2 * BYTES, 43), *target = block(2 * BYTES, 44);
    struct iovec *out_parts = allocate(2 * sizeof *out_parts);
    struct iovec *in_parts = allocate(2 * sizeof *in_parts);
    CHECK(out && in, "calloc");
    for (size_t i = 0; i < 2; i++) {
        out_parts[i] = (struct iovec){source + i * BYTES, BYTES};
        in_parts[i] = (struct iovec){target + i * BYTES, BYTES};
    }
    out->msg_iov = out_parts;
    in->msg_iov = in_parts;
    out->msg_iovlen = in->msg_iovlen = 2;
    /* The message also passes a descriptor, in control data on the heap. */
    out->msg_control = calloc(1, CONTROL);
    in->msg_control = calloc(1, CONTROL);
    out->msg_controllen = in->msg_controllen = CONTROL;
    struct cmsghdr *control = CMSG_FIRSTHDR(out);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &pair[0], sizeof(int));

    evict_data(source, 2 * BYTES);
    evict(out, sizeof *out);
    EXPECT(2 * BYTES, sendmsg(pair[0], out, 0));
    evict(in, sizeof *in);
    evict(target, 2 * BYTES);
    EXPECT(2 * BYTES, recvmsg(pair[1], in, MSG_CMSG_CLOEXEC));
    verify_random("recvmsg", target, 2 * BYTES, 43);
    control = CMSG_FIRSTHDR(in);
    CHECK(control && control->cmsg_type == SCM_RIGHTS, "recvmsg: the control data is missing");
    int passed;
    memcpy(&passed, CMSG_DATA(control), sizeof passed);
    struct stat mine, theirs;
    CALL(fstat(pair[0], &mine));
    CALL(fstat(passed, &theirs));
    EXPECT(mine.st_ino, theirs.st_ino);
    CALL(close(passed));

    /* Several messages in one call, with a vector of headers. */
    struct mmsghdr *many = calloc(2, sizeof *many);
    CHECK(many, "calloc");
    for (size_t i = 0; i < 2; i++)
        many[i].msg_hdr = (struct msghdr){.msg_iov = &out_parts[i], .msg_iovlen = 1};
    evict(many, 2 * sizeof *many);
    EXPECT(2, sendmmsg(pair[0], many, 2, 0));
    EXPECT(BYTES, many[1].msg_len);
    for (size_t i = 0; i < 2; i++) many[i].msg_hdr.msg_iov = &in_parts[i];
    fill_random(target, 2 * BYTES, 45);
    evict(many, 2 * sizeof *many);
    evict(target, 2 * BYTES);
    EXPECT(2, recvmmsg(pair[1], many, 2, 0, NULL));
    EXPECT(BYTES, many[0].msg_len);
    verify_random("recvmmsg", target, 2 * BYTES, 43);

    free(many);
    free(out->msg_control);
    free(in->msg_control);
    free(out_parts);
    free(in_parts);
    free(out);
    free(in);
    free(source);
    free(target);
    close_pair(pair);
}

/* A message longer than the budget, over a stream. */
enum { LONG_MIB = 64, RECEIVED_MIB = 16 };

static void *receive_long(void *argument) {
    int from = *(int *)argument;
    char *target = allocate(RECEIVED_MIB * MIB);
    for (size_t done = 0; done < LONG_MIB; done += RECEIVED_MIB) {
        struct iovec in = {target, RECEIVED_MIB * MIB};
        struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1};
        EXPECT(in.iov_len, recvmsg(from, &message, MSG_WAITALL));
        for (size_t i = 0; i < RECEIVED_MIB; i++)
            verify_random("long message", target + i * MIB, MIB, 800 + done + i);
    }
    free(target);
    return NULL;
}

static void long_message(void) {
    int pair[2];
    CALL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    char *source = allocate(LONG_MIB * MIB);
    for (size_t i = 0; i < LONG_MIB; i++) fill_random(source + i * MIB, MIB, 800 + i);
    evict_data(source, LONG_MIB * MIB);
    pthread_t receiver;
    PTHREAD(pthread_create(&receiver, NULL, receive_long, &pair[1]));
    struct iovec out[2] = {{source, 12345}, {source + 12345, LONG_MIB * MIB - 12345}};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = out, .msg_iovlen = 2}};
    EXPECT(LONG_MIB * MIB, sendmsg(pair[0], &message.msg_hdr, 0));
    PTHREAD(pthread_join(receiver, NULL));

    PTHREAD(pthread_create(&receiver, NULL, receive_long, &pair[1]));
    EXPECT(1, sendmmsg(pair[0], &message, 1, 0));
    EXPECT(LONG_MIB * MIB, message.msg_len);
    PTHREAD(pthread_join(receiver, NULL));
    close_pair(pair);
    free(source);
}

static void socket_addresses(void) {
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in *name = HEAP(local);
    socklen_t length = sizeof local;
    socklen_t *heap_length = HEAP(length);
    int server = CALL(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int client = CALL(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    evict(name, sizeof *name);
    CALL(bind(server, (struct sockaddr *)name, sizeof *name));
    CALL(listen(server, 1));
    evict(name, sizeof *name);
    CALL(getsockname(server, (struct sockaddr *)name, heap_length));
    EXPECT(sizeof local, *heap_length);
    struct sockaddr_in address = *name;
    evict_data(&name->sin_family, sizeof name->sin_family);
    CALL(connect(client, (struct sockaddr *)name, sizeof *name));
    evict(name, sizeof *name);
    int accepted = CALL(accept4(server, (struct sockaddr *)name, heap_length, SOCK_CLOEXEC));
    CHECK(name->sin_family == AF_INET && name->sin_port != address.sin_port,
          "accept: not the client's address");
    evict(name, sizeof *name);
    CALL(getpeername(client, (struct sockaddr *)name, heap_length));
    EXPECT(address.sin_port, name->sin_port);

    int one = 1;
    int *value = HEAP(one);
    evict(value, sizeof *value);
    CALL(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, value, sizeof *value));
    *value = -1;
    *heap_length = sizeof *value;
    evict(value, sizeof *value);
    CALL(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, value, heap_length));
    EXPECT(1, *value);
    EXPECT(sizeof *value, *heap_length);
    CALL(close(accepted));
    CALL(close(client));
    CALL(close(server));
    free(name);
    free(value);
    free(heap_length);
}

/* ---- paths -------------------------------------------------------------------- */

static void paths(void) {
    char *path = fresh_path("path"), *other = fresh_path("other"), *link = fresh_path("link");
    struct stat *status = allocate(sizeof *status);
    evict_data(path, strlen(path));
    CALL(close(CALL(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640))));
    evict(path, strlen(path));
    CALL(chmod(path, 0600));
    CALL(truncate(path, 4321));
    evict(status, sizeof *status);
    CALL(stat(path, status));
    EXPECT(4321, status->st_size);
    EXPECT(0600, status->st_mode & 0777);
    memset(status, 0xff, sizeof *status);
    evict(status, sizeof *status);
    CALL(lstat(path, status));
    EXPECT(4321, status->st_size);
    CALL(access(path, R_OK));
    struct statx *extended = allocate(sizeof *extended);
    evict(extended, sizeof *extended);
    CALL(statx(AT_FDCWD, path, 0, STATX_SIZE, extended));
    EXPECT(4321, extended->stx_size);
    struct statfs *system = allocate(sizeof *system);
    evict(system, sizeof *system);
    CALL(statfs(path, system));
    CHECK(system->f_bsize > 0, "statfs: no block size");
    struct timespec times[2] = {{1000, 0}, {2000, 0}};
    struct timespec *heap_times = heap_copy(times, sizeof times);
    evict(heap_times, sizeof times);
    CALL(utimensat(AT_FDCWD, path, heap_times, 0));
    CALL(stat(path, status));
    EXPECT(2000, status->st_mtim.tv_sec);

    evict(other, strlen(other));
    CALL(rename(path, other));
    EXPECT_ERRNO(ENOENT, access(path, F_OK));
    evict(link, strlen(link));
    CALL(symlink(other, link));
    char *target = block(PATH_MAX, 50);
    evict(target, PATH_MAX);
    ssize_t length = CALL(readlink(link, target, PATH_MAX - 1));
    target[length] = 0;
    CHECK(strcmp(target, other) == 0, "readlink: expected '%s', got '%s'", other, target);
    char *real_other = realpath(other, NULL);
    evict(target, PATH_MAX);
    evict(link, strlen(link));
    CHECK(realpath(link, target) == target, "realpath: %s", strerror(errno));
    CHECK(real_other && strcmp(target, real_other) == 0, "realpath: expected '%s', got '%s'",
          real_other, target);
    evict(link, strlen(link));
    CALL(unlink(link));
    evict(other, strlen(other));
    CALL(unlink(other));
    evict(path, strlen(path));
    CALL(mkdir(path, 0700));
    CALL(rmdir(path));
    free(heap_times);
    free(real_other);
    free(system);
    free(extended);
    free(status);
    free(target);
    free(path);
    free(other);
    free(link);
}

static void working_directory(void) {
    char expected[PATH_MAX]; /* the stack is not swapped */
    CHECK(getcwd(expected, sizeof expected), "getcwd: %s", strerror(errno));
    char *got = block(PATH_MAX, 51);
    evict(got, PATH_MAX);
    CHECK(getcwd(got, PATH_MAX) == got, "getcwd: %s", strerror(errno));
    evict_data(got, 1);
    CHECK(strcmp(got, expected) == 0, "getcwd: expected '%s', got '%s'", expected, got);
    free(got);
}

static void directories(void) {
    enum { FILES = 300 };
    char *path = fresh_path("directory");
    CALL(mkdir(path, 0700));
    char *name = allocate(strlen(path) + 200);
    for (int i = 0; i < FILES; i++) {
        sprintf(name, "%s/a-rather-long-name-so-that-several-reads-are-needed-%d", path, i);
        CALL(close(CALL(open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600))));
    }
    DIR *entries = opendir(path);
    CHECK(entries, "opendir: %s", strerror(errno));
    /* The C library allocated the stream's buffer. The case does not know its address. */
    evict_data(path, strlen(path));
    bool seen[FILES] = {false};
    int found = 0, i;
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (sscanf(entry->d_name, "a-rather-long-name-so-that-several-reads-are-needed-%d", &i) != 1)
            continue;
        CHECK(i >= 0 && i < FILES && !seen[i], "readdir: '%s' is wrong or listed twice",
              entry->d_name);
        seen[i] = true;
        if (++found % 100 == 0) evict(path, strlen(path));
    }
    EXPECT(FILES, found);
    EXPECT(0, closedir(entries));
    for (i = 0; i < FILES; i++) {
        sprintf(name, "%s/a-rather-long-name-so-that-several-reads-are-needed-%d", path, i);
        CALL(unlink(name));
    }
    CALL(rmdir(path));
    free(name);
    free(path);
}

/* ---- calls that write small buffers --------------------------------------------- */

static void randomness(void) {
    enum { BYTES = 100000 };
    char *at = calloc(1, BYTES);
    CHECK(at, "calloc");
    evict(at, BYTES);
    for (size_t done = 0; done < BYTES;)
        done += (size_t)CALL(getrandom(at + done, BYTES - done, 0));
    if (inject_now()) memset(at + BYTES / 2, 0, PAGE);
    for (size_t i = 0; i + 32 <= BYTES; i += 32) {
        static const char zeros[32];
        CHECK(memcmp(at + i, zeros, 32) != 0, "getrandom left zeros at byte %zu", i);
    }
    evict(at, 256);
    CALL(getentropy(at, 256));
    free(at);
}

static void waiting_for_descriptors(void) {
    int ends[2];
    CALL(pipe2(ends, O_CLOEXEC));
    int poller = CALL(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event *event = allocate(sizeof *event), *events = allocate(64 * sizeof *events);
    *event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 0x1234567890abcdef};
    evict_data(&event->data, sizeof event->data);
    CALL(epoll_ctl(poller, EPOLL_CTL_ADD, ends[0], event));
    evict(events, 64 * sizeof *events);
    EXPECT(0, epoll_wait(poller, events, 64, 0));
    EXPECT(1, write(ends[1], "x", 1));
    EXPECT(1, epoll_wait(poller, events, 64, 10000));
    EXPECT(0x1234567890abcdef, events[0].data.u64);

    struct pollfd *polled = allocate(2 * sizeof *polled);
    polled[0] = (struct pollfd){.fd = ends[0], .events = POLLIN};
    polled[1] = (struct pollfd){.fd = ends[1], .events = POLLIN};
    evict(polled, 2 * sizeof *polled);
    EXPECT(1, poll(polled, 2, 10000));
    EXPECT(POLLIN, polled[0].revents);
    EXPECT(0, polled[1].revents);
    polled[0].revents = 0;
    struct timespec second = {1, 0};
    struct timespec *limit = HEAP(second);
    evict(polled, 2 * sizeof *polled);
    EXPECT(1, ppoll(polled, 2, limit, NULL));
    EXPECT(POLLIN, polled[0].revents);

    fd_set *set = allocate(sizeof *set);
    struct timeval *time = allocate(sizeof *time);
    FD_ZERO(set);
    FD_SET(ends[0], set);
    *time = (struct timeval){10, 0};
    evict(set, sizeof *set);
    EXPECT(1, select(ends[0] + 1, set, NULL, NULL, time));
    CHECK(FD_ISSET(ends[0], set), "select: the set is empty");
    evict(set, sizeof *set);
    EXPECT(1, pselect(ends[0] + 1, set, NULL, NULL, limit, NULL));

    int *ready = calloc(1, sizeof *ready);
    CHECK(ready, "calloc");
    evict(ready, sizeof *ready);
    CALL(ioctl(ends[0], FIONREAD, ready));
    EXPECT(1, *ready);
    free(ready);
    free(time);
    free(set);
    free(limit);
    free(polled);
    free(events);
    free(event);
    CALL(close(poller));
    close_pair(ends);
}

static void clocks(void) {
    struct timespec before, after, *now = calloc(1, sizeof *now);
    CHECK(now, "calloc");
    CALL(clock_gettime(CLOCK_MONOTONIC, &before));
    evict(now, sizeof *now);
    CALL(clock_gettime(CLOCK_MONOTONIC, now));
    struct timespec first = *now;
    /* Without the vDSO the kernel writes the result. */
    evict(now, sizeof *now);
    CALL(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now));
    evict_data(&now->tv_sec, sizeof now->tv_sec);
    CALL(clock_gettime(CLOCK_MONOTONIC, &after));
    CHECK(first.tv_sec >= before.tv_sec && now->tv_sec >= first.tv_sec &&
              now->tv_sec <= after.tv_sec,
          "clock_gettime: %lld, %lld not within %lld..%lld", (long long)first.tv_sec,
          (long long)now->tv_sec, (long long)before.tv_sec, (long long)after.tv_sec);

    *now = (struct timespec){0, 1000000};
    evict(now, sizeof *now);
    CALL(nanosleep(now, now));
    struct timeval *day = calloc(1, sizeof *day);
    evict(day, sizeof *day);
    CALL(syscall(SYS_gettimeofday, day, NULL));
    CHECK(day->tv_sec > 1600000000, "gettimeofday: %lld", (long long)day->tv_sec);
    struct tms *used = allocate(sizeof *used);
    memset(used, 0xff, sizeof *used);
    evict(used, sizeof *used);
    CHECK(times(used) != (clock_t)-1 && used->tms_utime >= 0, "times: %s", strerror(errno));
    struct rusage *usage = allocate(sizeof *usage);
    memset(usage, 0xff, sizeof *usage);
    evict(usage, sizeof *usage);
    CALL(getrusage(RUSAGE_SELF, usage));
    CHECK(usage->ru_maxrss > 0 && usage->ru_utime.tv_sec >= 0, "getrusage: nothing");

    int timer = CALL(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    struct itimerspec soon = {.it_value = {0, 1000000}};
    struct itimerspec *setting = HEAP(soon);
    evict(setting, sizeof *setting);
    CALL(timerfd_settime(timer, 0, setting, NULL));
    uint64_t *expirations = calloc(1, 8);
    evict(expirations, 8);
    EXPECT(8, read(timer, expirations, 8));
    EXPECT(1, *expirations);
    CALL(close(timer));
    free(expirations);
    free(setting);
    free(usage);
    free(used);
    free(day);
    free(now);
}

static void small_structures(void) {
    struct utsname *names = allocate(sizeof *names);
    evict(names, sizeof *names);
    CALL(uname(names));
    CHECK(strcmp(names->sysname, "Linux") == 0, "uname: '%s'", names->sysname);
    struct rlimit *limit = calloc(1, sizeof *limit);
    evict(limit, sizeof *limit);
    CALL(getrlimit(RLIMIT_NOFILE, limit));
    CHECK(limit->rlim_cur > 0, "getrlimit: zero");
    cpu_set_t *cpus = calloc(1, sizeof *cpus);
    evict(cpus, sizeof *cpus);
    CALL(sched_getaffinity(0, sizeof *cpus, cpus));
    CHECK(CPU_COUNT(cpus) > 0, "sched_getaffinity: none");
    uint64_t five = 5, *value = HEAP(five);
    int event = CALL(eventfd(0, EFD_CLOEXEC));
    evict_data(value, 8);
    EXPECT(8, write(event, value, 8));
    evict(value, 8);
    EXPECT(8, read(event, value, 8));
    EXPECT(5, *value);
    CALL(close(event));
    free(value);
    free(cpus);
    free(limit);
    free(names);
}

/* ---- futex ------------------------------------------------------------------------ */

struct rally {
    pthread_mutex_t lock;
    pthread_cond_t turn_changed;
    char distance[PAGE]; /* the count is on another page than the lock */
    uint64_t count;
};

static void take_turn(struct rally *rally, uint64_t own) {
    PTHREAD(pthread_mutex_lock(&rally->lock));
    while (rally->count % 2 != own)
        PTHREAD(pthread_cond_wait(&rally->turn_changed, &rally->lock));
    rally->count++;
    PTHREAD(pthread_cond_signal(&rally->turn_changed));
    PTHREAD(pthread_mutex_unlock(&rally->lock));
}

static void *rally_side(void *rally) {
    for (int i = 0; i < 200; i++) take_turn(rally, 1);
    return NULL;
}

static void locks(void) {
    struct rally *rally = calloc(1, sizeof *rally);
    CHECK(rally, "calloc");
    PTHREAD(pthread_mutex_init(&rally->lock, NULL));
    PTHREAD(pthread_cond_init(&rally->turn_changed, NULL));
    pthread_t other;
    PTHREAD(pthread_create(&other, NULL, rally_side, rally));
    for (int i = 0; i < 200; i++) {
        if (i == 100) evict(rally, sizeof *rally); /* the other thread waits on the condition */
        take_turn(rally, 0);
    }
    PTHREAD(pthread_join(other, NULL));
    evict_data(&rally->count, 8);
    EXPECT(400, rally->count);
    PTHREAD(pthread_mutex_destroy(&rally->lock));
    PTHREAD(pthread_cond_destroy(&rally->turn_changed));
    free(rally);
}

static void *wake_later(void *argument) {
    uint32_t *word = argument;
    usleep(20000);
    evict(word, sizeof *word);
    __atomic_store_n(word, 8, __ATOMIC_SEQ_CST);
    evict(word, sizeof *word);
    CALL(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    return NULL;
}

static void futexes(void) {
    uint32_t seven = 7;
    uint32_t *word = HEAP(seven);
    struct timespec moment = {0, 5000000};
    struct timespec *limit = HEAP(moment);
    evict_data(word, sizeof *word);
    evict(limit, sizeof *limit);
    EXPECT_ERRNO(EAGAIN, syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 6, limit, NULL, 0));
    evict(word, sizeof *word);
    EXPECT_ERRNO(ETIMEDOUT, syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 7, limit, NULL, 0));
    pthread_t waker;
    PTHREAD(pthread_create(&waker, NULL, wake_later, word));
    evict(word, sizeof *word);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 7) {
        long result = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 7, NULL, NULL, 0);
        CHECK(result == 0 || errno == EAGAIN || errno == EINTR, "futex: %s", strerror(errno));
    }
    PTHREAD(pthread_join(waker, NULL));
    EXPECT(8, *word);
    sem_t *semaphore = allocate(sizeof *semaphore);
    CALL(sem_init(semaphore, 0, 1));
    evict(semaphore, sizeof *semaphore);
    CALL(sem_wait(semaphore));
    EXPECT_ERRNO(EAGAIN, sem_trywait(semaphore));
    CALL(sem_destroy(semaphore));
    free(semaphore);
    free(limit);
    free(word);
}

/* ---- cases that change the process, so they run one at a time -------------------- */

static atomic_int handled;
static void count_signal(int signal) { atomic_fetch_add(&handled, signal); }

static void signal_structures(void) {
    struct sigaction *set = calloc(1, sizeof *set), *got = calloc(1, sizeof *got);
    CHECK(set && got, "calloc");
    set->sa_handler = count_signal;
    set->sa_flags = SA_RESTART;
    sigaddset(&set->sa_mask, SIGUSR1);
    evict_data(&set->sa_mask, 1);
    CALL(sigaction(SIGUSR2, set, NULL));
    evict(got, sizeof *got);
    CALL(sigaction(SIGUSR2, NULL, got));
    CHECK(got->sa_handler == count_signal, "sigaction: returned another handler");
    CHECK(got->sa_flags & SA_RESTART, "sigaction: SA_RESTART is missing");
    for (int signal = 1; signal < 32; signal++)
        EXPECT(signal == SIGUSR1, sigismember(&got->sa_mask, signal));
    atomic_store(&handled, 0);
    CALL(raise(SIGUSR2));
    EXPECT(SIGUSR2, atomic_load(&handled));

    sigset_t *mask = allocate(sizeof *mask), *old = allocate(sizeof *old);
    sigemptyset(mask);
    sigaddset(mask, SIGUSR2);
    evict(mask, sizeof *mask);
    evict(old, sizeof *old);
    CALL(sigprocmask(SIG_BLOCK, mask, old));
    EXPECT(0, sigismember(old, SIGUSR2));
    CALL(raise(SIGUSR2));
    EXPECT(SIGUSR2, atomic_load(&handled));
    sigset_t *pending = allocate(sizeof *pending);
    evict(pending, sizeof *pending);
    CALL(sigpending(pending));
    EXPECT(1, sigismember(pending, SIGUSR2));
    siginfo_t *info = allocate(sizeof *info);
    struct timespec second = {1, 0};
    struct timespec *limit = HEAP(second);
    evict(info, sizeof *info);
    EXPECT(SIGUSR2, sigtimedwait(mask, info, limit));
    EXPECT(getpid(), info->si_pid);
    evict(old, sizeof *old);
    CALL(sigprocmask(SIG_SETMASK, old, NULL));
    CALL(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = SIG_DFL}, NULL));
    free(limit);
    free(info);
    free(pending);
    free(old);
    free(mask);
    free(got);
    free(set);
}

/* The C library uses threads of its own for aio_write and SIGEV_THREAD. These calls succeed or
 * fail, but do not kill the program. */
static void wake_nobody(union sigval value) { (void)value; }

static void helper_threads(void) {
    enum { BYTES = 80000 };
    char *path = fresh_path("helpers"), *source = block(BYTES, 70), *target = block(BYTES, 71);
    int file = CALL(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    struct aiocb *request = calloc(1, sizeof *request);
    CHECK(request, "calloc");
    request->aio_fildes = file;
    request->aio_buf = source;
    request->aio_nbytes = BYTES;
    evict_data(source, BYTES);
    if (aio_write(request) == 0) {
        while (aio_error(request) == EINPROGRESS) usleep(1000);
        EXPECT(BYTES, aio_return(request));
    } else {
        EXPECT(ENOSYS, errno);
        EXPECT(BYTES, pwrite(file, source, BYTES, 0));
    }
    evict(target, BYTES);
    EXPECT(BYTES, pread(file, target, BYTES, 0));
    verify_random("asynchronous write", target, BYTES, 70);

    timer_t *timer = calloc(1, sizeof *timer);
    struct sigevent *event = calloc(1, sizeof *event);
    CHECK(timer && event, "calloc");
    event->sigev_notify = SIGEV_THREAD;
    event->sigev_notify_function = wake_nobody;
    evict(event, sizeof *event);
    if (timer_create(CLOCK_MONOTONIC, event, timer) == 0)
        CALL(timer_delete(*timer));
    else
        EXPECT(ENOTSUP, errno);
    event->sigev_notify = SIGEV_NONE;
    evict(event, sizeof *event);
    CALL(timer_create(CLOCK_MONOTONIC, event, timer));
    CALL(timer_delete(*timer));
    CALL(close(file));
    CALL(unlink(path));
    free(event);
    free(timer);
    free(request);
    free(path);
    free(source);
    free(target);
}

/* The bad pointers point to managed addresses that are unmapped before the calls. */
static void bad_pointers(void) {
    int ends[2];
    CALL(pipe2(ends, O_CLOEXEC));
    char *gone = map_pages(4 * MIB), *half = map_pages(4 * MIB);
    fill_random(gone, 4 * MIB, 60);
    fill_random(half, 4 * MIB, 61);
    evict(half, 2 * MIB);
    if (!inject_now()) CALL(munmap(gone, 4 * MIB));
    CALL(munmap(half + 2 * MIB, 2 * MIB));
    EXPECT_ERRNO(EFAULT, write(ends[1], gone + MIB, 100));
    EXPECT_ERRNO(EFAULT, stat(gone + MIB, (struct stat *)(half + MIB)));
    EXPECT_ERRNO(EFAULT, open(gone + MIB, O_RDONLY));
    EXPECT(1, write(ends[1], "x", 1));
    EXPECT_ERRNO(EFAULT, read(ends[0], gone + MIB, 1));
    EXPECT_ERRNO(EFAULT, stat(directory, (struct stat *)(gone + MIB)));
    struct iovec *parts = allocate(sizeof *parts);
    *parts = (struct iovec){gone + MIB, 100};
    EXPECT_ERRNO(EFAULT, writev(ends[1], parts, 1));
    EXPECT_ERRNO(EFAULT, writev(ends[1], (struct iovec *)(gone + MIB), 1));

    /* A buffer with a valid start and an invalid end. The call may write the valid part or fail,
     * but must not write other bytes. */
    CALL(ioctl(ends[0], FIONREAD, &(int){0}));
    int fresh[2];
    CALL(pipe2(fresh, O_CLOEXEC));
    ssize_t written = write(fresh[1], half + 2 * MIB - PAGE, 2 * PAGE);
    CHECK(written == (ssize_t)PAGE || (written == -1 && errno == EFAULT),
          "write across the end of a mapping: %zd, %s", written, strerror(errno));
    char got[PAGE];
    if (written > 0) {
        EXPECT(PAGE, read(fresh[0], got, PAGE));
        CHECK(memcmp(got, half + 2 * MIB - PAGE, PAGE) == 0, "other bytes were written");
    }
    verify_random("the remaining part of the mapping", half, 2 * MIB, 61);
    CALL(munmap(half, 2 * MIB));
    char *closed = map_pages(MIB);
    CALL(mprotect(closed, MIB, PROT_NONE));
    EXPECT_ERRNO(EFAULT, write(ends[1], closed, 100));
    CALL(mprotect(closed, MIB, PROT_READ));
    EXPECT(100, write(ends[1], closed, 100));
    EXPECT_ERRNO(EFAULT, read(ends[0], closed, 1));
    CALL(munmap(closed, MIB));
    free(parts);
    close_pair(ends);
    close_pair(fresh);
}

/* ---- all cases concurrently ------------------------------------------------------- */

static void (*const concurrent[])(void) = {
    pipes,        large_file, stdio,      vectors,   blocked_reader,
    sockets,      paths,      directories, clocks,   copies_between_files,
    randomness,   futexes,    locks,      socket_messages,
    socket_addresses, waiting_for_descriptors, small_structures, working_directory,
};
enum { CONCURRENT = sizeof concurrent / sizeof *concurrent };

static void *run_shuffled(void *argument) {
    size_t me = (size_t)argument, rounds = option_number("rounds", 1);
    for (size_t i = 0; i < rounds * CONCURRENT; i++)
        /* Each thread begins at another case. */
        concurrent[(me * 4 + i * 5) % CONCURRENT]();
    return NULL;
}

static void threads_under_churn(void) {
    _Static_assert(CONCURRENT % 5 != 0, "the stride must reach every case");
    size_t threads = option_number("threads", 4);
    pthread_t ids[16];
    CHECK(threads <= 16, "at most 16 threads");
    churn_start();
    for (size_t i = 0; i < threads; i++)
        PTHREAD(pthread_create(&ids[i], NULL, run_shuffled, (void *)i));
    for (size_t i = 0; i < threads; i++) PTHREAD(pthread_join(ids[i], NULL));
    churn_stop();
}

static const struct check_case cases[] = {
    {"pipe", pipes},
    {"large-file", large_file},
    {"stdio", stdio},
    {"vectors", vectors},
    {"long-vectors", long_vectors},
    {"blocked-reader", blocked_reader},
    {"copies-between-files", copies_between_files},
    {"sockets", sockets},
    {"socket-messages", socket_messages},
    {"long-message", long_message},
    {"socket-addresses", socket_addresses},
    {"paths", paths},
    {"working-directory", working_directory},
    {"directories", directories},
    {"randomness", randomness},
    {"waiting-for-descriptors", waiting_for_descriptors},
    {"clocks", clocks},
    {"small-structures", small_structures},
    {"locks", locks},
    {"futexes", futexes},
    {"signal-structures", signal_structures},
    {"helper-threads", helper_threads},
    {"bad-pointers", bad_pointers},
    {"threads-under-churn", threads_under_churn},
};

static void remove_directory(void) { rmdir(directory); }

int main(int argc, char **argv) {
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/guard-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(directory)) {
        perror(directory);
        return 2;
    }
    atexit(remove_directory);
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
