/* Fills so many MiB, half of each page not packing, and touches COUNT pages of them:
 *   touches random|zipf|loop MIB COUNT
 * random: each as likely; zipf: the n-th most wanted one with about 1/n; loop: one after the
 * other. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define WORDS (PAGE / 8)

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int is_zipf = strcmp(argv[1], "zipf") == 0, is_loop = strcmp(argv[1], "loop") == 0;
    size_t pages = strtoull(argv[2], NULL, 10) * (1 << 20) / PAGE;
    size_t count = strtoull(argv[3], NULL, 10);
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < WORDS; word++)
            memory[page * WORDS + word] = word % 2 ? page : mix(page * WORDS + word);
    uint64_t random = 1, octaves = 0;
    while (pages >> (octaves + 1)) octaves++;
    for (size_t turn = 0; turn < count; turn++) {
        random = mix(random);
        /* Each power of two is as likely, and within it each rank. */
        size_t octave = 1ull << random % (octaves + 1);
        size_t rank = octave - 1 + (random >> 32) % octave;
        size_t page = is_loop ? turn : is_zipf ? rank * 2654435761u : random;
        page %= pages;
        size_t word = 2 * (random % (WORDS / 2));
        if (memory[page * WORDS + word] != mix(page * WORDS + word)) return 1;
        /* A write of every fourth, of what is there. */
        if (turn % 4 == 0) *(volatile uint64_t *)&memory[page * WORDS + word + 1] = page;
    }
    return 0;
}
