/* Stacks of all kinds: short-lived threads, thread-local data, coroutines whose stacks are heap
 * blocks, cancellation, deep recursion.
 *
 *   stacks [--pressure MIB] [--threads TOTAL] */
#include "check.h"

#include <semaphore.h>
#include <sys/time.h>
#include <ucontext.h>

/* ---- threads ------------------------------------------------------------------------ */

static __thread uint64_t local_words[600]; /* more than a page of thread-local data */
static __thread char *local_block;
static pthread_key_t block_key;
static atomic_ulong blocks_freed, threads_done;

static void free_block(void *block) {
    verify_random("block in a key's destructor", block, 20000, 7);
    free(block);
    atomic_fetch_add(&blocks_freed, 1);
}

static __attribute__((noinline)) uint64_t sum_on_stack(uint64_t seed) {
    volatile uint64_t frame[2000];
    for (size_t i = 0; i < 2000; i++) frame[i] = random_word(seed, i);
    sched_yield();
    uint64_t sum = 0;
    for (size_t i = 0; i < 2000; i++) sum += frame[i];
    return sum;
}

static uint64_t expected_sum(uint64_t seed) {
    uint64_t sum = 0;
    for (size_t i = 0; i < 2000; i++) sum += random_word(seed, i);
    return sum;
}

static void *short_life(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    for (size_t i = 0; i < 600; i++) {
        CHECK(local_words[i] == 0, "thread-local word %zu is %llx in a new thread", i,
              (unsigned long long)local_words[i]);
        local_words[i] = random_word(seed, i);
    }
    local_block = allocate(20000);
    fill_random(local_block, 20000, 7);
    PTHREAD(pthread_setspecific(block_key, local_block));
    CHECK(sum_on_stack(seed) == expected_sum(seed), "the stack of thread %llu changed",
          (unsigned long long)seed);
    for (size_t i = 0; i < 600; i++)
        CHECK(local_words[i] == random_word(seed, i), "thread-local word %zu: got %llx", i,
              (unsigned long long)local_words[i]);
    atomic_fetch_add(&threads_done, 1);
    if (seed % 3 == 0) pthread_exit(argument);
    return argument;
}

static void threads_in_turns(void) {
    enum { AT_ONCE = 25 };
    size_t turns = option_number("threads", 1000) / AT_ONCE / 2;
    PTHREAD(pthread_key_create(&block_key, free_block));
    char *data = filled(4 * MIB, 8);
    for (size_t turn = 0; turn < turns; turn++) {
        pthread_t ids[AT_ONCE], id;
        for (size_t i = 0; i < AT_ONCE; i++)
            PTHREAD(pthread_create(&ids[i], NULL, short_life, (void *)(turn * AT_ONCE + i)));
        pthread_attr_t detached;
        PTHREAD(pthread_attr_init(&detached));
        PTHREAD(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED));
        for (size_t i = 0; i < AT_ONCE; i++)
            PTHREAD(pthread_create(&id, &detached, short_life, (void *)i));
        PTHREAD(pthread_attr_destroy(&detached));
        for (size_t i = 0; i < AT_ONCE; i++) {
            void *result;
            PTHREAD(pthread_join(ids[i], &result));
            EXPECT(turn * AT_ONCE + i, (size_t)result);
        }
        if (turn % 8 == 0) evict_data(data, 4 * MIB);
    }
    verify_random("data while many threads run", data, 4 * MIB, 8);
    for (int i = 0; i < 120000 && atomic_load(&blocks_freed) < turns * AT_ONCE * 2; i++)
        usleep(1000);
    EXPECT(turns * AT_ONCE * 2, atomic_load(&threads_done));
    EXPECT(turns * AT_ONCE * 2, atomic_load(&blocks_freed));
    CALL(munmap(data, 4 * MIB));
}

/* The program passes a heap block as the stack. */
static void threads_on_heap_stacks(void) {
    enum { THREADS = 8, STACK = 256 * 1024 };
    pthread_t ids[THREADS];
    void *stacks[THREADS];
    PTHREAD(pthread_key_create(&block_key, free_block));
    for (size_t i = 0; i < THREADS; i++) {
        EXPECT(0, posix_memalign(&stacks[i], PAGE, STACK));
        memset(stacks[i], 0x5a, STACK);
    }
    evict(stacks[0], STACK);
    for (size_t i = 0; i < THREADS; i++) {
        pthread_attr_t attributes;
        PTHREAD(pthread_attr_init(&attributes));
        PTHREAD(pthread_attr_setstack(&attributes, stacks[i], STACK));
        PTHREAD(pthread_create(&ids[i], &attributes, short_life, (void *)i));
        PTHREAD(pthread_attr_destroy(&attributes));
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *result;
        PTHREAD(pthread_join(ids[i], &result));
        EXPECT(i + inject_now(), (size_t)result);
        free(stacks[i]);
    }
}

static sem_t never_posted;
static atomic_int cleaned_up;

static void clean_up(void *block) {
    verify_random("block in a cleanup handler", block, 100000, 9);
    free(block);
    atomic_fetch_add(&cleaned_up, 1);
}

static void *wait_for_ever(void *on_semaphore) {
    char *block = allocate(100000);
    fill_random(block, 100000, 9);
    pthread_cleanup_push(clean_up, block);
    if (on_semaphore)
        sem_wait(&never_posted);
    else
        for (;;) {
            pthread_testcancel();
            verify_random("block of a thread to be cancelled", block, 100000, 9);
        }
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancellation(void) {
    enum { THREADS = 10 };
    pthread_t ids[THREADS];
    CALL(sem_init(&never_posted, 0, 0));
    for (size_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&ids[i], NULL, wait_for_ever, i % 2 ? &never_posted : NULL));
    evict(ids, sizeof ids);
    for (size_t i = 0; i < THREADS; i++) {
        void *result;
        PTHREAD(pthread_cancel(ids[i]));
        PTHREAD(pthread_join(ids[i], &result));
        CHECK(result == PTHREAD_CANCELED, "thread %zu was not cancelled", i);
    }
    EXPECT(THREADS + inject_now(), atomic_load(&cleaned_up));
}

/* ---- coroutines --------------------------------------------------------------------------- */

enum { COROUTINES = 200, COROUTINE_STACK = 64 * 1024 };

struct coroutine {
    ucontext_t context;
    char *stack;
    uint64_t seed, result;
};
static ucontext_t scheduler;
static struct coroutine *coroutines, *current;

static __attribute__((noinline)) uint64_t yield_deep_down(uint64_t seed, int depth) {
    volatile uint64_t frame[300];
    for (size_t i = 0; i < 300; i++) frame[i] = random_word(seed + (uint64_t)depth, i);
    uint64_t below = 0;
    if (depth > 0) below = yield_deep_down(seed, depth - 1);
    else CALL(swapcontext(&current->context, &scheduler));
    for (size_t i = 0; i < 300; i++) {
        uint64_t expected = random_word(seed + (uint64_t)depth, i), got = frame[i];
        CHECK(got == expected, "stack of a coroutine: at %p expected %016llx, got %016llx",
              (void *)&frame[i], (unsigned long long)expected, (unsigned long long)got);
        below += got;
    }
    return below;
}

static void coroutine_main(void) {
    for (int round = 0; round < 3; round++)
        current->result += yield_deep_down(current->seed + (uint64_t)round * 100, 8);
}

static void resume_all(void) {
    for (size_t i = 0; i < COROUTINES; i++) {
        current = &coroutines[i];
        CALL(swapcontext(&scheduler, &current->context));
    }
}

static void run_coroutines(void) {
    coroutines = calloc(COROUTINES, sizeof *coroutines);
    CHECK(coroutines, "calloc");
    for (size_t i = 0; i < COROUTINES; i++) {
        struct coroutine *new = &coroutines[i];
        new->seed = i * 1000;
        new->stack = allocate(COROUTINE_STACK);
        CALL(getcontext(&new->context));
        new->context.uc_stack.ss_sp = new->stack;
        new->context.uc_stack.ss_size = COROUTINE_STACK;
        new->context.uc_link = &scheduler;
        makecontext(&new->context, coroutine_main, 0);
    }
    for (int round = 0; round < 4; round++) { /* three yields, then the end */
        resume_all();
        if (round == 3) break;
        for (size_t i = 0; i < COROUTINES; i += 50)
            evict(coroutines[i].stack, COROUTINE_STACK);
        if (inject_now())
            /* Corrupt a word of a suspended frame. The frames are filled with known words. */
            for (size_t at = COROUTINE_STACK - 8192; at < COROUTINE_STACK - 4096; at += 8) {
                uint64_t word;
                memcpy(&word, coroutines[9].stack + at, 8);
                for (size_t depth = 0; depth <= 8; depth++)
                    if (word == random_word(9000 + depth, 150)) coroutines[9].stack[at] ^= 1;
            }
    }
    for (size_t i = 0; i < COROUTINES; i++) {
        CHECK(coroutines[i].result != 0, "coroutine %zu did not finish", i);
        free(coroutines[i].stack);
    }
    free(coroutines);
}

/* A signal handler runs on the current stack: here one whose pages below the stack pointer may be
 * swapped out. */
static atomic_int ticks;
static void tick(int signal) {
    (void)signal;
    atomic_fetch_add(&ticks, 1);
}

static void coroutines_with_signals(void) {
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    CALL(sigaction(SIGALRM, &action, NULL));
    CALL(setitimer(ITIMER_REAL, &every, NULL));
    for (int i = 0; i < 3; i++) run_coroutines();
    CALL(setitimer(ITIMER_REAL, &never, NULL));
    CHECK(atomic_load(&ticks) > 0, "no signal arrived");
}

/* ---- recursion -------------------------------------------------------------------------- */

static __attribute__((noinline)) uint64_t descend(uint64_t seed, int depth) {
    volatile uint64_t frame[100];
    for (size_t i = 0; i < 100; i++) frame[i] = random_word(seed + (uint64_t)depth, i);
    uint64_t sum = depth ? descend(seed, depth - 1) : 0;
    if (depth == 500) sweep();
    if (depth == 400 && inject_now()) frame[50] ^= 1;
    for (size_t i = 0; i < 100; i++)
        CHECK(frame[i] == random_word(seed + (uint64_t)depth, i), "frame at depth %d changed",
              depth);
    return sum + frame[0];
}

static void *descend_in_thread(void *seed) {
    (void)descend((uintptr_t)seed, 5000);
    return NULL;
}

static void deep_recursion(void) {
    (void)descend(1, 7000); /* about 6 MiB of the main stack */
    pthread_t id;
    PTHREAD(pthread_create(&id, NULL, descend_in_thread, (void *)77));
    PTHREAD(pthread_join(id, NULL));
}

static const struct check_case cases[] = {
    {"threads-in-turns", threads_in_turns},
    {"threads-on-heap-stacks", threads_on_heap_stacks},
    {"cancellation", cancellation},
    {"coroutines", run_coroutines},
    {"coroutines-with-signals", coroutines_with_signals},
    {"deep-recursion", deep_recursion},
};
CHECK_MAIN(cases)
