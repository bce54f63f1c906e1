/* Starts other programs, and forks, with most of the heap swapped out.
 *
 * After a plain fork the child either sees all of its data, or is stopped with a message and a
 * nonzero status. Other outcomes fail the test. The last lines of output show the outcome.
 *
 *   spawn [--mib N] [--pressure MIB] [--forks N]
 *   spawn --tell ARG...    (started by the cases) prints ARGs and $SPAWN_NOTE */
#include "check.h"

#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;

enum { WRONG_DATA = 17, EXEC_FAILED = 18 };

static char *data;
static size_t data_bytes;
static char *myself; /* path of this program, in the heap */
static char *work;   /* a directory, in the heap */

/* ---- strings that a started program prints ----------------------------------- */

enum { LONG_ARGUMENT = 20000, ARGUMENTS = 6 };

/* argv and its strings are on the heap. One string has several pages. */
struct arguments {
    char **argv;
    char *expected; /* the expected output of --tell */
    char note[64];
};

static char *heap_string(const char *text) {
    char *copy = strdup(text);
    CHECK(copy, "strdup: %s", strerror(errno));
    return copy;
}

static char *long_string(uint64_t seed) {
    char *text = allocate(LONG_ARGUMENT + 1);
    for (size_t i = 0; i < LONG_ARGUMENT; i++) text[i] = (char)('a' + random_word(seed, i) % 26);
    text[LONG_ARGUMENT] = 0;
    return text;
}

static void count_strings_out(char *const *strings) {
    size_t count = 0;
    while (strings[count]) count++;
    count_out(strings, count * sizeof *strings);
    for (size_t i = 0; i < count; i++) count_out(strings[i], strlen(strings[i]));
}

static struct arguments prepare(uint64_t seed) {
    struct arguments prepared = {.argv = allocate((ARGUMENTS + 1) * sizeof(char *))};
    char *expected = map_unmanaged(4 * LONG_ARGUMENT), *end = expected;
    prepared.argv[0] = heap_string("spawn");
    prepared.argv[1] = heap_string("--tell");
    for (size_t i = 2; i < ARGUMENTS; i++) {
        char text[64];
        snprintf(text, sizeof text, "argument %zu of %llu, \"quoted\"", i,
                 (unsigned long long)seed);
        prepared.argv[i] = i == 4 ? long_string(seed) : heap_string(text);
        end += sprintf(end, "%s\n", prepared.argv[i]);
    }
    prepared.argv[ARGUMENTS] = NULL;
    snprintf(prepared.note, sizeof prepared.note, "note %llu", (unsigned long long)seed);
    CALL(setenv("SPAWN_NOTE", prepared.note, 1)); /* environ is on the heap now */
    sprintf(end, "%s\n", prepared.note);
    prepared.expected = expected;
    evict_data(prepared.argv[4], LONG_ARGUMENT);
    count_strings_out(prepared.argv);
    count_strings_out(environ);
    return prepared;
}

static void release(struct arguments *prepared) {
    for (size_t i = 0; i < ARGUMENTS; i++) free(prepared->argv[i]);
    free(prepared->argv);
    CALL(munmap(prepared->expected, 4 * LONG_ARGUMENT));
}

static int tell(int argc, char **argv) {
    for (int i = 2; i < argc; i++) puts(argv[i]);
    puts(getenv("SPAWN_NOTE") ? getenv("SPAWN_NOTE") : "(no note)");
    return fflush(stdout) ? 1 : 0;
}

static void expect_output(int file, const char *expected) {
    size_t size = strlen(expected), got = 0;
    char *output = calloc(1, size + 2);
    CHECK(output, "calloc");
    for (ssize_t n; got <= size && (n = CALL(read(file, output + got, size + 1 - got))) > 0;)
        got += (size_t)n;
    for (size_t i = 0; i < size; i++)
        CHECK(output[i] == expected[i],
              "output of the started program: at byte %zu of %zu expected %02x, got %02x "
              "(it printed %zu bytes)",
              i, size, (uint8_t)expected[i], (uint8_t)output[i], got);
    EXPECT(size, got);
    free(output);
}

static int wait_for(pid_t child) {
    int *status = calloc(1, sizeof *status); /* the kernel writes into the heap */
    struct rusage *usage = calloc(1, sizeof *usage);
    evict(status, sizeof *status);
    pid_t waited;
    do waited = wait4(child, status, 0, usage);
    while (waited == -1 && errno == EINTR);
    EXPECT(child, waited);
    int result = *status;
    free(status);
    free(usage);
    return result;
}

static void expect_success(pid_t child) {
    int status = wait_for(child);
    CHECK(status == 0, "the child ended with status %x (exit %d, signal %d)", status,
          WEXITSTATUS(status), WTERMSIG(status));
}

static void pipe_ends(int ends[2]) { CALL(pipe2(ends, O_CLOEXEC)); }

static void verify_data(void) { verify_random("the parent's own data", data, data_bytes, 1); }

/* ---- fork and exec ------------------------------------------------------------------- */

enum way { EXECV, EXECVE, EXECVP, EXECVPE, EXECL, EXECLE, EXECLP, FEXECVE, WAYS };

static void replace_by(enum way way, char **argv) {
    char **a = argv;
    switch (way) {
    case EXECV: execv(myself, argv); break;
    case EXECVE: execve(myself, argv, environ); break;
    case EXECVP: execvp(myself, argv); break;
    case EXECVPE: execvpe("spawn", argv, environ); break; /* found through PATH */
    case EXECL: execl(myself, a[0], a[1], a[2], a[3], a[4], a[5], (char *)NULL); break;
    case EXECLE: execle(myself, a[0], a[1], a[2], a[3], a[4], a[5], (char *)NULL, environ); break;
    case EXECLP: execlp("spawn", a[0], a[1], a[2], a[3], a[4], a[5], (char *)NULL); break;
    case FEXECVE: fexecve(open(myself, O_RDONLY | O_CLOEXEC), argv, environ); break;
    case WAYS: break;
    }
}

static void expect_program(pid_t child, int ends[2], const struct arguments *prepared) {
    CALL(close(ends[1]));
    expect_output(ends[0], prepared->expected);
    CALL(close(ends[0]));
    expect_success(child);
}

static void fork_and_exec(enum way way, const struct arguments *prepared) {
    int ends[2];
    pipe_ends(ends);
    pid_t child = CALL(fork());
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        replace_by(way, prepared->argv);
        _exit(EXEC_FAILED);
    }
    expect_program(child, ends, prepared);
}

static void fork_then_exec(void) {
    for (enum way way = 0; way < WAYS; way++) {
        struct arguments prepared = prepare(100 + way);
        fork_and_exec(way, &prepared);
        release(&prepared);
    }
    verify_data();
}

static void vfork_then_exec(void) {
    struct arguments prepared = prepare(200);
    int ends[2];
    pipe_ends(ends);
    int saved = CALL(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
    CALL(dup2(ends[1], STDOUT_FILENO)); /* the child may only exec */
    pid_t child = vfork();
    if (child == 0) {
        execve(myself, prepared.argv, environ);
        _exit(EXEC_FAILED);
    }
    int error = errno;
    CALL(dup2(saved, STDOUT_FILENO));
    CHECK(child > 0, "vfork: %s", strerror(error));
    CALL(close(saved));
    expect_program(child, ends, &prepared);
    release(&prepared);
    verify_data();
}

static void spawn_in_a_way(bool search_path) {
    struct arguments prepared = prepare(search_path ? 301 : 300);
    char *path;
    CALL(asprintf(&path, "%s/output", work));
    posix_spawn_file_actions_t *actions = allocate(sizeof *actions);
    posix_spawnattr_t *attributes = allocate(sizeof *attributes);
    EXPECT(0, posix_spawn_file_actions_init(actions));
    EXPECT(0, posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, path,
                                               O_WRONLY | O_CREAT | O_TRUNC, 0600));
    EXPECT(0, posix_spawn_file_actions_adddup2(actions, STDOUT_FILENO, 9));
    EXPECT(0, posix_spawn_file_actions_addclose(actions, 9));
    EXPECT(0, posix_spawnattr_init(attributes));
    sigset_t none;
    sigemptyset(&none);
    EXPECT(0, posix_spawnattr_setsigmask(attributes, &none));
    EXPECT(0, posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK));
    pid_t *child = calloc(1, sizeof *child);
    evict(path, strlen(path));
    EXPECT(0, search_path
                  ? posix_spawnp(child, "spawn", actions, attributes, prepared.argv, environ)
                  : posix_spawn(child, myself, actions, attributes, prepared.argv, environ));
    expect_success(*child);
    int file = CALL(open(path, O_RDONLY | O_CLOEXEC));
    expect_output(file, prepared.expected);
    CALL(close(file));
    CALL(unlink(path));
    EXPECT(ENOENT, posix_spawn(child, "/proc/nonexistent/program", actions, attributes, prepared.argv,
                               environ));
    unlink(path);
    EXPECT(0, posix_spawn_file_actions_destroy(actions));
    EXPECT(0, posix_spawnattr_destroy(attributes));
    free(attributes);
    free(actions);
    free(child);
    free(path);
    release(&prepared);
    verify_data();
}

static void spawn_by_path(void) { spawn_in_a_way(false); }
static void spawn_by_name(void) { spawn_in_a_way(true); }

/* ---- shells --------------------------------------------------------------------------- */

static void shells(void) {
    struct arguments prepared = prepare(400);
    char *command = allocate(LONG_ARGUMENT + 200);
    sprintf(command, "test \"$SPAWN_NOTE\" = \"note 400\" && exit 7");
    evict(command, strlen(command));
    int status = system(command);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system: status %x", status);

    sprintf(command, "echo '%s'", prepared.argv[4]);
    evict(command, strlen(command));
    FILE *from = popen(command, "re");
    CHECK(from, "popen: %s", strerror(errno));
    char *line = allocate(LONG_ARGUMENT + 2);
    evict(line, LONG_ARGUMENT + 2);
    CHECK(fgets(line, LONG_ARGUMENT + 2, from), "popen: no output");
    line[strcspn(line, "\n")] = 0;
    char *expected = long_string(400);
    CHECK(strcmp(line, expected) == 0, "popen: other output of %zu bytes", strlen(line));
    free(expected);
    EXPECT(0, pclose(from));

    sprintf(command, "wc -c > '%s/count'", work);
    evict(command, strlen(command));
    FILE *to = popen(command, "we");
    CHECK(to, "popen: %s", strerror(errno));
    EXPECT(data_bytes, fwrite(data, 1, data_bytes, to));
    EXPECT(0, pclose(to));
    sprintf(command, "%s/count", work);
    FILE *count = fopen(command, "re");
    CHECK(count, "fopen %s: %s", command, strerror(errno));
    size_t counted = 0;
    EXPECT(1, fscanf(count, "%zu", &counted));
    EXPECT(data_bytes, counted);
    EXPECT(0, fclose(count));
    CALL(unlink(command));
    free(line);
    free(command);
    release(&prepared);
    verify_data();
}

enum { SHELL_THREADS = 4, SHELLS_EACH = 15 };

static void ask_shell(const char *expected) {
    FILE *from = popen("echo \"$SPAWN_LONG\"", "re");
    CHECK(from, "popen: %s", strerror(errno));
    char *line = allocate(LONG_ARGUMENT + 2);
    CHECK(fgets(line, LONG_ARGUMENT + 2, from), "popen: no output");
    line[strcspn(line, "\n")] = 0;
    CHECK(strcmp(line, expected) == 0, "popen: another $SPAWN_LONG, of %zu bytes", strlen(line));
    EXPECT(0, pclose(from));
    free(line);
}

static void *ask_shells(void *expected) {
    for (int i = 0; i < SHELLS_EACH; i++) ask_shell(expected);
    return NULL;
}

static size_t environment_size(void) {
    size_t count = 0;
    while (environ[count]) count++;
    return count;
}

static void shells_from_threads(void) {
    char *text = long_string(410), *expected = map_unmanaged(LONG_ARGUMENT + 1);
    strcpy(expected, text);
    /* The C library reallocates the array each time that it grows. */
    for (int round = 0; round < 3; round++) {
        char name[32];
        snprintf(name, sizeof name, "SPAWN_ROUND_%d", round);
        CALL(setenv("SPAWN_LONG", text, 1));
        CALL(setenv(name, "here", 1));
        size_t before = environment_size();
        evict_data(getenv("SPAWN_LONG"), LONG_ARGUMENT);
        count_strings_out(environ);
        pthread_t threads[SHELL_THREADS];
        for (size_t i = 0; i < SHELL_THREADS; i++)
            PTHREAD(pthread_create(&threads[i], NULL, ask_shells, expected));
        for (size_t i = 0; i < SHELL_THREADS; i++) PTHREAD(pthread_join(threads[i], NULL));
        EXPECT(before, environment_size());
        CHECK(getenv("SPAWN_LONG") && strcmp(getenv("SPAWN_LONG"), expected) == 0,
              "the environment has another $SPAWN_LONG now");
        CHECK(getenv(name) && strcmp(getenv(name), "here") == 0, "$%s is lost", name);
    }
    for (int round = 0; round < 3; round++) {
        char name[32];
        snprintf(name, sizeof name, "SPAWN_ROUND_%d", round);
        CALL(unsetenv(name));
        CHECK(!getenv(name), "$%s is still there", name);
    }
    CALL(unsetenv("SPAWN_LONG"));
    CALL(munmap(expected, LONG_ARGUMENT + 1));
    free(text);
    verify_data();
}

/* posix_spawnp searches the $PATH of this process, and not that of the new environment. */
static void search_after_setenv(void) {
    char *path = heap_string(getenv("PATH"));
    for (int i = 0; i < 60; i++) {
        char name[32];
        snprintf(name, sizeof name, "SPAWN_FILLER_%d", i);
        CALL(setenv(name, "x", 1));
    }
    CALL(setenv("PATH", path, 1));
    char *argv[] = {"true", NULL}, *none[] = {"SPAWN_NOTE=none", NULL};
    for (int i = 0; i < 5; i++) {
        evict(environ, sizeof *environ);
        evict(getenv("PATH"), strlen(path));
        if (inject_now()) CALL(setenv("PATH", "/proc/nonexistent", 1));
        pid_t child;
        evict(getenv("PATH"), strlen(path));
        EXPECT(0, posix_spawnp(&child, "true", NULL, NULL, argv, none));
        expect_success(child);
    }
    for (int i = 0; i < 60; i++) {
        char name[32];
        snprintf(name, sizeof name, "SPAWN_FILLER_%d", i);
        CALL(unsetenv(name));
    }
    free(path);
}

static void ignore_it(int signal) { (void)signal; }

static void *run_shell(void *argument) {
    usleep((useconds_t)(uintptr_t)argument * 60000);
    int status = system("sleep 0.2; exit 3");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "system: status %x", status);
    return NULL;
}

static void overlapping_shells(void) {
    struct sigaction mine = {.sa_handler = ignore_it}, found;
    CALL(sigaction(SIGINT, &mine, NULL));
    /* This program ignores SIGQUIT if a shell started it as a background job. */
    signal(SIGQUIT, SIG_DFL);
    pthread_t threads[SHELL_THREADS];
    for (size_t i = 0; i < SHELL_THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, run_shell, (void *)i));
    for (size_t i = 0; i < SHELL_THREADS; i++) PTHREAD(pthread_join(threads[i], NULL));
    if (inject_now()) signal(SIGINT, SIG_IGN);
    CALL(sigaction(SIGINT, NULL, &found));
    CHECK(found.sa_handler == ignore_it, "SIGINT: another handler after system()");
    CALL(sigaction(SIGQUIT, NULL, &found));
    CHECK(found.sa_handler == SIG_DFL, "SIGQUIT: not the default after system()");
    mine.sa_handler = SIG_DFL;
    CALL(sigaction(SIGINT, &mine, NULL));
}

/* ---- refused exec ------------------------------------------------------------------------ */

static void refused_exec(void) {
    char *missing, *plain;
    CALL(asprintf(&missing, "%s/missing", work));
    CALL(asprintf(&plain, "%s/plain", work));
    CALL(close(CALL(open(plain, O_CREAT | O_WRONLY | O_CLOEXEC, inject_now() ? 0700 : 0600))));
    struct arguments prepared = prepare(500);
    evict(missing, strlen(missing));
    EXPECT_ERRNO(ENOENT, execv(missing, prepared.argv));
    EXPECT_ERRNO(ENOENT, execvp("no-program-has-this-name", prepared.argv));
    EXPECT_ERRNO(EACCES, execve(plain, prepared.argv, environ));
    EXPECT_ERRNO(EACCES, execl(work, "spawn", (char *)NULL));
    /* This process continues and is still managed. */
    fill_random(data, data_bytes, 2);
    evict(data, data_bytes);
    verify_random("after refused calls", data, data_bytes, 2);
    fill_random(data, data_bytes, 1);
    CALL(unlink(plain));
    free(plain);
    free(missing);
    release(&prepared);
}

/* ---- a child that continues with the parent's memory ---------------------------------------- */

/* Runs `child_does` after a fork. The child must succeed, or be stopped by SIGBUS with a message
 * on standard error, which the test checks. */
static void fork_and_judge(const char *what, void (*child_does)(void), void (*parent_does)(void)) {
    fflush(stdout);
    pid_t child = CALL(fork());
    if (child == 0) {
        check_failure_status = WRONG_DATA;
        child_does();
        _exit(0);
    }
    if (parent_does) parent_does();
    int status = wait_for(child);
    if (status == 0) {
        printf("%s: the child saw all its data\n", what);
        return;
    }
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != WRONG_DATA,
          "%s: the child saw wrong data", what);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS,
          "%s: the child ended with status %x", what, status);
    printf("%s: the child was stopped\n", what);
}

static void child_reads(void) {
    if (inject_now()) data[data_bytes / 2] ^= 1;
    verify_random("in the child", data, data_bytes, 1);
    char *block = allocate(MIB);
    fill_random(block, MIB, 3);
    verify_random("memory of the child", block, MIB, 3);
    free(block);
}

static void fork_reads_all(void) {
    evict(data, data_bytes);
    fork_and_judge("fork, child reads", child_reads, NULL);
    verify_data();
}

static void child_writes(void) {
    verify_random("in the child, before writing", data, data_bytes, 1);
    fill_random(data, data_bytes, 10);
    sweep();
    if (inject_now()) data[data_bytes / 2] ^= 1;
    verify_random("in the child, after writing", data, data_bytes, 10);
}

static void parent_writes(void) {
    fill_random(data, data_bytes / 2, 11);
    evict(data, data_bytes);
    verify_random("in the parent, after writing", data, data_bytes / 2, 11);
}

static void fork_both_write(void) {
    evict(data, data_bytes);
    fork_and_judge("fork, both write", child_writes, parent_writes);
    fill_random(data, data_bytes / 2, 1);
    verify_data();
}

static void child_ends_at_once(void) {
    if (inject_now()) FAIL("injected failure");
}

static void many_forks(void) {
    size_t forks = option_number("forks", 50);
    for (size_t i = 0; i < forks; i++) {
        pid_t child = CALL(fork());
        if (child == 0) {
            check_failure_status = WRONG_DATA;
            child_ends_at_once();
            _exit(0);
        }
        /* The parent swaps continuously while children start and exit. */
        size_t at = i * MIB % data_bytes;
        volatile char *byte = data + at;
        *byte = *byte;
        expect_success(child);
        if (i % 10 == 0) evict(data, data_bytes);
    }
    verify_data();
}

/* The C library's streams remain in memory during a fork, at any address. */
static void fork_with_streams_out(void) {
    enum { STREAMS = 16, BETWEEN = 10, BLOCK = 600, BLOCKS = STREAMS * BETWEEN };
    FILE *streams[STREAMS];
    char *blocks[BLOCKS]; /* next to the streams, so that their pages do not compress */
    for (size_t i = 0; i < BLOCKS; i++) {
        if (i % BETWEEN == 0) {
            streams[i / BETWEEN] = fopen("/dev/null", "w");
            CHECK(streams[i / BETWEEN], "fopen: %s", strerror(errno));
        }
        blocks[i] = allocate(BLOCK);
        fill_random(blocks[i], BLOCK, 700 + i);
    }
    for (int round = 0; round < 3; round++) {
        evict_data(blocks[0], BLOCK);
        pid_t child = CALL(fork());
        if (child == 0) _exit(0);
        expect_success(child);
    }
    for (size_t i = 0; i < STREAMS; i++) EXPECT(0, fclose(streams[i]));
    for (size_t i = 0; i < BLOCKS; i++) {
        verify_random("next to a stream", blocks[i], BLOCK, 700 + i);
        free(blocks[i]);
    }
}

/* ---- fork while other threads work ------------------------------------------------------- */

static atomic_bool threads_stop;

static void *use_memory(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    while (!atomic_load(&threads_stop)) {
        char *mine = filled(MIB, seed), *heap = allocate(64 * 1024);
        fill_random(heap, 64 * 1024, seed);
        verify_random("mapping of a thread", mine, MIB, seed);
        verify_random("heap of a thread", heap, 64 * 1024, seed);
        CALL(munmap(mine, MIB));
        free(heap);
        seed += 16;
    }
    return NULL;
}

static void fork_among_threads(void) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    atomic_store(&threads_stop, false);
    struct arguments prepared = prepare(600);
    churn_start();
    for (size_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, use_memory, (void *)(600 + i)));
    for (int i = 0; i < 15; i++) {
        fork_and_exec(EXECV, &prepared);
        evict(data, MIB);
    }
    atomic_store(&threads_stop, true);
    for (size_t i = 0; i < THREADS; i++) PTHREAD(pthread_join(threads[i], NULL));
    churn_stop();
    release(&prepared);
    verify_data();
}

static void *tell_processor(void *argument) {
    cpu_set_t set;
    CALL(sched_getaffinity(0, sizeof set, &set));
    CHECK(CPU_EQUAL(&set, (cpu_set_t *)argument), "the thread runs elsewhere");
    return argument;
}

/* The C library stores streams, actions and CPU sets on the heap, and touches them with all
 * signals blocked. */
static void shells_under_churn(void) {
    char *text = long_string(411), *expected = map_unmanaged(LONG_ARGUMENT + 1);
    strcpy(expected, text);
    cpu_set_t set;
    CALL(sched_getaffinity(0, sizeof set, &set));
    churn_start();
    evict_data(text, LONG_ARGUMENT);
    for (int round = 0; round < 12; round++) {
        CALL(setenv("SPAWN_LONG", text, 1));
        ask_shell(expected);

        pthread_t thread;
        pthread_attr_t *attributes = allocate(sizeof *attributes);
        PTHREAD(pthread_attr_init(attributes));
        PTHREAD(pthread_attr_setaffinity_np(attributes, sizeof set, &set));
        evict(attributes, sizeof *attributes);
        PTHREAD(pthread_create(&thread, attributes, tell_processor, &set));
        PTHREAD(pthread_join(thread, NULL));
        PTHREAD(pthread_attr_destroy(attributes));
        free(attributes);
    }
    churn_stop();
    CALL(unsetenv("SPAWN_LONG"));
    CALL(munmap(expected, LONG_ARGUMENT + 1));
    free(text);
}

static const struct check_case cases[] = {
    {"fork-then-exec", fork_then_exec},
    {"vfork-then-exec", vfork_then_exec},
    {"spawn-by-path", spawn_by_path},
    {"spawn-by-name", spawn_by_name},
    {"shells", shells},
    {"shells-from-threads", shells_from_threads},
    {"search-after-setenv", search_after_setenv},
    {"overlapping-shells", overlapping_shells},
    {"refused-exec", refused_exec},
    {"shells-under-churn", shells_under_churn},
    {"many-forks", many_forks},
    {"fork-with-streams-out", fork_with_streams_out},
    {"fork-among-threads", fork_among_threads},
    {"fork-reads-all", fork_reads_all},
    {"fork-both-write", fork_both_write},
};

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--tell") == 0) return tell(argc, argv);
    check_start(argc, argv);
    data_bytes = option_number("mib", 8) * MIB;
    data = filled(data_bytes, 1);

    myself = realpath("/proc/self/exe", NULL);
    CHECK(myself, "realpath: %s", strerror(errno));
    char *path;
    CALL(asprintf(&path, "%.*s:%s", (int)(strrchr(myself, '/') - myself), myself,
                  getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin"));
    CALL(setenv("PATH", path, 1));
    const char *parent = getenv("TMPDIR");
    CALL(asprintf(&work, "%s/spawn-XXXXXX", parent ? parent : "/tmp"));
    CHECK(mkdtemp(work), "mkdtemp %s: %s", work, strerror(errno));
    int result = check_main(argc, argv, cases, sizeof cases / sizeof *cases);
    rmdir(work);
    return result;
}
