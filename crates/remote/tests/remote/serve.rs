//! Areas with a request queue, a server, and a store in memory.

use crate::in_memory::InMemory;
use softswap_engine::base::stats::{STATS_WORDS, Stats};
use softswap_engine::store::io::poll::{Polling, mode::Mode, pressure::Pressure};
use softswap_engine::store::io::{Device, Lane, MirrorDevice, RemoteDevice};
use softswap_remote::serve::serve;
use softswap_shared::request_queue::{
    Operation, Page, RemoteArea, RemoteAreas, RequestQueue, SHAPE, hold_tree,
};
use softswap_sys::process_identity::ProcessIdentity;
use softswap_testkit::SimDevice;
use softswap_testkit::waiting::eventually;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
const LONG_NS: u64 = 120_000_000_000;

struct Fixture {
    fd: OwnedFd,
    queue: RequestQueue,
    store: Arc<InMemory>,
}

impl Fixture {
    fn new(store: InMemory) -> Fixture {
        let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
        let queue = RequestQueue::create(words, SHAPE, 1 << 16, LONG_NS);
        Fixture { fd, queue, store: Arc::new(store) }
    }

    fn device(&self) -> RemoteDevice {
        let device = RemoteDevice::open(self.queue, self.fd.as_raw_fd()).unwrap();
        device.grow(0, 64 << 20).unwrap();
        device
    }

    /// Dropping the result stops the server abruptly, as a kill does.
    fn serve(&self) -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let areas = RemoteAreas::open(self.queue, self.fd.as_raw_fd()).unwrap();
        runtime.spawn(serve(self.queue, areas, Arc::clone(&self.store), std::future::pending()));
        runtime
    }
}

fn filled(page: u64, round: u8) -> Vec<u8> {
    (0..PAGE).map(|at| (page as usize * 31 + at / 7) as u8 ^ round).collect()
}

#[test]
fn pages_survive_server_restarts() {
    let fixture = Fixture::new(InMemory::default());
    let device = &fixture.device();
    std::thread::scope(|scope| {
        let start = |thread: u64| {
            scope.spawn(move || {
                for round in 0..30_u8 {
                    let first = thread * 1000 + u64::from(round % 5) * 40;
                    let count = 1 + u64::from(round) * 2;
                    let bytes: Vec<u8> =
                        (first..first + count).flat_map(|page| filled(page, round)).collect();
                    let offset = first * PAGE as u64;
                    device.write(&mut Lane::Plain, offset, &bytes).unwrap();
                    let mut read = vec![0; bytes.len()];
                    device.read(&mut Lane::Plain, offset, &mut read).unwrap();
                    assert!(read == bytes, "{thread}, {round}");
                }
            })
        };
        let threads: Vec<_> = (0..6).map(start).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            let _server = fixture.serve();
            std::thread::sleep(Duration::from_millis(30));
        }
    });
}

#[test]
fn missing_pages_are_reported_per_request() {
    let fixture = Fixture::new(InMemory::with_limit(2));
    let _server = fixture.serve();
    let device = fixture.device();
    let page = filled(3, 1);
    device.write(&mut Lane::Plain, 0, &page).unwrap();
    device.write(&mut Lane::Plain, PAGE as u64, &page).unwrap();
    let full = device.write(&mut Lane::Plain, 2 * PAGE as u64, &page).unwrap_err();
    assert!(full.to_string().contains("memory has no space"), "{full}");
    device.discard(0, PAGE as u64).unwrap();
    assert_eq!(fixture.store.stored_pages(), 1);
    let mut read = vec![0; PAGE];
    let lost = device.read(&mut Lane::Plain, 0, &mut read).unwrap_err().to_string();
    assert!(lost.contains("is lost") && lost.contains("memory"), "{lost}");
    device.read(&mut Lane::Plain, PAGE as u64, &mut read).unwrap();
    assert!(read == page);
}

#[test]
fn removed_area_is_deleted_and_areas_are_separate() {
    let fixture = Fixture::new(InMemory::default());
    let _server = fixture.serve();
    let (one, other) = (fixture.device(), fixture.device());
    let content = [filled(1, 1), filled(2, 2)];
    one.write(&mut Lane::Plain, 0, &content[0]).unwrap();
    other.write(&mut Lane::Plain, 0, &content[1]).unwrap();
    let mut read = vec![0; PAGE];
    one.read(&mut Lane::Plain, 0, &mut read).unwrap();
    assert!(read == content[0]);
    drop(one);
    eventually("one page is stored", || fixture.store.stored_pages() == 1);
    other.read(&mut Lane::Plain, 0, &mut read).unwrap();
    assert!(read == content[1]);
}

#[test]
fn requests_to_removed_area_store_nothing() {
    let fixture = Fixture::new(InMemory::default());
    let _server = fixture.serve();
    let areas = RemoteAreas::open(fixture.queue, fixture.fd.as_raw_fd()).unwrap();
    let area = RemoteArea::take(fixture.queue, fixture.fd.as_raw_fd()).unwrap();
    assert!(area.claim(512));
    let number = area.number();
    drop(area);
    eventually("no areas remain", || !areas.has_any());
    let me = ProcessIdentity::current().unwrap();
    let pages = [Page { number: 3, generation: 1 }];
    let page = filled(3, 1);
    let request = fixture.queue.begin(me, Operation::Write, number, &pages, &[&page]).unwrap();
    let error = fixture.queue.finish(request, std::iter::empty()).unwrap_err().to_string();
    assert!(error.contains("the area was removed"), "{error}");
    assert_eq!(fixture.store.stored_pages(), 0);
}

#[test]
fn helper_exits_without_run_and_processes() {
    let fixture = Fixture::new(InMemory::default());
    let areas = RemoteAreas::open(fixture.queue, fixture.fd.as_raw_fd()).unwrap();
    let device = fixture.device();
    let tree = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", fixture.fd.as_raw_fd()))
        .unwrap();
    assert!(hold_tree(tree.as_fd()).unwrap());
    let (run, ends) = tokio::sync::oneshot::channel::<()>();
    let store = Arc::clone(&fixture.store);
    let queue = fixture.queue;
    let helper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(queue, areas, store, async { drop(ends.await) })).unwrap();
    });
    device.write(&mut Lane::Plain, 0, &filled(1, 1)).unwrap();
    drop((run, tree));
    // Each check removes the areas of processes that have exited.
    for attempt in 0..2 {
        let other = fixture.device();
        other.write(&mut Lane::Plain, 0, &filled(2, 2)).unwrap();
        drop(other);
        eventually("one page is stored", || fixture.store.stored_pages() == 1);
        assert!(!helper.is_finished(), "a process still has pages, round {attempt}");
    }
    let mut read = vec![0; PAGE];
    device.read(&mut Lane::Plain, 0, &mut read).unwrap();
    drop(device);
    helper.join().unwrap();
    assert_eq!(fixture.store.stored_pages(), 0);
}

#[test]
fn mirrored_pages_survive_cluster_loss() {
    const PAGES: u64 = 256;
    let fixture = Fixture::new(InMemory::with_limit(PAGES as usize / 2));
    let cluster = RemoteDevice::open(fixture.queue, fixture.fd.as_raw_fd()).unwrap();
    let file = Box::new(SimDevice::new(PAGES * PAGE as u64, 1));
    let device = MirrorDevice::new(file, cluster);
    device.grow(0, PAGES * PAGE as u64).unwrap();
    let stats = Stats::new(softswap_sys::memory::reserve_u64(STATS_WORDS).unwrap());
    let polling = Polling::new(Mode::Auto, 2, Pressure::new(2, None).into(), 0, stats);
    let mut rounds = vec![0_u8; PAGES as usize];
    let mut random = 7_u64;
    let mut server: Option<tokio::runtime::Runtime> = None;
    for step in 0..4000_u32 {
        if step % 500 == 0 {
            server = server.is_none().then(|| fixture.serve());
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (random >> 33) % PAGES;
        let offset = page * PAGE as u64;
        let round = &mut rounds[page as usize];
        match random >> 60 {
            0..6 => {
                *round = round.wrapping_add(1).max(1);
                device.write(&mut Lane::Plain, offset, &filled(page, *round)).unwrap();
            }
            6 => device.discard(offset, PAGE as u64).map(|()| *round = 0).unwrap(),
            _ if *round > 0 => {
                let mut read = vec![0; PAGE];
                device.read_page(&mut Lane::Plain, offset, &mut read, &polling).unwrap();
                assert!(read == filled(page, *round), "page {page} in step {step}");
            }
            _ => {}
        }
    }
    eventually("a page is stored", || fixture.store.stored_pages() > 0);
}
