/* A hash join: rows of one relation are stored in a hash table, and rows of the other are looked
   up in it. Rows are wide, and few rows of the second relation have a match. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct row { uint64_t key, value[31]; };
struct place { uint64_t key; struct row *row; };

static uint64_t mixed(uint64_t x) {
    x ^= x >> 33; x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

static struct row *relation(uint64_t rows, uint64_t first, uint64_t among) {
    struct row *all = malloc(rows * sizeof *all);
    if (!all) { fprintf(stderr, "no memory\n"); exit(1); }
    for (uint64_t n = 0; n < rows; n++) {
        all[n].key = mixed(mixed(first + n) % among + 1) | 1;
        for (int column = 0; column < 31; column++)
            all[n].value[column] = column % 2 ? mixed(n + column) : n % 1000;
    }
    return all;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    uint64_t goal = strtoull(arguments[1], NULL, 10), places = 1;
    uint64_t rows = goal / (2 * sizeof(struct row) + 3 * sizeof(struct place));
    while (places < 2 * rows) places *= 2;
    struct row *one = relation(rows, 0, 8 * rows), *other = relation(rows, rows, 8 * rows);
    struct place *table = calloc(places, sizeof *table);
    if (!table) { fprintf(stderr, "no memory\n"); return 1; }
    for (uint64_t n = 0; n < rows; n++) {
        uint64_t at = mixed(one[n].key) & (places - 1);
        while (table[at].key) at = (at + 1) & (places - 1);
        table[at] = (struct place){ one[n].key, &one[n] };
    }
    uint64_t met = 0, sum = 0;
    for (uint64_t n = 0; n < rows; n++) {
        uint64_t at = mixed(other[n].key) & (places - 1);
        while (table[at].key && table[at].key != other[n].key) at = (at + 1) & (places - 1);
        if (!table[at].key) continue;
        met++;
        for (int column = 0; column < 31; column++)
            sum += table[at].row->value[column] ^ other[n].value[column];
    }
    printf("%llu rows, %llu met, sum %llx\n", (unsigned long long)rows,
           (unsigned long long)met, (unsigned long long)sum);
    return 0;
}
