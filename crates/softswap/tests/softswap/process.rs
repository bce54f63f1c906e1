//! Pools with signal handlers, forked children, small stacks. Each test has its own process.
#![allow(unsafe_code, reason = "handlers, fork and threads are made by the C library's functions")]

use crate::common::{PAGE, Timer, alone, assert_full, builder, full, in_child};
use softswap::{Error, Pool, Region};
use std::sync::atomic::{AtomicUsize, Ordering};

fn pool() -> Pool {
    builder("16M").build().unwrap()
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn program_handler(
    _signal: i32,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: `info` is the argument of the running handler, and SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr() / PAGE * PAGE;
    // SAFETY: the mapping replaces only the test's page, which is beyond the end of its file.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(address as *mut _, PAGE, access, flags, -1, 0);
    }
}

fn install(handler: usize, flags: i32) {
    // SAFETY: zero is valid for the fields; the handler has the type that the flags require.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn page_beyond_a_file() -> *mut u8 {
    use std::os::fd::AsRawFd;
    let file = tempfile::tempfile().unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping overlaps nothing.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

#[test]
fn program_handler_gets_other_faults() {
    alone!("process::program_handler_gets_other_faults");
    install(program_handler as *const () as usize, libc::SA_SIGINFO);
    let pool = pool();
    let region = full(&pool);
    // SAFETY: the page is mapped; for the fault the handler maps memory there.
    assert_eq!(unsafe { page_beyond_a_file().read_volatile() }, 0);
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    assert_full(&region);
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
}

#[test]
fn bad_touch_without_handler_kills() {
    alone!("process::bad_touch_without_handler_kills");
    let pool = pool();
    drop(full(&pool));
    for before in [libc::SIG_DFL, libc::SIG_IGN] {
        let status = in_child(|| {
            install(before, 0);
            // SAFETY: the page is mapped beyond the end of its file, so the read kills the child.
            unsafe { page_beyond_a_file().read_volatile() };
        });
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS);
    }
}

#[test]
fn forked_child_inherits_no_pool_and_may_create_one() {
    alone!("process::forked_child_inherits_no_pool_and_may_create_one");
    let own = pool();
    let mut region = full(&own);
    let first = region.as_ptr();
    for at in [0, PAGE * 5000, region.len() - 1] {
        let status = in_child(|| {
            // SAFETY: the address is not mapped in the child, so the read kills the child.
            unsafe { first.add(at).read_volatile() };
        });
        assert!(libc::WIFSIGNALED(status), "{status}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }
    let spare = own.clone();
    let status = in_child(move || {
        assert!(matches!(spare.map(4096), Err(Error::OtherProcess)));
        assert!(matches!(spare.set_memory("64M"), Err(Error::OtherProcess)));
        assert_eq!(spare.stats().budget_bytes, 0);
        drop(spare);
        let own_pool = pool();
        assert_full(&full(&own_pool));
    });
    assert_eq!(status, 0);
    assert_full(&region);
    region[0] = 1;
}

extern "C" fn toucher(region: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the test keeps the region alive until the thread has exited.
    let region = unsafe { &*region.cast::<Region>() };
    let sum: usize = region.iter().step_by(PAGE).map(|byte| usize::from(*byte)).sum();
    sum as *mut libc::c_void
}

#[test]
fn libc_threads_have_sufficient_stack() {
    alone!("process::libc_threads_have_sufficient_stack");
    let pool = pool();
    let region = full(&pool);
    let expected: usize = region.iter().step_by(PAGE).map(|byte| usize::from(*byte)).sum();
    for stack in [2 * softswap::STACK_NEEDED_BYTES, 8 << 20] {
        // SAFETY: the region outlives the thread, which is joined; the attributes are locals.
        let found = unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            assert_eq!(libc::pthread_attr_setstacksize(&raw mut attributes, stack), 0);
            let mut thread = std::mem::zeroed();
            let region = (&raw const region).cast_mut().cast();
            assert_eq!(
                libc::pthread_create(&raw mut thread, &raw const attributes, toucher, region),
                0
            );
            let mut found = std::ptr::null_mut();
            libc::pthread_join(thread, &raw mut found);
            found.addr()
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn child_creates_pool_despite_parent_threads() {
    alone!("process::child_creates_pool_despite_parent_threads");
    let is_done = AtomicUsize::new(0);
    // Sets `is_done` even if an assertion fails, because the scope waits for its threads.
    struct Done<'a>(&'a AtomicUsize);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(1, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _done = Done(&is_done);
        for _ in 0..2 {
            scope.spawn(|| {
                while is_done.load(Ordering::Relaxed) == 0 {
                    pool().map(PAGE).unwrap()[0] = 1;
                }
            });
        }
        for _ in 0..40 {
            let status = in_child(|| {
                // SAFETY: kills a child that deadlocks.
                unsafe { libc::alarm(120) };
                let own = pool();
                let mut region = own.map(PAGE).unwrap();
                region[0] = 1;
            });
            assert_eq!(status, 0);
        }
    });
}

static IS_FORKING: AtomicUsize = AtomicUsize::new(0);

/// Fork handler, as of another library, during which another thread creates the first pool.
extern "C" fn await_first_pool() {
    IS_FORKING.store(1, Ordering::SeqCst);
    while IS_FORKING.load(Ordering::SeqCst) == 1 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(2));
}

#[test]
fn child_creates_pool_while_parent_creates_its_first() {
    alone!("process::child_creates_pool_while_parent_creates_its_first");
    // SAFETY: the handler only waits.
    assert_eq!(unsafe { libc::pthread_atfork(Some(await_first_pool), None, None) }, 0);
    let creator = std::thread::spawn(|| {
        while IS_FORKING.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        IS_FORKING.store(2, Ordering::SeqCst);
        pool()
    });
    let status = in_child(|| {
        // SAFETY: kills a child that deadlocks.
        unsafe { libc::alarm(120) };
        assert_full(&full(&pool()));
    });
    assert_eq!(status, 0);
    assert_full(&full(&creator.join().unwrap()));
}

static REGION: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_timer(_signal: i32) {
    let at = CALLS.fetch_add(1, Ordering::SeqCst) * 7919 % (48 << 8);
    // SAFETY: the test has stored its region's address, and keeps the region alive.
    let number = unsafe {
        (REGION.load(Ordering::SeqCst) as *const u8).add(at * PAGE).cast::<usize>().read()
    };
    assert_eq!(number, at);
}

#[test]
fn signal_handlers_touch_regions_concurrently() {
    alone!("process::signal_handlers_touch_regions_concurrently");
    let pool = pool();
    let region = full(&pool);
    REGION.store(region.as_ptr().addr(), Ordering::SeqCst);
    let timer = Timer::start(on_timer);
    for _ in 0..3 {
        assert_full(&region);
        drop(pool.map(1 << 20).unwrap());
        assert!(pool.stats().faults > 0);
    }
    drop(timer);
    assert!(CALLS.load(Ordering::SeqCst) > 0);
}
