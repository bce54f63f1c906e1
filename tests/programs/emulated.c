/* Starts a program as on a kernel without userfaultfd. With "emulator" as the first argument,
 * seccomp filters are also unavailable, as under an emulator. With "container" the calls fail that
 * a default seccomp profile of containers forbids, as far as softswap uses them. This program
 * installs its filter with its own instructions, which softswap does not intercept. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d)
{
	long result;
	register long fourth __asm__("r10") = d;
	register long fifth __asm__("r8") = 0;
	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
			 : "rcx", "r11", "memory");
	return result;
}

int main(int argc, char **argv)
{
	int is_emulator = argc > 1 && !strcmp(argv[1], "emulator");
	int is_container = argc > 1 && !strcmp(argv[1], "container");
	const int none = SYS_userfaultfd;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_emulator ? SYS_seccomp : none, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_container ? SYS_io_uring_setup : none, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_container ? SYS_process_vm_readv : none, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_container ? SYS_process_vm_writev : none, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (is_container ? EPERM : ENOSYS)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	argv += is_emulator || is_container;
	argc -= is_emulator || is_container;
	if (argc < 2 || call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0) ||
	    call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0)) {
		fputs("no filter\n", stderr);
		return 2;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 2;
}
