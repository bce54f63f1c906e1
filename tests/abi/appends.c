/* Writes that are atomic on Linux are atomic under softswap. Each of several readers of a shared
 * file position gets its own part. */
#include "abi.h"

#include <sys/file.h>
#include <sys/time.h>

#define RECORD (5 * MIB)
#define WRITERS 2
#define EACH 4

typedef long (*writer)(int fd, unsigned char *record);

static long by_write(int fd, unsigned char *record) { return write(fd, record, RECORD); }
static long by_writev(int fd, unsigned char *record)
{
    struct iovec parts[4] = {{record, 100}, {record + 100, 2 * MIB}, {record + 100 + 2 * MIB, 0},
                             {record + 100 + 2 * MIB, RECORD - 100 - 2 * MIB}};
    return writev(fd, parts, 4);
}
static long by_pwritev2(int fd, unsigned char *record)
{
    struct iovec part = {record, RECORD};
    return pwritev2(fd, &part, 1, 0, RWF_APPEND);
}
static long by_pwrite(int fd, unsigned char *record) { return pwrite(fd, record, RECORD, 0); }
static long by_pwritev(int fd, unsigned char *record)
{
    struct iovec parts[2] = {{record, RECORD / 2}, {record + RECORD / 2, RECORD / 2}};
    return pwritev(fd, parts, 2, 0);
}

struct work {
    pthread_t thread;
    int fd, first;
    writer how;
    pthread_barrier_t *together;
    int short_ones;
};

static void *write_records(void *argument)
{
    struct work *work = argument;
    unsigned char *record = memory(RECORD, 0);
    pthread_barrier_wait(work->together);
    for (int i = 0; i < EACH; i++) {
        memset(record, work->first + i, RECORD);
        work->short_ones += work->how(work->fd, record) != RECORD;
    }
    return NULL;
}

/* Prints how many records of the file contain the data of one writer only. */
static void say_records(int fd, size_t record)
{
    static unsigned char piece[64 << 10];
    off_t len = lseek(fd, 0, SEEK_END);
    size_t whole = 0, seen[256] = {0};
    for (off_t start = 0; start + (off_t)record <= len; start += record) {
        int id = -1, same = 1;
        for (size_t at = 0; at < record; at += sizeof piece) {
            size_t part = record - at < sizeof piece ? record - at : sizeof piece;
            if (pread(fd, piece, part, start + at) != (long)part)
                same = 0;
            for (size_t i = 0; i < part; i++)
                if (id < 0)
                    id = piece[i];
                else
                    same &= piece[i] == id;
        }
        whole += same;
        seen[id & 255]++;
    }
    size_t kinds = 0;
    for (int i = 0; i < 256; i++)
        kinds += seen[i] == 1;
    say("%ld bytes, %zu whole, %zu written once", (long)len, whole, kinds);
}

static void by_threads(int flags, writer how)
{
    int fd = scratch_file(flags);
    pthread_barrier_t together;
    pthread_barrier_init(&together, NULL, WRITERS);
    struct work work[WRITERS];
    int short_ones = 0;
    for (int i = 0; i < WRITERS; i++) {
        work[i] = (struct work){.fd = fd, .first = 1 + 10 * i, .how = how, .together = &together};
        MUST(-!!pthread_create(&work[i].thread, NULL, write_records, &work[i]));
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(work[i].thread, NULL);
        short_ones += work[i].short_ones;
    }
    say("short %d", short_ones);
    say_records(fd, RECORD);
}
CASE(threads_append) { by_threads(O_APPEND, by_write); }
CASE(threads_append_vectors) { by_threads(O_APPEND, by_writev); }
CASE(threads_append_by_flag) { by_threads(0, by_pwritev2); }
CASE(threads_share_a_position) { by_threads(0, by_write); }
CASE(threads_share_a_position_vectors) { by_threads(0, by_writev); }

/* Threads write records to the same offset. Counts the rounds after which one thread's record is
   there, whole. */
static void overlap(writer how)
{
    int fd = scratch_file(0);
    int whole = 0;
    for (int round = 0; round < 3; round++) {
        pthread_barrier_t together;
        pthread_barrier_init(&together, NULL, WRITERS);
        struct work work[WRITERS];
        for (int i = 0; i < WRITERS; i++) {
            work[i] = (struct work){.fd = fd, .first = 1 + 10 * i, .how = how, .together = &together};
            MUST(-!!pthread_create(&work[i].thread, NULL, write_records, &work[i]));
        }
        for (int i = 0; i < WRITERS; i++)
            pthread_join(work[i].thread, NULL);
        static unsigned char piece[64 << 10];
        int id = -1, same = 1;
        for (size_t at = 0; at < RECORD; at += sizeof piece) {
            same &= pread(fd, piece, sizeof piece, at) == sizeof piece;
            for (size_t i = 0; i < sizeof piece; i++) {
                id = id < 0 ? piece[i] : id;
                same &= piece[i] == id;
            }
        }
        whole += same;
    }
    say("whole %d", whole);
}
CASE(overlapping_pwrite) { overlap(by_pwrite); }
CASE(overlapping_pwritev) { overlap(by_pwritev); }

static void by_processes(int flags, writer how)
{
    int fd = scratch_file(flags);
    unsigned char *record = memory(RECORD, 0);
    int start[2];
    MUST(pipe(start));
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (!children[i]) {
            char byte;
            close(start[1]);
            if (read(start[0], &byte, 1) != 0)
                _exit(1);
            int short_ones = 0;
            for (int n = 0; n < EACH; n++) {
                memset(record, 1 + 10 * i + n, RECORD);
                short_ones += how(fd, record) != RECORD;
            }
            _exit(short_ones);
        }
    }
    close(start[1]);
    for (int i = 0; i < WRITERS; i++)
        say_end("a writer", children[i]);
    say_records(fd, RECORD);
}
CASE(processes_append) { by_processes(O_APPEND, by_write); }
CASE(processes_append_vectors) { by_processes(O_APPEND, by_writev); }
CASE(processes_append_by_flag) { by_processes(0, by_pwritev2); }
CASE(processes_share_a_position) { by_processes(0, by_write); }

/* Records that one thread writes with one call, and another thread with many small calls. */
static void *write_small(void *argument)
{
    struct work *work = argument;
    static unsigned char small[100];
    memset(small, 200, sizeof small);
    pthread_barrier_wait(work->together);
    for (int i = 0; i < 2000; i++)
        work->short_ones += write(work->fd, small, sizeof small) != sizeof small;
    return NULL;
}

CASE(among_small_ones)
{
    int fd = scratch_file(O_APPEND);
    pthread_barrier_t together;
    pthread_barrier_init(&together, NULL, 2);
    struct work large = {.fd = fd, .first = 1, .how = by_write, .together = &together}, small = large;
    MUST(-!!pthread_create(&large.thread, NULL, write_records, &large));
    MUST(-!!pthread_create(&small.thread, NULL, write_small, &small));
    pthread_join(large.thread, NULL);
    pthread_join(small.thread, NULL);
    static unsigned char piece[64 << 10];
    size_t runs = 0, odd = 0, run = 0;
    int last = -1;
    lseek(fd, 0, SEEK_SET);
    long got;
    while ((got = read(fd, piece, sizeof piece)) > 0)
        for (long i = 0; i < got; i++) {
            if (piece[i] != last) {
                if (last > 0 && last < 200)
                    runs++, odd += run != RECORD;
                run = 0, last = piece[i];
            }
            run++;
        }
    if (last > 0 && last < 200)
        runs++, odd += run != RECORD;
    say("short %d, records %zu, odd %zu", large.short_ones + small.short_ones, runs, odd);
}

static int file_of(size_t len, unsigned seed)
{
    int fd = scratch_file(0);
    static unsigned char piece[PAGE];
    for (size_t at = 0; at < len; at += PAGE) {
        for (size_t i = 0; i < PAGE; i++)
            piece[i] = pattern(at + i, seed);
        MUST(write(fd, piece, PAGE));
    }
    lseek(fd, 0, SEEK_SET);
    return fd;
}

CASE(long_read)
{
    int fd = file_of(12 * MIB, 5);
    unsigned char *target = evicted_memory(20 * MIB, 3);
    RESULT(read(fd, target, 12 * MIB));
    say("wrong %zu, position %ld", wrong(target, 12 * MIB, 5), (long)lseek(fd, 0, SEEK_CUR));
    RESULT(read(fd, target, 12 * MIB));
    lseek(fd, MIB, SEEK_SET);
    RESULT(read(fd, target, 20 * MIB));
    say("wrong %zu, position %ld", wrong(target + 11 * MIB, 0, 5), (long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, 12 * MIB - 100, SEEK_SET);
    RESULT(read(fd, target, 20 * MIB));
    RESULT(read(fd, target, 20 * MIB));
    lseek(fd, 50 * MIB, SEEK_SET);
    RESULT(read(fd, target, 20 * MIB));
    say("position %ld", (long)lseek(fd, 0, SEEK_CUR));
}

CASE(long_readv)
{
    int fd = file_of(12 * MIB, 5);
    unsigned char *target = memory(20 * MIB, 3);
    struct iovec parts[3] = {{target, 5 * MIB + 7}, {target + 5 * MIB + 7, 0}, {target + 5 * MIB + 7, 12 * MIB}};
    evict();
    RESULT(readv(fd, parts, 3));
    say("wrong %zu, position %ld", wrong(target, 12 * MIB, 5), (long)lseek(fd, 0, SEEK_CUR));
    RESULT(readv(fd, parts, 3));
    fill(target, 12 * MIB, 3);
    evict();
    RESULT(preadv(fd, parts, 3, MIB));
    say("position %ld, first %d", (long)lseek(fd, 0, SEEK_CUR), target[0] == pattern(MIB, 5));
    lseek(fd, 2 * MIB, SEEK_SET);
    RESULT(preadv2(fd, parts, 3, -1, 0));
    say("position %ld, first %d", (long)lseek(fd, 0, SEEK_CUR), target[0] == pattern(2 * MIB, 5));
    RESULT(preadv2(fd, parts, 3, 3 * MIB, 0));
    say("position %ld, first %d", (long)lseek(fd, 0, SEEK_CUR), target[0] == pattern(3 * MIB, 5));
}

CASE(long_pread)
{
    int fd = file_of(12 * MIB, 5);
    unsigned char *target = evicted_memory(20 * MIB, 3);
    RESULT(pread(fd, target, 12 * MIB, 0));
    say("wrong %zu, position %ld", wrong(target, 12 * MIB, 5), (long)lseek(fd, 0, SEEK_CUR));
    RESULT(pread(fd, target, 12 * MIB, 6 * MIB));
    RESULT(pread(fd, target, 12 * MIB, 12 * MIB));
    RESULT(pread(fd, target, 12 * MIB, -1));
}

struct reader {
    pthread_t thread;
    int fd;
    size_t wrong;
    long got;
};
static void *read_records(void *argument)
{
    struct reader *reader = argument;
    unsigned char *target = memory(3 * MIB, 0);
    long got;
    while ((got = read(reader->fd, target, 3 * MIB)) > 0) {
        reader->got += got;
        for (long i = 1; i < got; i++)
            reader->wrong += target[i] != target[0];
    }
    return NULL;
}

/* Records of 3 MiB that two threads read from one position: each is complete. */
CASE(readers_share_a_position)
{
    int fd = scratch_file(0);
    static unsigned char piece[MIB];
    for (int i = 0; i < 24; i++) {
        memset(piece, 1 + i / 3, MIB);
        MUST(write(fd, piece, MIB));
    }
    lseek(fd, 0, SEEK_SET);
    struct reader readers[2] = {{.fd = fd}, {.fd = fd}};
    for (int i = 0; i < 2; i++)
        MUST(-!!pthread_create(&readers[i].thread, NULL, read_records, &readers[i]));
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i].thread, NULL);
    say("read %ld, wrong %zu, position %ld", readers[0].got + readers[1].got,
        readers[0].wrong + readers[1].wrong, (long)lseek(fd, 0, SEEK_CUR));
}

CASE(long_write)
{
    int fd = scratch_file(0), other = scratch_file(0);
    unsigned char *source = evicted_memory(40 * MIB, 7);
    RESULT(write(fd, source, 40 * MIB));
    say("position %ld", (long)lseek(fd, 0, SEEK_CUR));
    RESULT(pwrite(other, source + 3, 20 * MIB, 5));
    struct stat stat;
    fstat(other, &stat);
    say("length %ld, position %ld", (long)stat.st_size, (long)lseek(other, 0, SEEK_CUR));
    static unsigned char piece[PAGE];
    size_t bad = 0;
    for (size_t at = 0; at < 40 * MIB; at += PAGE) {
        MUST(pread(fd, piece, PAGE, at));
        for (size_t i = 0; i < PAGE; i++)
            bad += piece[i] != pattern(at + i, 7);
    }
    say("wrong %zu", bad);
}

CASE(to_a_memory_file)
{
    int fd = MUST(memfd_create("file", MFD_ALLOW_SEALING));
    unsigned char *source = evicted_memory(9 * MIB, 7);
    RESULT(write(fd, source, 9 * MIB));
    RESULT(pread(fd, source, 9 * MIB, 0));
    say("wrong %zu", wrong(source, 9 * MIB, 7));
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
    RESULT(write(fd, source, 9 * MIB));
}

CASE(past_the_page_cache)
{
    int fd = scratch_file(O_DIRECT);
    unsigned char *source = evicted_memory(9 * MIB, 7);
    RESULT(write(fd, source, 9 * MIB));
    RESULT(write(fd, source + 512, 9 * MIB - PAGE));
    RESULT(write(fd, source + 1, 8 * MIB));
    RESULT(pread(fd, source, 9 * MIB, 0));
    say("wrong %zu", wrong(source, 9 * MIB, 7));
    RESULT(pread(fd, source + 1, 8 * MIB, 0));
}

static volatile int exceeded;
static void on_exceeding(int signal) { exceeded += signal == SIGXFSZ; }

CASE(limited_size)
{
    int fd = scratch_file(0), append = scratch_file(O_APPEND);
    unsigned char *source = memory(3 * MIB, 7);
    signal(SIGXFSZ, on_exceeding);
    struct rlimit limit = {MIB + 100, MIB + 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    RESULT(write(fd, source, 3 * MIB));
    say("signals %d", exceeded);
    RESULT(write(fd, source, 3 * MIB));
    say("signals %d, position %ld", exceeded, (long)lseek(fd, 0, SEEK_CUR));
    RESULT(write(append, source, MIB / 2));
    RESULT(write(append, source, 3 * MIB));
    RESULT(write(append, source, 3 * MIB));
    say("signals %d", exceeded);
}

CASE(limit_kills)
{
    int fd = scratch_file(0);
    unsigned char *source = memory(3 * MIB, 7);
    struct rlimit limit = {MIB, MIB}, core = {0, 0};
    setrlimit(RLIMIT_CORE, &core);
    setrlimit(RLIMIT_FSIZE, &limit);
    RESULT(pwrite(fd, source, 3 * MIB, 0));
    RESULT(pwrite(fd, source, 3 * MIB, MIB));
}

CASE(wrong_descriptors)
{
    unsigned char *source = memory(9 * MIB, 7);
    int fd = MUST(open("/", O_RDONLY | O_DIRECTORY));
    RESULT(read(fd, source, 9 * MIB));
    RESULT(write(fd, source, 9 * MIB));
    RESULT(write(-1, source, 9 * MIB));
    RESULT(read(-1, source, 9 * MIB));
    RESULT(read(1000000, source, 9 * MIB));
    int file = file_of(9 * MIB, 5);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int writing = MUST(open(path, O_WRONLY)), reading = MUST(open(path, O_RDONLY));
    RESULT(read(writing, source, 9 * MIB));
    say("position %ld", (long)lseek(writing, 0, SEEK_CUR));
    RESULT(write(reading, source, 9 * MIB));
    RESULT(pwrite(writing, source, 9 * MIB, -5));
    int ends[2];
    MUST(pipe(ends));
    RESULT(pwrite(ends[1], source, 9 * MIB, 0));
    RESULT(pread(ends[0], source, 9 * MIB, 0));
    RESULT(write(reading, source, 0));
    volatile size_t too_much = SIZE_MAX / 2;
    RESULT(read(file, source, too_much));
    say("as before: %d", wrong(source, 9 * MIB, 7) == 0);
}

CASE(at_its_own_pace)
{
    int ends[2];
    MUST(pipe2(ends, O_NONBLOCK));
    unsigned char *source = memory(9 * MIB, 7), *target = memory(9 * MIB, 3);
    evict();
    RESULT(write(ends[1], source, 9 * MIB));
    RESULT(write(ends[1], source, 9 * MIB));
    RESULT(read(ends[0], target, 9 * MIB));
    say("wrong %zu", wrong(target, 65536, 7));
    RESULT(read(ends[0], target, 9 * MIB));
}

CASE(pipe_breaks)
{
    int ends[2];
    MUST(pipe(ends));
    signal(SIGPIPE, SIG_IGN);
    unsigned char *source = memory(9 * MIB, 7);
    pid_t child = fork();
    if (!child) {
        static unsigned char piece[100000];
        close(ends[1]);
        size_t got = 0;
        while (got < sizeof piece)
            got += read(ends[0], piece + got, sizeof piece - got);
        until_others_sleep(getppid());
        _exit(0);
    }
    close(ends[0]);
    long got = write(ends[1], source, 9 * MIB);
    say("some %d", got > 100000 && got < 300000);
    RESULT(write(ends[1], source, 9 * MIB));
    say_end("the reader", child);
}

CASE(stdio_writes)
{
    int fd = scratch_file(0);
    FILE *file = fdopen(fd, "w+");
    unsigned char *source = malloc(20 * MIB);
    fill(source, 20 * MIB, 7);
    evict();
    say("written %zu", fwrite(source, 1, 20 * MIB, file));
    fflush(file);
    rewind(file);
    memset(source, 0, 20 * MIB);
    evict();
    say("read %zu", fread(source, 1, 20 * MIB, file));
    say("wrong %zu", wrong(source, 20 * MIB, 7));
}

/* ---- writes that another process could observe in parts -------------------------- */

/* Larger than the memory that one call may pin, in every run of the suite except that with 64M. */
#define HUGE_RECORD (15 * MIB)

/* Two processes append through separate file descriptions. */
CASE(openers_append)
{
    int fd = scratch_file(O_APPEND);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    unsigned char *record = memory(HUGE_RECORD, 0);
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (!children[i]) {
            int own = MUST(open(path, O_WRONLY | O_APPEND));
            int short_ones = 0;
            for (int n = 0; n < 2; n++) {
                memset(record, 1 + 10 * i + n, HUGE_RECORD);
                short_ones += write(own, record, HUGE_RECORD) != (long)HUGE_RECORD;
            }
            _exit(short_ones);
        }
    }
    for (int i = 0; i < WRITERS; i++)
        say_end("a writer", children[i]);
    say_records(fd, HUGE_RECORD);
}

/* A parent writes at a file position that it shares with its child, which writes short lines. */
CASE(position_shared_with_a_child)
{
    int fd = scratch_file(0), ready[2];
    enum { LINES = 300 };
    MUST(pipe(ready));
    /* A multiple of the line length, so that a cut file ends after a line. */
    size_t len = HUGE_RECORD / 100 * 100;
    unsigned char *record = evicted_memory(len, 7);
    pid_t child = MUST(fork());
    if (!child) {
        static char line[100];
        memset(line, 'l', sizeof line);
        int bad = 0;
        for (int i = 0; i < LINES; i++) {
            bad += write(fd, line, sizeof line) != sizeof line;
            if (i == 10)
                MUST(write(ready[1], "x", 1));
        }
        _exit(bad);
    }
    char byte;
    MUST(read(ready[0], &byte, 1));
    RESULT(write(fd, record, len));
    say_end("child", child);
    say("position %ld", (long)lseek(fd, 0, SEEK_CUR));
    /* The record is complete, with lines before and after it. */
    static unsigned char piece[100];
    size_t in = 0, lines = 0, bad = 0;
    lseek(fd, 0, SEEK_SET);
    while (read(fd, piece, sizeof piece) == sizeof piece) {
        int is_line = 1;
        for (size_t i = 0; i < sizeof piece; i++)
            is_line &= piece[i] == 'l';
        lines += is_line;
        for (size_t i = 0; i < sizeof piece && !is_line; i++)
            bad += piece[i] != pattern(in++, 7);
    }
    say("record %d, lines %zu, wrong %zu", in == len, lines, bad);
}

/* A file size limit that is reached inside a part of a write, and between two parts. It also
 * limits the swap file, but all memory fits the budget. */
CASE(limit_at_any_place)
{
    enum { LEN = 3 << 20, STEP = 256 << 10 };
    signal(SIGXFSZ, on_exceeding);
    unsigned char *source = memory(LEN, 7);
    for (long limit = STEP; limit < LEN; limit += STEP) {
        int at = scratch_file(0), own = scratch_file(0), append = scratch_file(O_APPEND);
        struct rlimit size = {limit, RLIM_INFINITY};
        exceeded = 0;
        MUST(setrlimit(RLIMIT_FSIZE, &size));
        long written[4] = {pwrite(at, source, LEN, 0), write(own, source, LEN),
                           write(append, source, LEN), write(append, source, LEN)};
        int error = errno;
        size.rlim_cur = RLIM_INFINITY;
        MUST(setrlimit(RLIMIT_FSIZE, &size));
        say("%ld: %ld, %ld, %ld, %ld %s, signals %d", limit, written[0], written[1], written[2],
            written[3], strerrorname_np(error), exceeded);
        say("positions %ld, %ld", (long)lseek(own, 0, SEEK_CUR), (long)lseek(append, 0, SEEK_CUR));
        close(at), close(own), close(append);
    }
}

/* The data after a bad pointer is not written, and the file position does not include it. */
CASE(long_write_with_a_hole)
{
    for (int flags = 0; flags <= O_APPEND; flags += O_APPEND) {
        int fd = scratch_file(flags);
        unsigned char *source = memory(HUGE_RECORD, 7);
        MUST(munmap(source + 11 * MIB, 64 << 10));
        evict();
        RESULT(write(fd, source, HUGE_RECORD));
        say("position %ld", (long)lseek(fd, 0, SEEK_CUR));
        struct iovec parts[3] = {{source, 10 * MIB}, {source + 10 * MIB, 100}, {source + 11 * MIB, 3 * MIB}};
        RESULT(writev(fd, parts, 3));
        say("position %ld, length %ld", (long)lseek(fd, 0, SEEK_CUR), (long)lseek(fd, 0, SEEK_END));
        RESULT(pwrite(fd, source + 11 * MIB, 3 * MIB, 0));
        RESULT(write(fd, source + 11 * MIB, 3 * MIB));
        munmap(source, HUGE_RECORD);
        close(fd);
    }
}

/* Writes to /dev/full fail, and writes to /dev/null succeed. */
CASE(full_and_null)
{
    unsigned char *source = evicted_memory(HUGE_RECORD, 7);
    int full = MUST(open("/dev/full", O_RDWR)), null = MUST(open("/dev/null", O_WRONLY));
    struct iovec parts[2] = {{source, 7 * MIB}, {source + 7 * MIB, 8 * MIB}};
    RESULT(write(full, source, HUGE_RECORD));
    RESULT(writev(full, parts, 2));
    RESULT(write(null, source, HUGE_RECORD));
    RESULT(writev(null, parts, 2));
    RESULT(read(full, source, HUGE_RECORD));
    say("not zero %zu", not_zero((char *)source, HUGE_RECORD));
}

CASE(long_and_past_the_page_cache)
{
    int fd = scratch_file(O_DIRECT);
    unsigned char *source = evicted_memory(HUGE_RECORD + PAGE, 7);
    struct iovec parts[4] = {{source, 512}, {source + 512, 5 * MIB}, {source + 512 + 5 * MIB, 512},
                             {source + 1024 + 5 * MIB, HUGE_RECORD - 5 * MIB - 1024}};
    RESULT(write(fd, source, HUGE_RECORD));
    RESULT(writev(fd, parts, 4));
    say("position %ld", (long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, 0, SEEK_SET);
    RESULT(readv(fd, parts, 4));
    say("wrong %zu, position %ld", wrong(source, HUGE_RECORD, 7), (long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, HUGE_RECORD, SEEK_SET);
    RESULT(readv(fd, parts, 4));
    RESULT(readv(fd, parts, 4));
    say("wrong %zu", wrong(source, HUGE_RECORD, 7));
}

/* Linux runs no handler during a write to a file, so a handler sees the file before or after the
 * complete write. */
static int seen_fd;
static volatile long seen_position = -1;
static void look_at_position(int signal)
{
    (void)signal;
    seen_position = lseek(seen_fd, 0, SEEK_CUR);
}
static void *signal_often(void *argument)
{
    pthread_t to = *(pthread_t *)argument;
    for (int i = 0; i < 200; i++) {
        pthread_kill(to, SIGUSR1);
        usleep(500);
    }
    return NULL;
}
CASE(handlers_see_whole_writes)
{
    struct sigaction action = {.sa_handler = look_at_position};
    MUST(sigaction(SIGUSR1, &action, NULL));
    seen_fd = scratch_file(O_APPEND);
    unsigned char *source = evicted_memory(HUGE_RECORD, 7);
    pthread_t self = pthread_self(), thread;
    MUST(-!!pthread_create(&thread, NULL, signal_often, &self));
    size_t bad = 0, short_ones = 0;
    for (int i = 0; i < 3; i++) {
        short_ones += write(seen_fd, source, HUGE_RECORD) != (long)HUGE_RECORD;
        bad += seen_position > 0 && seen_position % HUGE_RECORD != 0;
    }
    pthread_join(thread, NULL);
    say("short %zu, between pieces %zu", short_ones, bad);
}
