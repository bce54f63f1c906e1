/* Tests the kernel's polled reads without softswap.
 *
 *   iopoll PATH write COUNT       writes COUNT blocks of known words
 *   iopoll PATH interrupt COUNT   reads them one at a time through io_uring,
 *   iopoll PATH polled COUNT      the second time with IORING_SETUP_IOPOLL,
 *                                 and compares every word
 *
 * Prints one line. Exit status 0: success; 1: wrong data or a failed call; 3: the kernel refused
 * the read. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, ENTRIES = 8 };

static struct {
    int fd;
    unsigned *sq_tail, *sq_array, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void *map_ring(size_t bytes, off_t offset) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, offset);
    if (at == MAP_FAILED) die("mmap of the ring");
    return at;
}

static void open_ring(unsigned flags) {
    struct io_uring_params p = {.flags = flags};
    ring.fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (ring.fd < 0) die("io_uring_setup");
    char *sq = map_ring(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = map_ring(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
                        IORING_OFF_CQ_RING);
    ring.sqes = map_ring(p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring.sq_tail = (unsigned *)(sq + p.sq_off.tail);
    ring.sq_array = (unsigned *)(sq + p.sq_off.array);
    ring.sq_mask = *(unsigned *)(sq + p.sq_off.ring_mask);
    ring.cq_head = (unsigned *)(cq + p.cq_off.head);
    ring.cq_tail = (unsigned *)(cq + p.cq_off.tail);
    ring.cq_mask = *(unsigned *)(cq + p.cq_off.ring_mask);
    ring.cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

/* Reads one block. Returns the completion's result; `enters` counts the calls. */
static int read_block(int file, void *into, uint64_t block, unsigned long *enters) {
    unsigned tail = *ring.sq_tail, slot = tail & ring.sq_mask;
    ring.sqes[slot] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ,
        .fd = file,
        .addr = (uintptr_t)into,
        .len = BLOCK,
        .off = block * BLOCK,
        .user_data = block,
    };
    ring.sq_array[slot] = slot;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    unsigned submit = 1, head = *ring.cq_head;
    while (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head) {
        if (syscall(SYS_io_uring_enter, ring.fd, submit, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) {
            if (errno != EINTR) die("io_uring_enter");
            continue;
        }
        submit = 0;
        ++*enters;
    }
    struct io_uring_cqe *cqe = &ring.cqes[head & ring.cq_mask];
    int result = cqe->user_data == block ? cqe->res : -EPROTO;
    __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

static uint64_t word_of(uint64_t block, unsigned word) {
    uint64_t x = (block * (BLOCK / 8) + word + 1) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static void fill(uint64_t *at, uint64_t block) {
    for (unsigned i = 0; i < BLOCK / 8; i++) at[i] = word_of(block, i);
}

static int matches(const uint64_t *at, uint64_t block) {
    for (unsigned i = 0; i < BLOCK / 8; i++)
        if (at[i] != word_of(block, i)) return 0;
    return 1;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void write_blocks(int file, uint64_t *buffer, uint64_t count) {
    for (uint64_t block = 0; block < count; block++) {
        fill(buffer, block);
        if (pwrite(file, buffer, BLOCK, (off_t)(block * BLOCK)) != BLOCK) die("pwrite");
    }
    printf("%llu blocks written\n", (unsigned long long)count);
}

/* The exit status. */
static int read_blocks(int file, uint64_t *buffer, uint64_t count) {
    unsigned long enters = 0;
    uint64_t spent_ns = 0;
    for (uint64_t block = 0; block < count; block++) {
        memset(buffer, 0xa5, BLOCK);
        uint64_t start_ns = now_ns();
        int result = read_block(file, buffer, block, &enters);
        spent_ns += now_ns() - start_ns;
        if (result < 0) {
            printf("refused: %s\n", strerror(-result));
            return 3;
        }
        if (result != BLOCK || !matches(buffer, block)) {
            printf("wrong data in block %llu, %d bytes\n", (unsigned long long)block, result);
            return 1;
        }
    }
    printf("%llu blocks equal, %.0f us each, %lu calls\n", (unsigned long long)count,
           (double)spent_ns / 1e3 / (double)count, enters);
    return 0;
}

int main(int argc, char **argv) {
    const char *how = argc == 4 ? argv[2] : "";
    int writes = strcmp(how, "write") == 0, polled = strcmp(how, "polled") == 0;
    if (!writes && !polled && strcmp(how, "interrupt") != 0) {
        fprintf(stderr, "iopoll PATH write|interrupt|polled COUNT\n");
        return 2;
    }
    uint64_t count = strtoull(argv[3], NULL, 10), *buffer;
    if (posix_memalign((void **)&buffer, BLOCK, BLOCK)) die("posix_memalign");
    int file = open(argv[1], O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0) die(argv[1]);
    if (writes) {
        write_blocks(file, buffer, count);
        return 0;
    }
    open_ring(polled ? IORING_SETUP_IOPOLL : 0);
    return read_blocks(file, buffer, count);
}
