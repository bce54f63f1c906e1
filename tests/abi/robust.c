/* Memory that the kernel reads and writes when a thread exits: robust mutexes, and words that
 * the kernel clears. Also tests the file size limit during eviction. */
#include "abi.h"
#include <linux/futex.h>
#include <sys/time.h>

#define LEN (1 * MIB)

static char *heap;

static pthread_mutex_t *robust_at(size_t at, int type)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_settype(&attributes, type);
    pthread_mutex_t *mutex = (void *)(heap + at);
    pthread_mutex_init(mutex, &attributes);
    return mutex;
}

static void make_heap(void)
{
    heap = memory(LEN, 1);
}

static int lock_within(pthread_mutex_t *mutex)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 100;
    return pthread_mutex_timedlock(mutex, &until);
}

static const char *name(int error)
{
    return error ? strerrorname_np(error) : "0";
}

static void say_lock(const char *what, pthread_mutex_t *mutex)
{
    int error = lock_within(mutex);
    say("%s: %s", what, name(error));
    if (error == EOWNERDEAD)
        say("consistent: %s", name(pthread_mutex_consistent(mutex)));
    if (error == EOWNERDEAD || !error)
        say("unlock: %s", name(pthread_mutex_unlock(mutex)));
}

static void *hold_one(void *mutex)
{
    pthread_mutex_lock(mutex);
    evict();
    return NULL;
}

CASE(thread_ends_with_a_mutex)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(5 * PAGE, PTHREAD_MUTEX_NORMAL);
    in_thread(hold_one, mutex);
    evict();
    say_lock("lock", mutex);
    say_lock("again", mutex);
}

static void *hold_recursively(void *mutex)
{
    pthread_mutex_lock(mutex);
    pthread_mutex_lock(mutex);
    evict();
    pthread_exit(NULL);
}

CASE(thread_exits_with_recursive_mutex)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(7 * PAGE, PTHREAD_MUTEX_RECURSIVE);
    in_thread(hold_recursively, mutex);
    say_lock("lock", mutex);
}

static void *hold_many(void *argument)
{
    (void)argument;
    for (int i = 0; i < 100; i++)
        pthread_mutex_lock((void *)(heap + i * 2 * PAGE + 64));
    evict();
    return NULL;
}

CASE(thread_ends_with_a_hundred_mutexes)
{
    make_heap();
    for (int i = 0; i < 100; i++)
        robust_at(i * 2 * PAGE + 64, i % 2 ? PTHREAD_MUTEX_ERRORCHECK : PTHREAD_MUTEX_NORMAL);
    in_thread(hold_many, NULL);
    evict();
    int dead = 0, good = 0;
    for (int i = 0; i < 100; i++) {
        pthread_mutex_t *mutex = (void *)(heap + i * 2 * PAGE + 64);
        dead += lock_within(mutex) == EOWNERDEAD;
        pthread_mutex_consistent(mutex);
        good += pthread_mutex_unlock(mutex) == 0;
    }
    say("%d dead, %d good", dead, good);
}

static void *hold_and_wait(void *argument)
{
    int *ends = argument;
    pthread_mutex_lock((void *)(heap + 3 * PAGE));
    char byte;
    evict();
    MUST(write(ends[1], "x", 1));
    if (read(ends[2], &byte, 1) < 0)
        say("read failed");
    return NULL;
}

CASE(cancelled_thread_has_a_mutex)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(3 * PAGE, PTHREAD_MUTEX_NORMAL);
    int ends[4];
    MUST(pipe(ends));
    MUST(pipe(ends + 2));
    pthread_t thread;
    pthread_create(&thread, NULL, hold_and_wait, ends);
    char byte;
    MUST(read(ends[0], &byte, 1));
    evict();
    pthread_cancel(thread);
    void *result;
    pthread_join(thread, &result);
    say("cancelled %d", result == PTHREAD_CANCELED);
    evict();
    say_lock("lock", mutex);
}

static volatile int is_locked;

static void *end_raw(void *mutex)
{
    pthread_mutex_lock(mutex);
    is_locked = 1;
    pthread_detach(pthread_self());
    evict();
    syscall(SYS_exit, 0);
    return NULL;
}

CASE(raw_exit_with_a_mutex)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(9 * PAGE, PTHREAD_MUTEX_NORMAL);
    pthread_t thread;
    pthread_create(&thread, NULL, end_raw, mutex);
    WAIT_UNTIL(is_locked);
    say_lock("lock", mutex);
}

static void *wait_for_it(void *mutex)
{
    int error = lock_within(mutex);
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    pthread_mutex_unlock(mutex);
    return (void *)(long)error;
}

static void *hold_until_waited_for(void *mutex)
{
    pthread_mutex_lock(mutex);
    pthread_t *waiters = (void *)(heap + 20 * PAGE);
    for (int i = 0; i < 3; i++)
        pthread_create(waiters + i, NULL, wait_for_it, mutex);
    until_others_sleep(getpid());
    evict();
    return NULL;
}

CASE(waiters_are_woken)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(11 * PAGE, PTHREAD_MUTEX_NORMAL);
    in_thread(hold_until_waited_for, mutex);
    evict();
    int dead = 0, good = 0;
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(((pthread_t *)(heap + 20 * PAGE))[i], &result);
        dead += (long)result == EOWNERDEAD;
        good += result == NULL;
    }
    say("%d dead, %d good", dead, good);
}

CASE(main_thread_exits_with_a_mutex)
{
    make_heap();
    IN_CHILD("child") {
        static pthread_mutex_t *mutex;
        mutex = robust_at(13 * PAGE, PTHREAD_MUTEX_NORMAL);
        pthread_t thread;
        static void *(*later)(void *);
        extern void *after_main(void *);
        later = after_main;
        pthread_mutex_lock(mutex);
        pthread_create(&thread, NULL, later, mutex);
        evict();
        pthread_exit(NULL);
    }
}
void *after_main(void *mutex);
void *after_main(void *mutex)
{
    until_others_sleep(getpid());
    say_lock("lock", mutex);
    _exit(4);
}

static void *many_lives(void *mutex)
{
    pthread_mutex_lock(mutex);
    return NULL;
}

CASE(a_mutex_outlives_many_owners)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(15 * PAGE, PTHREAD_MUTEX_NORMAL);
    int dead = 0;
    for (int i = 0; i < 50; i++) {
        in_thread(many_lives, mutex);
        if (i % 10 == 0)
            evict();
        dead += lock_within(mutex) == EOWNERDEAD;
        pthread_mutex_consistent(mutex);
        pthread_mutex_unlock(mutex);
    }
    say("%d dead", dead);
    evict();
    say("wrong %zu", wrong(heap + 20 * PAGE, LEN - 20 * PAGE, 1));
}

/* ---- a robust list made by the program ------------------------------------- */

static void *own_list(void *argument)
{
    struct robust_list_head *head = argument;
    struct robust_list *entry = (void *)(heap + 40 * PAGE);
    unsigned *word = (void *)(heap + 41 * PAGE);
    head->list.next = entry;
    head->futex_offset = (char *)word - (char *)entry;
    head->list_op_pending = NULL;
    entry->next = &head->list;
    *word = (unsigned)syscall(SYS_gettid);
    RESULT(syscall(SYS_set_robust_list, head, sizeof *head));
    evict();
    syscall(SYS_exit, 0);
    return NULL;
}

CASE(a_list_in_managed_memory)
{
    make_heap();
    in_thread(own_list, heap + 50 * PAGE);
    evict();
    unsigned word = *(unsigned *)(heap + 41 * PAGE);
    say("%x", word & FUTEX_OWNER_DIED);
}

static void *clear_word(void *argument)
{
    unsigned *word = argument;
    SUCCESS(syscall(SYS_set_tid_address, word));
    evict();
    syscall(SYS_exit, 0);
    return NULL;
}

CASE(a_word_is_cleared)
{
    make_heap();
    unsigned *word = (void *)(heap + 60 * PAGE);
    *word = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, clear_word, word);
    WAIT_UNTIL(!__atomic_load_n(word, __ATOMIC_SEQ_CST));
    evict();
    say("word %u", __atomic_load_n(word, __ATOMIC_SEQ_CST));
}

/* ---- limits ------------------------------------------------------------------ */

CASE(file_size_is_limited)
{
    /* softswap evicts pages in spite of the limit, or stops the program with a message. SIGXFSZ
     * for a write of softswap must not kill the program. */
    struct rlimit limit = {64 * MIB, RLIM_INFINITY};
    MUST(setrlimit(RLIMIT_FSIZE, &limit));
    char *at = evicted_memory(4 * MIB, 3);
    say("wrong %zu", wrong(at, 4 * MIB, 3));
}

static volatile sig_atomic_t too_large;
static void count_too_large(int signal)
{
    (void)signal;
    too_large++;
}

CASE(file_size_limits_the_programs_writes)
{
    struct rlimit limit = {1 * MIB, RLIM_INFINITY};
    signal(SIGXFSZ, count_too_large);
    int file = scratch_file(O_RDWR);
    char *at = memory(2 * MIB, 3);
    MUST(setrlimit(RLIMIT_FSIZE, &limit));
    RESULT(pwrite(file, at, 1, 1 * MIB));
    say("signals %d", (int)too_large);
    RESULT(ftruncate(file, 3 * MIB));
    say("signals %d", (int)too_large);
    RESULT(pwrite(file, at, 10, 1 * MIB - 5));
}

static void *spin(void *argument)
{
    unsigned long *count = argument;
    for (int i = 0; i < 200; i++) {
        char *block = malloc(50000 + i * 100);
        memset(block, i, 1000);
        *count += (unsigned char)block[999];
        free(block);
    }
    return NULL;
}

CASE(real_time_threads_wait)
{
    /* If real-time priority is not permitted, use ordinary threads. */
    make_heap();
    pthread_t threads[4];
    unsigned long counts[4] = {0};
    for (int i = 0; i < 4; i++) {
        pthread_create(threads + i, NULL, spin, counts + i);
        struct sched_param high = {.sched_priority = 10 + i};
        pthread_setschedparam(threads[i], SCHED_FIFO, &high);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    say("%lu %lu", counts[0], counts[3]);
}

CASE(not_robust_mutexes_stay_locked)
{
    make_heap();
    pthread_mutex_t *mutex = (void *)(heap + 17 * PAGE);
    pthread_mutex_init(mutex, NULL);
    in_thread(many_lives, mutex);
    evict();
    say("trylock: %s", name(pthread_mutex_trylock(mutex)));
}

CASE(bad_states)
{
    make_heap();
    pthread_mutex_t *mutex = robust_at(19 * PAGE, PTHREAD_MUTEX_NORMAL);
    in_thread(hold_one, mutex);
    evict();
    say("lock: %s", name(lock_within(mutex)));
    say("unlock without consistent: %s", name(pthread_mutex_unlock(mutex)));
    evict();
    say("lock: %s", name(lock_within(mutex)));
    say("consistent: %s", name(pthread_mutex_consistent(mutex)));
}

CASE(get_robust_list_tells)
{
    make_heap();
    struct robust_list_head **head = (void *)(heap + 30 * PAGE);
    size_t *len = (void *)(heap + 32 * PAGE);
    evict();
    RESULT(syscall(SYS_get_robust_list, 0, head, len));
    say("%zu %d", *len, *head != NULL);
    RESULT(syscall(SYS_set_robust_list, *head, 5));
    RESULT(syscall(SYS_get_robust_list, 0, (void *)8, len));
}
