/* A hash join: a table of one relation is built, the other one probes it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct row { uint64_t key, value; };

static uint64_t mixed(uint64_t x) {
    x ^= x >> 33; x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    /* Half of the memory is the table, half of it empty; an eighth each the
       rows of the build side and of both their halves of the probe side. */
    uint64_t goal = strtoull(arguments[1], NULL, 10), places = 1;
    while (places * 2 * sizeof(struct row) <= goal / 2) places *= 2;
    uint64_t rows = (goal - places * sizeof(struct row)) / sizeof(struct row) / 2;
    uint64_t build = places / 2 < rows ? places / 2 : rows;
    struct row *table = calloc(places, sizeof *table);
    struct row *one = malloc(rows * sizeof *one), *other = malloc(rows * sizeof *other);
    if (!table || !one || !other) { fprintf(stderr, "no memory\n"); return 1; }
    for (uint64_t n = 0; n < rows; n++) {
        one[n] = (struct row){ mixed(n + 1) | 1, n };
        other[n] = (struct row){ mixed(mixed(n) % (2 * rows) + 1) | 1, mixed(n) };
    }
    for (uint64_t n = 0; n < build; n++) {
        uint64_t at = mixed(one[n].key) & (places - 1);
        while (table[at].key) at = (at + 1) & (places - 1);
        table[at] = one[n];
    }
    uint64_t met = 0, sum = 0;
    /* One probe in eight: the others would only take longer. */
    for (uint64_t n = 0; n < rows; n += 8) {
        uint64_t at = mixed(other[n].key) & (places - 1);
        while (table[at].key && table[at].key != other[n].key) at = (at + 1) & (places - 1);
        if (table[at].key) { met++; sum += table[at].value ^ other[n].value; }
    }
    printf("%llu rows, %llu met, sum %llx\n", (unsigned long long)rows,
           (unsigned long long)met, (unsigned long long)sum);
    return 0;
}
