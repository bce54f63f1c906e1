/* Memory that threads and the C library read when no page can be faulted in: in a new thread
 * with all signals blocked, in an exiting thread, and in a forked child before its handlers run.
 * The memory is allocated and then swapped out. */
#include "abi.h"
#include <ctype.h>
#include <dlfcn.h>
#include <grp.h>
#include <iconv.h>
#include <langinfo.h>
#include <locale.h>
#include <netdb.h>
#include <pwd.h>
#include <regex.h>
#include <search.h>
#include <spawn.h>
#include <threads.h>
#include <wchar.h>
#include <wctype.h>

extern char **environ;

static void *nothing(void *argument) { return argument; }

/* Starts a thread and prints its result. */
static void say_thread(const char *what, const pthread_attr_t *attributes,
                       void *(*run)(void *), void *argument)
{
    pthread_t thread;
    void *result = NULL;
    int error = pthread_create(&thread, attributes, run, argument);
    if (!error)
        error = pthread_join(thread, &result);
    say("%s: %s, %ld", what, error ? strerrorname_np(error) : "done", (long)result);
}

static void *classify(void *argument)
{
    (void)argument;
    return (void *)(long)(iswalpha(L'\u00e4') != 0) ;
}

CASE(starts_in_utf8)
{
    say("%s", setlocale(LC_ALL, "C.UTF-8"));
    evict();
    say_thread("thread", NULL, classify, NULL);
}

CASE(starts_in_the_c_locale)
{
    evict();
    say_thread("thread", NULL, classify, NULL);
}

CASE(starts_after_each_category)
{
    const int categories[] = {LC_CTYPE, LC_COLLATE, LC_TIME, LC_NUMERIC, LC_MONETARY, LC_MESSAGES};
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        say("%s", setlocale(categories[i], "C.UTF-8"));
        evict();
        say_thread("thread", NULL, classify, NULL);
    }
}

CASE(starts_after_the_locale_changed_back)
{
    setlocale(LC_ALL, "C.UTF-8");
    evict();
    say_thread("in C.UTF-8", NULL, classify, NULL);
    say("%s", setlocale(LC_ALL, "C"));
    evict();
    say_thread("in C", NULL, classify, NULL);
    say("%s", setlocale(LC_ALL, "C.UTF-8"));
    evict();
    say_thread("again", NULL, classify, NULL);
}

static void *use_locale(void *argument)
{
    uselocale(argument);
    long is = iswalpha(L'\u00e4') != 0;
    uselocale(LC_GLOBAL_LOCALE);
    return (void *)is;
}

CASE(a_locale_of_its_own)
{
    locale_t locale = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
    say("made: %d", locale != NULL);
    uselocale(locale);
    evict();
    say_thread("thread", NULL, use_locale, locale);
    say("here: %d", iswalpha(L'\u00e4') != 0);
    uselocale(LC_GLOBAL_LOCALE);
    freelocale(locale);
}

CASE(a_locale_that_was_copied)
{
    locale_t first = newlocale(LC_CTYPE_MASK, "C.UTF-8", NULL);
    locale_t second = duplocale(first);
    freelocale(first);
    evict();
    say_thread("thread", NULL, use_locale, second);
    freelocale(second);
}

CASE(locales_without_end)
{
    long made = 0;
    for (int i = 0; i < 400; i++) {
        locale_t locale = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
        made += locale != NULL;
        freelocale(locale);
    }
    setlocale(LC_ALL, "C.UTF-8");
    evict();
    say_thread("thread", NULL, classify, NULL);
    say("%ld", made);
}

CASE(locales_in_a_thread)
{
    setlocale(LC_ALL, "C.UTF-8");
    evict();
    say_thread("one", NULL, use_locale, newlocale(LC_ALL_MASK, "C.UTF-8", NULL));
    say_thread("other", NULL, use_locale, newlocale(LC_ALL_MASK, "C", NULL));
}

static void *count_up(void *argument)
{
    __atomic_fetch_add((long *)argument, 1, __ATOMIC_RELAXED);
    return NULL;
}

CASE(many_one_after_another)
{
    setlocale(LC_ALL, "C.UTF-8");
    long *count = memory(64 << 10, 1);
    *count = 0;
    for (int round = 0; round < 3; round++) {
        evict();
        for (int i = 0; i < 100; i++) {
            in_thread(count_up, count);
        }
    }
    say("%ld", *count);
}

CASE(many_at_once)
{
    setlocale(LC_ALL, "C.UTF-8");
    long *count = memory(64 << 10, 1);
    *count = 0;
    evict();
    pthread_t threads[64];
    for (int i = 0; i < 64; i++)
        MUST(-(pthread_create(&threads[i], NULL, count_up, count) != 0));
    evict();
    for (int i = 0; i < 64; i++)
        pthread_join(threads[i], NULL);
    say("%ld", *count);
}

static void *make_pressure(void *argument)
{
    unsigned char *at = memory(MIB, (long)argument);
    long bad = 0;
    for (int i = 0; i < 8; i++)
        bad += wrong(at, MIB, (long)argument);
    munmap(at, MIB);
    return (void *)bad;
}

CASE(starts_while_others_work)
{
    setlocale(LC_ALL, "C.UTF-8");
    evict();
    pthread_t threads[12];
    long bad = 0;
    for (long round = 0; round < 2; round++) {
        for (long i = 0; i < 12; i++)
            MUST(-(pthread_create(&threads[i], NULL, make_pressure, (void *)i) != 0));
        for (int i = 0; i < 12; i++) {
            void *result;
            pthread_join(threads[i], &result);
            bad += (long)result;
        }
    }
    say("%ld", bad);
}

CASE(detached)
{
    setlocale(LC_ALL, "C.UTF-8");
    long *count = memory(64 << 10, 1);
    *count = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    evict();
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        MUST(-(pthread_create(&thread, &attributes, count_up, count) != 0));
    }
    WAIT_UNTIL(__atomic_load_n(count, __ATOMIC_RELAXED) == 20);
    say("%ld", *count);
}

static int c11(void *argument) { return *(int *)argument + 1; }

CASE(threads_of_c11)
{
    setlocale(LC_ALL, "C.UTF-8");
    int *value = memory(64 << 10, 1);
    *value = 41;
    evict();
    for (int i = 0; i < 3; i++) {
        thrd_t thread;
        int result = 0;
        say("create %d", thrd_create(&thread, c11, value) == thrd_success);
        say("join %d", thrd_join(thread, &result) == thrd_success);
        say("%d", result);
    }
}

/* Stacks. */

static void with_stack_of(size_t size)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    say("size: %d", pthread_attr_setstacksize(&attributes, size));
    evict();
    for (int i = 0; i < 3; i++)
        say_thread("thread", &attributes, nothing, (void *)7L);
}

CASE(a_stack_of_16_kib) { with_stack_of(16 << 10); }
CASE(a_stack_of_20_kib) { with_stack_of(20 << 10); }
CASE(a_stack_of_24_kib) { with_stack_of(24 << 10); }
CASE(a_stack_of_32_kib) { with_stack_of(32 << 10); }
CASE(a_stack_of_less_is_refused) { with_stack_of(8 << 10); }
CASE(a_stack_of_64_mib) { with_stack_of(64 << 20); }

static void *read_all(void *argument)
{
    unsigned char *at = argument;
    long bad = wrong(at, 2 * MIB, 9);
    int fd = open("/dev/null", O_WRONLY);
    bad += write(fd, at, 100000) != 100000;
    close(fd);
    return (void *)bad;
}

CASE(a_small_stack_is_enough_for_faults)
{
    void *at = memory(2 * MIB, 9);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16 << 10);
    evict();
    say_thread("thread", &attributes, read_all, at);
}

CASE(a_stack_given)
{
    void *stack = memory(256 << 10, 3);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    say("%d", pthread_attr_setstack(&attributes, stack, 256 << 10));
    evict();
    say_thread("thread", &attributes, read_all, memory(2 * MIB, 9));
}

static void *say_own_stack(void *argument)
{
    (void)argument;
    pthread_attr_t attributes;
    size_t size = 0, guard = 0;
    void *base;
    say("got %d", pthread_getattr_np(pthread_self(), &attributes));
    pthread_attr_getstack(&attributes, &base, &size);
    pthread_attr_getguardsize(&attributes, &guard);
    char here;
    say("inside: %d", &here >= (char *)base && &here < (char *)base + size);
    pthread_attr_destroy(&attributes);
    return (void *)(size + guard);
}

CASE(its_own_attributes)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    evict();
    say_thread("thread", &attributes, say_own_stack, NULL);
}

/* Attributes. */

static void *count_processors(void *argument)
{
    (void)argument;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    return (void *)(long)CPU_COUNT(&set);
}

CASE(processors_in_attributes)
{
    pthread_attr_t *attributes = malloc(sizeof *attributes);
    cpu_set_t set;
    pthread_attr_init(attributes);
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    say("%d", pthread_attr_setaffinity_np(attributes, sizeof set, &set));
    evict();
    say_thread("thread", attributes, count_processors, NULL);
}

CASE(processors_in_default_attributes)
{
    pthread_attr_t attributes;
    cpu_set_t set;
    pthread_attr_init(&attributes);
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    say("%d", pthread_attr_setaffinity_np(&attributes, sizeof set, &set));
    say("%d", pthread_setattr_default_np(&attributes));
    pthread_attr_destroy(&attributes);
    evict();
    for (int i = 0; i < 3; i++)
        say_thread("thread", NULL, count_processors, NULL);
    pthread_getattr_default_np(&attributes);
    evict();
    say_thread("copied", &attributes, count_processors, NULL);
}

static void *is_blocked(void *argument)
{
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    return (void *)(long)sigismember(&set, (long)argument);
}

CASE(a_mask_in_attributes)
{
    pthread_attr_t attributes;
    sigset_t set;
    pthread_attr_init(&attributes);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    say("%d", pthread_attr_setsigmask_np(&attributes, &set));
    evict();
    say_thread("USR2", &attributes, is_blocked, (void *)(long)SIGUSR2);
    say_thread("USR1", &attributes, is_blocked, (void *)(long)SIGUSR1);
    say_thread("by default", NULL, is_blocked, (void *)(long)SIGUSR2);
}

/* Memory that an exiting thread frees. */

static pthread_key_t keys[100];
static pthread_barrier_t all_there;
static long destroyed;

static void destroy(void *value)
{
    __atomic_fetch_add(&destroyed, *(long *)value, __ATOMIC_RELAXED);
    free(value);
}

static void *set_keys(void *argument)
{
    for (int i = 0; i < 100; i++) {
        long *value = malloc(4000);
        *value = i;
        pthread_setspecific(keys[i], value);
    }
    if (argument)
        evict();
    return NULL;
}

CASE(keys_of_many_threads)
{
    for (int i = 0; i < 100; i++)
        MUST(-(pthread_key_create(&keys[i], destroy) != 0));
    for (int i = 0; i < 10; i++)
        say_thread("thread", NULL, set_keys, (void *)(long)(i % 5 == 0));
    say("destroyed: %ld", destroyed);
}

/* A forked child clears the keys of the parent's other threads. Used data is next to these keys. */
static void *keep_keys(void *argument)
{
    unsigned char **neighbours = argument;
    for (int i = 40; i < 100; i += 30) {
        fill(neighbours[i / 30 - 1] = malloc(512), 512, i);
        pthread_setspecific(keys[i], argument);
    }
    pthread_barrier_wait(&all_there);
    pthread_barrier_wait(&all_there);
    return NULL;
}

CASE(keys_of_others_in_a_child)
{
    enum { THREADS = 100 };
    static unsigned char *neighbours[THREADS][2];
    pthread_t threads[THREADS];
    pthread_barrier_init(&all_there, NULL, THREADS + 1);
    for (int i = 0; i < 100; i++)
        MUST(-(pthread_key_create(&keys[i], NULL) != 0));
    for (int i = 0; i < THREADS; i++)
        MUST(-(pthread_create(&threads[i], NULL, keep_keys, neighbours[i]) != 0));
    pthread_barrier_wait(&all_there);
    evict();
    IN_CHILD("child") {
        size_t bad = 0;
        for (int i = 0; i < THREADS; i++)
            bad += wrong(neighbours[i][0], 512, 40) + wrong(neighbours[i][1], 512, 70);
        say("child: %zu wrong", bad);
    }
    pthread_barrier_wait(&all_there);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static pthread_key_t again;
static long rounds;
static unsigned char *behind;

static void set_again(void *value)
{
    rounds++;
    /* Swapped-out memory must be faulted in, also during the last destructor. */
    rounds += 100 * wrong(behind, MIB, 4);
    int fd = open("/dev/null", O_WRONLY);
    rounds += 1000 * (write(fd, behind, 70000) != 70000);
    close(fd);
    pthread_setspecific(again, value);
}

static void *set_one(void *argument)
{
    pthread_setspecific(again, argument);
    evict();
    return NULL;
}

CASE(a_destructor_that_sets_its_key_again)
{
    behind = memory(MIB, 4);
    MUST(-(pthread_key_create(&again, set_again) != 0));
    say_thread("thread", NULL, set_one, &rounds);
    say("rounds: %ld", rounds);
}

extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

static void *set_destructors(void *argument)
{
    for (long i = 0; i < 200; i++) {
        long *value = malloc(sizeof *value);
        *value = i;
        __cxa_thread_atexit_impl(destroy, value, &__dso_handle);
    }
    evict();
    return argument;
}

CASE(destructors_of_thread_locals)
{
    say_thread("thread", NULL, set_destructors, NULL);
    say("destroyed: %ld", destroyed);
}

static __thread long initialised[64] = {[17] = 99, [40] = 5};

static void *read_locals(void *argument)
{
    (void)argument;
    initialised[1] = 1;
    evict();
    return (void *)(initialised[17] + initialised[40] + initialised[1] + initialised[2]);
}

CASE(thread_locals)
{
    for (int i = 0; i < 3; i++)
        say_thread("thread", NULL, read_locals, NULL);
}

static void *open_plugin(const char *name, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("ABI_PLUGIN_DIR"), name);
    void *handle = dlopen(path, flags);
    if (!handle)
        say("setting up: %s", dlerror());
    return handle;
}

static long (*add_to_local)(long);
static pthread_barrier_t barrier;

static void *add_later(void *argument)
{
    pthread_barrier_wait(&barrier);
    evict();
    return (void *)(add_to_local((long)argument) + add_to_local(1));
}

/* The threads start before the library is loaded, so their thread-local blocks are allocated at
 * the first use. */
CASE(thread_locals_of_a_library)
{
    pthread_t threads[8];
    pthread_barrier_init(&barrier, NULL, 9);
    for (long i = 0; i < 8; i++)
        MUST(-(pthread_create(&threads[i], NULL, add_later, (void *)i) != 0));
    void *handle = open_plugin("threads_plugin.so", RTLD_NOW);
    *(void **)&add_to_local = dlsym(handle, "add_to_local");
    pthread_barrier_wait(&barrier);
    long sum = 0;
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    say("%ld", sum);
    evict();
    pthread_barrier_init(&barrier, NULL, 1);
    say_thread("younger", NULL, add_later, NULL);
    say("%d", dlclose(handle));
    evict();
    say_thread("after it was closed", NULL, nothing, NULL);
}

/* Enough libraries that each thread's table of libraries must grow. */
CASE(thread_locals_of_many_libraries)
{
    char from[4096], to[64];
    snprintf(from, sizeof from, "%s/threads_plugin.so", getenv("ABI_PLUGIN_DIR"));
    void *handles[40];
    pthread_barrier_init(&barrier, NULL, 1);
    for (int i = 0; i < 40; i++) {
        snprintf(to, sizeof to, "./copy-%d.so", i);
        int in = MUST(open(from, O_RDONLY)), out = MUST(open(to, O_WRONLY | O_CREAT, 0700));
        char part[4096];
        for (ssize_t got; (got = read(in, part, sizeof part)) > 0;)
            MUST(write(out, part, got));
        close(in), close(out);
        handles[i] = dlopen(to, RTLD_NOW);
    }
    long sum = 0;
    for (int i = 0; i < 40; i++) {
        *(void **)&add_to_local = dlsym(handles[i], "add_to_local");
        sum += add_to_local(i);
        if (i % 13 == 0) {
            evict();
            say_thread("thread", NULL, add_later, (void *)(long)i);
        }
    }
    say("%ld", sum);
    for (int i = 0; i < 40; i += 2)
        dlclose(handles[i]);
    evict();
    say_thread("after half were closed", NULL, add_later, NULL);
}

static int last_words = -1;

static void at_exit(void)
{
    last_words++;
    if (last_words == 0 || last_words == 199)
        say("handler %d", last_words);
}

CASE(handlers_at_exit)
{
    for (int i = 0; i < 200; i++)
        MUST(-(atexit(at_exit) != 0));
    evict();
    say("the end");
}

static void *leave(void *argument)
{
    evict();
    exit((long)argument);
}

CASE(exit_in_a_thread)
{
    setlocale(LC_ALL, "C.UTF-8");
    MUST(-(atexit(at_exit) != 0));
    FILE *file = fopen("left", "w");
    fprintf(file, "text");
    say_thread("thread", NULL, leave, (void *)3L);
}

static void *outlive(void *argument)
{
    until_others_sleep(getpid());
    evict();
    say("the last thread");
    return argument;
}

CASE(main_ends_first)
{
    setlocale(LC_ALL, "C.UTF-8");
    pthread_t thread;
    MUST(-(pthread_create(&thread, NULL, outlive, NULL) != 0));
    evict();
    pthread_exit(NULL);
}

CASE(the_only_thread_exits)
{
    evict();
    syscall(SYS_exit, 3);
}

static void *exit_last(void *argument)
{
    until_others_sleep(getpid());
    evict();
    syscall(SYS_exit, 0);
    return argument;
}

CASE(the_last_thread_exits)
{
    pthread_t thread;
    MUST(-(pthread_create(&thread, NULL, exit_last, NULL) != 0));
    pthread_exit(NULL);
}

/* Memory that a forked child reads. */

static int fork_order;
static void before_fork(void) { fork_order++; }
static void in_parent(void) { fork_order += 100; }
static void in_child(void) { fork_order += 10000; }

CASE(handlers_of_fork)
{
    for (int i = 0; i < 90; i++)
        MUST(-(pthread_atfork(before_fork, in_parent, in_child) != 0));
    for (int round = 0; round < 2; round++) {
        fork_order = 0;
        evict();
        IN_CHILD("child")
            say("child %d", fork_order);
        say("parent %d", fork_order);
    }
}

static void *wait_for_ever(void *argument)
{
    pause();
    return argument;
}

CASE(streams_in_a_child)
{
    FILE *files[150];
    pthread_t thread;
    MUST(-(pthread_create(&thread, NULL, wait_for_ever, NULL) != 0));
    for (int i = 0; i < 150; i++) {
        files[i] = fopen("/dev/null", "r+");
        setvbuf(files[i], NULL, _IOFBF, 1024);
        fprintf(files[i], "some text %d", i);
    }
    evict();
    IN_CHILD("child") {
        long good = 0;
        for (int i = 0; i < 150; i++)
            good += fprintf(files[i], "more %d", i) > 0 && fclose(files[i]) == 0;
        say("good %ld", good);
    }
}

CASE(names_in_a_child)
{
    struct passwd *root = getpwuid(0);
    say("%s", root ? root->pw_name : "nobody");
    struct servent *service = getservbyname("http", "tcp");
    (void)service;
    evict();
    IN_CHILD("child") {
        root = getpwuid(0);
        say("%s", root ? root->pw_name : "nobody");
        struct group *group = getgrgid(0);
        say("%s", group ? group->gr_name : "none");
        exit(0);
    }
    evict();
    say("%s", getpwnam("root") ? "root" : "nobody");
}

CASE(threads_of_a_child)
{
    setlocale(LC_ALL, "C.UTF-8");
    say_thread("parent", NULL, classify, NULL);
    evict();
    IN_CHILD("child") {
        for (int i = 0; i < 5; i++)
            say_thread("child", NULL, classify, NULL);
        exit(0);
    }
}

CASE(children_of_a_thread_in_utf8)
{
    setlocale(LC_ALL, "C.UTF-8");
    setenv("ANSWER", "42", 1);
    evict();
    char *arguments[] = {"sh", "-c", "exit $ANSWER", NULL};
    pid_t pid;
    say("%d", posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ));
    say_end("spawned", pid);
    evict();
    say("system %d", WEXITSTATUS(system("exit $ANSWER")));
    evict();
    FILE *pipe = popen("echo $ANSWER", "r");
    int number = 0;
    say("read %d", fscanf(pipe, "%d", &number));
    say("%d, closed %d", number, pclose(pipe));
}

CASE(abort_in_utf8)
{
    setlocale(LC_ALL, "C.UTF-8");
    fprintf(fopen("/dev/null", "w"), "text");
    evict();
    abort();
}

static void *raise_own(void *argument)
{
    pthread_kill(pthread_self(), (long)argument);
    return NULL;
}

static volatile sig_atomic_t struck;
static void strike(int signal) { struck += signal; }

CASE(a_signal_to_a_thread)
{
    setlocale(LC_ALL, "C.UTF-8");
    signal(SIGUSR1, strike);
    evict();
    say_thread("thread", NULL, raise_own, (void *)(long)SIGUSR1);
    say("struck %d", struck);
}

/* Memory allocated by the C library keeps its content, at any address. */

CASE(a_converter)
{
    iconv_t converter = iconv_open("UTF-16LE", "UTF-8");
    say("open: %d", converter != (iconv_t)-1);
    evict();
    char in[] = "\xc3\xa4\xe2\x82\xac", out[16];
    char *from = in, *to = out;
    size_t left = 5, room = sizeof out;
    say("%zu", iconv(converter, &from, &left, &to, &room));
    say("%zu left, %zu room, %lx", left, room, checksum(out, sizeof out - room));
    say("%d", iconv_close(converter));
}

CASE(addresses_of_names)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found;
    for (int i = 0; i < 3; i++) {
        evict();
        say("%d", getaddrinfo("127.0.0.1", "80", &hints, &found));
        say("family %d, length %d", found->ai_family, found->ai_addrlen);
        evict();
        freeaddrinfo(found);
    }
}

CASE(wide_text)
{
    setlocale(LC_ALL, "C.UTF-8");
    wchar_t *text = malloc(100000 * sizeof *text);
    for (int i = 0; i < 99999; i++)
        text[i] = 0xe4 + i % 100;
    text[99999] = 0;
    evict();
    char *bytes = malloc(300000);
    size_t len = wcstombs(bytes, text, 300000);
    say("%zu, %lx", len, checksum(bytes, len));
    evict();
    say("%zu", mbstowcs(text, bytes, 100000));
    say("%s", nl_langinfo(CODESET));
}

CASE(expressions)
{
    regex_t expression;
    setlocale(LC_ALL, "C.UTF-8");
    say("%d", regcomp(&expression, "^([a-z]+)-([0-9]{2,4})\xc3\xa4*$", REG_EXTENDED | REG_ICASE));
    evict();
    long matches = 0;
    for (int i = 0; i < 2000; i++) {
        char text[64];
        regmatch_t at[3];
        snprintf(text, sizeof text, "Abc-%d\xc3\x84", i);
        if (!regexec(&expression, text, 3, at, 0))
            matches += at[2].rm_eo;
    }
    say("%ld", matches);
    regfree(&expression);
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }
static long visited;
static void visit(const void *node, VISIT order, int depth)
{
    (void)depth;
    if (order == postorder || order == leaf)
        visited += strlen(*(char *const *)node);
}

/* Strings and nodes that exceed the budget. The C library allocates all of them, and softswap
 * manages them like the program's memory. */
CASE(strings_without_end)
{
    void *root = NULL;
    char **strings = malloc(60000 * sizeof *strings);
    long bad = 0;
    for (int i = 0; i < 60000; i++) {
        char text[160];
        snprintf(text, sizeof text, "%d-%0140d", i * 7919 % 60000, i);
        strings[i] = strdup(text);
        tsearch(strings[i], &root, by_text);
    }
    evict();
    say_thread("thread", NULL, classify, NULL);
    for (int i = 0; i < 60000; i++) {
        char *text;
        bad += asprintf(&text, "%d-%0140d", i * 7919 % 60000, i) < 0 || strcmp(text, strings[i]);
        free(text);
    }
    twalk(root, visit);
    say("bad %ld, visited %ld", bad, visited);
}

static void *format(void *argument)
{
    char *text;
    long len = 0;
    for (int i = 0; i < 100; i++) {
        len += asprintf(&text, "%ls %d %s", L"\u00e4\u00f6\u00fc", i, strerror(i % 20));
        free(text);
    }
    (void)argument;
    return (void *)len;
}

CASE(threads_that_format)
{
    setlocale(LC_ALL, "C.UTF-8");
    for (int i = 0; i < 4; i++) {
        evict();
        say_thread("thread", NULL, format, NULL);
    }
}
