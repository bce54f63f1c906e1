/* Touches pages:
 *   touch hot|stream MIB SECONDS prints the rate in touches per second over the second half.
 *   touch read MIB TOUCHES prints a sum.
 * hot and read touch pages at random, stream in order. With hot and stream, half of each page is
 * incompressible, with read all of it. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096
#define WORDS (PAGE / 8)

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int is_read = strcmp(argv[1], "read") == 0, is_random = strcmp(argv[1], "stream") != 0;
    size_t pages = strtoull(argv[2], NULL, 10) * (1 << 20) / PAGE;
    double seconds = is_read ? 1e9 : atof(argv[3]);
    uint64_t most = is_read ? strtoull(argv[3], NULL, 10) : UINT64_MAX;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < WORDS; word++)
            memory[page * WORDS + word] = word % 2 && !is_read ? page : mix(page * WORDS + word);
    double begin = now(), half = begin + seconds / 2, end = begin + seconds, at = begin;
    uint64_t touched = 0, all = 0, random = 1, sum = 0;
    size_t next = 0;
    for (; at < end && all < most; at = now())
        for (int turn = 0; turn < 16; turn++, all++) {
            size_t page = is_random ? (random = mix(random)) % pages : next;
            next = next + 1 == pages ? 0 : next + 1;
            for (size_t word = 0; word < WORDS; word++) sum += memory[page * WORDS + word];
            if (memory[page * WORDS] != mix(page * WORDS)) return 1;
            touched += at >= half;
        }
    if (is_read) return printf("%llx\n", (unsigned long long)sum) < 0;
    printf("%s %.0f %d\n", argv[1], (double)touched / (at - half), (int)(sum & 1));
    return 0;
}
