/* Pending blocked signals: one of each kind for the process and for each thread. A thread that
 * does not block the signal, or waits for it, receives it. A forked child has no pending signals,
 * and exec keeps them. */
#include "abi.h"
#include <spawn.h>

#define KINDS 3
static const int kinds[KINDS] = {SIGUSR1, SIGBUS, SIGSYS};
extern char **environ;

static __thread int calls[65], codes[65], values[65];
static volatile int all_calls;

static void note(int signal, siginfo_t *info, void *context)
{
    (void)context;
    calls[signal]++;
    codes[signal] = codes[signal] * 10 + (info->si_code == SI_TKILL ? 1 : info->si_code == SI_USER ? 2 : 3);
    values[signal] = info->si_code == SI_QUEUE ? info->si_value.sival_int : 0;
    __atomic_fetch_add(&all_calls, 1, __ATOMIC_SEQ_CST);
}

static void handle_all(void)
{
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO};
    for (int i = 0; i < KINDS; i++)
        sigaction(kinds[i], &action, NULL);
}

static sigset_t set_of_all(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < KINDS; i++)
        sigaddset(&set, kinds[i]);
    return set;
}

static void block_all(int how)
{
    sigset_t set = set_of_all();
    pthread_sigmask(how, &set, NULL);
}

static void say_calls(const char *what)
{
    char line[400] = "";
    for (int i = 0; i < KINDS; i++) {
        int s = kinds[i];
        snprintf(line + strlen(line), sizeof line - strlen(line), " %s %d (%d, %d)", sigabbrev_np(s),
                 calls[s], codes[s], values[s]);
        calls[s] = codes[s] = values[s] = 0;
    }
    say("%s:%s", what, line);
}

static void say_pending(const char *what)
{
    sigset_t set;
    char line[400] = "";
    sigpending(&set);
    for (int i = 0; i < KINDS; i++)
        if (sigismember(&set, kinds[i]))
            snprintf(line + strlen(line), sizeof line - strlen(line), " %s", sigabbrev_np(kinds[i]));
    say("%s:%s", what, *line ? line : " none");
}

static void send_all(void)
{
    for (int i = 0; i < KINDS; i++)
        kill(getpid(), kinds[i]);
}

static void raise_all(void)
{
    for (int i = 0; i < KINDS; i++)
        raise(kinds[i]);
}

/* Waits until the handlers have been called `count` times. */
static void wait_for_calls(int count)
{
    WAIT_UNTIL(__atomic_load_n(&all_calls, __ATOMIC_SEQ_CST) >= count);
}

static void begin(void)
{
    handle_all();
    evict();
}

CASE(process_and_thread)
{
    begin();
    block_all(SIG_BLOCK);
    raise_all(), raise_all();
    send_all(), send_all();
    say_pending("blocked");
    say_calls("blocked");
    block_all(SIG_UNBLOCK);
    say_pending("unblocked");
    say_calls("unblocked");
}

CASE(values_are_kept)
{
    begin();
    block_all(SIG_BLOCK);
    for (int i = 0; i < KINDS; i++)
        sigqueue(getpid(), kinds[i], (union sigval){.sival_int = 4711 + i});
    say_pending("blocked");
    block_all(SIG_UNBLOCK);
    say_calls("unblocked");
}

static pthread_barrier_t meet;

static void *blocked_thread(void *name)
{
    block_all(SIG_BLOCK);
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    for (int i = 0; i < 4; i++) {
        if (i == (long)name) {
            char text[20];
            sprintf(text, "thread %d", i);
            say_pending(text);
            block_all(SIG_UNBLOCK);
            say_calls(text);
        }
        pthread_barrier_wait(&meet);
    }
    return NULL;
}

static pthread_t threads[4];

static void begin_threads(void)
{
    begin();
    pthread_barrier_init(&meet, NULL, 5);
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, blocked_thread, (void *)i);
    pthread_barrier_wait(&meet);
}

static void end_threads(void)
{
    for (int i = 0; i < 5; i++)
        pthread_barrier_wait(&meet);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

CASE(each_thread_has_its_own)
{
    begin_threads();
    /* Two threads get two signals, one thread gets one, and one thread gets none. */
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < KINDS; k++)
            pthread_kill(threads[i], kinds[k]);
    pthread_kill(threads[3], SIGBUS);
    say_pending("main");
    end_threads();
    say_calls("main");
}

CASE(ignoring_forgets_what_threads_have)
{
    begin_threads();
    block_all(SIG_BLOCK);
    for (int k = 0; k < KINDS; k++)
        pthread_kill(threads[1], kinds[k]);
    until_others_sleep(getpid());
    for (int k = 0; k < KINDS; k++)
        signal(kinds[k], SIG_IGN);
    handle_all();
    end_threads();
}

static void *open_thread(void *argument)
{
    (void)argument;
    block_all(SIG_UNBLOCK);
    pthread_barrier_wait(&meet);
    wait_for_calls(3);
    say_calls("the thread that does not block");
    return NULL;
}

CASE(another_thread_takes_it)
{
    pthread_t thread;
    begin();
    block_all(SIG_BLOCK);
    pthread_barrier_init(&meet, NULL, 2);
    pthread_create(&thread, NULL, open_thread, NULL);
    pthread_barrier_wait(&meet);
    send_all();
    pthread_join(thread, NULL);
    say_pending("main");
    block_all(SIG_UNBLOCK);
    say_calls("main");
}

static void *opening_thread(void *argument)
{
    (void)argument;
    say_pending("thread");
    block_all(SIG_UNBLOCK);
    say_calls("thread");
    return NULL;
}

CASE(the_first_to_unblock_takes_it)
{
    begin();
    block_all(SIG_BLOCK);
    send_all();
    raise_all();
    in_thread(opening_thread, NULL);
    block_all(SIG_UNBLOCK);
    say_calls("main");
}

static void *waiting_thread(void *argument)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, (long)argument);
    pthread_barrier_wait(&meet);
    siginfo_t info;
    int got = sigwaitinfo(&set, &info);
    say("%s: %d, sent %d", sigabbrev_np((long)argument), got == (long)argument, info.si_code == SI_USER);
    return NULL;
}

CASE(who_waits_takes_it)
{
    begin();
    block_all(SIG_BLOCK);
    for (int i = 0; i < KINDS; i++) {
        pthread_t thread;
        pthread_barrier_init(&meet, NULL, 2);
        pthread_create(&thread, NULL, waiting_thread, (void *)(long)kinds[i]);
        pthread_barrier_wait(&meet);
        if (i)
            until_others_sleep(getpid());
        kill(getpid(), kinds[i]);
        pthread_join(thread, NULL);
    }
    say_pending("main");
    block_all(SIG_UNBLOCK);
    say_calls("main");
}

static void *ending_thread(void *argument)
{
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    return argument;
}

CASE(a_thread_that_ends_leaves_it)
{
    pthread_t threads[3];
    begin();
    block_all(SIG_BLOCK);
    pthread_barrier_init(&meet, NULL, 4);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, ending_thread, NULL);
    pthread_barrier_wait(&meet);
    send_all();
    for (int i = 0; i < KINDS; i++)
        pthread_kill(threads[1], kinds[i]);
    pthread_barrier_wait(&meet);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    say_pending("main");
    block_all(SIG_UNBLOCK);
    say_calls("main");
}

static pthread_t first_thread;

/* A signal to the process becomes pending after a thread, perhaps not this one, has received
 * it. */
static void wait_until_pending(void)
{
    sigset_t pending;
    for (int tries = 0, found = 0; tries < 10000 && found < KINDS; tries++) {
        usleep(1000);
        sigpending(&pending);
        found = 0;
        for (int i = 0; i < KINDS; i++)
            found += sigismember(&pending, kinds[i]);
    }
}

static void *remaining_thread(void *argument)
{
    void *result;
    pthread_join(first_thread, &result);
    if (argument)
        block_all(SIG_BLOCK);
    for (int round = 0; round < 3; round++) {
        send_all();
        wait_for_calls(argument ? 0 : 3 * (round + 1));
        if (argument)
            wait_until_pending();
        say_pending("after main has exited");
        say_calls("after main has exited");
    }
    block_all(SIG_UNBLOCK);
    say_calls("unblocked");
    exit(0);
}

static void begin_without_main(void *argument)
{
    pthread_t thread;
    begin();
    first_thread = pthread_self();
    pthread_create(&thread, NULL, remaining_thread, argument);
    pthread_exit(NULL);
}

CASE(without_the_first_thread) { begin_without_main(NULL); }
CASE(without_the_first_thread_blocked) { begin_without_main(&meet); }

static void *strike(void *argument)
{
    void *result;
    pthread_join(first_thread, &result);
    kill(getpid(), *(int *)argument);
    pause();
    return NULL;
}

CASE(default_actions_without_the_first_thread)
{
    evict();
    for (int i = 0; i < KINDS; i++) {
        IN_CHILD(sigabbrev_np(kinds[i])) {
            pthread_t thread;
            first_thread = pthread_self();
            pthread_create(&thread, NULL, strike, (void *)&kinds[i]);
            pthread_exit(NULL);
        }
    }
}

CASE(a_child_has_nothing_pending)
{
    begin();
    block_all(SIG_BLOCK);
    send_all();
    raise_all();
    IN_CHILD("child") {
        say_pending("child");
        block_all(SIG_UNBLOCK);
        say_calls("child");
        block_all(SIG_BLOCK);
        raise_all();
        say_pending("child");
        block_all(SIG_UNBLOCK);
        say_calls("child");
    }
    say_pending("parent");
    block_all(SIG_UNBLOCK);
    say_calls("parent");
}

/* The program that other cases start with exec. If it is run directly, no signal is pending. */
CASE(after_exec)
{
    say_pending("after exec");
    handle_all();
    say_calls("after exec");
    block_all(SIG_UNBLOCK);
    say_calls("after exec, unblocked");
}

static char path[4096];
static char *arguments[] = {path, "after_exec", NULL};

static void prepare_exec(void)
{
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    begin();
    block_all(SIG_BLOCK);
    send_all();
}

CASE(exec_keeps_it)
{
    prepare_exec();
    RESULT(execv("/no/such/program", arguments));
    say_pending("exec failed");
    execv(path, arguments);
}

CASE(raw_exec_keeps_it)
{
    prepare_exec();
    syscall(SYS_execve, path, arguments, environ);
}

static void *exec_here(void *argument)
{
    raise_all();
    execvp(path, arguments);
    return argument;
}

CASE(exec_in_a_thread_keeps_its_own)
{
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    begin();
    block_all(SIG_BLOCK);
    in_thread(exec_here, NULL);
}

CASE(a_program_that_is_spawned_has_nothing_pending)
{
    prepare_exec();
    pid_t pid;
    int error = posix_spawn(&pid, path, NULL, NULL, arguments, environ);
    say_end("spawned", pid);
    say("%d", error);
    pid = vfork();
    if (pid == 0) {
        execv(path, arguments);
        _exit(1);
    }
    say_end("vforked", pid);
    say_pending("parent");
    block_all(SIG_UNBLOCK);
    say_calls("parent");
}

static volatile int enough;

static void *strike_always(void *argument)
{
    while (!enough) {
        for (int i = 0; i < KINDS; i++) {
            kill(getpid(), kinds[i]);
            pthread_kill(*(pthread_t *)argument, kinds[i]);
        }
        usleep(50);
    }
    return NULL;
}

CASE(signals_while_it_forks)
{
    pthread_t thread, self = pthread_self();
    begin();
    pthread_create(&thread, NULL, strike_always, &self);
    int good = 0;
    for (int i = 0; i < 60; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(7);
        while (waitpid(pid, &status, 0) != pid)
            ;
        good += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    enough = 1;
    pthread_join(thread, NULL);
    say("%d, struck %d", good, all_calls > 0);
}

CASE(signals_to_the_process_again_and_again)
{
    begin();
    int good = 0;
    for (int i = 1; i <= 200; i++) {
        int s = kinds[i % KINDS];
        kill(getpid(), s);
        wait_for_calls(i);
        good += calls[s] == 1;
        calls[s] = 0;
    }
    say("%d of 200 in the first thread, %d in all", good, all_calls);
}

/* The signals are sent before the child has executed an instruction of the program. */
CASE(signals_to_a_child_just_forked)
{
    int ends[KINDS] = {0};
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < KINDS; i++) {
            pid_t child = MUST(fork());
            if (child == 0) {
                alarm(20);
                for (;;)
                    pause();
            }
            MUST(kill(child, kinds[i]));
            int status, is_lost;
            MUST(waitpid(child, &status, 0));
            is_lost = !WIFSIGNALED(status) || WTERMSIG(status) != kinds[i];
            ends[i] += !is_lost;
            if (is_lost)
                break;
        }
    for (int i = 0; i < KINDS; i++)
        say("%s: %d", sigabbrev_np(kinds[i]), ends[i]);
}

static void *end_by_its_own_instruction(void *by_number)
{
    if (by_number)
        syscall(SYS_exit, 0);
    __asm__ volatile("syscall" : : "a"((long)SYS_exit), "D"(0L) : "rcx", "r11", "memory");
    return NULL;
}

static void *wait_for_a_byte(void *pipe_end)
{
    char byte;
    return (void *)read(*(int *)pipe_end, &byte, 1);
}

CASE(after_threads_that_end_without_a_word)
{
    alarm(120);
    handle_all();
    for (long i = 0; i < 12; i++) {
        in_thread(end_by_its_own_instruction, (void *)(i % 2));
    }
    block_all(SIG_BLOCK);
    int ends[2];
    MUST(pipe(ends));
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_a_byte, ends);
    until_others_sleep(getpid());
    for (int i = 0; i < KINDS; i++)
        MUST(kill(getpid(), kinds[i]));
    block_all(SIG_UNBLOCK);
    say_calls("unblocked");
    MUST(write(ends[1], "x", 1));
    pthread_join(thread, NULL);
}
