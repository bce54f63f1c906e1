//! Opens the storage of the configured swap areas.

use crate::api::settings::{AreaSpec, Inherited};
use crate::store::io::{FileDevice, MirrorDevice, RemoteDevice};
use crate::store::swap::areas::{Backing, Layout};
use crate::store::swap::header::Header;
use crate::store::swap::named::{ActivateError, Activated, activate};
use crate::store::swap::raw::{self, SharedDevice};
use crate::store::swap::{CLUSTER_SLOTS, Discard, FixedPages, SharedPages};
use softswap_shared::cluster_table::{ClusterTables, MARK_OF_TREE, SharedArea};
use softswap_shared::request_queue::NoArea;
use softswap_sys::block_map::{BlockExtent, Fingerprint};
use softswap_sys::file::{FileError, SwapFile, on_disk};
use softswap_sys::raw_device::RawError;
use softswap_sys::{PAGE_SIZE, Page, block_map, open_mark, own_descriptors};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Directory(#[from] FileError),
    #[error(transparent)]
    Named(#[from] ActivateError),
    #[error(transparent)]
    Cluster(#[from] NoArea),
    #[error(
        "the swap area {} is written through its device, which this process cannot use: {cause}; \
         leave out `raw`, or also give a directory with --swap", path.display()
    )]
    Raw { path: PathBuf, cause: RawError },
    #[error(
        "the file system has moved blocks of the swap area {}, so softswap does not use it \
         any more; find out what changed the file, and start the program again", path.display()
    )]
    Moved { path: PathBuf },
    #[error(
        "this process cannot open the swap area {} of its tree: a parent process has closed \
         descriptors that it did not open, or the area was overwritten; start the program without \
         that parent, or add a directory with --swap", path.display()
    )]
    Unreachable { path: PathBuf },
}

/// Yields an error for each swap directory whose files are not on a disk.
pub fn not_on_disk(specs: &[AreaSpec]) -> impl Iterator<Item = FileError> {
    let directories = specs.iter().map(|spec| &spec.path).filter(|path| path.is_dir());
    directories.filter_map(|path| on_disk(path).err())
}

/// Yields an error in place of each area that is not usable. `tables` are for areas shared by a
/// tree of processes.
pub fn open<'s>(
    specs: &'s [AreaSpec],
    tables: Option<&'s ClusterTables>,
    reserve_bytes: u64,
    avoid_io_uring: bool,
) -> impl Iterator<Item = Result<Backing, OpenError>> + 's {
    specs.iter().enumerate().map(move |(order, spec)| {
        let discard = spec.discard;
        let backing = match spec.inherited {
            Some(Inherited::File(number)) => {
                let lost = || OpenError::Unreachable { path: spec.path.clone() };
                let tables = tables.ok_or_else(lost)?;
                shared(spec, number, tables, avoid_io_uring).ok_or_else(lost)?
            }
            Some(Inherited::Raw(number, verified)) => {
                let lost = || OpenError::Unreachable { path: spec.path.clone() };
                let file = SwapFile::inherited(number).map_err(|_| lost())?;
                let table = tables.and_then(|tables| shared_pages(&file, number, tables));
                let pages = table.ok_or_else(lost)?;
                raw(spec, Arc::new(file), pages, verified, avoid_io_uring)?
            }
            Some(Inherited::RequestQueue(number)) => {
                let device = Box::new(RemoteDevice::inherited(number)?);
                Backing { discard, ..Backing::growing(device, spec.limit_bytes, 0) }
            }
            // A missing path is reported as a directory.
            Some(Inherited::Mirror(_)) | None if spec.path.is_dir() || !spec.path.exists() => {
                let file = SwapFile::open(&spec.path)?;
                let mirror = spec.inherited.and_then(Inherited::mirror);
                let device = MirrorDevice::over(FileDevice::new(file, avoid_io_uring), mirror);
                Backing { discard, ..Backing::growing(device, spec.limit_bytes, reserve_bytes) }
            }
            Some(Inherited::Mirror(_)) | None => {
                let area = activate(&spec.path)?;
                let (pages, discard) = (pages_of(&area.header), discard_of(&area, false, discard));
                let device = Box::new(FileDevice::new(area.file, avoid_io_uring));
                Backing { device, layout: Layout::Fixed(pages), priority: 0, discard, poll: None }
            }
        };
        Ok(Backing { priority: spec.priority_among(order), poll: spec.poll, ..backing })
    })
}

/// Returns the discard mode of a named area: none for a swap file, which may not have holes. Blocks
/// of a raw file are discarded on its device and stay allocated to the file.
pub fn discard_of(area: &Activated, is_raw: bool, asked: Discard) -> Discard {
    if area.is_device || is_raw { asked } else { Discard::None }
}

fn pages_of(header: &Header) -> FixedPages {
    let whole = BlockExtent { page: 0, pages: header.pages(), block: 0 };
    raw::pages_of(header, &[whole])
}

/// Returns `None` if the descriptor was reused or the area has changed.
fn shared_pages(file: &SwapFile, number: i32, tables: &ClusterTables) -> Option<SharedPages> {
    let pages = Arc::new(pages_of(&read_header(file)?));
    let table = tables.table(shared_area(file, pages.pages))?;
    // Keep the descriptor open for programs after exec and for child processes.
    own_descriptors::keep(number);
    let (mark, file, raw) = (MARK_OF_TREE, None, None);
    Some(SharedPages { pages, table, mark, file, inherited: number, raw })
}

/// Opens a shared area by an inherited descriptor, which it reopens for this process if permitted.
/// Returns `None` as [`shared_pages`] does.
fn shared(
    spec: &AreaSpec,
    number: i32,
    tables: &ClusterTables,
    avoid_io_uring: bool,
) -> Option<Backing> {
    let inherited = Arc::new(SwapFile::inherited(number).ok()?);
    let pages = shared_pages(&inherited, number, tables)?;
    let opened = SwapFile::reopened(number).ok().and_then(|file| {
        let mark = pages.table.mark(|mark| open_mark::put(&file, mark).ok())?;
        Some((file, mark))
    });
    let (file, mark) = match opened {
        Some((file, mark)) => (Arc::new(file), mark),
        None => (Arc::clone(&inherited), MARK_OF_TREE),
    };
    // If the tree is killed, the claim lasts until the last write has reached the device.
    let device = FileDevice::new(Arc::clone(&file), avoid_io_uring).holding(inherited);
    let device = Box::new(device);
    let layout = Layout::Shared(SharedPages { mark, file: Some(file), ..pages });
    Some(Backing { device, layout, priority: 0, discard: spec.discard, poll: None })
}

/// Opens the device below an inherited file, whose blocks must be the verified ones. The tree
/// inherits only the file, so each process needs permission to open the device.
fn raw(
    spec: &AreaSpec,
    file: Arc<SwapFile>,
    pages: SharedPages,
    verified: Fingerprint,
    avoid_io_uring: bool,
) -> Result<Backing, OpenError> {
    let refused = |cause| OpenError::Raw { path: spec.path.clone(), cause };
    let map = block_map::read(file.as_fd(), pages.pages.pages).map_err(|it| refused(it.into()))?;
    let map = map.ok().filter(|map| Fingerprint::of(map) == verified);
    let map = map.ok_or_else(|| OpenError::Moved { path: spec.path.clone() })?;
    let header = read_header(&file).ok_or_else(|| OpenError::Moved { path: spec.path.clone() })?;
    let opened = SharedDevice::open(&file, &pages.table).map_err(refused)?;
    let checked = (pages.pages.pages, verified);
    let device = opened.guarded(&file, checked, pages.table, avoid_io_uring);
    let layout = Layout::Shared(SharedPages {
        pages: Arc::new(raw::pages_of(&header, &map)),
        mark: opened.mark,
        file: Some(opened.device),
        raw: Some((file, verified)),
        ..pages
    });
    Ok(Backing { device, layout, priority: 0, discard: spec.discard, poll: None })
}

fn read_header(file: &SwapFile) -> Option<Header> {
    // Aligned, as O_DIRECT requires.
    let mut page = Box::new(Page([0; PAGE_SIZE]));
    let read = file.read_at(&mut page.0, 0).ok()?;
    let pages = file.len_bytes().ok()? / PAGE_SIZE as u64;
    (read == PAGE_SIZE).then(|| Header::parse(&page.0, pages).ok())?
}

fn shared_area(file: &SwapFile, pages: u64) -> SharedArea {
    let (device, inode) = file.identity();
    SharedArea { device, inode, clusters: pages.div_ceil(CLUSTER_SLOTS as u64) as usize }
}

/// Marks an area claimed for the tree. Fails if its file system does not support locks.
pub fn claim_for_tree(area: &Activated) -> std::io::Result<SharedArea> {
    open_mark::put(&area.file, MARK_OF_TREE)?;
    Ok(shared_area(&area.file, area.header.pages()))
}
