/* A program with its own malloc, which uses mmap. The C library and the loader may read its
 * blocks when no page can be faulted in. The program also passes blocks of the C library to its
 * own free, which must recognize only its own blocks. */
#include "abi.h"
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <locale.h>
#include <pwd.h>
#include <regex.h>
#include <search.h>
#include <spawn.h>
#include <wchar.h>

#define NATURAL 16UL
#define ARENA (1 * MIB)
#define CLASSES 48
#define MAGIC 0x7e57ab1e5eedUL

struct head {
    size_t shift;
    unsigned long magic;
};
struct gap {
    struct gap *next;
};

static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gap *gaps[CLASSES];
static char *arena_at, *arena_end;
static int strangers;

static size_t shift_of(size_t size)
{
    size_t shift = 5;
    while ((1UL << shift) < size)
        shift++;
    return shift;
}

static void *from_arena(size_t len)
{
    if (len > (size_t)(arena_end - arena_at)) {
        size_t more = len > ARENA ? len : ARENA;
        arena_at = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (arena_at == MAP_FAILED)
            _exit(96);
        arena_end = arena_at + more;
    }
    arena_at += len;
    return arena_at - len;
}

__attribute__((noinline)) void *malloc(size_t size)
{
    size_t shift = shift_of(size + sizeof(struct head));
    pthread_mutex_lock(&arena_lock);
    struct gap *gap = gaps[shift];
    if (gap)
        gaps[shift] = gap->next;
    struct head *head = gap ? (struct head *)gap - 1 : from_arena(1UL << shift);
    pthread_mutex_unlock(&arena_lock);
    head->shift = shift;
    head->magic = MAGIC;
    return head + 1;
}

static struct head *head_of(void *block)
{
    struct head *head = (struct head *)block - 1;
    if (head->magic == MAGIC)
        return head;
    strangers++;
    return NULL;
}

static int is_mine(void *block) { return block && ((struct head *)block)[-1].magic == MAGIC; }

__attribute__((noinline)) void free(void *block)
{
    struct head *head = block ? head_of(block) : NULL;
    if (!head)
        return;
    head->magic = 0;
    struct gap *gap = block;
    pthread_mutex_lock(&arena_lock);
    gap->next = gaps[head->shift];
    gaps[head->shift] = gap;
    pthread_mutex_unlock(&arena_lock);
}

/* Volatile, so that the compiler does not replace malloc and memset by calloc. */
static void *(*volatile get)(size_t) = malloc;

__attribute__((noinline)) void *calloc(size_t count, size_t size)
{
    return memset(get(count * size), 0, count * size);
}

__attribute__((noinline)) void *realloc(void *old, size_t size)
{
    struct head *head = old ? head_of(old) : NULL;
    size_t before = head ? (1UL << head->shift) - sizeof *head : 0;
    if (head && size <= before)
        return old;
    void *block = malloc(size);
    memcpy(block, head ? old : block, before);
    free(old);
    return block;
}

static void say_strangers(void) { say("blocks of other allocators: %d", strangers); }

static void *classify(void *argument)
{
    return (void *)(long)(isalpha('a') && !isalpha('1') && toupper('a') == 'A') + 0 * (long)argument;
}

static void run_threads(int count)
{
    pthread_t threads[64];
    int good = 0;
    for (int i = 0; i < count; i++)
        MUST(-pthread_create(threads + i, NULL, classify, NULL));
    for (int i = 0; i < count; i++) {
        void *result;
        pthread_join(threads[i], &result);
        good += result != NULL;
    }
    say("threads: %d of %d", good, count);
}

CASE(starts_in_utf8)
{
    say("%s", setlocale(LC_ALL, "C.UTF-8"));
    for (int round = 0; round < 3; round++) {
        evict();
        run_threads(16);
    }
    say_strangers();
}

CASE(locales)
{
    for (int round = 0; round < 20; round++) {
        locale_t locale = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
        locale_t copy = duplocale(locale);
        freelocale(locale);
        uselocale(copy);
        if (round % 10 == 0)
            evict();
        run_threads(1);
        uselocale(LC_GLOBAL_LOCALE);
        freelocale(copy);
        setlocale(LC_ALL, round % 2 ? "C" : "C.UTF-8");
    }
    say_strangers();
}

CASE(strings_of_the_library)
{
    for (int round = 0; round < 30; round++) {
        char *text = strdup("some text"), *printed = NULL, *line = NULL;
        int len = asprintf(&printed, "%d %s", round, text);
        size_t room = 0;
        FILE *file = fopen("/etc/passwd", "r");
        long got = getline(&line, &room, file);
        fclose(file);
        char *path = realpath("/usr/../etc", NULL), *here = getcwd(NULL, 0);
        wchar_t *wide = wcsdup(L"wide");
        if (round % 10 == 0)
            evict();
        if (round == 0)
            say("%d %d %s %s %d", len, got > 0, text, path, here != NULL);
        if (round == 0)
            say("mine: %d %d %d %d %d %d", is_mine(text), is_mine(printed), is_mine(line),
                is_mine(path), is_mine(here), is_mine(wide));
        line = realloc(line, 100000);
        free(text), free(printed), free(line), free(path), free(here), free(wide);
    }
    say_strangers();
}

CASE(streams_into_memory)
{
    for (int round = 0; round < 5; round++) {
        char *text = NULL;
        size_t len = 0;
        FILE *file = open_memstream(&text, &len);
        for (int i = 0; i < 5000; i++)
            fprintf(file, "%d ", i);
        fclose(file);
        evict();
        say("%zu %lu mine %d", len, checksum(text, len), is_mine(text));
        free(text);
    }
    say_strangers();
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

CASE(lists_of_the_library)
{
    struct dirent **names;
    int count = scandir("/etc", &names, is_visible, alphasort);
    evict();
    say("%d", count > 3);
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
    say_strangers();
}

CASE(patterns_trees_and_variables)
{
    regex_t pattern;
    void *tree = NULL;
    static char names[400][16];
    MUST(-regcomp(&pattern, "^[a-z]+([0-9]{2,4})$", REG_EXTENDED));
    for (int i = 0; i < 400; i++) {
        sprintf(names[i], "name%d", i);
        tsearch(names[i], &tree, (int (*)(const void *, const void *))strcmp);
        setenv(names[i], names[i], 1);
    }
    evict();
    int matched = 0, found = 0, set = 0;
    for (int i = 0; i < 400; i++) {
        matched += !regexec(&pattern, names[i], 0, NULL, 0);
        found += tfind(names[i], &tree, (int (*)(const void *, const void *))strcmp) != NULL;
        set += getenv(names[i]) && !strcmp(getenv(names[i]), names[i]);
        tdelete(names[i], &tree, (int (*)(const void *, const void *))strcmp);
    }
    regfree(&pattern);
    say("%d %d %d", matched, found, set);
    say_strangers();
}

CASE(programs_are_started)
{
    evict();
    FILE *file = popen("echo hello", "r");
    char line[64] = "";
    say("%s", fgets(line, sizeof line, file) ? "read" : "nothing");
    RESULT(pclose(file));
    evict();
    RESULT(system("exit 3"));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 40; i++)
        posix_spawn_file_actions_addclose(&actions, 100 + i);
    evict();
    pid_t pid;
    say("spawned: %d", posix_spawn(&pid, "/bin/true", &actions, NULL, (char *[]){"true", NULL}, NULL));
    say_end("true", pid);
    posix_spawn_file_actions_destroy(&actions);
    say_strangers();
}


CASE(libraries_come_and_go)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/threads_plugin.so", getenv("ABI_PLUGIN_DIR"));
    int opened = 0, errors = 0;
    for (int round = 0; round < 10; round++) {
        void *library = dlopen(path, RTLD_NOW);
        opened += library != NULL;
        if (round % 5 == 0)
            evict();
        run_threads(4);
        errors += !dlopen("/no/such/library.so", RTLD_NOW) && strstr(dlerror(), "no/such") != NULL;
        errors += !dlsym(library, "no_such_symbol") && dlerror() != NULL;
        dlclose(library);
    }
    say("%d %d", opened, errors);
    say_strangers();
}

static void *fill_and_check(void *argument)
{
    unsigned char *blocks[40];
    size_t bad = 0;
    for (int i = 0; i < 40; i++)
        fill(blocks[i] = malloc(100 + i * 500), 100 + i * 500, i + (long)argument);
    evict();
    for (int i = 0; i < 40; i++)
        bad += wrong(blocks[i], 100 + i * 500, i + (long)argument), free(blocks[i]);
    return (void *)bad;
}

CASE(a_child_has_its_blocks)
{
    unsigned char *blocks[200];
    for (int i = 0; i < 200; i++)
        fill(blocks[i] = malloc(1000 + i * 40), 1000 + i * 40, i);
    evict();
    run_threads(8);
    pid_t pid = MUST(fork());
    size_t bad = 0;
    for (int i = 0; i < 200; i++)
        bad += wrong(blocks[i], 1000 + i * 40, i), free(blocks[i]);
    bad += (size_t)fill_and_check((void *)7);
    if (pid == 0) {
        say("child: %zu bad, %d strange", bad, strangers);
        run_threads(2);
        _exit(0);
    }
    say_end("child", pid);
    say("parent: %zu bad", bad);
    say_strangers();
}

CASE(names_of_users)
{
    for (int round = 0; round < 3; round++) {
        struct passwd *user = getpwuid(0);
        say("%s", user ? user->pw_name : "nobody");
        evict();
        IN_CHILD("child")
            _exit(getpwnam("root") ? 0 : 1);
    }
    say_strangers();
}

static void written_at_exit(void) { say("at exit"), say_strangers(); }

CASE(handlers_at_exit)
{
    for (int i = 0; i < 100; i++)
        atexit(i % 33 ? say_strangers : written_at_exit);
    evict();
    exit(4);
}
