/* Calls that change the credentials or namespaces of a thread. A change must apply to all
 * threads of the process, so softswap must have no threads of its own in the process. */
#include "abi.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <locale.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

#define NOBODY 65534

static void status_of(const char *thread, const char *name, char *line, size_t len)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    line[0] = 0;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    char text[512];
    while (fgets(text, sizeof text, file))
        if (!strncmp(text, name, strlen(name)) && text[strlen(name)] == ':')
            snprintf(line, len, "%.*s", (int)strcspn(text, "\n"), text);
    fclose(file);
}

/* Prints the number of threads whose value differs from the caller's. */
static void alike(const char *name)
{
    char own[256], other[256], self[32];
    snprintf(self, sizeof self, "%d", (int)syscall(SYS_gettid));
    status_of(self, name, own, sizeof own);
    int unlike = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        if (task->d_name[0] == '.')
            continue;
        status_of(task->d_name, name, other, sizeof other);
        unlike += other[0] && strcmp(own, other) != 0;
    }
    if (tasks)
        closedir(tasks);
    say("%s, unlike: %d", own, unlike);
}

/* Prints how many threads are not in the caller's `kind` namespace. */
static void together(const char *kind)
{
    char path[400], own[200] = "", other[200];
    snprintf(path, sizeof path, "/proc/thread-self/ns/%s", kind);
    if (readlink(path, own, sizeof own - 1) < 0)
        say("no %s", kind);
    int elsewhere = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        if (task->d_name[0] == '.')
            continue;
        memset(other, 0, sizeof other);
        snprintf(path, sizeof path, "/proc/self/task/%s/ns/%s", task->d_name, kind);
        if (readlink(path, other, sizeof other - 1) > 0)
            elsewhere += strcmp(own, other) != 0;
    }
    if (tasks)
        closedir(tasks);
    say("%s, elsewhere: %d", kind, elsewhere);
}

static int is_root(void)
{
    return geteuid() == 0;
}

/* Returns memory that was swapped out before the tested call. */
static unsigned char *out(void)
{
    unsigned char *at = evicted_memory(4 * MIB, 1);
    return at;
}

/* Checks the content of the memory after the call. The memory must still be swapped out and in. */
static void all_there(unsigned char *at)
{
    say("wrong: %zu", wrong(at, 4 * MIB, 1));
    rewrite(at, 4 * MIB, 2);
}

/* --- prctl */

CASE(no_new_privileges)
{
    unsigned char *at = out();
    RESULT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    alike("NoNewPrivs");
    RESULT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    all_there(at);
}

CASE(no_new_privileges_by_syscall)
{
    RESULT(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    alike("NoNewPrivs");
}

CASE(dropping_from_the_bounding_set)
{
    unsigned char *at = out();
    for (int capability = 20; capability < 30; capability++)
        RESULT(prctl(PR_CAPBSET_DROP, capability, 0, 0, 0));
    alike("CapBnd");
    RESULT(prctl(PR_CAPBSET_READ, 25, 0, 0, 0));
    RESULT(prctl(PR_CAPBSET_DROP, 9999, 0, 0, 0));
    all_there(at);
}

CASE(secure_bits)
{
    RESULT(prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0));
    RESULT(prctl(PR_GET_SECUREBITS, 0, 0, 0, 0));
}

CASE(keeping_capabilities)
{
    RESULT(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    RESULT(prctl(PR_GET_KEEPCAPS, 0, 0, 0, 0));
    if (is_root())
        RESULT(setuid(NOBODY));
    alike("CapPrm");
    alike("CapEff");
}

CASE(ambient_capabilities)
{
    RESULT(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
    RESULT(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
    RESULT(prctl(PR_CAP_AMBIENT, 99, 0, 0, 0));
    alike("CapAmb");
}

CASE(other_options_pass)
{
    char *name = strdup("a-name");
    char *found = calloc(1, 16);
    evict();
    RESULT(prctl(PR_SET_NAME, name, 0, 0, 0));
    evict();
    RESULT(prctl(PR_GET_NAME, found, 0, 0, 0));
    say("%s", found);
    RESULT(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) >= 0);
    RESULT(prctl(9999, 0, 0, 0, 0));
    RESULT(prctl(PR_SET_NO_NEW_PRIVS, 2, 0, 0, 0));
}

CASE(many_times)
{
    unsigned char *at = out();
    long failed = 0;
    for (int i = 0; i < 300; i++)
        failed += prctl(PR_SET_KEEPCAPS, i & 1, 0, 0, 0) != 0;
    say("failed: %ld", failed);
    RESULT(prctl(PR_GET_KEEPCAPS, 0, 0, 0, 0));
    all_there(at);
}

/* --- capabilities */

static struct __user_cap_header_struct *header(void)
{
    struct __user_cap_header_struct *header = calloc(1, sizeof *header);
    header->version = _LINUX_CAPABILITY_VERSION_3;
    return header;
}

int capset(void *, const void *);
int capget(void *, void *);

CASE(dropping_capabilities)
{
    unsigned char *at = out();
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    RESULT(capset(header(), none));
    alike("CapEff");
    alike("CapPrm");
    RESULT(sethostname("abi", 3));
    all_there(at);
}

CASE(dropping_them_by_syscall)
{
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    RESULT(syscall(SYS_capset, header(), none));
    alike("CapEff");
}

CASE(dropping_some_from_the_heap)
{
    struct __user_cap_header_struct *who = header();
    struct __user_cap_data_struct *some = calloc(2, sizeof *some);
    evict();
    RESULT(capget(who, some));
    some[0].effective &= ~(1u << CAP_SYS_TIME);
    evict();
    RESULT(capset(who, some));
    alike("CapEff");
}

CASE(capabilities_of_bad_pointers)
{
    RESULT(syscall(SYS_capset, NULL, NULL));
    RESULT(syscall(SYS_capset, header(), NULL));
    struct __user_cap_header_struct *who = header();
    who->version = 77;
    evict();
    RESULT(syscall(SYS_capset, who, NULL));
    say("version %x", who->version);
}

/* --- users and groups */

CASE(becoming_nobody)
{
    unsigned char *at = out();
    if (is_root())
        RESULT(setgroups(0, NULL));
    RESULT(setresgid(NOBODY, NOBODY, NOBODY));
    RESULT(setresuid(NOBODY, NOBODY, NOBODY));
    alike("Uid");
    alike("Gid");
    alike("CapEff");
    RESULT(setuid(0));
    all_there(at);
}

CASE(becoming_nobody_by_syscall)
{
    unsigned char *at = out();
    RESULT(syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY));
    RESULT(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY));
    alike("Uid");
    alike("Gid");
    alike("CapEff");
    RESULT(syscall(SYS_setuid, 0));
    all_there(at);
}

CASE(a_user_for_files)
{
    RESULT(setfsgid(NOBODY) >= 0);
    RESULT(setfsuid(NOBODY) >= 0);
    alike("Uid");
    alike("Gid");
    RESULT(setfsuid(-1));
}

CASE(a_user_for_files_by_syscall)
{
    RESULT(syscall(SYS_setfsgid, NOBODY) >= 0);
    RESULT(syscall(SYS_setfsuid, NOBODY) >= 0);
    alike("Uid");
    alike("Gid");
}

CASE(groups_by_syscall)
{
    gid_t *groups = malloc(3 * sizeof *groups);
    groups[0] = 5, groups[1] = 6, groups[2] = 7;
    evict();
    RESULT(syscall(SYS_setgroups, 3, groups));
    alike("Groups");
    RESULT(syscall(SYS_setgroups, 1, 8));
}

static void say_groups(void)
{
    gid_t now[64];
    int count = getgroups(64, now);
    for (int at = 0; at < count && getuid() == 0; at++)
        say("group %d", (int)now[at]);
}

/* The C library makes this call in every thread. */
CASE(groups_from_memory_that_is_out)
{
    gid_t *list = memory(64 << 10, 0);
    for (int at = 0; at < 40; at++)
        list[at] = 100 + at;
    for (int round = 0; round < 3; round++) {
        evict();
        RESULT(setgroups(40 - round, list));
        alike("Groups");
    }
    say_groups();
    RESULT(setgroups(70000, list));
    RESULT(setgroups(3, (gid_t *)8));
    munmap(list, 64 << 10);
    RESULT(setgroups(3, list));
}

CASE(groups_of_a_user)
{
    evict();
    RESULT(initgroups("root", 12));
    say_groups();
    evict();
    RESULT(initgroups("nobody", 13));
    alike("Groups");
    say_groups();
}

CASE(users_by_other_calls)
{
    RESULT(syscall(SYS_setregid, -1, NOBODY));
    RESULT(syscall(SYS_setreuid, -1, NOBODY));
    alike("Uid");
    alike("Gid");
    RESULT(syscall(SYS_setgid, 0));
    RESULT(syscall(SYS_setuid, 0));
    alike("Uid");
}

CASE(effective_and_back)
{
    unsigned char *at = out();
    RESULT(seteuid(NOBODY));
    alike("Uid");
    RESULT(seteuid(getuid()));
    alike("Uid");
    all_there(at);
}

/* --- namespaces */

static void unshared(int flags, const char *kind)
{
    unsigned char *at = out();
    say_result("unshare", unshare(flags));
    together(kind);
    all_there(at);
}

CASE(a_user_name_space) { unshared(CLONE_NEWUSER, "user"); }
CASE(a_mount_name_space) { unshared(CLONE_NEWNS, "mnt"); }
CASE(a_host_name_space) { unshared(CLONE_NEWUTS, "uts"); }
CASE(a_network_name_space) { unshared(CLONE_NEWNET, "net"); }
CASE(an_ipc_name_space) { unshared(CLONE_NEWIPC, "ipc"); }
CASE(user_and_mount_name_spaces) { unshared(CLONE_NEWUSER | CLONE_NEWNS, "mnt"); }
CASE(files_of_ones_own) { unshared(CLONE_FILES, "mnt"); }
CASE(a_directory_of_ones_own) { unshared(CLONE_FS, "mnt"); }

/* Only a process with a single thread may unshare its thread group. */
CASE(being_one_thread)
{
    RESULT(unshare(CLONE_THREAD));
    RESULT(unshare(CLONE_SIGHAND));
    RESULT(unshare(CLONE_VM));
}

static _Atomic pid_t who_waits;

static void *waits(void *end)
{
    char byte;
    who_waits = gettid();
    if (read(*(int *)end, &byte, 1) < 0)
        say("read");
    return NULL;
}

CASE(being_two_threads)
{
    int ends[2];
    pthread_t thread;
    MUST(pipe(ends));
    pthread_create(&thread, NULL, waits, &ends[0]);
    RESULT(unshare(CLONE_THREAD));
    RESULT(unshare(CLONE_NEWUSER));
    close(ends[1]);
    pthread_join(thread, NULL);
    // pthread_join returns shortly before the kernel removes the thread.
    WAIT_UNTIL(syscall(SYS_tgkill, getpid(), who_waits, 0) != 0);
    RESULT(unshare(CLONE_THREAD));
    RESULT(unshare(CLONE_NEWUSER));
}

CASE(being_root_in_it)
{
    char map[64];
    uid_t uid = geteuid();
    SUCCESS(unshare(CLONE_NEWUSER));
    snprintf(map, sizeof map, "0 %u 1", uid);
    int fd = open("/proc/self/uid_map", O_WRONLY);
    RESULT(write(fd, map, strlen(map)) > 0);
    say("uid %d", (int)geteuid());
    alike("CapEff");
}

CASE(children_in_a_process_name_space)
{
    unsigned char *at = out();
    say_result("unshare", unshare(CLONE_NEWUSER | CLONE_NEWPID));
    IN_CHILD("child")
        say("first: %d, wrong: %zu", getpid() == 1, wrong(at, 4 * MIB, 1));
    all_there(at);
}

/* After unshare(CLONE_NEWPID) the process can create no threads. The error message is
 * translated. */
CASE(a_process_name_space_in_a_locale)
{
    say("%s", setlocale(LC_ALL, "C.UTF-8"));
    children_in_a_process_name_space();
}

/* The program that exec starts can create no threads: only its children enter the namespace. */
CASE(a_program_before_a_process_name_space)
{
    RESULT(unshare(CLONE_NEWUSER | CLONE_NEWPID));
    fflush(stdout);
    execl("/bin/echo", "echo", "ran", NULL);
    say("not started");
}

static void joining(const char *kind, int flag)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
    int fd = MUST(open(path, O_RDONLY));
    unsigned char *at = out();
    say_result(kind, setns(fd, flag));
    together(kind);
    all_there(at);
}

CASE(joining_mounts) { joining("mnt", CLONE_NEWNS); }
CASE(joining_a_host_name) { joining("uts", CLONE_NEWUTS); }
CASE(joining_ones_own_user_name_space) { joining("user", CLONE_NEWUSER); }

CASE(joining_by_syscall)
{
    int fd = MUST(open("/proc/self/ns/mnt", O_RDONLY));
    RESULT(syscall(SYS_setns, fd, 0));
    RESULT(syscall(SYS_setns, -1, 0));
    RESULT(syscall(SYS_unshare, 0x12345));
}

/* A read from a pipe returns end of file after the program has closed the other end, so no other
 * process may have a copy of the closed descriptor. */
CASE(nobody_else_has_ones_files)
{
    int ends[2];
    char byte;
    MUST(pipe(ends));
    MUST(unshare(CLONE_FILES));
    MUST(close(ends[1]));
    RESULT(read(ends[0], &byte, 1));
}

/* --- others */

CASE(a_session_keyring)
{
    long result = syscall(SYS_keyctl, 1, NULL);
    say("%s", result > 0 ? "joined" : strerrorname_np(errno));
    RESULT(syscall(SYS_keyctl, 12345, 0));
}

CASE(a_landlock)
{
    uint64_t *handled = calloc(1, 8);
    unsigned char *at = out();
    *handled = 1 << 1; /* LANDLOCK_ACCESS_FS_WRITE_FILE */
    evict();
    int rules = syscall(444, handled, 8, 0);
    if (rules < 0) {
        say("%s", strerrorname_np(errno));
        return;
    }
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    RESULT(syscall(446, rules, 0));
    RESULT(open("/dev/null", O_WRONLY));
    SUCCESS(open("/dev/null", O_RDONLY));
    all_there(at);
}

static void *drops(void *unused)
{
    RESULT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    RESULT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    return unused;
}

static volatile int stop;

static void *touches(void *at)
{
    static size_t bad;
    while (!stop)
        for (size_t page = 0; page < 4 * MIB; page += PAGE)
            bad += ((unsigned char *)at)[page] != pattern(page, 1);
    return &bad;
}

CASE(while_others_touch_memory)
{
    unsigned char *at = out();
    pthread_t thread;
    pthread_create(&thread, NULL, touches, at);
    for (int i = 0; i < 20; i++) {
        evict();
        prctl(PR_SET_KEEPCAPS, i & 1, 0, 0, 0);
    }
    stop = 1;
    void *bad;
    pthread_join(thread, &bad);
    say("bad: %zu", *(size_t *)bad);
    all_there(at);
}

static void *drops_often(void *unused)
{
    for (int i = 0; i < 25; i++)
        prctl(PR_SET_KEEPCAPS, i & 1, 0, 0, 0);
    return unused;
}

CASE(by_many_threads_at_once)
{
    unsigned char *at = out();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, drops_often, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    all_there(at);
}

CASE(by_a_thread_that_is_not_the_first)
{
    unsigned char *at = out();
    in_thread(drops, NULL);
    all_there(at);
}

static void in_handler(int signal)
{
    (void)signal;
    RESULT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

CASE(in_a_signal_handler)
{
    unsigned char *at = out();
    signal(SIGUSR1, in_handler);
    raise(SIGUSR1);
    alike("NoNewPrivs");
    all_there(at);
}

CASE(in_a_forked_child)
{
    unsigned char *at = out();
    IN_CHILD("child") {
        RESULT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        SUCCESS(unshare(CLONE_NEWUSER));
        say("wrong: %zu", wrong(at, 4 * MIB, 1));
    }
    alike("CapEff");
    all_there(at);
}

CASE(in_a_child_that_shares_memory)
{
    unsigned char *at = out();
    pid_t pid = vfork();
    if (pid == 0) {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    say_end("child", pid);
    alike("CapEff");
    all_there(at);
}

CASE(programs_start_with_less)
{
    char *argv[] = {"grep", "NoNewPrivs", "/proc/self/status", NULL};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    execv("/bin/grep", argv);
}
