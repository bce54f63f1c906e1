/* A jemalloc arena in a pool: blocks that mallocx() returns with MALLOCX_ARENA are in regions, and
 * are evicted from DRAM if they are not used.
 *
 *     cc jemalloc_hooks.c $(pkg-config --cflags --libs softswap_c jemalloc) */
#include <jemalloc/jemalloc.h>
#include <softswap.h>

#include <stdio.h>
#include <string.h>

static softswap_pool *pool;

static void *extent_alloc(extent_hooks_t *hooks, void *wanted, size_t len, size_t alignment,
                          bool *zero, bool *commit, unsigned arena)
{
    (void)hooks, (void)arena;
    void *address;
    /* Regions are aligned to pages. Large regions may have a larger alignment. */
    if (wanted != NULL || softswap_map(pool, len, &address) != 0)
        return NULL;
    if ((size_t)address % alignment != 0) {
        softswap_unmap(address);
        return NULL;
    }
    *zero = *commit = true;
    return address;
}

static bool extent_dalloc(extent_hooks_t *hooks, void *address, size_t len, bool committed,
                          unsigned arena)
{
    (void)hooks, (void)len, (void)committed, (void)arena;
    return softswap_unmap(address) != 0;
}

static void extent_destroy(extent_hooks_t *hooks, void *address, size_t len, bool committed,
                           unsigned arena)
{
    (void)extent_dalloc(hooks, address, len, committed, arena);
}

static bool extent_purge(extent_hooks_t *hooks, void *address, size_t len, size_t offset,
                         size_t length, unsigned arena)
{
    (void)hooks, (void)len, (void)arena;
    return softswap_advise((char *)address + offset, length, SOFTSWAP_DONTNEED) != 0;
}

/* A region is unmapped as a whole: extents are neither split nor merged. */
static extent_hooks_t hooks = {
    .alloc = extent_alloc,
    .dalloc = extent_dalloc,
    .destroy = extent_destroy,
    .purge_forced = extent_purge,
};

int main(void)
{
    struct softswap_options options = {.size = sizeof options, .memory_bytes = 64 << 20};
    if (softswap_pool_create(&options, &pool) != 0) {
        fprintf(stderr, "%s\n", softswap_strerror_detail());
        return 1;
    }
    unsigned arena;
    size_t size = sizeof arena;
    extent_hooks_t *ours = &hooks;
    if (mallctl("arenas.create", &arena, &size, &ours, sizeof ours) != 0)
        return 1;
    int flags = MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE;
    char *block = mallocx(256 << 20, flags);
    if (block == NULL)
        return 1;
    memset(block, 1, 256 << 20);
    dallocx(block, flags);
    puts("done");
    return 0;
}
