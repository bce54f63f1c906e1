/* fork and its variants, clone, vfork, posix_spawn and exec. Tests the parent's memory in the
 * child and the child's exit. */
#include "abi.h"
#include <linux/sched.h>
#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;

enum { LEN = 2 << 20 };

/* Verifies and changes the parent's memory in the child. */
static void look_and_change(char *at)
{
    say("child: wrong %zu", wrong(at, LEN, 7));
    fill(at, LEN / 2, 8);
    char *more = malloc(300000);
    memset(more, 5, 300000);
    say("child: wrong %zu, %d", wrong(at, LEN / 2, 8), more[299999]);
    free(more);
}

static void then(pid_t pid, char *at)
{
    say_end("child", pid);
    say("parent: wrong %zu", wrong(at, LEN, 7));
}

#define CHILD(at, call)                                                       \
    do {                                                                      \
        pid_t pid_ = MUST(call);                                              \
        if (pid_ == 0) {                                                      \
            look_and_change(at);                                              \
            _exit(6);                                                         \
        }                                                                     \
        then(pid_, at);                                                       \
    } while (0)

CASE(fork_copies_memory)
{
    char *at = evicted_memory(LEN, 7);
    CHILD(at, fork());
}

CASE(underscore_fork_copies_memory)
{
    char *at = evicted_memory(LEN, 7);
    CHILD(at, _Fork());
}

CASE(a_raw_fork_copies_memory)
{
    char *at = evicted_memory(LEN, 7);
    CHILD(at, syscall(SYS_fork));
}

CASE(a_raw_clone_copies_memory)
{
    char *at = evicted_memory(LEN, 7);
    CHILD(at, syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0));
}

CASE(a_raw_clone3_copies_memory)
{
    char *at = evicted_memory(LEN, 7);
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    CHILD(at, syscall(SYS_clone3, &arguments, sizeof arguments));
}

CASE(the_arguments_of_clone3_are_out)
{
    struct clone_args *arguments = memory(LEN, 1);
    memset(arguments, 0, sizeof *arguments);
    arguments->exit_signal = SIGCHLD;
    char *at = evicted_memory(LEN, 7);
    CHILD(at, syscall(SYS_clone3, arguments, sizeof *arguments));
}

CASE(clone3_with_bad_arguments)
{
    struct clone_args arguments = {.flags = CLONE_THREAD, .exit_signal = SIGCHLD};
    RESULT(syscall(SYS_clone3, 8, sizeof arguments));
    RESULT(syscall(SYS_clone3, &arguments, 8));
    RESULT(syscall(SYS_clone3, &arguments, sizeof arguments));
    RESULT(syscall(SYS_clone, CLONE_THREAD | SIGCHLD, NULL, NULL, NULL, 0));
    RESULT(syscall(SYS_clone, CLONE_SIGHAND | SIGCHLD, NULL, NULL, NULL, 0));
}

CASE(clone_writes_numbers_to_memory_that_is_out)
{
    pid_t *words = memory(LEN, 1);
    words[0] = words[1] = 0;
    char *at = evicted_memory(LEN, 7);
    pid_t pid = syscall(SYS_clone, CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, NULL,
                        words, words + 1, 0);
    if (pid == 0) {
        say("child: its own %d", words[1] == getpid());
        _exit(6);
    }
    then(pid, at);
    say("parent: the child's %d, its own %d", words[0] == pid, words[1]);
}

CASE(a_raw_clone_in_a_new_namespace)
{
    char *at = evicted_memory(LEN, 7);
    pid_t pid = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD, NULL, NULL, NULL, 0);
    if (pid < 0) {
        say("%s", strerrorname_np(errno));
        return;
    }
    if (pid == 0) {
        look_and_change(at);
        _exit(6);
    }
    then(pid, at);
}

static char *shared_at;

static int child_body(void *argument)
{
    char room[20000];
    memset(room, 3, sizeof room);
    look_and_change(argument);
    return 40 + room[19999];
}

CASE(clone_with_a_stack_of_static_memory)
{
    static char stack[128 << 10] __attribute__((aligned(16)));
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(clone(child_body, stack + sizeof stack, SIGCHLD, at));
    then(pid, at);
}

CASE(clone_with_a_stack_that_is_out)
{
    char *stack = memory(LEN, 3);
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(clone(child_body, stack + LEN, SIGCHLD, at));
    then(pid, at);
    // The C library stores two addresses at the top, whose bytes differ between runs.
    say("stack: wrong %zu", wrong(stack, LEN - 2 * sizeof(void *), 3));
}

CASE(clone_writes_the_numbers_too)
{
    char *stack = malloc(256 << 10);
    pid_t *words = memory(LEN, 3);
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(clone(child_body, stack + (256 << 10), CLONE_PARENT_SETTID | SIGCHLD, at,
                           words, NULL, NULL));
    then(pid, at);
    say("%d", words[0] == pid);
}

CASE(clone_refuses_what_it_should)
{
    static char stack[64 << 10] __attribute__((aligned(16)));
    RESULT(clone(NULL, stack + sizeof stack, SIGCHLD, NULL));
    RESULT(clone(child_body, NULL, SIGCHLD, NULL));
    RESULT(clone(child_body, stack + sizeof stack, CLONE_SIGHAND | SIGCHLD, NULL));
}

static int share_body(void *argument)
{
    *(char *)argument = 9;
    _exit(6);
}

CASE(clone_that_shares_memory)
{
    static char stack[64 << 10] __attribute__((aligned(16)));
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(clone(share_body, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, at));
    say("%d", at[0]);
    at[0] = pattern(0, 7);
    then(pid, at);
}

CASE(a_vforked_child_touches_what_is_out)
{
    shared_at = evicted_memory(LEN, 7);
    pid_t pid = vfork();
    if (pid == 0) {
        shared_at[LEN - 1] = 1;
        _exit(wrong(shared_at, LEN - 1, 7) ? 1 : 6);
    }
    say("%d", shared_at[LEN - 1]);
    shared_at[LEN - 1] = pattern(LEN - 1, 7);
    then(pid, shared_at);
}

CASE(a_vforked_child_runs_a_program)
{
    char *word = strdup("echo from vfork");
    char *at = evicted_memory(LEN, 7);
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", word, NULL);
        _exit(1);
    }
    then(pid, at);
}

CASE(a_child_of_a_child_of_a_child)
{
    char *at = evicted_memory(LEN, 7);
    int depth = 0;
    pid_t pid;
    while ((pid = MUST(fork())) == 0 && depth < 3) {
        fill(at + depth * PAGE, PAGE, 20 + depth);
        depth++;
    }
    if (pid == 0) {
        for (int i = 0; i < depth; i++)
            say("%zu", wrong(at + i * PAGE, PAGE, 20 + i));
        say("rest: wrong %d", memcmp(at + depth * PAGE, at + depth * PAGE, PAGE));
        _exit(0);
    }
    char what[32];
    snprintf(what, sizeof what, "below %d", depth);
    say_end(what, pid);
    say("%d: wrong %zu", depth, depth ? 0 : wrong(at, LEN, 7));
    if (depth)
        _exit(depth);
}

CASE(raw_and_usual_forks_in_turns)
{
    char *at = evicted_memory(LEN, 7);
    for (int i = 0; i < 6; i++) {
        pid_t pid = i % 2 ? MUST(fork()) : MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (pid == 0)
            _exit(wrong(at, LEN, 7) ? 1 : i);
        say_end("child", pid);
    }
    then(MUST(fork()) ?: (_exit(2), 0), at);
}

CASE(many_children_at_once)
{
    char *at = evicted_memory(LEN, 7);
    pid_t pids[12];
    for (int i = 0; i < 12; i++)
        if ((pids[i] = MUST(fork())) == 0)
            _exit(wrong(at, LEN, 7) ? 99 : i);
    for (int i = 0; i < 12; i++)
        say_end("child", pids[i]);
    say("wrong %zu", wrong(at, LEN, 7));
}

static void *fork_from_here(void *argument)
{
    CHILD((char *)argument, fork());
    return NULL;
}

CASE(fork_in_a_thread)
{
    char *at = evicted_memory(LEN, 7);
    in_thread(fork_from_here, at);
}

static void *raw_fork_from_here(void *argument)
{
    CHILD((char *)argument, syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    return NULL;
}

CASE(a_raw_fork_in_a_thread)
{
    char *at = evicted_memory(LEN, 7);
    in_thread(raw_fork_from_here, at);
}

static char *handlers_at;
static void before(void) { say("before: wrong %zu", wrong(handlers_at, LEN, 7)); }
static void in_parent(void) { say("parent: wrong %zu", wrong(handlers_at, LEN, 7)); }
static void in_child(void) { handlers_at[0] ^= 1; }

CASE(handlers_see_memory)
{
    handlers_at = evicted_memory(LEN, 7);
    int in_order = 0;
    pthread_atfork(before, NULL, in_child);
    IN_CHILD("child")
        _exit(wrong(handlers_at, LEN, 7));
    pthread_atfork(NULL, in_parent, NULL);
    IN_CHILD("child")
        _exit(in_order);
}

static volatile int forked_pid;
static void fork_in_handler(int signal)
{
    (void)signal;
    forked_pid = fork();
}

CASE(fork_in_a_signal_handler)
{
    char *at = evicted_memory(LEN, 7);
    signal(SIGUSR1, fork_in_handler);
    raise(SIGUSR1);
    if (forked_pid == 0)
        _exit(wrong(at, LEN, 7) ? 1 : 6);
    then(forked_pid, at);
}

CASE(fork_keeps_the_mask)
{
    char *at = evicted_memory(LEN, 7);
    sigset_t mask, found;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    MUST(sigprocmask(SIG_SETMASK, &mask, NULL));
    pid_t pid = syscall(SYS_fork);
    MUST(sigprocmask(SIG_SETMASK, NULL, &found));
    int kept = sigismember(&found, SIGUSR2) * 2 + sigismember(&found, SIGUSR1);
    if (pid == 0)
        _exit(kept);
    say("%d", kept);
    then(pid, at);
}

CASE(a_process_that_cannot_be_dumped_forks)
{
    char *at = evicted_memory(LEN, 7);
    RESULT(prctl(PR_SET_DUMPABLE, 0));
    CHILD(at, fork());
    RESULT(prctl(PR_GET_DUMPABLE));
}

CASE(a_daemon_that_dropped_root_forks)
{
    char *at = evicted_memory(LEN, 7);
    if (getuid() == 0) {
        MUST(setresgid(65534, 65534, 65534));
        MUST(setresuid(65534, 65534, 65534));
    }
    CHILD(at, fork());
    CHILD(at, syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}

CASE(dropped_in_the_child)
{
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        if (getuid() == 0)
            MUST(setresuid(65534, 65534, 65534));
        prctl(PR_SET_DUMPABLE, 0);
        CHILD(at, fork());
        _exit(2);
    }
    then(pid, at);
}

CASE(memory_that_may_not_be_read_leaves_and_comes_back)
{
    char *at = memory(LEN, 7);
    MUST(mprotect(at, LEN / 2, PROT_NONE));
    evict();
    IN_CHILD("child") {
        MUST(mprotect(at, LEN / 2, PROT_READ));
        _exit(wrong(at, LEN, 7) ? 1 : 6);
    }
    MUST(mprotect(at, LEN / 2, PROT_READ | PROT_WRITE));
    say("wrong %zu", wrong(at, LEN, 7));
}

CASE(memory_that_may_only_be_written_leaves_and_comes_back)
{
    char *at = memory(LEN, 7);
    MUST(mprotect(at, LEN, PROT_WRITE));
    evict();
    MUST(prctl(PR_SET_DUMPABLE, 0));
    evict();
    MUST(mprotect(at, LEN, PROT_READ));
    evict();
    say("wrong %zu", wrong(at, LEN, 7));
}

CASE(memory_without_access_moves)
{
    char *at = evicted_memory(LEN, 7);
    volatile char touched = at[PAGE];
    (void)touched;
    MUST(mprotect(at, LEN, PROT_NONE));
    at = mremap(at, LEN, 2 * LEN, MREMAP_MAYMOVE);
    say("%d", at != MAP_FAILED);
    MUST(mprotect(at, LEN, PROT_READ));
    say("wrong %zu", wrong(at, LEN, 7));
}

CASE(an_ended_parent_leaves_its_child_whole)
{
    int ends[2];
    MUST(pipe(ends));
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        pid = getpid();
        if (MUST(fork()) == 0) {
            WAIT_UNTIL(getppid() != pid);
            dprintf(ends[1], "wrong %zu", wrong(at, LEN, 7));
            _exit(0);
        }
        _exit(6);
    }
    then(pid, at);
    close(ends[1]);
    char text[64] = "";
    RESULT(read(ends[0], text, sizeof text - 1));
    say("%s", text);
}

CASE(a_killed_child_says_so)
{
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(syscall(SYS_fork));
    if (pid == 0)
        for (;;)
            pause();
    MUST(kill(pid, SIGTERM));
    then(pid, at);
}

CASE(exec_says_why_it_fails)
{
    char long_name[5000], *argv[] = {"x", NULL}, *envp[] = {NULL};
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    RESULT(execve(long_name, argv, envp));
    RESULT(execve("not/there", argv, envp));
    RESULT(execve("", argv, envp));
    RESULT(execve("/proc/self/exe/below", argv, envp));
    RESULT(execve("/", argv, envp));
    int fd = MUST(open("plain", O_WRONLY | O_CREAT, 0644));
    MUST(write(fd, "no program", 10));
    MUST(close(fd));
    RESULT(execve("./plain", argv, envp));
    MUST(chmod("plain", 0755));
    RESULT(execve("./plain", argv, envp));
    MUST(symlink("loop", "loop"));
    RESULT(execve("loop", argv, envp));
    fd = MUST(open("busy", O_WRONLY | O_CREAT, 0755));
    MUST(write(fd, "#!/bin/sh\n", 10));
    RESULT(execve("./busy", argv, envp));
}

CASE(exec_with_bad_pointers)
{
    char *volatile nowhere = (char *)8;
    char *argv[] = {"x", NULL}, *bad[] = {"x", nowhere, NULL}, *envp[] = {NULL};
    char *none = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *large = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RESULT(execve(nowhere, argv, envp));
    RESULT(execve(none, argv, envp));
    RESULT(execve(large, argv, envp));
    RESULT(execve("/bin/true", (char **)nowhere, envp));
    RESULT(execve("/bin/true", argv, (char **)nowhere));
    RESULT(execve("/bin/true", bad, envp));
    RESULT(execve("/bin/true", argv, bad));
    RESULT(execve("/not/there", bad, (char **)nowhere));
    RESULT(execve("/bin/true", (char **)large, envp));
    RESULT(execv(none, argv));
}

CASE(a_string_up_to_the_last_byte_of_memory)
{
    char *at = memory(LEN, 7);
    MUST(munmap(at + LEN - PAGE, PAGE));
    char *path = at + LEN - PAGE - 10;
    memcpy(path, "/bin/true", 10);
    evict();
    char *argv[] = {path, NULL};
    IN_CHILD("child") {
        execve(path, argv, NULL);
        _exit(1);
    }
    memset(path, 'a', 10);
    RESULT(execve(path, argv, NULL));
}

CASE(exec_of_strings_that_are_out)
{
    char *text = memory(LEN, 1), **argv = memory(LEN, 2);
    strcpy(text, "echo $WORD");
    strcpy(text + LEN / 2, "WORD=from far away");
    memcpy(argv, (char *[]){"sh", "-c", text, NULL}, 4 * sizeof *argv);
    memcpy(argv + 8, (char *[]){text + LEN / 2, NULL}, 2 * sizeof *argv);
    evict();
    IN_CHILD("child") {
        execve("/bin/sh", argv, argv + 8);
        _exit(1);
    }
    pid_t spawned;
    int failed = posix_spawn(&spawned, "/bin/sh", NULL, NULL, argv, argv + 8);
    say_end("spawned", spawned);
    say("%d", failed);
}

CASE(a_program_by_its_descriptor)
{
    char *at = evicted_memory(LEN, 7);
    int fd = MUST(open("/bin/sh", O_RDONLY | O_CLOEXEC));
    char *argv[] = {"sh", "-c", "echo by descriptor", NULL};
    pid_t pid = MUST(fork());
    if (pid == 0) {
        fexecve(fd, argv, environ);
        _exit(1);
    }
    then(pid, at);
}

CASE(fexecve_refuses_what_it_should)
{
    int fd = MUST(open("/bin/sh", O_RDONLY | O_CLOEXEC));
    char *argv[] = {"sh", NULL}, **volatile none = NULL;
    RESULT(fexecve(-1, argv, environ));
    RESULT(fexecve(fd, none, environ));
    RESULT(fexecve(fd, argv, none));
}

CASE(system_sets_errno)
{
    MUST(signal(SIGCHLD, SIG_IGN) == SIG_ERR ? -1 : 0);
    RESULT(system("true"));
}

/* An environment that the program has made read-only. */
CASE(variables_that_cannot_be_written)
{
    char *at = memory(LEN, 7);
    strcpy(at, "VARIABLE=read-only");
    MUST(putenv(at));
    MUST(mprotect(at, LEN, PROT_READ));
    evict();
    say("%d", system("test \"$VARIABLE\" = read-only"));
    size_t other = 0;
    for (size_t i = 32; i < LEN; i++)
        other += (unsigned char)at[i] != pattern(i, 7);
    say("wrong %zu", other);
}

static void on_signal_a(int signal) { say("a %d", signal == SIGUSR1); }
static void on_signal_b(int signal) { say("b %d", signal == SIGUSR1); }
CASE(a_handler_of_a_vforked_child)
{
    signal(SIGUSR1, on_signal_a);
    pid_t pid = vfork();
    if (pid == 0) {
        signal(SIGUSR1, on_signal_b);
        _exit(0);
    }
    say_end("child", pid);
    raise(SIGUSR1);
}

CASE(the_shell_and_pipes_to_it)
{
    char *at = evicted_memory(LEN, 7), line[64] = "";
    say("%d", system("exit 3"));
    FILE *from = popen("echo word; exit 4", "r");
    say("%d", fgets(line, sizeof line, from) != NULL);
    say("%s %d", line, pclose(from));
    setenv("OTHER", "value", 1);
    say("%d", system("test \"$OTHER\" = value"));
    say("wrong %zu", wrong(at, LEN, 7));
}

CASE(spawn_says_why_it_fails)
{
    char *argv[] = {"x", NULL};
    pid_t pid;
    say("%s", strerrorname_np(posix_spawn(&pid, "/not/there", NULL, NULL, argv, environ)));
    say("%s", strerrorname_np(posix_spawn(&pid, "/", NULL, NULL, argv, environ)));
    say("%s", strerrorname_np(posix_spawnp(&pid, "not-there", NULL, NULL, argv, environ)));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 5, "/not/there", O_RDONLY, 0);
    say("%s", strerrorname_np(posix_spawn(&pid, "/bin/true", &actions, NULL, argv, environ)));
}

CASE(spawn_over_numbers)
{
    char *argv[] = {"sh", "-c", "echo to forty >&40; echo to nine >&9", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 40);
    posix_spawn_file_actions_adddup2(&actions, 40, 9);
    for (int fd = 3; fd < 9; fd++)
        posix_spawn_file_actions_addclose(&actions, fd);
    char *at = evicted_memory(LEN, 7);
    pid_t pid;
    int failed = posix_spawn(&pid, "/bin/bash", &actions, NULL, argv, environ);
    then(pid, at);
    say("%d", failed);
}

CASE(a_child_frees_and_allocates)
{
    char *blocks[64];
    for (int i = 0; i < 64; i++)
        memset(blocks[i] = malloc(40000), i, 40000);
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
        int bad = 0;
        for (int i = 0; i < 64; i++) {
            bad += blocks[i][39999] != i;
            free(blocks[i]);
        }
        char *more = calloc(1, 1 << 20);
        bad += more[12345];
        _exit(bad);
    }
    then(pid, at);
    int bad = 0;
    for (int i = 0; i < 64; i++)
        bad += blocks[i][0] != i;
    say("bad %d", bad);
}

CASE(standard_streams_after_a_fork)
{
    char *at = evicted_memory(LEN, 7);
    setvbuf(stdout, malloc(1 << 16), _IOFBF, 1 << 16);
    printf("held back\n");
    fflush(stdout);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        printf("of the child\n");
        fflush(stdout);
        _exit(6);
    }
    then(pid, at);
    printf("of the parent\n");
    fflush(stdout);
}

CASE(a_fork_that_the_limit_refuses)
{
    char *at = evicted_memory(LEN, 7);
    if (getuid() == 0) {
        MUST(setresuid(65533, 65533, 65533));
    }
    struct rlimit none = {0, 0};
    MUST(setrlimit(RLIMIT_NPROC, &none));
    RESULT(fork());
    RESULT(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    RESULT(_Fork());
    say("wrong %zu", wrong(at, LEN, 7));
}

static void set_path(const char *path)
{
    char *text = malloc(strlen(path) + 6);
    sprintf(text, "PATH=%s", path);
    putenv(text);
}

static void block_faults(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGBUS);
    sigaddset(&set, SIGSYS);
    sigaddset(&set, SIGSEGV);
    MUST(sigprocmask(SIG_BLOCK, &set, NULL));
}

/* The program has blocked the fault signals, and the search reads a path in swapped-out memory. */
CASE(a_search_along_a_path_that_is_out)
{
    char *argv[] = {"true", NULL}, *envp[] = {NULL};
    set_path("/nowhere:/usr/bin:/bin");
    block_faults();
    evict();
    execvpe("true", argv, envp);
    say("the exec failed");
}

CASE(a_search_in_a_child)
{
    set_path("/nowhere:/usr/bin:/bin");
    char *argv[] = {"echo", strdup("found"), NULL}, *envp[] = {NULL};
    evict();
    IN_CHILD("child") {
        block_faults();
        evict();
        execvpe("echo", argv, envp);
        _exit(1);
    }
}

CASE(a_spawn_along_a_path_that_is_out)
{
    pid_t pid;
    char *argv[] = {"true", NULL}, *envp[] = {NULL};
    set_path("/nowhere:/usr/bin:/bin");
    block_faults();
    evict();
    say("%d", posix_spawnp(&pid, "true", NULL, NULL, argv, envp));
    say_end("child", pid);
}

static void file_of(const char *path, const char *text, mode_t mode)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT, 0700));
    MUST(write(fd, text, strlen(text)));
    MUST(fchmod(fd, mode));
    MUST(close(fd));
}

CASE(a_search_says_why_it_fails)
{
    char long_name[400];
    char *argv[] = {"x", NULL};
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    MUST(mkdir("some", 0755));
    MUST(mkdir("other", 0755));
    file_of("some/plain", "x", 0644);
    file_of("plain", "x", 0644);
    set_path("some:plain:other");
    RESULT(execvp("plain", argv));
    RESULT(execvp("nothing", argv));
    RESULT(execvp("", argv));
    RESULT(execvp(long_name, argv));
    RESULT(execvp("./plain", argv));
    RESULT(execvp("some/nothing", argv));
    RESULT(execvp("plain/below", argv));
    set_path("plain");
    RESULT(execvp("below", argv));
    set_path("");
    RESULT(execvp("nothing", argv));
    RESULT(execvp("plain", argv));
    set_path(":other:");
    RESULT(execvp("plain", argv));
}

static void a_search_finds(const char *path, const char *file)
{
    char *argv[] = {"name", strdup("one"), strdup("two"), NULL};
    char *envp[] = {strdup("WHAT=this"), NULL};
    set_path(path);
    evict();
    IN_CHILD(file) {
        execvpe(file, argv, envp);
        say("%s", strerrorname_np(errno));
        _exit(1);
    }
}

/* The search finds the first executable file. A shell runs a file that is not a program. */
CASE(a_search_finds_programs_and_scripts)
{
    MUST(mkdir("some", 0755));
    MUST(mkdir("other", 0755));
    file_of("some/script", "echo no, no", 0644);
    file_of("other/script", "echo $0 $# $1 $2 $WHAT\nexit 7\n", 0755);
    file_of("other/first", "#!/bin/sh\necho $0 $# $1 $WHAT\n", 0755);
    file_of("here", "echo $0 $#\n", 0755);
    a_search_finds("nowhere:some:other", "script");
    a_search_finds("some:other", "first");
    a_search_finds("some:", "here");
    a_search_finds(":some", "here");
    a_search_finds("some", "./here");
    a_search_finds("some", "other/script");
    unsetenv("PATH");
    char *argv[] = {"true", NULL};
    RESULT(execvp("no-such-program", argv));
}

/* --- a fork does not affect other threads */

static volatile int forked_enough;

static void *forks(void *at)
{
    size_t bad = 0;
    for (int i = 0; i < 40; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(((char *)at)[0] != (char)pattern(0, 7));
        bad += waitpid(pid, &status, 0) != pid || status != 0;
    }
    forked_enough = 1;
    return (void *)bad;
}

static pthread_t forking(char *at)
{
    pthread_t thread;
    pthread_create(&thread, NULL, forks, at);
    return thread;
}

static void forked(pthread_t thread)
{
    void *bad;
    pthread_join(thread, &bad);
    say("bad children: %zu", (size_t)bad);
}

CASE(descriptors_while_a_thread_forks)
{
    char *at = evicted_memory(LEN, 7);
    int lowest = MUST(dup(1));
    close(lowest);
    pthread_t thread = forking(at);
    size_t others = 0, closed = 0;
    while (!forked_enough) {
        others += dup(1) != lowest;
        close(lowest);
        closed += close(lowest) == 0;
    }
    forked(thread);
    say("%zu others, %zu closed", others, closed);
}

CASE(the_limit_while_a_thread_forks)
{
    struct rlimit before, now;
    MUST(getrlimit(RLIMIT_NOFILE, &before));
    before.rlim_cur = 200;
    MUST(setrlimit(RLIMIT_NOFILE, &before));
    pthread_t thread = forking(evicted_memory(LEN, 7));
    size_t others = 0;
    while (!forked_enough) {
        MUST(getrlimit(RLIMIT_NOFILE, &now));
        others += now.rlim_cur != before.rlim_cur || now.rlim_max != before.rlim_max;
    }
    forked(thread);
    say("%zu others", others);
}

/* Writes incompressible data, so that the pages are written to the swap area. */
static void fill_at_random(char *at, uint64_t word)
{
    for (size_t i = 0; i < LEN; i += sizeof word) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        memcpy(at + i, &word, sizeof word);
    }
}

/* Text several times as large as the budget. A child that only reads it needs no copies of the
 * pages. */
CASE(a_child_s_child_reads_several_budgets)
{
    const size_t len = 80u << 20;
    unsigned char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < len; i++)
        at[i] = (i * 7) >> 5 ^ (i >> 13);
    unsigned long sum = checksum((char *)at, len);
    IN_CHILD("child") {
        pid_t last = MUST(fork());
        for (int i = 0; last == 0 && i < 2; i++)
            say("the same %d", checksum((char *)at, len) == sum);
        if (last > 0)
            say_end("child's child", last);
        fflush(stdout);
    }
}

/* A child may close all descriptors, so softswap must not detect its exit by a closed
 * descriptor. */
CASE(a_child_that_closes_pipes_keeps_its_memory)
{
    volatile int *stage = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *at = evicted_memory(LEN, 7);
    fill_at_random(at, 4711);
    unsigned long sum = checksum(at, LEN);
    evict();
    pid_t pid = MUST(fork());
    if (pid == 0) {
        for (int fd = 100; fd < 5000; fd++) {
            char path[64], what[64] = "";
            sprintf(path, "/proc/self/fd/%d", fd);
            if (readlink(path, what, sizeof what - 1) > 0 && !strncmp(what, "pipe:", 5))
                own_call(SYS_close, fd, 0, 0);
        }
        *stage = 1;
        WAIT_UNTIL(*stage == 2);
        say("child: the same %d", checksum(at, LEN) == sum);
        _exit(0);
    }
    WAIT_UNTIL(*stage == 1);
    for (int i = 0; i < 6; i++) {
        fill_at_random(at, 8 + i);
        sum = checksum(at, LEN);
        evict();
    }
    *stage = 2;
    say_end("child", pid);
    say("parent: the same %d", checksum(at, LEN) == sum);
}

/* The children run one after another. softswap must reuse the memory of exited children. */
CASE(many_children_one_after_another)
{
    char *at = evicted_memory(LEN, 7);
    size_t bad = 0;
    for (int i = 0; i < 30; i++) {
        int status;
        pid_t pid = MUST(fork());
        if (pid == 0)
            _exit(wrong(at, LEN, 7 + i) != 0);
        fill(at, LEN, 8 + i);
        bad += waitpid(pid, &status, 0) != pid || status != 0;
    }
    say("bad: %zu, wrong: %zu", bad, wrong(at, LEN, 37));
}
