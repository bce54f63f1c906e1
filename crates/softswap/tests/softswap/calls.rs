//! Passes regions of a `guard_calls` pool to system calls. Each test runs in its own process,
//! because a seccomp filter cannot be removed.
#![allow(unsafe_code, reason = "calls are made by the C library's functions")]

use crate::common::{PAGE, Timer, alone, assert_full, builder, full, in_child};
use softswap::{Pool, Region};
use std::ffi::CString;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

fn pool() -> Pool {
    builder("16M").guard_calls(true).build().unwrap()
}

#[test]
fn file_calls_take_absent_pages() {
    alone!("calls::file_calls_take_absent_pages");
    let pool = pool();
    let region = full(&pool);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&region).unwrap();
    file.rewind().unwrap();
    let mut copy = pool.map(region.len()).unwrap();
    file.read_exact(&mut copy).unwrap();
    assert_full(&copy);
    assert_eq!(file.stream_position().unwrap(), region.len() as u64);
    assert_eq!(file.read(&mut copy).unwrap(), 0);

    copy.fill(0);
    // One call each, much longer than the memory that calls may hold together.
    let shifted = 5 * PAGE + 7;
    assert_eq!(file.write_at(&region, shifted as u64).unwrap(), region.len());
    assert_eq!(file.read_at(&mut copy, shifted as u64).unwrap(), region.len());
    assert_full(&copy);
    file.set_len(1000).unwrap();
    assert_eq!(file.read_at(&mut copy, 0).unwrap(), 1000);
    assert!(pool.stats().used_peak_bytes <= 16 << 20);
}

#[test]
fn pipe_and_socket_calls_take_absent_pages() {
    alone!("calls::pipe_and_socket_calls_take_absent_pages");
    let pool = pool();
    let (region, mut copy) = (full(&pool), pool.map(48 << 20).unwrap());
    let (mut one, mut other) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| one.write_all(&region).unwrap());
        other.read_exact(&mut copy).unwrap();
    });
    assert_full(&copy);
    copy.fill(1);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&region).unwrap());
        reader.read_exact(&mut copy).unwrap();
    });
    assert_full(&copy);

    let (one, other) = UnixDatagram::pair().unwrap();
    one.send(&region[..100_000]).unwrap();
    assert_eq!(other.recv(&mut copy).unwrap(), 100_000);
    assert!(copy[..100_000] == region[..100_000]);
    let error = one.send(&region).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EMSGSIZE)), "{error}");
}

/// A structure names the buffers of `readv`, `writev`, `sendmsg` and `recvmsg`. The kernel reports
/// absent pages in them as bad pointers, and transfers no other bytes instead.
#[test]
fn buffers_inside_structures_need_pinning() {
    alone!("calls::buffers_inside_structures_need_pinning");
    let pool = pool();
    let mut region = full(&pool);
    let is_fault = |error: &std::io::Error| matches!(error.raw_os_error(), Some(libc::EFAULT));
    let mut file = tempfile::tempfile().unwrap();
    let expected = [&b"head"[..], &region[..8 * PAGE]].concat();
    region.advise(.., softswap::Advice::Cold).unwrap();
    region[24 << 20..].fill(5);

    let out = &region[..8 * PAGE];
    let mut vector = [IoSlice::new(out), IoSlice::new(b"tail")];
    assert!(is_fault(&file.write_vectored(&vector).unwrap_err()));
    vector = [IoSlice::new(b"head"), IoSlice::new(out)];
    assert_eq!(file.write_vectored(&vector).unwrap(), 4);
    file.rewind().unwrap();
    let (one, other) = UnixDatagram::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    assert!(is_fault(&send_message(&one, &vector).unwrap_err()));
    let mut copy = vec![0; 9 * PAGE];
    assert_eq!(other.recv(&mut copy).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);

    let pin = region.pin(..8 * PAGE).unwrap();
    vector = [IoSlice::new(b"head"), IoSlice::new(&pin)];
    assert_eq!(file.write_vectored(&vector).unwrap(), expected.len());
    assert_eq!(send_message(&one, &vector).unwrap(), expected.len());
    drop(pin);
    assert_eq!(other.recv(&mut copy).unwrap(), expected.len());
    assert!(copy[..expected.len()] == expected);

    let mut head = [0; 4];
    for is_message in [false, true] {
        region[..8 * PAGE].fill(0);
        file.rewind().unwrap();
        one.send(&expected).unwrap();
        let mut pin = region.pin_mut(..8 * PAGE).unwrap();
        let mut vector = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut pin)];
        let received = if is_message {
            receive_message(&other, &mut vector)
        } else {
            file.read_vectored(&mut vector)
        };
        assert_eq!(received.unwrap(), expected.len());
        assert!([&head[..], &pin[..]].concat() == expected, "{is_message}");
    }
}

fn message(parts: *const IoSlice<'_>, count: usize) -> libc::msghdr {
    // SAFETY: all-zero is a header without buffers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (parts.cast_mut().cast(), count);
    header
}

fn sent(result: isize) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

fn send_message(socket: &UnixDatagram, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
    let header = message(parts.as_ptr(), parts.len());
    // SAFETY: the header refers to the parts, which have the layout of iovecs and are only read.
    sent(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) })
}

fn receive_message(socket: &UnixDatagram, parts: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
    let mut header = message(parts.as_ptr().cast(), parts.len());
    // SAFETY: the header refers to the parts, which have the layout of iovecs and are borrowed for
    // writing.
    sent(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) })
}

fn out<T>(region: &mut Region, page: usize) -> *mut T {
    // SAFETY: the callers pass pages within the region.
    unsafe { region.as_mut_ptr().add(page * PAGE + 64).cast() }
}

#[test]
fn calls_take_structures_in_absent_pages() {
    alone!("calls::calls_take_structures_in_absent_pages");
    let pool = pool();
    let mut region = full(&pool);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4321).unwrap();
    let path = CString::new(file.path().to_str().unwrap()).unwrap();
    let text = out::<libc::c_char>(&mut region, 5000);
    // SAFETY: the region has space for the path.
    unsafe { path.as_ptr().copy_to_nonoverlapping(text, path.count_bytes() + 1) };
    // Fault in other pages, so that this one is evicted.
    region[8000 * PAGE..].fill(3);
    let status = out::<libc::stat>(&mut region, 100);
    // SAFETY: both are in the region, which outlives them; nothing else refers to them.
    let size = unsafe {
        assert_eq!(libc::stat(text, status), 0);
        (*status).st_size
    };
    assert_eq!(size, 4321);

    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let poll_entry = out::<libc::pollfd>(&mut region, 200);
    // SAFETY: `poll_entry` is in the region, which outlives it.
    let events = unsafe {
        *poll_entry = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(poll_entry, 1, 1000), 1);
        (*poll_entry).revents
    };
    assert_eq!(events, libc::POLLIN);

    let mut random = pool.map(8 << 20).unwrap();
    // SAFETY: the kernel writes only the region's bytes.
    let filled = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    assert_eq!(filled, random.len() as isize);
    let zeroes = random.chunks(64).filter(|bytes| bytes.iter().all(|byte| *byte == 0)).count();
    assert_eq!(zeroes, 0);
}

#[test]
fn invalid_calls_get_kernel_errors() {
    alone!("calls::invalid_calls_get_kernel_errors");
    let pool = pool();
    let region = full(&pool);
    let read = |fd: i32, at: usize, len: usize| {
        // SAFETY: the kernel reports unmapped addresses.
        let result = unsafe { libc::read(fd, region.as_ptr().wrapping_add(at) as *mut _, len) };
        if result < 0 { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok(result) }
    };
    assert_eq!(read(-1, 0, region.len()), Err(Some(libc::EBADF)));
    let zero = File::open("/dev/zero").unwrap();
    assert_eq!(read(zero.as_raw_fd(), 1 << 36, PAGE), Err(Some(libc::EFAULT)));
    assert_eq!(read(zero.as_raw_fd(), 0, 0), Ok(0));
    let at_end = read(zero.as_raw_fd(), region.len() - 3 * PAGE, 64 << 20).unwrap();
    assert!((1..=3 * PAGE as isize).contains(&at_end), "{at_end}");
}

static SENT: AtomicI32 = AtomicI32::new(0);

extern "C" fn program_handler(signal: i32) {
    SENT.fetch_add(signal, Ordering::SeqCst);
}

#[test]
fn older_threads_children_and_program_handler_still_work() {
    alone!("calls::older_threads_children_and_program_handler_still_work");
    // SAFETY: the handler only adds to an atomic.
    unsafe { libc::signal(libc::SIGSYS, program_handler as *const () as usize) };
    let (begin, begun) = std::sync::mpsc::channel::<usize>();
    let before = std::thread::spawn(move || {
        let at = begun.recv().unwrap();
        // SAFETY: `at` is a page of the region, which the test keeps alive.
        let page = unsafe { std::slice::from_raw_parts(at as *const u8, PAGE) };
        tempfile::tempfile().unwrap().write(page).unwrap()
    });
    let pool = pool();
    let region = full(&pool);
    begin.send(region.as_ptr().addr()).unwrap();
    assert_eq!(before.join().unwrap(), PAGE);
    // SAFETY: the handler is installed.
    unsafe { libc::raise(libc::SIGSYS) };
    assert_eq!(SENT.load(Ordering::SeqCst), libc::SIGSYS);

    let output = Command::new("sh").args(["-c", "echo $((6 * 7))"]).output().unwrap();
    assert_eq!(output.stdout, b"42\n");
    let status = in_child(|| {
        assert!(tempfile::tempfile().unwrap().write(&region[..PAGE]).is_err());
        let own = self::pool();
        tempfile::tempfile().unwrap().write_all(&full(&own)).unwrap();
    });
    assert_eq!(status, 0);
}

extern "C" fn on_timer(_signal: i32) {
    SENT.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn signals_are_delivered_while_threads_write() {
    alone!("calls::signals_are_delivered_while_threads_write");
    let pool = pool();
    let region = full(&pool);
    let timer = Timer::start(on_timer);
    let region = &region;
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(region).unwrap();
                file.rewind().unwrap();
                let mut bytes = vec![0; 1 << 20];
                for part in region.chunks(1 << 20) {
                    file.read_exact(&mut bytes).unwrap();
                    assert!(bytes == part);
                }
            });
        }
    });
    drop(timer);
    assert!(SENT.load(Ordering::SeqCst) > 0);
}
