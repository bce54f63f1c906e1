/* Starts a thread like jemalloc, with all signals blocked. The plug-in calls the C library's
 * function directly and bypasses interposed functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static void *idle(void *argument)
{
    for (;;)
        pause();
    return argument;
}

int start(void)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = create(&thread, NULL, idle, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}
