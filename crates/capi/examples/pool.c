/* An array of four times the memory budget. Build and run it with
 *     cc pool.c $(pkg-config --cflags --libs softswap_c) -o pool && ./pool /var/tmp */
#include <softswap.h>
#include <stdio.h>

enum { LEN = 64 << 20 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, softswap_strerror_detail());
    return 1;
}

int main(int count, char **words) {
    struct softswap_options options = {.size = sizeof options};
    options.memory_bytes = 16 << 20;
    options.swap = count > 1 ? words[1] : NULL;
    softswap_pool *pool;
    if (softswap_pool_create(&options, &pool) != 0)
        return failed("no pool");
    void *address;
    if (softswap_map(pool, LEN, &address) != 0)
        return failed("no region");
    uint64_t *numbers = address;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < LEN / sizeof *numbers; at++)
        numbers[at] = at;
    for (uint64_t at = 0; at < LEN / sizeof *numbers; at++)
        sum += numbers[at] == at;
    softswap_unmap(address);
    softswap_pool_destroy(pool);
    puts(sum == LEN / sizeof *numbers ? "done" : "wrong");
    return 0;
}
