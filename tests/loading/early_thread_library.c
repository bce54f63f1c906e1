/* A library that starts a thread in its constructor, with all signals blocked, as the library of
 * heaptrack does. The thread allocates, fills and checks memory for wrong_pages(). */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

static pthread_t thread;
static sem_t asked;

static void *work(void *argument)
{
    enum { BLOCKS = 64, SIZE = 1 << 20 };
    unsigned char *blocks[BLOCKS];
    intptr_t wrong = 0;
    (void)argument;
    while (sem_wait(&asked))
        ;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(SIZE);
        for (size_t at = 0; at < SIZE; at += 4096)
            blocks[i][at] = at >> 12 ^ i;
    }
    for (int i = 0; i < BLOCKS; i++)
        for (size_t at = 0; at < SIZE; at += 4096)
            wrong += blocks[i][at] != (unsigned char)(at >> 12 ^ i);
    return (void *)wrong;
}

__attribute__((constructor)) static void start(void)
{
    sigset_t all, before;
    sem_init(&asked, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

long wrong_pages(void)
{
    void *wrong = NULL;
    sem_post(&asked);
    pthread_join(thread, &wrong);
    return (intptr_t)wrong;
}
