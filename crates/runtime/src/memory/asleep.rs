//! Memory calls of a sleeping process, which the kernel carries out. Mappings that could be managed
//! are placed in the future window, so that they can stay there after waking. Their committed bytes
//! are counted. A commit beyond the budget wakes the process, and the engine handles the call.
//!
//! Addresses ascend from a random start. The most recent mapping's are reused once it is unmapped.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::memory::arenas;
use crate::memory::hint_retries;
use crate::memory::sleep_gate::{self, Inside};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_sys::committed::Committed;
use softswap_sys::{PAGE_SIZE, aslr, raw};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Smaller mappings are left to the kernel: they would take tables but save hardly any DRAM. The
/// heap of Ruby 3.1 has mappings of this size.
pub(crate) const MIN_MANAGED_BYTES: usize = 32 << 10;
/// Mappings of at least this size are aligned to a huge page, as by the kernel.
const HUGE_BYTES: usize = 2 << 20;
/// Largest alignment of a mapping. Allocators request it for large mappings.
const LARGE_ALIGN_BYTES: usize = 32 << 20;
const MAX_SCATTER_BYTES: usize = 256 << 30;
const TRIES: usize = 16;

struct FutureWindow {
    base: usize,
    len: usize,
    committed: Committed,
    next: [AtomicUsize; 2],
}

static FUTURE_WINDOW: OnceLock<FutureWindow> = OnceLock::new();
static LIMIT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Statistics page that `softswap run` reads; unset if `softswap run` has not started the process.
static FIGURES: OnceLock<Stats> = OnceLock::new();
static HAS_FIGURES: AtomicBool = AtomicBool::new(false);
static OWNER: AtomicU32 = AtomicU32::new(0);
/// True if the program has called `madvise` about inheritance by children.
static IS_ODD: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_up(limit_bytes: usize) {
    LIMIT_BYTES.store(limit_bytes, Relaxed);
    become_child();
}

/// Callbacks by which the limit follows the committed bytes ([`set_limit`]).
pub(crate) struct Share {
    /// Called before this many bytes are committed in total.
    pub(crate) grow: fn(usize),
    pub(crate) shrink: fn(),
    /// Returns true if the process needs a thread to answer other members' requests.
    pub(crate) needs_thread: fn() -> bool,
    /// Starts the thread that answers requests. Called outside the gate.
    pub(crate) start_thread: fn(),
    /// Returns true if a process with this many committed bytes must wake for other members.
    pub(crate) is_short: fn(usize) -> bool,
    pub(crate) spare_bytes: fn() -> usize,
}

static SHARE: OnceLock<Share> = OnceLock::new();
/// Memory is returned to the tree if the unused limit exceeds a quarter of the committed bytes, and
/// `UNUSED_BYTES`.
const UNUSED_PART: usize = 4;
const UNUSED_BYTES: usize = 32 << 20;

const STEP_BYTES: usize = 16 << 20;

pub(crate) fn set_share(share: Share) {
    SHARE.get_or_init(|| share);
}

pub(crate) fn is_shared() -> bool {
    SHARE.get().is_some()
}

pub(crate) fn committed_bytes() -> usize {
    FUTURE_WINDOW.get().map_or(0, |future| future.committed.bytes())
}

pub(crate) fn limit_bytes() -> usize {
    LIMIT_BYTES.load(Relaxed)
}

pub(crate) fn set_limit(bytes: usize) {
    LIMIT_BYTES.store(bytes, Relaxed);
}

pub(crate) fn become_child() {
    HAS_FIGURES.store(false, Relaxed);
    OWNER.store(raw::current_process(), Relaxed);
}

pub(crate) fn publish(figures: Stats) {
    FIGURES.get_or_init(|| figures);
    HAS_FIGURES.store(true, Relaxed);
}

/// Returns true in the sleeping process; false in a `vfork` child that uses its memory.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Relaxed) == raw::current_process()
}

pub(crate) fn is_odd() -> bool {
    IS_ODD.load(Relaxed)
}

/// Returns the future window, created on first use because many processes map nothing in it.
fn future_window() -> Option<&'static FutureWindow> {
    if let Some(future) = FUTURE_WINDOW.get() {
        return Some(future);
    }
    let (base, len) = instance::window()?;
    let committed = Committed::new(base, len).ok()?;
    // The start is in the first half of its range, so at least as much remains after it.
    let scatter = (len / 4).min(MAX_SCATTER_BYTES);
    let first = aslr::below(scatter / PAGE_SIZE) * PAGE_SIZE;
    let roomy = aslr::below(scatter / HUGE_BYTES) * HUGE_BYTES;
    let next = [base + first, base + len / 2 + roomy].map(AtomicUsize::new);
    Some(FUTURE_WINDOW.get_or_init(|| FutureWindow { base, len, committed, next }))
}

/// A half of the window: the upper one is for mappings with a growth gap.
#[derive(Clone, Copy)]
enum Half {
    Lower = 0,
    Roomy = 1,
}

impl FutureWindow {
    fn commit(&self, range: &Range<usize>) {
        self.committed.add(range);
        self.publish();
        // Another thread may have committed memory meanwhile, or returned the granted share.
        let committed = self.committed.bytes();
        if let Some(share) = SHARE.get()
            && committed > LIMIT_BYTES.load(Relaxed)
        {
            (share.grow)(committed);
        }
        if committed / STEP_BYTES > committed.saturating_sub(range.len()) / STEP_BYTES {
            arenas::note_committed(committed, || match SHARE.get() {
                Some(share) => (share.spare_bytes)(),
                None => LIMIT_BYTES.load(Relaxed).saturating_sub(committed),
            });
        }
    }

    fn uncommit(&self, range: &Range<usize>) {
        self.committed.remove(range);
        self.publish();
        if let Some(share) = SHARE.get() {
            let committed = self.committed.bytes();
            let unused = LIMIT_BYTES.load(Relaxed).saturating_sub(committed);
            if unused > UNUSED_BYTES.max(committed / UNUSED_PART) {
                (share.shrink)();
            }
        }
    }

    fn publish(&self) {
        if HAS_FIGURES.load(Relaxed)
            && let Some(figures) = FIGURES.get()
        {
            let committed_bytes = self.committed.bytes() as u64;
            figures.set(Counter::UsedBytes, committed_bytes);
            figures.peak(Counter::MappedPeakBytes, committed_bytes);
        }
    }

    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.len
    }

    fn take(&self, half: Half, len: usize, gap: usize) -> Option<usize> {
        let align = match len {
            0..HUGE_BYTES => PAGE_SIZE,
            _ => len.checked_next_power_of_two()?.min(LARGE_ALIGN_BYTES),
        };
        let (align, end) = match half {
            Half::Lower => (align, self.base + self.len / 2),
            Half::Roomy => (HUGE_BYTES, self.base + self.len),
        };
        let mut found = 0;
        let advance = |next: usize| {
            found = next.next_multiple_of(align);
            let next = found.checked_add(len)?.checked_add(gap)?;
            (next <= end).then_some(next)
        };
        self.next[half as usize].fetch_update(Relaxed, Relaxed, advance).ok()?;
        Some(found)
    }

    /// Maps at an address in `half`. Returns the kernel's result, or `None` if the half is full.
    fn map(&self, arguments: Arguments, half: Half, gap: usize) -> Option<isize> {
        let [hint, len, prot, flags, fd, offset] = arguments;
        let whole = len.checked_next_multiple_of(PAGE_SIZE)?;
        let hint = hint & !(PAGE_SIZE - 1);
        let mut wish = self.contains(hint).then_some(hint);
        for _ in 0..TRIES {
            let address = match wish.take() {
                Some(hint) => hint,
                None => self.take(half, whole, gap)?,
            };
            let fixed = flags | libc::MAP_FIXED_NOREPLACE as usize;
            match issue(libc::SYS_mmap, [address, len, prot, fixed, fd, offset]) {
                there if there == refused(libc::EEXIST) => {}
                there => {
                    if there >= 0 && prot as i32 & libc::PROT_WRITE != 0 {
                        self.commit(&(there as usize..there as usize + whole));
                    }
                    return Some(there);
                }
            }
        }
        None
    }

    fn note_mapped(&self, there: isize, len: usize, prot: i32) {
        if there < 0 {
            return;
        }
        let range = there as usize..there as usize + len;
        if prot & libc::PROT_WRITE != 0 {
            self.commit(&range);
        } else {
            self.uncommit(&range);
        }
    }

    fn note_unmapped(&self, range: &Range<usize>) {
        self.uncommit(range);
        // Reuse the addresses if no other thread has taken any since.
        for next in &self.next {
            let _ = next.compare_exchange(range.end, range.start, Relaxed, Relaxed);
        }
    }
}

/// Smaller executable mappings are machine code. SBCL's heap is larger.
const MIN_EXECUTABLE_HEAP_BYTES: usize = 16 << 20;

pub(crate) fn is_managed_kind(prot: i32, flags: i32, len: usize) -> bool {
    let is_heap = prot & libc::PROT_WRITE != 0 && len >= MIN_EXECUTABLE_HEAP_BYTES;
    flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && (prot & libc::PROT_EXEC == 0 || is_heap)
}

pub(crate) fn is_unwanted(flags: i32) -> bool {
    const UNWANTED: i32 =
        libc::MAP_HUGETLB | libc::MAP_GROWSDOWN | libc::MAP_LOCKED | libc::MAP_32BIT;
    flags & UNWANTED != 0
}

/// Longest managed mapping: what remains of a window's lower half after any first address.
pub(crate) fn max_managed_bytes(window_bytes: usize) -> usize {
    window_bytes / 4 + window_bytes.saturating_sub(1 << 40) / 6
}

fn committed_by(len: usize, prot: i32) -> usize {
    if prot & libc::PROT_WRITE != 0 { len } else { 0 }
}

/// Returns `None` if the caller must handle the call: the process does not sleep or wakes, the
/// address is outside the window, or the kernel chooses it.
pub(crate) fn map(arguments: Arguments) -> Option<isize> {
    let [address, len, prot, flags, _, offset] = arguments;
    let (prot, flags) = (prot as i32, flags as i32);
    const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    if !is_managed_kind(prot, flags, len) {
        return map_unmanaged(arguments);
    }
    let inside = sleep_gate::enter()?;
    if flags & FIXED != 0 {
        let future = FUTURE_WINDOW.get().filter(|future| future.contains(address))?;
        let whole = len.checked_next_multiple_of(PAGE_SIZE)?;
        let range = address..address.checked_add(whole)?;
        let more = committed_by(future.committed.missing_bytes(&range), prot);
        let _inside = check_commit(inside, more)?;
        let there = issue(libc::SYS_mmap, arguments);
        future.note_mapped(there, whole, prot);
        return Some(there);
    }
    if len < MIN_MANAGED_BYTES || is_unwanted(flags) || !offset.is_multiple_of(PAGE_SIZE) {
        return None;
    }
    let future = future_window().filter(|future| len <= max_managed_bytes(future.len))?;
    let is_hint = address != 0 && !future.contains(address) && prot == libc::PROT_NONE;
    if is_hint && hint_retries::allows_hint(address, len) {
        return None;
    }
    let _inside = check_commit(inside, committed_by(len, prot))?;
    let there = future.map(arguments, Half::Lower, 0)?;
    if is_hint && there >= 0 {
        hint_retries::note_other_address(there as usize);
    }
    Some(there)
}

fn map_unmanaged(arguments: Arguments) -> Option<isize> {
    let [address, len, _, flags, ..] = arguments;
    if flags as i32 & libc::MAP_FIXED == 0 || !instance::is_in_window(address) {
        return None;
    }
    let _inside = sleep_gate::enter()?;
    let there = issue(libc::SYS_mmap, arguments);
    if let (Some(future), Some(whole)) =
        (FUTURE_WINDOW.get(), len.checked_next_multiple_of(PAGE_SIZE))
    {
        future.note_mapped(there, whole, libc::PROT_NONE);
    }
    Some(there)
}

/// Returns `None` if the process does not sleep, or on failure.
pub(crate) fn map_growable(len: usize) -> Option<usize> {
    let inside = sleep_gate::enter()?;
    let future = future_window().filter(|future| len <= future.len / 4)?;
    let _inside = check_commit(inside, len)?;
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let gap = growth_gap_for(len);
    let there = future.map([0, len, access, flags, usize::MAX, 0], Half::Roomy, gap)?;
    (there >= 0).then_some(there as usize)
}

fn growth_gap_for(len: usize) -> usize {
    const MIN: usize = 16 << 20;
    const MAX: usize = 16 << 30;
    len.saturating_mul(3).clamp(MIN, MAX)
}

pub(crate) fn resize_growable(address: usize, old_len: usize, len: usize) -> Option<usize> {
    let arguments = [address, old_len, len, libc::MREMAP_MAYMOVE as usize, 0, 0];
    let there = remap_to(arguments, Half::Roomy)?;
    (there >= 0).then_some(there as usize)
}

/// `mremap`. Returns `None` if the process does not sleep, or if the window is not involved.
pub(crate) fn remap(arguments: Arguments) -> Option<isize> {
    remap_to(arguments, Half::Lower)
}

fn remap_to(arguments: Arguments, half: Half) -> Option<isize> {
    let [old, old_len, len, flags, target, _] = arguments;
    const NAMED: i32 = libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let inside = sleep_gate::enter()?;
    let future = future_window()?;
    let whole = |len: usize| len.checked_next_multiple_of(PAGE_SIZE);
    let (old_len, len) = (whole(old_len)?, whole(len)?);
    let from = old..old.checked_add(old_len)?;
    let goes_inside = flags as i32 & NAMED != 0 && future.contains(target);
    if !future.contains(old) && !goes_inside {
        return None;
    }
    let is_committed = future.committed.missing_bytes(&from) < old_len;
    let more = if is_committed { len.saturating_sub(old_len) } else { 0 };
    let doubled = flags as i32 & libc::MREMAP_DONTUNMAP != 0;
    let _inside = check_commit(inside, if doubled { len } else { more })?;
    let there = if flags as i32 & NAMED == 0 {
        resize(future, arguments, old_len, len, half)
    } else {
        issue(libc::SYS_mremap, arguments)
    };
    if there < 0 {
        return Some(there);
    }
    let there = there as usize;
    if there == old && len < old_len {
        future.note_unmapped(&(old + len..from.end));
    } else if there != old && !doubled {
        future.note_unmapped(&from);
    }
    if is_committed || !future.contains(old) {
        future.commit(&(there..there + len));
    }
    Some(there as isize)
}

/// Moves the mapping within the window if it cannot grow; the kernel would move it out.
fn resize(
    future: &FutureWindow,
    arguments: Arguments,
    old_len: usize,
    len: usize,
    half: Half,
) -> isize {
    let [old, _, _, flags, ..] = arguments;
    let may_move = flags as i32 & libc::MREMAP_MAYMOVE != 0;
    let mut in_place = arguments;
    in_place[3] = flags & !(libc::MREMAP_MAYMOVE as usize);
    let there = issue(libc::SYS_mremap, in_place);
    if there != refused(libc::ENOMEM) || !may_move {
        return there;
    }
    let gap = match half {
        Half::Lower => 0,
        Half::Roomy => growth_gap_for(len),
    };
    // Reserve the target, so that the move does not replace another mapping.
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let none = libc::PROT_NONE as usize;
    let Some(to) = future.map([0, len, none, flags, usize::MAX, 0], half, gap) else {
        return issue(libc::SYS_mremap, arguments);
    };
    if to < 0 {
        return to;
    }
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    let moved = issue(libc::SYS_mremap, [old, old_len, len, fixed, to as usize, 0]);
    if moved < 0 {
        issue(libc::SYS_munmap, [to as usize, len, 0, 0, 0, 0]);
    }
    moved
}

/// Other memory calls. `None` as in [`remap`].
pub(crate) fn handle(number: i64, arguments: Arguments) -> Option<isize> {
    const DETAILS: [i32; 4] =
        [libc::MADV_DONTFORK, libc::MADV_DOFORK, libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK];
    let [address, len, third, ..] = arguments;
    let inside = sleep_gate::enter()?;
    let future = FUTURE_WINDOW.get()?;
    let end = address.checked_add(len.checked_next_multiple_of(PAGE_SIZE)?)?;
    let range = address..end;
    if end <= future.base || address >= future.base + future.len {
        return None;
    }
    match number {
        libc::SYS_munmap => {
            hint_retries::note_unmapped(address, || future.committed.missing_bytes(&range) >= len);
            let result = issue(number, arguments);
            if result == 0 {
                future.note_unmapped(&range);
            }
            Some(result)
        }
        libc::SYS_mprotect if third as i32 & libc::PROT_WRITE != 0 => {
            let _inside = check_commit(inside, future.committed.missing_bytes(&range))?;
            let result = issue(number, arguments);
            if result == 0 {
                future.commit(&range);
            }
            Some(result)
        }
        // After waking, the kernel could still free these pages at any time, so drop them now.
        libc::SYS_madvise if third as i32 == libc::MADV_FREE => {
            let dropped = [address, len, libc::MADV_DONTNEED as usize, 0, 0, 0];
            Some(issue(number, dropped))
        }
        libc::SYS_madvise => {
            if DETAILS.contains(&(third as i32)) {
                IS_ODD.store(true, Relaxed);
            }
            Some(issue(number, arguments))
        }
        _ => Some(issue(number, arguments)),
    }
}

pub(crate) fn unmap(address: usize, len: usize) -> bool {
    handle(libc::SYS_munmap, [address, len, 0, 0, 0, 0]).is_some()
}

pub(crate) fn reserve(len: usize) -> Option<usize> {
    future_window()?.take(Half::Lower, len, 0)
}

pub(crate) fn set_mapped(range: &Range<usize>, is_mapped: bool) -> Option<()> {
    let future = future_window()?;
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as usize;
    let (at, len) = (range.start, range.len());
    if is_mapped {
        let there = issue(libc::SYS_mmap, [at, len, access, flags, usize::MAX, 0]);
        future.note_mapped(there, len, access as i32);
        return (there >= 0).then_some(());
    }
    // Reserved addresses are not reused.
    future.uncommit(range);
    (issue(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) == 0).then_some(())
}

/// Enters the gate for an operation that commits `bytes` more. If they do not fit, tries to wake
/// the process. `None`: the engine must handle the operation.
pub(crate) fn enter_for_commit(bytes: usize) -> Option<Inside> {
    check_commit(sleep_gate::enter()?, bytes)
}

fn check_commit(inside: Inside, bytes: usize) -> Option<Inside> {
    let committed = committed_bytes();
    let wanted = committed.saturating_add(bytes);
    let may = || wanted <= LIMIT_BYTES.load(Relaxed);
    let share = SHARE.get();
    if sleep_gate::is_nested() {
        return Some(inside);
    }
    let is_needed_by_others = bytes > 0 && share.is_some_and(|share| (share.is_short)(committed));
    if may() && !is_needed_by_others {
        return Some(inside);
    }
    if let Some(share) = share
        && !may()
    {
        (share.grow)(wanted);
    }
    let has_space = may() && !is_needed_by_others;
    let needs_thread = share.is_some_and(|share| (share.needs_thread)());
    if has_space && !needs_thread {
        return Some(inside);
    }
    drop(inside);
    match share {
        Some(share) if has_space => (share.start_thread)(),
        _ => drop(instance::awake()),
    }
    sleep_gate::enter()
}
