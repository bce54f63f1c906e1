/* Waits for conditions, in the programs of both suites. */
#ifndef WAITING_H
#define WAITING_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Waits until a condition holds, at most about 300 s. The limit only detects hangs. */
#define WAIT_UNTIL(condition) \
    for (int looks_ = 0; looks_ < 300000 && !(condition); looks_++) usleep(1000)

/* Returns true if no thread of a process runs, except the calling one. */
__attribute__((unused))
static int do_others_sleep(pid_t process)
{
    char path[300], state;
    int awake = 0;
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *tasks = opendir(path);
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        int id = atoi(task->d_name);
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, id);
        FILE *file = id > 0 && id != gettid() ? fopen(path, "r") : NULL;
        if (!file)
            continue;
        awake += fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && state != 'S' && state != 'Z';
        fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return !awake;
}

/* Waits until all threads of a process, except the calling one, wait in the kernel or have exited.
 * Looks several times, because a thread also sleeps for a moment while a page comes in. */
__attribute__((unused))
static void until_others_sleep(pid_t process)
{
    int looks = 0;
    WAIT_UNTIL((looks = do_others_sleep(process) ? looks + 1 : 0) == 5);
}

/* Returns true if a thread waits in a call with this first argument. */
__attribute__((unused))
static int is_in_call(pid_t thread, long number, unsigned long argument)
{
    char path[64];
    long found = -1;
    unsigned long first = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    FILE *file = fopen(path, "r");
    int fields = file ? fscanf(file, "%ld %lx", &found, &first) : 0;
    if (file)
        fclose(file);
    return fields == 2 && found == number && first == argument;
}

#endif
