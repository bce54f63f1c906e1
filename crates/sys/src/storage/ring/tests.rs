use super::*;
use crate::file::SwapFile;
use std::os::fd::AsFd;

fn ring_and_file() -> Option<(Ring, SwapFile)> {
    let file = SwapFile::open(&std::env::temp_dir()).unwrap();
    match Ring::new(4) {
        Ok(ring) => Some((ring, file)),
        Err(error) => {
            eprintln!("skipped: no io_uring: {error}");
            None
        }
    }
}

fn pages(count: usize) -> &'static mut [u8] {
    crate::memory::reserve_bytes(count * crate::PAGE_SIZE).unwrap()
}

#[test]
fn batch_larger_than_ring_completes() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let source = pages(13);
    for (number, page) in source.chunks_mut(4096).enumerate() {
        page.fill(number as u8 + 1);
    }
    // Different lengths, so that swapped results would be detected.
    let writes: Vec<Piece<&[u8]>> = source
        .chunks(4096)
        .enumerate()
        .map(|(number, page)| Piece {
            buf: if number == 6 { &page[..0] } else { page },
            offset: number as u64 * 4096,
        })
        .collect();
    let mut results: Vec<io::Result<usize>> = (0..13).map(|_| Ok(0)).collect();
    ring.write_batch(Target::Descriptor(file.as_fd()), &writes, &mut results).unwrap();
    for (number, result) in results.iter().enumerate() {
        assert_eq!(*result.as_ref().unwrap(), if number == 6 { 0 } else { 4096 });
    }

    let sink = pages(13);
    let mut reads: Vec<Piece<&mut [u8]>> = sink
        .chunks_mut(4096)
        .enumerate()
        .map(|(number, buf)| Piece { buf, offset: number as u64 * 4096 })
        .collect();
    ring.read_batch(Target::Descriptor(file.as_fd()), &mut reads, &mut results).unwrap();
    assert!(results.iter().all(|result| matches!(result, Ok(4096))));
    for (number, page) in sink.chunks(4096).enumerate() {
        let expected = if number == 6 { 0 } else { number as u8 + 1 };
        assert!(page.iter().all(|&byte| byte == expected), "page {number}");
    }
}

#[test]
fn failed_request_does_not_affect_others() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let page: &[u8] = pages(1);
    let batch = [0, 1 << 62, 0].map(|offset| Piece { offset, buf: page });
    let mut results = [Ok(0), Ok(0), Ok(0)];
    ring.write_batch(Target::Descriptor(file.as_fd()), &batch, &mut results).unwrap();
    assert!(matches!(results[0], Ok(4096)) && matches!(results[2], Ok(4096)));
    assert!(results[1].is_err());
    assert!(ring.is_usable());
}

#[test]
fn attached_file_outlives_descriptor() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    assert!(ring.read(Target::Attached, pages(1), 0).is_err(), "no file is attached");
    ring.attach(file.as_fd()).unwrap();
    drop(file);
    let page = pages(1);
    page.fill(3);
    assert_eq!(ring.write(Target::Attached, page, 0).unwrap(), 4096);
    let read = pages(1);
    assert_eq!(ring.read(Target::Attached, read, 0).unwrap(), 4096);
    assert!(page == read);
}

#[test]
fn ring_can_be_used_by_successive_threads() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    ring.attach(file.as_fd()).unwrap();
    for turn in 0..4_u8 {
        ring = std::thread::spawn(move || {
            let page = pages(1);
            page.fill(turn);
            assert_eq!(ring.write(Target::Attached, page, u64::from(turn) * 4096).unwrap(), 4096);
            ring
        })
        .join()
        .unwrap();
    }
    let last = pages(1);
    assert_eq!(ring.read(Target::Attached, last, 3 * 4096).unwrap(), 4096);
    assert!(last.iter().all(|&byte| byte == 3));
}

#[test]
fn moved_descriptor_is_close_on_exec() {
    let Some((ring, _file)) = ring_and_file() else { return };
    // SAFETY: the ring is open for the whole test.
    let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    let flags = rustix::io::fcntl_getfd(fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn replaced_descriptor_disables_ring() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let null = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the call replaces a descriptor that only this ring uses. A program that reuses
    // numbers it does not own can do the same.
    let replaced = unsafe { libc::dup2(null.as_raw_fd(), ring.as_raw_fd()) };
    assert!(replaced >= 0);
    let page = pages(1);
    assert!(ring.write(Target::Descriptor(file.as_fd()), page, 0).is_err());
    assert!(!ring.is_usable());
    let error = ring.write(Target::Descriptor(file.as_fd()), page, 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno::ESTALE));
}

#[test]
fn forked_child_leaves_parent_ring_untouched() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let page = pages(1);
    // SAFETY: the child only makes system calls and exits with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = ring.write(Target::Descriptor(file.as_fd()), page, 0).is_err();
        // SAFETY: exits the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: `child` is this process's child and `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child used the ring");
    assert_eq!(ring.write(Target::Descriptor(file.as_fd()), page, 0).unwrap(), 4096);
}

#[test]
fn read_may_be_polled_or_awaited() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let page = pages(1);
    page.fill(0x37);
    let target = || Target::Descriptor(file.as_fd());
    assert_eq!(ring.write(target(), page, 0).unwrap(), 4096);
    let until_done: fn(&mut Pending<'_>) = |pending| while !pending.is_done() {};
    let once_after_sleep: fn(&mut Pending<'_>) = |pending| {
        pending.sleep(1_000);
        pending.is_done();
    };
    let until_completion: fn(&mut Pending<'_>) = |pending| assert!(pending.sleep(120_000_000_000));
    let without_polling: fn(&mut Pending<'_>) = |_| {};
    for meanwhile in [until_done, once_after_sleep, until_completion, without_polling] {
        page.fill(0);
        assert_eq!(ring.read_while(target(), page, 0, meanwhile).unwrap(), 4096);
        assert!(page.iter().all(|&byte| byte == 0x37));
    }
    let error = ring.read_while(target(), page, u64::MAX / 2 + 1, until_done).unwrap_err();
    assert!(error.raw_os_error().is_some() && ring.is_usable());
    assert_eq!(
        ring.read_while(target(), page, 0, without_polling).unwrap(),
        4096,
        "the next read succeeds"
    );
}

#[test]
fn batched_reads_are_polled_with_own_results() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let all = pages(3);
    for (number, page) in (1..).zip(all.chunks_mut(4096)) {
        page.fill(number);
    }
    let target = || Target::Descriptor(file.as_fd());
    assert_eq!(ring.write(target(), all, 0).unwrap(), 3 * 4096);
    let until_done: fn(&mut Pending<'_>) = |pending| while !pending.is_done() {};
    let once: fn(&mut Pending<'_>) = |pending| {
        pending.is_done();
    };
    let until_completion: fn(&mut Pending<'_>) = |pending| assert!(pending.sleep(120_000_000_000));
    let without_polling: fn(&mut Pending<'_>) = |_| {};
    for meanwhile in [until_done, once, until_completion, without_polling] {
        all.fill(0);
        let mut bufs = all.chunks_mut(4096);
        // The last page, one past the end, and the first.
        let mut requests = [8192, u64::MAX / 2 + 1, 0]
            .map(|offset| Piece { offset, buf: bufs.next().unwrap_or_default() });
        let mut results = [const { Ok(0) }; 3];
        ring.read_batch_while(target(), &mut requests, &mut results, meanwhile).unwrap();
        assert!(matches!(results, [Ok(4096), Err(_), Ok(4096)]), "{results:?}");
        assert!(requests[0].buf.iter().all(|&byte| byte == 3));
        assert!(requests[2].buf.iter().all(|&byte| byte == 1));
        assert_eq!(
            ring.read(target(), requests[1].buf, 4096).unwrap(),
            4096,
            "the next read succeeds"
        );
        assert!(requests[1].buf.iter().all(|&byte| byte == 2));
    }
}

#[test]
fn panic_waits_for_pending_read() {
    let Some((mut ring, file)) = ring_and_file() else { return };
    let page = pages(1);
    page.fill(0x38);
    ring.write(Target::Descriptor(file.as_fd()), page, 0).unwrap();
    page.fill(0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ring.read_while(Target::Descriptor(file.as_fd()), page, 0, |_| panic!("on purpose"))
    }));
    assert!(panicked.is_err());
    assert!(page.iter().all(|&byte| byte == 0x38));
}

#[test]
fn iopoll_on_unsupported_queue_fails_late() {
    let Some((_, file)) = ring_and_file() else { return };
    let page = pages(1);
    file.write_at(page, 0).unwrap();
    for ring in [Ring::new_polling(1), Ring::new_hybrid_polling(1)].into_iter().flatten() {
        poll_read(ring, &file, page);
    }
}

fn poll_read(mut ring: Ring, file: &SwapFile, page: &mut [u8]) {
    let mut polls = 0;
    let result = ring.read_while(Target::Descriptor(file.as_fd()), page, 0, |pending| {
        while polls < 1_000_000 && !pending.is_done() {
            polls += 1;
        }
    });
    // A file whose queue supports polling succeeds.
    match result {
        Ok(bytes) => assert_eq!(bytes, 4096),
        Err(error) => assert!(error.raw_os_error().is_some()),
    }
    assert!(ring.is_usable());
}
