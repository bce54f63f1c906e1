#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char *data;
static size_t bytes;

static void on_signal(int number)
{
    (void)number;
    (void)!write(1, "the plug-in's handler\n", 22);
    _exit(5);
}

static void *add(void *argument)
{
    unsigned long sum = 0;
    for (size_t at = 0; at < bytes; at += 4096)
        sum += data[at];
    *(unsigned long *)argument = sum;
    return NULL;
}

unsigned char *work(unsigned char *of_program, size_t len)
{
    data = of_program, bytes = len;
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSYS, &action, NULL);
    unsigned char *mapped = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < len; at += 4096)
        mapped[at] = at >> 11;
    unsigned long sum = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, add, &sum);
    pthread_join(thread, NULL);
    printf("thread: %lu\n", sum);
    fflush(stdout);
    int status;
    if (fork() == 0) {
        add(&sum);
        printf("child: %lu\n", sum);
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    printf("status: %d\n", status);
    return mapped;
}
