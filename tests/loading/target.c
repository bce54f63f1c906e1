/* Fills memory, evicts it by touching as much again, writes its PID and the address to the given
 * file, and waits until it is killed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static unsigned char *volatile data;

int main(int count, char **words)
{
    size_t bytes = 32 << 20;
    char name[4096];
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    data = malloc(bytes);
    unsigned *more = malloc(2 * bytes);
    for (size_t at = 0; at < bytes; at += 4096)
        data[at] = data[at + 4095] = at >> 12;
    for (size_t at = 0; at < 2 * bytes / sizeof *more; at++)
        more[at] = at * 2654435761u;
    if (count < 2)
        return 2;
    snprintf(name, sizeof name, "%s.new", words[1]);
    FILE *file = fopen(name, "w");
    fprintf(file, "%d %p %zu\n", getpid(), (void *)data, bytes);
    fclose(file);
    rename(name, words[1]);
    for (;;)
        pause();
}
