/* A block is always freed by the allocator that returned it, also if another library or another
 * name of free is used. Also tests the return values of the allocator's functions. */
#include "abi.h"
#include <dlfcn.h>
#include <glob.h>
#include <malloc.h>
#include <search.h>
#include <wchar.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), *__libc_valloc(size_t), *__libc_pvalloc(size_t);
extern void __libc_free(void *);

/* Small sizes, some pages, and sizes with their own mapping. */
static const size_t sizes[] = {0, 1, 24, 500, 4096, 40000, 300000, 3 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

/* Volatile, so that the compiler does not remove the calls. */
static void *(*volatile get)(size_t) = malloc;
static void *(*volatile get_zeroed)(size_t, size_t) = calloc;
static void *(*volatile resize)(void *, size_t) = realloc;
static void (*volatile give)(void *) = free;

static void cross(const char *what, void *(*allocate)(size_t), void (*release)(void *))
{
    size_t bad = 0;
    for (int round = 0; round < 4; round++) {
        void *blocks[SIZES];
        for (size_t i = 0; i < SIZES; i++) {
            blocks[i] = allocate(sizes[i]);
            if (!blocks[i] || (uintptr_t)blocks[i] % 16)
                bad++;
            fill(blocks[i], sizes[i], i);
        }
        if (round == 2)
            evict();
        for (size_t i = 0; i < SIZES; i++) {
            bad += wrong(blocks[i], sizes[i], i);
            release(blocks[i]);
        }
    }
    say("%s: %zu bad", what, bad);
}

static void *from_libc(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    return dlsym(library, name);
}

CASE(freed_by_libc_free) { cross("malloc", malloc, __libc_free); }
CASE(given_by_libc_malloc) { cross("__libc_malloc", __libc_malloc, free); }
CASE(both_of_libc) { cross("__libc", __libc_malloc, __libc_free); }
CASE(freed_by_the_library_s_handle) { cross("malloc", malloc, from_libc("free")); }
CASE(given_by_the_library_s_handle) { cross("handle", from_libc("malloc"), free); }

CASE(freed_by_cfree)
{
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    void *cfree = dlvsym(library, "cfree", "GLIBC_2.2.5");
    say("there: %d", cfree != NULL);
    if (cfree)
        cross("malloc", malloc, cfree);
}

CASE(next_in_order)
{
    cross("next", dlsym(RTLD_NEXT, "malloc"), free);
    cross("to next", malloc, dlsym(RTLD_NEXT, "free"));
    cross("default", dlsym(RTLD_DEFAULT, "malloc"), free);
}

static void *zeroed(size_t size)
{
    char *block = __libc_calloc(size, 1);
    for (size_t at = 0; at < size; at++)
        if (block[at])
            return NULL;
    return block;
}

CASE(libc_calloc) { cross("calloc", zeroed, free); }

static void *aligned_32(size_t size) { return __libc_memalign(32, size); }
static void *posix_aligned(size_t size)
{
    void *block = NULL;
    return posix_memalign(&block, 64, size) ? NULL : block;
}
static void *of_iso(size_t size) { return aligned_alloc(256, (size + 255) / 256 * 256); }

CASE(aligned_blocks)
{
    cross("__libc_memalign", aligned_32, free);
    cross("posix_memalign", posix_aligned, __libc_free);
    cross("aligned_alloc", of_iso, __libc_free);
    cross("valloc", valloc, __libc_free);
    cross("pvalloc", pvalloc, free);
    cross("__libc_valloc", __libc_valloc, free);
    cross("__libc_pvalloc", __libc_pvalloc, free);
}

CASE(resized_by_either)
{
    void *(*const functions[])(void *, size_t) = {resize, __libc_realloc, from_libc("realloc")};
    unsigned char *block = NULL;
    size_t bad = 0, before = 0;
    for (int i = 0; i < 60; i++) {
        size_t size = 100 + (size_t)i * i * 1500;
        block = functions[i % 3](block, size);
        bad += wrong(block, before, 3);
        fill(block, size, 3);
        before = size;
        if (i % 20 == 10)
            evict();
    }
    give(block);
    say("%zu", bad);
}

CASE(usable_sizes)
{
    size_t (*usable)(void *) = from_libc("malloc_usable_size");
    size_t bad = 0;
    for (size_t i = 1; i < SIZES; i++) {
        void *block = get(sizes[i]);
        bad += usable(block) != malloc_usable_size(block) || usable(block) < sizes[i];
        memset(block, 1, usable(block));
        give(block);
    }
    say("%zu, %zu of null", bad, usable(NULL));
}

/* C++ operators, called without a C++ compiler. */
CASE(operators_of_cpp)
{
    void *library = dlopen("libstdc++.so.6", RTLD_NOW);
    if (!library) {
        say("not there");
        return;
    }
    void *(*new)(size_t) = dlsym(library, "_Znwm");
    void *(*new_array)(size_t) = dlsym(library, "_Znam");
    void *(*new_aligned)(size_t, size_t) = dlsym(library, "_ZnwmSt11align_val_t");
    void (*delete)(void *) = dlsym(library, "_ZdlPv");
    void (*delete_sized)(void *, size_t) = dlsym(library, "_ZdlPvm");
    void (*delete_aligned)(void *, size_t) = dlsym(library, "_ZdlPvSt11align_val_t");
    void (*delete_both)(void *, size_t, size_t) = dlsym(library, "_ZdlPvmSt11align_val_t");
    cross("new", new, delete);
    cross("new[]", new_array, free);
    cross("to delete", malloc, delete);
    for (size_t i = 0; i < SIZES; i++) {
        delete_sized(new(sizes[i]), sizes[i]);
        delete_aligned(new_aligned(sizes[i], 128), 128);
        void *block = new_aligned(sizes[i], 8192);
        say("aligned: %d", (uintptr_t)block % 8192 == 0);
        delete_both(block, sizes[i], 8192);
    }
}

/* A plug-in, which may resolve the allocator's functions to another library (RTLD_DEEPBIND). */

static void *plugin;

static void *of_plugin(const char *name) { return dlsym(plugin, name); }

static void load(int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/allocators_plugin.so", getenv("ABI_PLUGIN_DIR"));
    plugin = dlopen(path, RTLD_NOW | flags);
    if (!plugin) {
        say("setting up: %s", dlerror());
        _exit(98);
    }
}

static void exchange(void)
{
    cross("it gives", of_plugin("plugin_malloc"), free);
    cross("it frees", malloc, of_plugin("plugin_free"));
    cross("both", of_plugin("plugin_malloc"), of_plugin("plugin_free"));
}

CASE(a_library) { load(RTLD_LOCAL), exchange(); }
CASE(a_library_bound_deeply) { load(RTLD_DEEPBIND), exchange(); }
CASE(a_library_bound_lazily)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/allocators_plugin.so", getenv("ABI_PLUGIN_DIR"));
    plugin = dlopen(path, RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND);
    exchange();
}

CASE(what_a_deep_constructor_made)
{
    load(RTLD_DEEPBIND);
    char *(*early)(void) = of_plugin("plugin_early");
    evict();
    say("%s", early());
    char *text = resize(early(), 100000);
    say("%s", text);
    give(text);
}

CASE(text_of_a_deep_library)
{
    load(RTLD_DEEPBIND);
    char *(*copy)(const char *) = of_plugin("plugin_strdup");
    char *(*print)(int) = of_plugin("plugin_print");
    void (*release)(void *) = of_plugin("plugin_free");
    size_t bad = 0;
    for (int i = 0; i < 500; i++) {
        char *one = copy("text"), *two = print(i), *three = strdup("other");
        bad += strcmp(one, "text") != 0;
        i % 2 ? give(one) : release(one);
        i % 3 ? give(two) : release(two);
        release(three);
    }
    say("%zu", bad);
}

CASE(resized_by_a_deep_library)
{
    load(RTLD_DEEPBIND);
    void *(*other)(void *, size_t) = of_plugin("plugin_realloc");
    unsigned char *block = NULL;
    size_t bad = 0, before = 0;
    for (int i = 0; i < 60; i++) {
        size_t size = 10 + (size_t)i * i * 1000;
        block = i % 2 ? resize(block, size) : other(block, size);
        bad += wrong(block, before, 5);
        fill(block, size, 5);
        before = size;
    }
    give(block);
    say("%zu", bad);
}

CASE(lines_read_by_a_deep_library)
{
    load(RTLD_DEEPBIND);
    void *(*other)(size_t) = of_plugin("plugin_malloc");
    void (*release)(void *) = of_plugin("plugin_free");
    int fd = scratch_file(0);
    FILE *file = fdopen(fd, "w+");
    for (int i = 0; i < 100; i++)
        fprintf(file, "%0*d\n", 1 + i * 50, i);
    rewind(file);
    size_t room = 8, sum = 0;
    char *line = other(room);
    for (ssize_t len; (len = getline(&line, &room, file)) > 0;)
        sum += len + atoi(line);
    release(line);
    fclose(file);
    say("%zu", sum);
}

static void *exchange_in_a_thread(void *argument)
{
    cross("thread", of_plugin("plugin_malloc"), free);
    return argument;
}

CASE(threads_with_a_deep_library)
{
    load(RTLD_DEEPBIND);
    for (int i = 0; i < 2; i++) {
        in_thread(exchange_in_a_thread, NULL);
    }
}

CASE(a_child_with_a_deep_library)
{
    load(RTLD_DEEPBIND);
    void *(*other)(size_t) = of_plugin("plugin_malloc");
    void *block = other(100000);
    fill(block, 100000, 8);
    evict();
    IN_CHILD("child") {
        say("%zu", wrong(block, 100000, 8));
        void (*release)(void *) = of_plugin("plugin_free");
        release(get(3000));
        give(other(30));
        give(block);
        exit(0);
    }
    give(block);
}

/* A dlmopen namespace has its own C library, which frees its own blocks. */
CASE(another_namespace)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/allocators_plugin.so", getenv("ABI_PLUGIN_DIR"));
    plugin = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    if (!plugin) {
        say("setting up: %s", dlerror());
        return;
    }
    cross("both", of_plugin("plugin_malloc"), of_plugin("plugin_free"));
    char *(*early)(void) = of_plugin("plugin_early");
    say("%s, closed: %d", early(), dlclose(plugin));
    cross("here", malloc, free);
}

/* Return values. */

CASE(nothing_asked_for)
{
    void *one = get(0), *two = get(0);
    say("%d %d", one != NULL, one != two);
    errno = 0;
    say("%d %d", resize(one, 0) == NULL, errno);
    void *three = get_zeroed(0, 5);
    say("%d", three != NULL);
    give(two), give(three), give(NULL);
    void *four = resize(NULL, 0);
    say("%d", four != NULL);
    give(four);
}

CASE(resized_to_nothing)
{
    for (size_t i = 1; i < SIZES; i++)
        say("%d", resize(get(sizes[i]), 0) == NULL);
    say("%d", reallocarray(get(10), 0, 8) == NULL);
}

CASE(too_much)
{
    volatile size_t most = PTRDIFF_MAX;
    errno = 0;
    say("%d %d", get(most + 1) == NULL, errno == ENOMEM);
    errno = 0;
    say("%d %d", get(SIZE_MAX) == NULL, errno == ENOMEM);
    errno = 0;
    say("%d %d", get_zeroed(most, 4) == NULL, errno == ENOMEM);
    errno = 0;
    say("%d %d", reallocarray(NULL, most, 4) == NULL, errno == ENOMEM);
    errno = 0;
    say("%d %d", memalign(64, SIZE_MAX - 10) == NULL, errno == ENOMEM);
    errno = 0;
    say("%d %d", pvalloc(SIZE_MAX - 10) == NULL, errno == ENOMEM);
    char *block = get(100);
    strcpy(block, "kept");
    errno = 0;
    say("%d %d %s", resize(block, SIZE_MAX - 5) == NULL, errno == ENOMEM, block);
    errno = 0;
    say("%d %d %s", reallocarray(block, most, 8) == NULL, errno == ENOMEM, block);
    give(block);
}

CASE(odd_alignments)
{
    void *block = (void *)1;
    say("%d", posix_memalign(&block, 3, 10) == EINVAL);
    say("%d", posix_memalign(&block, 0, 10) == EINVAL);
    say("%d", posix_memalign(&block, 4, 10) == EINVAL);
    say("%d", posix_memalign(&block, 24, 10) == EINVAL);
    say("untouched: %d", block == (void *)1);
    errno = 5;
    say("%d", posix_memalign(&block, 64, SIZE_MAX - 100) == ENOMEM);
    for (size_t align = 0; align < 100; align += 12) {
        block = memalign(align, 100);
        say("%zu: %d", align, block != NULL);
        memset(block, 1, 100);
        free(block);
    }
    errno = 0;
    block = memalign(SIZE_MAX / 2 + 2, 10);
    say("%d %s", block == NULL, strerrorname_np(errno));
}

CASE(alignments)
{
    for (size_t align = 16; align <= 4 * MIB; align *= 4) {
        unsigned char *one = memalign(align, 1000), *two = aligned_alloc(align, align);
        say("%zu %d %d", align, (uintptr_t)one % align == 0, (uintptr_t)two % align == 0);
        fill(one, 1000, 1);
        one = resize(one, 70000);
        say("%zu", wrong(one, 1000, 1));
        give(one), give(two);
    }
}

CASE(errno_of_free)
{
    size_t bad = 0;
    for (size_t i = 0; i < SIZES; i++) {
        void *block = get(sizes[i]);
        errno = 77;
        give(block);
        bad += errno != 77;
    }
    void *large = get(40 * MIB);
    errno = 78;
    give(large);
    say("%zu %d", bad, errno);
}

CASE(zeroes)
{
    size_t bad = 0;
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SIZES; i++) {
            unsigned char *block = get(sizes[i]);
            memset(block, 0xff, sizes[i]);
            give(block);
            block = get_zeroed(1, sizes[i]);
            for (size_t at = 0; at < sizes[i]; at++)
                bad += block[at] != 0;
            give(block);
        }
    say("%zu", bad);
}

CASE(options)
{
    say("%d", mallopt(M_MMAP_THRESHOLD, 1 << 20));
    say("%d", mallopt(M_TRIM_THRESHOLD, 1 << 20));
    cross("after", malloc, free);
}

/* Blocks that the C library allocates and the caller frees. */
CASE(memory_of_functions)
{
    size_t sum = 0;
    for (int i = 0; i < 300; i++) {
        char *text = NULL, *cwd = getcwd(NULL, 0), *real = realpath(".", NULL);
        sum += strcmp(cwd, real) != 0;
        size_t room = 0;
        FILE *memory = open_memstream(&text, &room);
        fprintf(memory, "%*d", i * 10, i);
        fclose(memory);
        sum += strlen(text);
        wchar_t *wide = wcsdup(L"wide");
        sum += wcslen(wide);
        give(cwd), give(real), give(text), give(wide);
        char *part = strndup("abcdef", 3);
        part = resize(part, 5000);
        sum += strlen(part);
        i % 2 ? give(part) : __libc_free(part);
    }
    say("%zu", sum);
}

CASE(lists_of_files)
{
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof name, "./file-%02d", i);
        close(MUST(open(name, O_CREAT | O_WRONLY, 0600)));
    }
    glob_t found;
    say("%d", glob("./file-*", 0, NULL, &found));
    evict();
    say("%zu %s %s", found.gl_pathc, found.gl_pathv[0], found.gl_pathv[49]);
    globfree(&found);
}

static int by_value(const void *a, const void *b)
{
    long one = *(const long *)a, two = *(const long *)b;
    return (one > two) - (one < two);
}

CASE(a_sorted_array)
{
    size_t count = 300000;
    long *values = get(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = i * 7919 % count;
    qsort(values, count, sizeof *values, by_value);
    size_t bad = 0;
    for (size_t i = 0; i < count; i++)
        bad += values[i] != (long)i;
    say("%zu", bad);
    give(values);
}

static void *allocate_and_free(void *argument)
{
    long seed = (long)argument, bad = 0;
    void *blocks[64] = {NULL};
    size_t lens[64] = {0};
    for (int i = 0; i < 4000; i++) {
        int at = (i * 31 + seed) % 64;
        bad += wrong(blocks[at], lens[at], at);
        i % 3 ? give(blocks[at]) : __libc_free(blocks[at]);
        lens[at] = (i * 97 + seed) % 3000;
        blocks[at] = i % 2 ? get(lens[at]) : __libc_malloc(lens[at]);
        fill(blocks[at], lens[at], at);
    }
    return (void *)bad;
}

CASE(threads_by_all_names)
{
    pthread_t threads[6];
    long bad = 0;
    for (long i = 0; i < 6; i++)
        MUST(-(pthread_create(&threads[i], NULL, allocate_and_free, (void *)i) != 0));
    for (int i = 0; i < 6; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (long)result;
    }
    say("%ld", bad);
}
