/* Memory whose address a call passes, and that the kernel uses after the call. */
#include "abi.h"
#include <linux/kvm.h>
#include <sys/ioctl.h>

#define GUEST (1 * MIB)

/* Loads al from a page of the guest's memory, and halts. */
static const unsigned char code[] = {0xb8, 0x00, 0x20, 0x8e, 0xd8, 0xa0, 0x00, 0x00, 0xf4};

static void run_guest(int vm, int processor, struct kvm_run *run)
{
    struct kvm_sregs segments;
    struct kvm_regs registers = {.rip = 0x1000, .rflags = 2};
    MUST(ioctl(processor, KVM_GET_SREGS, &segments));
    segments.cs.base = 0, segments.cs.selector = 0;
    MUST(ioctl(processor, KVM_SET_SREGS, &segments));
    MUST(ioctl(processor, KVM_SET_REGS, &registers));
    RESULT(ioctl(processor, KVM_RUN, 0));
    MUST(ioctl(processor, KVM_GET_REGS, &registers));
    say("exit %d, al %d", run->exit_reason, (int)(registers.rax & 255));
}

static int set_region(int by_number, int vm, struct kvm_userspace_memory_region *region)
{
    return by_number ? syscall(SYS_ioctl, vm, KVM_SET_USER_MEMORY_REGION, region)
                     : ioctl(vm, KVM_SET_USER_MEMORY_REGION, region);
}

static void use_a_virtual_machine(int by_number)
{
    int device = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    int vm = device < 0 ? -1 : ioctl(device, KVM_CREATE_VM, 0);
    if (vm < 0) {
        say("no virtual machines are available");
        return;
    }
    unsigned char *guest = memory(4 * MIB, 1), *other = memory(GUEST, 2);
    memcpy(guest + 0x1000, code, sizeof code), guest[0x20000] = 42;
    memcpy(other + 0x1000, code, sizeof code), other[0x20000] = 43;
    struct kvm_userspace_memory_region region = {.memory_size = GUEST, .userspace_addr = (uint64_t)guest};
    RESULT(set_region(by_number, vm, &region));
    int processor = MUST(ioctl(vm, KVM_CREATE_VCPU, 0));
    struct kvm_run *run = mmap(NULL, ioctl(device, KVM_GET_VCPU_MMAP_SIZE, 0),
                               PROT_READ | PROT_WRITE, MAP_SHARED, processor, 0);
    evict();
    run_guest(vm, processor, run);
    region.memory_size = 0;
    RESULT(set_region(by_number, vm, &region));
    region.memory_size = GUEST, region.userspace_addr = (uint64_t)other;
    RESULT(set_region(by_number, vm, &region));
    evict();
    run_guest(vm, processor, run);
    say("wrong above %zu", (size_t)(memcmp(guest + GUEST, (char *)memory(4 * MIB, 1) + GUEST, GUEST) != 0));
    region.slot = 7;
    RESULT(set_region(by_number, vm, NULL));
}

CASE(a_virtual_machine)
{
    use_a_virtual_machine(0);
}

CASE(a_virtual_machine_by_number)
{
    use_a_virtual_machine(1);
}

/* Other devices have requests with the same numbers. */
CASE(requests_of_other_devices)
{
    char *at = memory(64 << 10, 1);
    int fd = MUST(open("/dev/null", O_RDWR));
    struct kvm_userspace_memory_region region = {.memory_size = 1UL << 40, .userspace_addr = (uint64_t)at};
    evict();
    RESULT(ioctl(fd, KVM_SET_USER_MEMORY_REGION, &region));
    RESULT(ioctl(fd, 0xaf01, 0));       /* VHOST_SET_OWNER */
    RESULT(ioctl(fd, 0x8038550a, at));  /* USBDEVFS_SUBMITURB */
    RESULT(ioctl(fd, 0xc0186473, at));  /* DRM_IOCTL_I915_GEM_USERPTR */
    RESULT(ioctl(fd, 0xc018646d, at));  /* DRM_IOCTL_RADEON_GEM_USERPTR */
    RESULT(ioctl(fd, 0x40886445, at));  /* DRM_IOCTL_XE_VM_BIND */
    RESULT(ioctl(fd, 0xc0284b16, at));  /* AMDKFD_IOC_ALLOC_MEMORY_OF_GPU */
    RESULT(ioctl(fd, 0xc0184b20, at));  /* AMDKFD_IOC_SVM */
    RESULT(ioctl(fd, 0xc100565c, at));  /* VIDIOC_CREATE_BUFS */
    RESULT(ioctl(-1, 0xaf01, 0));
}
