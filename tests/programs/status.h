/* Helpers of the programs that sleep until they exceed their budget. */
#ifndef STATUS_H
#define STATUS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "waiting.h"

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

__attribute__((unused))
static void must(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "FAILED %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

/* Returns a number of this thread's status in /proc. After the first thread has exited, only root
   can read the status of the process. */
static long of_status(const char *name)
{
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/thread-self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            value = strtol(line + strlen(name), NULL, 10);
    if (file)
        fclose(file);
    return value;
}

#endif
