/* Descriptor numbers: which are open, and which can be closed and duplicated. Memory keeps its
 * content if the program closes all descriptors. */
#include "abi.h"
#include <dirent.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;

enum { LEN = 2 << 20, FAR = 4200 };

static void say_wrong(char *at)
{
    say("wrong %zu", wrong(at, LEN, 7));
}

static void limit(rlim_t soft, rlim_t hard)
{
    struct rlimit now = {soft, hard};
    MUST(setrlimit(RLIMIT_NOFILE, &now));
}

static void soft_limit(rlim_t soft)
{
    struct rlimit now;
    MUST(getrlimit(RLIMIT_NOFILE, &now));
    now.rlim_cur = soft;
    MUST(setrlimit(RLIMIT_NOFILE, &now));
}

static void say_limit(const char *when)
{
    struct rlimit now;
    MUST(getrlimit(RLIMIT_NOFILE, &now));
    say("%s: %lu %lu", when, (unsigned long)now.rlim_cur, (unsigned long)now.rlim_max);
}

/* Duplicates standard output until all numbers are in use. */
static void use_all_numbers(void)
{
    int count = 0, last = 0, fd;
    while ((fd = dup(1)) >= 0)
        count++, last = fd;
    say("%d more, the last is %d, then %s", count, last, strerrorname_np(errno));
}

CASE(open_gives_the_lowest_number)
{
    int ends[2];
    RESULT(open("/dev/null", O_RDONLY));
    RESULT(dup(1));
    RESULT(pipe(ends));
    say("%d %d", ends[0], ends[1]);
    RESULT(close(4));
    RESULT(open("/dev/zero", O_RDONLY));
    RESULT(socket(AF_UNIX, SOCK_STREAM, 0));
}

CASE(numbers_that_were_not_opened_cannot_be_closed)
{
    char *at = evicted_memory(LEN, 7);
    int closed = 0, strange = 0;
    for (int fd = 3; fd < FAR; fd++)
        if (close(fd) == 0)
            closed++;
        else
            strange += errno != EBADF;
    say("closed %d, other errors %d", closed, strange);
    say_wrong(at);
}

CASE(nor_by_a_raw_call)
{
    char *at = evicted_memory(LEN, 7);
    int closed = 0, strange = 0;
    for (int fd = 3; fd < FAR; fd++)
        if (syscall(SYS_close, fd) == 0)
            closed++;
        else
            strange += errno != EBADF;
    say("closed %d, other errors %d", closed, strange);
    say_wrong(at);
}

CASE(fcntl_finds_what_was_opened_alone)
{
    MUST(dup2(1, 40));
    for (int fd = 0; fd < FAR; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            say("%d is open", fd);
}

CASE(a_raw_fcntl_finds_the_same)
{
    MUST(dup2(1, 41));
    for (int fd = 0; fd < FAR; fd++)
        if (syscall(SYS_fcntl, fd, F_GETFL) >= 0)
            say("%d is open", fd);
}

CASE(fstat_finds_the_same)
{
    struct stat found;
    MUST(dup2(1, 42));
    for (int fd = 0; fd < FAR; fd++)
        if (fstat(fd, &found) == 0)
            say("%d is open", fd);
}

CASE(dup_copies_what_was_opened_alone)
{
    int copied = 0;
    for (int fd = 3; fd < FAR; fd++)
        copied += dup(fd) >= 0;
    say("%d", copied);
}

CASE(dup2_from_numbers_that_are_not_open)
{
    int copied = 0;
    for (int fd = 3; fd < FAR; fd++)
        copied += dup2(fd, 2) >= 0 || syscall(SYS_dup2, fd, 2) >= 0 || dup3(fd, 2, 0) >= 0;
    say("%d", copied);
}

CASE(copies_over_all_numbers_leave_memory_whole)
{
    char *at = evicted_memory(LEN, 7);
    soft_limit(1024);
    int copied = 0;
    for (int fd = 3; fd < FAR; fd++)
        copied += dup2(1, fd) == fd;
    say("%d", copied);
    say_wrong(at);
}

CASE(raw_copies_over_all_numbers_leave_memory_whole)
{
    char *at = evicted_memory(LEN, 7);
    soft_limit(1024);
    int copied = 0;
    for (int fd = 3; fd < FAR; fd++)
        copied += syscall(SYS_dup3, 1, fd, O_CLOEXEC) == fd;
    say("%d", copied);
    say_wrong(at);
}

CASE(a_copy_from_a_floor_on)
{
    soft_limit(256);
    RESULT(fcntl(1, F_DUPFD, 100));
    RESULT(fcntl(1, F_DUPFD, 100));
    RESULT(fcntl(1, F_DUPFD_CLOEXEC, 255));
    RESULT(fcntl(1, F_DUPFD, 255));
    RESULT(fcntl(1, F_DUPFD, 256));
    RESULT(fcntl(255, F_GETFD));
}

CASE(as_many_as_the_limit_allows)
{
    char *at = evicted_memory(LEN, 7);
    soft_limit(300);
    use_all_numbers();
    RESULT(open("/dev/null", O_RDONLY));
    RESULT(dup2(1, 300));
    say_wrong(at);
}

CASE(as_many_as_a_hard_limit_allows)
{
    char *at = evicted_memory(LEN, 7);
    limit(40, 40);
    use_all_numbers();
    say_wrong(at);
    fill(at, LEN, 7);
    evict();
    say_wrong(at);
}

CASE(a_fork_with_all_numbers_in_use)
{
    char *at = evicted_memory(LEN, 7);
    soft_limit(64);
    use_all_numbers();
    IN_CHILD("child") {
        say_wrong(at);
        _exit(3);
    }
    say_wrong(at);
}

CASE(a_fork_with_all_numbers_that_there_are_in_use)
{
    char *at = evicted_memory(LEN, 7);
    while (dup(1) >= 0)
        ;
    for (int i = 0; i < 3; i++) {
        IN_CHILD("child") {
            say_wrong(at);
            IN_CHILD("grandchild") {
                say_wrong(at);
                _exit(4);
            }
            _exit(3);
        }
    }
    say_wrong(at);
}

CASE(a_fork_below_a_hard_limit_that_was_lowered)
{
    char *at = evicted_memory(LEN, 7);
    limit(48, 48);
    IN_CHILD("child") {
        say_wrong(at);
        IN_CHILD("grandchild")
            _exit(wrong(at, LEN, 7) ? 1 : 4);
        _exit(3);
    }
    say_wrong(at);
}

CASE(the_limit_is_what_it_was)
{
    say_limit("start");
    char *at = evicted_memory(LEN, 7);
    soft_limit(128);
    say_limit("lowered");
    IN_CHILD("child")
        say_limit("child");
    say_limit("parent");
    say_wrong(at);
}

CASE(the_limit_of_a_program_that_is_started)
{
    soft_limit(200);
    say("%d", system("ulimit -Sn"));
    limit(64, 64);
    say("%d", system("ulimit -Sn; ulimit -Hn"));
}

CASE(programs_run_within_a_small_limit)
{
    limit(64, 64);
    say("%d", system("echo one | cat; ls / > /dev/null && echo two; (exec sh -c 'echo three')"));
}

CASE(programs_run_within_a_small_soft_limit)
{
    soft_limit(32);
    say("%d", system("echo one | cat | cat; true && echo two; echo $(echo three)"));
}

CASE(close_range_of_everything)
{
    char *at = evicted_memory(LEN, 7);
    MUST(dup2(1, 30));
    RESULT(close_range(3, ~0U, 0));
    RESULT(fcntl(30, F_GETFD));
    say_wrong(at);
    rewrite(at, LEN, 8);
}

CASE(a_raw_close_range_of_everything)
{
    char *at = evicted_memory(LEN, 7);
    MUST(dup2(1, 31));
    RESULT(syscall(SYS_close_range, 3, ~0U, 0));
    RESULT(fcntl(31, F_GETFD));
    say_wrong(at);
    rewrite(at, LEN, 8);
}

CASE(close_range_with_strange_arguments)
{
    RESULT(close_range(5, 4, 0));
    RESULT(close_range(3, 4, 1 << 20));
    RESULT(syscall(SYS_close_range, 9, 3, 0));
    RESULT(syscall(SYS_close_range, 100, 200, 64));
    RESULT(close_range(~0U, ~0U, 0));
}

CASE(close_range_that_marks_only)
{
    char *at = evicted_memory(LEN, 7);
    MUST(dup2(1, 32));
    RESULT(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC));
    RESULT(fcntl(32, F_GETFD));
    say_wrong(at);
}

CASE(close_range_of_a_table_of_its_own)
{
    char *at = evicted_memory(LEN, 7);
    RESULT(close_range(3, ~0U, CLOSE_RANGE_UNSHARE));
    say_wrong(at);
}

CASE(closefrom_closes_the_rest)
{
    char *at = evicted_memory(LEN, 7);
    MUST(dup2(1, 33));
    closefrom(3);
    RESULT(fcntl(33, F_GETFD));
    say_wrong(at);
}

static void in_a_child(void (*close_all)(void))
{
    char *at = evicted_memory(LEN, 7);
    IN_CHILD("child") {
        close_all();
        say_wrong(at);
        fill(at, LEN / 4, 9);
        say("wrong %zu", wrong(at, LEN / 4, 9));
        _exit(5);
    }
    say_wrong(at);
}

static void by_close_range(void)
{
    RESULT(close_range(3, ~0U, 0));
}

static void by_raw_close_range(void)
{
    RESULT(syscall(SYS_close_range, 3, ~0U, 0));
}

static void by_closing_each(void)
{
    for (int fd = 3; fd < FAR; fd++)
        close(fd);
}

static void by_closing_each_raw(void)
{
    for (int fd = 3; fd < FAR; fd++)
        syscall(SYS_close, fd);
}

static void by_what_proc_lists(void)
{
    DIR *list = opendir("/proc/self/fd");
    if (!list)
        return;
    for (struct dirent *entry; (entry = readdir(list));)
        if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(list))
            close(atoi(entry->d_name));
    closedir(list);
}

CASE(a_child_closes_a_range) { in_a_child(by_close_range); }
CASE(a_child_closes_a_range_raw) { in_a_child(by_raw_close_range); }
CASE(a_child_closes_each) { in_a_child(by_closing_each); }
CASE(a_child_closes_each_raw) { in_a_child(by_closing_each_raw); }
CASE(a_child_closes_what_proc_lists) { in_a_child(by_what_proc_lists); }

CASE(proc_lists_are_closed)
{
    char *at = evicted_memory(LEN, 7);
    by_what_proc_lists();
    say_wrong(at);
    rewrite(at, LEN, 8);
}

/* The child may exit with any status, but it must not read wrong data. */
CASE(a_child_that_closes_by_its_own_instruction_reads_nothing_wrong)
{
    char *at = evicted_memory(LEN, 7);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        own_call(SYS_close_range, 3, ~0U, 0);
        _exit(wrong(at, LEN, 7) ? 77 : 0);
    }
    int status = 0;
    MUST(waitpid(pid, &status, 0));
    say("wrong data: %s", WIFEXITED(status) && WEXITSTATUS(status) == 77 ? "yes" : "no");
    say_wrong(at);
}

/* Runs this case again in another program. */
static void again(const char *name)
{
    char *argv[] = {"again", (char *)name, NULL};
    pid_t pid;
    setenv("ABI_AGAIN", "1", 1);
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
        must_("posix_spawn", -1);
    int status;
    MUST(waitpid(pid, &status, 0));
}

CASE(nothing_is_written_under_numbers_that_were_taken_over)
{
    if (!getenv("ABI_AGAIN")) {
        int fd = MUST(open("precious", O_RDWR | O_CREAT, 0600));
        MUST(write(fd, "precious", 8));
        again("nothing_is_written_under_numbers_that_were_taken_over");
        struct stat found;
        char text[9] = "";
        MUST(fstat(fd, &found));
        MUST(pread(fd, text, 8, 0));
        say("%lu bytes, %s", (unsigned long)found.st_size, text);
        return;
    }
    char *at = memory(LEN, 7);
    own_call(SYS_close_range, 3, ~0U, 0);
    for (int fd = 3; fd < FAR; fd++)
        own_call(SYS_dup2, open("precious", O_RDWR), fd, 0);
    evict();
    _exit(wrong(at, LEN, 7) != 0);
}

CASE(messages_do_not_go_to_a_file_of_that_number)
{
    if (!getenv("ABI_AGAIN")) {
        int fd = MUST(open("data", O_RDWR | O_CREAT, 0600));
        again("messages_do_not_go_to_a_file_of_that_number");
        struct stat found;
        MUST(fstat(fd, &found));
        say("%lu bytes", (unsigned long)found.st_size);
        return;
    }
    char *at = memory(LEN, 7);
    close(2);
    if (open("data", O_RDWR) != 2)
        _exit(1);
    evict();
    /* softswap must stop the program with a message. */
    own_call(SYS_close_range, 3, ~0U, 0);
    _exit(wrong(at, LEN, 7) != 0);
}

CASE(started_without_standard_streams)
{
    if (!getenv("ABI_AGAIN")) {
        int fd = MUST(open("data", O_RDWR | O_CREAT, 0600));
        setenv("ABI_AGAIN", "1", 1);
        IN_CHILD("child") {
            close(0), close(1), close(2);
            execl("/proc/self/exe", "again", "started_without_standard_streams", NULL);
            _exit(1);
        }
        char text[32] = "";
        MUST(pread(fd, text, sizeof text - 1, 0));
        say("%s", text);
        return;
    }
    int first = open("data", O_RDWR), second = dup(first), third = dup(first);
    char *at = evicted_memory(LEN, 7);
    dprintf(third, "%d %d %d wrong %zu", first, second, third, wrong(at, LEN, 7));
}

CASE(what_a_program_inherits)
{
    if (getenv("ABI_AGAIN")) {
        for (int fd = 0; fd < FAR; fd++)
            if (fcntl(fd, F_GETFD) >= 0)
                say("%d is open", fd);
        return;
    }
    char *at = evicted_memory(LEN, 7);
    MUST(dup2(1, 20));
    MUST(dup3(1, 21, O_CLOEXEC));
    setenv("ABI_AGAIN", "1", 1);
    IN_CHILD("child") {
        execl("/proc/self/exe", "again", "what_a_program_inherits", NULL);
        _exit(1);
    }
    again("what_a_program_inherits");
    say_wrong(at);
}

CASE(what_a_program_inherits_by_actions)
{
    if (getenv("ABI_AGAIN")) {
        for (int fd = 0; fd < FAR; fd++)
            if (fcntl(fd, F_GETFD) >= 0)
                say("%d is open", fd);
        return;
    }
    char *argv[] = {"again", "what_a_program_inherits_by_actions", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 17);
    posix_spawn_file_actions_addopen(&actions, 18, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclose(&actions, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions, 18);
    posix_spawn_file_actions_adddup2(&actions, 17, 19);
    setenv("ABI_AGAIN", "1", 1);
    pid_t pid;
    int failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
    say_end("child", pid);
    say("%d", failed);
}

CASE(a_descriptor_sent_in_a_message)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &(int){1}, sizeof(int));
    RESULT(sendmsg(ends[0], &message, 0));
    memset(control, 0, sizeof control);
    RESULT(recvmsg(ends[1], &message, 0));
    int got;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    say("number %d", got);
}

CASE(a_pipe_ends_when_its_writers_have_closed_it)
{
    int ends[2];
    MUST(pipe(ends));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        close(ends[0]);
        MUST(write(ends[1], "word", 4));
        _exit(0);
    }
    close(ends[1]);
    char text[8];
    RESULT(read(ends[0], text, sizeof text));
    RESULT(read(ends[0], text, sizeof text));
    say_end("child", pid);
}

CASE(standard_error_is_not_kept_open)
{
    int ends[2];
    MUST(pipe(ends));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        MUST(dup2(ends[1], 2));
        close(ends[0]), close(ends[1]);
        execl("/bin/sh", "sh", "-c", "exec 2>&-; exec sleep 1000 < /dev/null > /dev/null", NULL);
        _exit(1);
    }
    close(ends[1]);
    /* The pipe is at end of file, although the program still runs. */
    struct pollfd end = {ends[0], POLLIN, 0};
    RESULT(poll(&end, 1, 100000));
    char byte;
    RESULT(read(ends[0], &byte, 1));
    kill(pid, SIGKILL);
    say_end("child", pid);
}

CASE(a_daemon_keeps_its_memory)
{
    int ends[2];
    MUST(pipe(ends));
    char *at = evicted_memory(LEN, 7);
    IN_CHILD("child") {
        close(ends[0]);
        MUST(daemon(0, 0));
        dprintf(ends[1], "wrong %zu", wrong(at, LEN, 7));
    }
    close(ends[1]);
    char text[64] = "";
    RESULT(read(ends[0], text, sizeof text - 1));
    say("%s", text);
}

CASE(a_limit_raised_to_the_hard_one)
{
    char *at = evicted_memory(LEN, 7);
    struct rlimit now;
    MUST(getrlimit(RLIMIT_NOFILE, &now));
    soft_limit(now.rlim_max);
    by_closing_each();
    RESULT(close_range(3, ~0U, 0));
    RESULT(open("/dev/null", O_RDONLY));
    say_wrong(at);
}
