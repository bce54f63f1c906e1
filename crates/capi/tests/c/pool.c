/* Tests softswap.h in C: content of four times the budget, pins, refusals. */
#include "softswap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(holds)                                                                     \
    do {                                                                                 \
        if (!(holds)) {                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #holds,              \
                    softswap_strerror_detail());                                         \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static const size_t LEN = 64u << 20;

static void content(softswap_pool *pool)
{
    void *address;
    CHECK(softswap_map(pool, LEN, &address) == 0);
    uint64_t *words = address;
    for (size_t at = 0; at < LEN / 8; at++)
        words[at] = at * 0x9e3779b97f4a7c15u;
    for (size_t at = 0; at < LEN / 8; at++)
        CHECK(words[at] == at * 0x9e3779b97f4a7c15u);
    CHECK(softswap_advise((char *)address + 4096, 8192, SOFTSWAP_DONTNEED) == 0);
    CHECK(words[511] != 0 && words[512] == 0 && words[1535] == 0 && words[1536] != 0);
    CHECK(softswap_advise(address, LEN, SOFTSWAP_WILLNEED) == 0);

    uint64_t pin;
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    char *part = (char *)address + LEN / 2;
    CHECK(softswap_pin(part, 4096, &pin) == 0);
    CHECK(write(pipes[1], part, 4096) == 4096);
    CHECK(softswap_unmap(address) == -EBUSY);
    CHECK(softswap_advise(address, LEN, SOFTSWAP_DONTNEED) == -EBUSY);
    CHECK(softswap_unpin(pin) == 0);
    CHECK(softswap_unpin(pin) == -EINVAL);
    CHECK(softswap_pin(address, LEN, &pin) == -EAGAIN && pin == 0);
    CHECK(softswap_unmap(address) == 0);
    CHECK(softswap_unmap(address) == -EINVAL);
}

static void refusals(softswap_pool *pool, const char *swap)
{
    void *address;
    softswap_pool *none;
    CHECK(softswap_map(pool, 0, &address) == -EINVAL && address == NULL);
    CHECK(softswap_map(pool, SIZE_MAX, &address) == -EINVAL);
    CHECK(softswap_map(NULL, 1, &address) == -EINVAL);
    CHECK(softswap_map(pool, 4096, NULL) == -EINVAL);
    CHECK(softswap_unmap(NULL) == 0 && softswap_pool_destroy(NULL) == 0);
    CHECK(softswap_unmap(&address) == -EINVAL);
    CHECK(softswap_map(pool, 100, &address) == 0);
    CHECK(softswap_advise(address, 101, SOFTSWAP_COLD) == -EINVAL);
    CHECK(softswap_advise(address, 100, 77) == -EINVAL);
    CHECK(softswap_unmap((char *)address + 1) == -EINVAL);
    CHECK(softswap_unmap(address) == 0);
    CHECK(softswap_set_memory(pool, 1) == -EINVAL);
    CHECK(strstr(softswap_strerror_detail(), "too little") != NULL);

    struct softswap_options options = {.size = 4};
    CHECK(softswap_pool_create(&options, &none) == -EINVAL && none == NULL);
    options = (struct softswap_options){.size = sizeof options, .guard_calls = 2};
    CHECK(softswap_pool_create(&options, &none) == -EINVAL);
    options = (struct softswap_options){.size = sizeof options, .memory_bytes = 1 << 20, .swap = swap};
    CHECK(softswap_pool_create(&options, &none) == -ENOMEM);
    options = (struct softswap_options){.size = sizeof options, .swap = "/nowhere"};
    CHECK(softswap_pool_create(&options, &none) == -ENOENT);
    CHECK(strstr(softswap_strerror_detail(), "/nowhere") != NULL);
    struct {
        struct softswap_options options;
        uint64_t later;
    } newer = {{.size = sizeof newer, .memory_bytes = 16 << 20, .swap = swap}, 1};
    CHECK(softswap_pool_create(&newer.options, &none) == -EINVAL);
    newer.later = 0;
    CHECK(softswap_pool_create(&newer.options, &none) == 0);
    CHECK(softswap_pool_destroy(none) == 0);
    CHECK(softswap_pool_destroy(none) == -EINVAL);
}

static void figures(softswap_pool *pool)
{
    struct softswap_stats stats = {.size = sizeof stats};
    CHECK(softswap_pool_stats(pool, &stats) == 0);
    CHECK(stats.budget_bytes == 16 << 20 && stats.faults_disk > 0 && stats.stalled_ns > 0);
    CHECK(stats.used_peak_bytes <= stats.budget_bytes);
    stats.size = 2;
    CHECK(softswap_pool_stats(pool, &stats) == -EINVAL);
    size_t needed;
    char json[4096];
    CHECK(softswap_pool_stats_json(pool, NULL, 0, &needed) == -EINVAL);
    CHECK(softswap_pool_stats_json(pool, json, needed - 1, NULL) == -EINVAL);
    CHECK(softswap_pool_stats_json(pool, json, needed, NULL) == 0);
    CHECK(strlen(json) + 1 == needed && strstr(json, "\"budget_bytes\":16777216") != NULL);
}

static void guarded(const char *swap)
{
    struct softswap_options options = {
        .size = sizeof options, .memory_bytes = 16 << 20, .swap = swap, .guard_calls = 1};
    softswap_pool *pool;
    void *address;
    CHECK(softswap_pool_create(&options, &pool) == 0);
    CHECK(softswap_map(pool, LEN, &address) == 0);
    uint64_t *words = address;
    for (size_t at = 0; at < LEN / 8; at++)
        words[at] = at * 0x9e3779b97f4a7c15u;
    FILE *file = tmpfile();
    CHECK(file != NULL && fwrite(address, 1, LEN, file) == LEN && fflush(file) == 0);
    CHECK(softswap_advise(address, LEN, SOFTSWAP_DONTNEED) == 0);
    rewind(file);
    CHECK(fread(address, 1, LEN, file) == LEN && fclose(file) == 0);
    for (size_t at = 0; at < LEN / 8; at++)
        CHECK(words[at] == at * 0x9e3779b97f4a7c15u);
    CHECK(softswap_unmap(address) == 0 && softswap_pool_destroy(pool) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && *softswap_strerror_detail() == '\0');
    struct softswap_options options = {
        .size = sizeof options, .memory_bytes = 16 << 20, .swap = argv[1]};
    softswap_pool *pool;
    CHECK(softswap_pool_create(&options, &pool) == 0);
    content(pool);
    refusals(pool, argv[1]);
    figures(pool);
    guarded(argv[1]);
    void *address;
    CHECK(softswap_map(pool, 1 << 20, &address) == 0);
    CHECK(softswap_pool_destroy(pool) == 0);
    memset(address, 1, 1 << 20); /* The region keeps its pool alive. */
    CHECK(softswap_unmap(address) == 0);
    puts("done");
    return 0;
}
