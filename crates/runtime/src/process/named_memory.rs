//! Memory that an `ioctl` registers, and that the kernel accesses later without a call.
//!
//! | request | handling |
//! |---|---|
//! | memory of a virtual machine (KVM) | pinned until the slot gets other memory |
//! | a USB transfer in progress | pinned until it is reaped |
//! | vhost, user pointers of GPUs and V4L2 | fails as in a kernel without it; programs have a fallback |
//! | the same by amdkfd and xe, with which programs register all memory, and shared virtual memory | fails for managed memory only |
//!
//! The sum is limited to what a program may lock ([`Engine::may_lock`]). Beyond that the request
//! fails with ENOMEM. The first refusal prints its reason.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::{Arguments, engine_syscall};
use crate::base::uaccess;
use softswap_engine::api::engine::Engine;
use softswap_sys::locked::Locked;
use softswap_sys::{raw, signals};
use std::sync::atomic::{AtomicBool, Ordering};

// <linux/kvm.h>, <linux/usbdevice_fs.h>
const KVM_CREATE_VM: u32 = 0xae01;
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: u32 = 0x40a0_ae49;
const USBDEVFS_SUBMITURB: u32 = 0x8038_550a;
const USBDEVFS_REAPURB: u32 = 0x4008_550c;
const USBDEVFS_REAPURBNDELAY: u32 = 0x4008_550d;
// <linux/vhost.h>, <linux/videodev2.h>
const VHOST_SET_OWNER: u32 = 0xaf01;
const VIDIOC_REQBUFS: u32 = 0xc014_5608;
const VIDIOC_CREATE_BUFS: u32 = 0xc100_565c;
// <drm/i915_drm.h>, <drm/amdgpu_drm.h>, <drm/radeon_drm.h>, <drm/etnaviv_drm.h>, <drm/xe_drm.h>
const I915_GEM_USERPTR: u32 = 0xc018_6473;
const AMDGPU_GEM_USERPTR: u32 = 0xc018_6451;
const RADEON_GEM_USERPTR: u32 = 0xc018_646d;
const ETNAVIV_GEM_USERPTR: u32 = 0xc018_6448;
/// Requests that register memory at an address.
const USER_POINTERS: [u32; 4] =
    [I915_GEM_USERPTR, AMDGPU_GEM_USERPTR, RADEON_GEM_USERPTR, ETNAVIV_GEM_USERPTR];
const XE_VM_BIND: u32 = 0x4088_6445;
// <linux/kfd_ioctl.h>
const AMDKFD_ALLOC_MEMORY_OF_GPU: u32 = 0xc028_4b16;
const AMDKFD_SVM: u32 = 0xc018_4b20;

const VM_NAME: &[u8] = b"anon_inode:kvm-vm";

pub(super) struct Named {
    /// Descriptor and slot of a virtual machine, or 0 and the address of a USB request.
    key: (usize, usize),
    ranges: [(usize, usize); 2],
}

impl Named {
    fn bytes(&self) -> usize {
        self.ranges.iter().map(|(_, len)| len).sum()
    }
}

pub(super) static NAMED: Locked<Vec<Named>> = Locked::new(Vec::new());

/// Called in a forked child. Unpins everything: the kernel uses only the parent's memory.
pub(super) fn become_child(engine: &Engine) {
    NAMED.with(|all| all.drain(..).for_each(|named| unpin(engine, &named.ranges)));
}

/// Returns the request without the size of attributes, which programs add to [`AMDKFD_SVM`].
fn number_of(request: usize) -> u32 {
    const SIZE: u32 = 0x3fff << 16;
    match request as u32 {
        request if request & !SIZE == AMDKFD_SVM & !SIZE => AMDKFD_SVM,
        request => request,
    }
}

/// Wakes a sleeping process before its memory is registered.
pub(crate) fn prepare(request: usize, argument: usize) {
    if !instance::may_wake() {
        return;
    }
    let registers_memory = match number_of(request) {
        KVM_SET_USER_MEMORY_REGION
        | KVM_SET_USER_MEMORY_REGION2
        | USBDEVFS_SUBMITURB
        | VHOST_SET_OWNER
        | VIDIOC_REQBUFS
        | VIDIOC_CREATE_BUFS => true,
        request => USER_POINTERS.contains(&request) || maps_window(request, argument),
    };
    if registers_memory {
        instance::awake();
    }
}

fn maps_window(request: u32, argument: usize) -> bool {
    let is_in_window = |range: Option<(usize, usize)>| {
        range.is_some_and(|(start, len)| instance::overlaps_window(start, len))
    };
    match request {
        AMDKFD_ALLOC_MEMORY_OF_GPU => {
            is_in_window(uaccess::words::<5>(argument).and_then(kfd_user_pointer))
        }
        AMDKFD_SVM => is_in_window(uaccess::words::<3>(argument).and_then(kfd_svm_range)),
        XE_VM_BIND => {
            // struct drm_xe_vm_bind: the number of operations is at 20. One operation is at 24; of
            // several the address is there.
            const OPERATION: usize = 24;
            const OPERATION_BYTES: usize = 80;
            let Some([_, _, number, address]) = uaccess::words(argument) else { return false };
            let number = number >> 32;
            let first = if number > 1 { address } else { argument.wrapping_add(OPERATION) };
            (0..number)
                .map_while(|at| uaccess::words::<6>(first.wrapping_add(at * OPERATION_BYTES)))
                .any(|operation| is_in_window(xe_user_pointer(operation)))
        }
        _ => false,
    }
}

/// Returns the address and length of `struct kfd_ioctl_alloc_memory_of_gpu_args`; `None` if the
/// driver allocates the memory.
fn kfd_user_pointer([_, len, _, address, gpu_and_flags]: [usize; 5]) -> Option<(usize, usize)> {
    const USERPTR: usize = 1 << 2;
    (gpu_and_flags >> 32 & USERPTR != 0).then_some((address, len))
}

/// Returns the address and length of `struct kfd_ioctl_svm_args`; `None` for queries.
fn kfd_svm_range([address, len, operation]: [usize; 3]) -> Option<(usize, usize)> {
    const SET_ATTR: usize = 0;
    (operation & 0xffff_ffff == SET_ATTR).then_some((address, len))
}

/// Returns the address and length of `struct drm_xe_vm_bind_op`; `None` for other operations. With
/// CPU_ADDR_MIRROR the GPU's addresses are those of the program.
fn xe_user_pointer([_, _, user, len, address, operation]: [usize; 6]) -> Option<(usize, usize)> {
    const MAP: usize = 0;
    const MAP_USERPTR: usize = 2;
    const CPU_ADDR_MIRROR: usize = 1 << 5;
    match (operation & 0xffff_ffff, operation >> 32) {
        (MAP_USERPTR, _) => Some((user, len)),
        (MAP, flags) if flags & CPU_ADDR_MIRROR != 0 => Some((address, len)),
        _ => None,
    }
}

/// Handles an `ioctl` that registers memory; `None` for other requests. `call` issues it.
pub(crate) fn handle_ioctl(
    engine: &Engine,
    arguments: &Arguments,
    call: &dyn Fn() -> isize,
) -> Option<isize> {
    let [fd, request, argument, ..] = *arguments;
    match number_of(request) {
        request if !is_of_device(fd, device_of(request)?) => None,
        KVM_CREATE_VM => {
            let result = call();
            // Another virtual machine had this descriptor, which the program has closed.
            if let Ok(vm) = usize::try_from(result) {
                unpin_if(engine, |key| key.0 == vm && vm > 0);
            }
            Some(result)
        }
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 => {
            // struct kvm_userspace_memory_region: slot and flags, guest address, size, address.
            let [slot, _, len, address] = uaccess::words(argument)?;
            let key = (fd, slot & 0xffff_ffff);
            Some(pin_and_register(engine, key, [(address, len), (0, 0)], true, call))
        }
        USBDEVFS_SUBMITURB => {
            // struct usbdevfs_urb: the buffer is at 16, its length at 24, packets at 36.
            const URB_BYTES: usize = 56;
            const PACKET_BYTES: usize = 12;
            let [_, _, buffer, lengths, frames] = uaccess::words(argument)?;
            let packets = (frames >> 32).min(128);
            let urb = (argument, URB_BYTES + packets * PACKET_BYTES);
            let ranges = [(buffer, lengths & 0x7fff_ffff), urb];
            Some(pin_and_register(engine, (0, argument), ranges, false, call))
        }
        USBDEVFS_REAPURB | USBDEVFS_REAPURBNDELAY => {
            let result = call();
            if result == 0
                && let Some([urb]) = uaccess::words(argument)
            {
                unpin_if(engine, |key| key == (0, urb));
            }
            Some(result)
        }
        VHOST_SET_OWNER => Some(refuse_access("vhost", libc::EPERM)),
        request if USER_POINTERS.contains(&request) => Some(refuse_access("userptr", libc::ENODEV)),
        request @ (AMDKFD_ALLOC_MEMORY_OF_GPU | AMDKFD_SVM | XE_VM_BIND) => {
            maps_window(request, argument).then(|| refuse_access("userptr", libc::ENODEV))
        }
        VIDIOC_REQBUFS | VIDIOC_CREATE_BUFS => {
            // struct v4l2_requestbuffers and v4l2_create_buffers: the kind of memory is at 8.
            const USERPTR: usize = 2;
            let [_, memory] = uaccess::words(argument)?;
            (memory & 0xffff_ffff == USERPTR)
                .then(|| refuse_access("V4L2_MEMORY_USERPTR", libc::EINVAL))
        }
        _ => None,
    }
}

fn device_of(request: u32) -> Option<&'static [u8]> {
    Some(match request {
        KVM_CREATE_VM => b"/dev/kvm",
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 => VM_NAME,
        USBDEVFS_SUBMITURB | USBDEVFS_REAPURB | USBDEVFS_REAPURBNDELAY => b"/dev/bus/usb/",
        VHOST_SET_OWNER => b"/dev/vhost",
        XE_VM_BIND => b"/dev/dri/",
        request if USER_POINTERS.contains(&request) => b"/dev/dri/",
        AMDKFD_ALLOC_MEMORY_OF_GPU | AMDKFD_SVM => b"/dev/kfd",
        VIDIOC_REQBUFS | VIDIOC_CREATE_BUFS => b"/dev/v",
        _ => return None,
    })
}

/// Also returns true if /proc is missing and the descriptor is open.
fn is_of_device(fd: usize, prefix: &[u8]) -> bool {
    let link = format!("/proc/self/fd/{}\0", fd as i32);
    let mut target = [0_u8; 64];
    let places = [link.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0, 0];
    match engine_syscall(libc::SYS_readlink, places) {
        len if len >= 0 => target.starts_with(prefix),
        error => {
            error != refused(libc::ENOENT)
                || engine_syscall(libc::SYS_fcntl, [fd, 1, 0, 0, 0, 0]) >= 0
        }
    }
}

/// With `replaces`, unpins the previous ranges of the key after `call` has registered the new ones.
fn pin_and_register(
    engine: &Engine,
    key: (usize, usize),
    ranges: [(usize, usize); 2],
    replaces: bool,
    call: &dyn Fn() -> isize,
) -> isize {
    let managed =
        ranges.map(|(address, len)| (address, if engine.contains(address) { len } else { 0 }));
    let named = Named { key, ranges: managed };
    let may_pin = || {
        let others: usize = NAMED.with(|all| all.iter().map(Named::bytes).sum());
        engine.may_lock(others.saturating_add(named.bytes()))
    };
    let unpin_closed = || unpin_if(engine, |key| key.0 > 0 && !is_of_device(key.0, VM_NAME));
    if !may_pin() && (!unpin_closed() || !may_pin()) {
        return refuse(libc::ENOMEM, || {
            "registering memory for a device or virtual machine failed: pinned memory would exceed \
             a quarter of the budget; raise --memory"
                .into()
        });
    }
    for (at, (address, len)) in managed.into_iter().enumerate() {
        let pinned = signals::with_all_blocked(|| engine.pin(address, len, len));
        if pinned.is_err() {
            unpin(engine, &managed[..at]);
            return refused(libc::ENOMEM);
        }
    }
    let result = call();
    if result != 0 {
        unpin(engine, &managed);
        return result;
    }
    if replaces {
        unpin_if(engine, |other| other == key);
    }
    if named.bytes() > 0 {
        NAMED.with(|all| all.push(named));
    }
    result
}

fn unpin(engine: &Engine, ranges: &[(usize, usize)]) {
    ranges.iter().for_each(|(address, len)| engine.unpin(*address, *len));
}

/// Unpins the ranges of registrations with such a key. Returns true if there are any.
fn unpin_if(engine: &Engine, has_ended: impl Fn((usize, usize)) -> bool) -> bool {
    NAMED.with(|all| {
        let ended: Vec<_> = all.extract_if(.., |named| has_ended(named.key)).collect();
        ended.iter().for_each(|named| unpin(engine, &named.ranges));
        !ended.is_empty()
    })
}

fn refuse_access(what: &str, error: i32) -> isize {
    refuse(error, || {
        format!(
            "{what} is refused: it lets the kernel access the program's memory at any time, so \
             softswap could not evict it (share/doc/softswap/limits.md)"
        )
    })
}

fn refuse(error: i32, message: impl FnOnce() -> String) -> isize {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        let line = format!("softswap: {}\n", message());
        raw::write_stderr(line.as_bytes());
    }
    refused(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_encode_structure_sizes() {
        for (request, bytes) in [
            (KVM_SET_USER_MEMORY_REGION, 32),
            (KVM_SET_USER_MEMORY_REGION2, 160),
            (USBDEVFS_SUBMITURB, 56),
            (VIDIOC_REQBUFS, 20),
            (VIDIOC_CREATE_BUFS, 256),
            (I915_GEM_USERPTR, 24),
            (AMDGPU_GEM_USERPTR, 24),
            (RADEON_GEM_USERPTR, 24),
            (ETNAVIV_GEM_USERPTR, 24),
            (XE_VM_BIND, 136),
            (AMDKFD_ALLOC_MEMORY_OF_GPU, 40),
            (AMDKFD_SVM, 24),
        ] {
            assert_eq!(request >> 16 & 0x3fff, bytes, "{request:#x}");
            assert!(device_of(request).is_some(), "{request:#x}");
            assert_eq!(number_of(request as usize), request);
        }
        // With two attributes of 8 bytes.
        assert_eq!(number_of(AMDKFD_SVM as usize + (16 << 16)), AMDKFD_SVM);
    }

    #[test]
    fn user_pointers_are_found_in_structures() {
        // The low half of the last word is the number of the GPU.
        assert_eq!(kfd_user_pointer([1, 2, 3, 0x1000, 4 << 32 | 7]), Some((0x1000, 2)));
        assert_eq!(kfd_user_pointer([1, 2, 3, 0x1000, 3 << 32 | 4]), None);
        // The high half of the last word is the number of attributes.
        assert_eq!(kfd_svm_range([0x1000, 2, 1 << 32]), Some((0x1000, 2)));
        assert_eq!(kfd_svm_range([0x1000, 2, 1 << 32 | 1]), None);
        // The high half of the last word is the flags.
        assert_eq!(xe_user_pointer([1, 2, 0x1000, 4, 5, 1 << 32 | 2]), Some((0x1000, 4)));
        assert_eq!(xe_user_pointer([1, 2, 0x1000, 4, 5, 2 << 32]), None);
        assert_eq!(xe_user_pointer([1, 2, 3, 4, 0x1000, 0x21 << 32]), Some((0x1000, 4)));
        assert_eq!(xe_user_pointer([1, 2, 3, 4, 0x1000, 0x20 << 32 | 1]), None);
    }
}
