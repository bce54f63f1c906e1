//! `--memory auto`: as much as the machine has to spare, for as long as it has.
//!
//! What the tree uses and what else could be used, less a margin, is what it may have. It gives
//! way at once, before the kernel has to, and grows step by step. Available is MemAvailable, or
//! less where a memory control group allows less; where others wait for memory all the same (PSI)
//! it gives way, too.

use crate::memory_limits::{self, GroupVersion};
use softswap_engine::door::settings::MIN_MEMORY_BYTES;
use softswap_sys::memory::dram_bytes;
use softswap_view::units::parse_size;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How often it is looked at what there is to spare.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
const LEAST_FLOOR_BYTES: u64 = 64 << 20;
/// A part of all that could be had is left alone, within these bounds: what another program
/// takes between two looks.
const MARGIN_PART: u64 = 8;
const LEAST_MARGIN_BYTES: u64 = 32 << 20;
const MOST_MARGIN_BYTES: u64 = 1 << 30;
/// It grows by such a part at a time, and at least by so much.
const GROWTH_PART: u64 = 16;
const LEAST_GROWTH_BYTES: u64 = 4 << 20;
/// A machine with less than such a part of its DRAM available has little.
const LITTLE_PART: u64 = 4;
/// Some of the others wait for memory in so many percent of the last ten seconds.
const PRESSED_PERCENT: f64 = 10.0;

/// What it moves between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    floor_bytes: u64,
    ceiling_bytes: u64,
}

/// What is seen at a look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// What the tree may use, and does.
    pub(super) limit_bytes: u64,
    pub(super) used_bytes: u64,
    /// What could be used beside that.
    spare_bytes: u64,
    /// Whether others wait for memory.
    is_pressed: bool,
}

impl Bounds {
    /// Reads `auto` and `auto:FLOOR-CEILING`; `None` where it is a size.
    pub(super) fn parse(text: &str) -> Option<Result<Bounds, String>> {
        let rest = text.strip_prefix("auto")?;
        let (floor_bytes, ceiling_bytes) = (LEAST_FLOOR_BYTES, dram_bytes());
        if rest.is_empty() {
            let floor_bytes = floor_bytes.min(ceiling_bytes);
            return Some(Ok(Bounds { floor_bytes, ceiling_bytes }));
        }
        let bounds = rest.strip_prefix(':').and_then(|bounds| bounds.split_once('-'));
        Some(match bounds {
            Some((floor, ceiling)) => Bounds::of(floor, ceiling),
            None => Err("give auto, or auto:FLOOR-CEILING such as auto:256M-4G".into()),
        })
    }

    fn of(floor: &str, ceiling: &str) -> Result<Bounds, String> {
        let size = |text: &str| parse_size(text).map_err(|why| format!("{text}: {why}"));
        let (floor_bytes, ceiling_bytes) = (size(floor)?, size(ceiling)?);
        if floor_bytes < MIN_MEMORY_BYTES {
            return Err(format!("the floor {floor} is too little: a process needs 8 MiB"));
        }
        if ceiling_bytes < floor_bytes {
            return Err(format!("the ceiling {ceiling} is below the floor {floor}"));
        }
        let most_bytes = dram_bytes();
        Ok(Bounds {
            floor_bytes: floor_bytes.min(most_bytes),
            ceiling_bytes: ceiling_bytes.min(most_bytes),
        })
    }

    /// What a tree begins with.
    pub(super) fn first(self) -> u64 {
        let available_bytes = memory_limits::available().bytes;
        self.within(available_bytes.saturating_sub(margin(available_bytes)))
    }

    /// What it may have from now on.
    pub(super) fn next(self, seen: Seen) -> u64 {
        let Seen { limit_bytes, used_bytes, spare_bytes, is_pressed } = seen;
        let all_bytes = used_bytes + spare_bytes;
        let fits_bytes = all_bytes.saturating_sub(margin(all_bytes));
        let growth_bytes = (limit_bytes / GROWTH_PART).max(LEAST_GROWTH_BYTES);
        let next_bytes = if fits_bytes < limit_bytes {
            fits_bytes
        } else if is_pressed {
            limit_bytes - limit_bytes / GROWTH_PART
        } else if fits_bytes < limit_bytes + growth_bytes {
            // Neither up nor down for a little.
            limit_bytes
        } else {
            limit_bytes + growth_bytes
        };
        self.within(next_bytes)
    }

    fn within(self, bytes: u64) -> u64 {
        bytes.clamp(self.floor_bytes, self.ceiling_bytes)
    }
}

impl Seen {
    /// Looks at the machine.
    pub(super) fn now(limit_bytes: u64, used_bytes: u64) -> Seen {
        let spare_bytes = memory_limits::available().bytes;
        Seen { limit_bytes, used_bytes, spare_bytes, is_pressed: is_pressed() }
    }
}

fn margin(all_bytes: u64) -> u64 {
    (all_bytes / MARGIN_PART).clamp(LEAST_MARGIN_BYTES, MOST_MARGIN_BYTES)
}

/// Whether memory is waited for, in this process's control group, or on the machine where that
/// has little: else it is in another group, for want of what that one is allowed.
fn is_pressed() -> bool {
    let groups = memory_limits::hierarchies();
    let own = groups.iter().filter(|it| it.version == GroupVersion::Two);
    let own = own.map(|it| it.own.join("memory.pressure"));
    let has_little = memory_limits::available_on_machine() < dram_bytes() / LITTLE_PART;
    let machine = has_little.then(|| Path::new("/proc/pressure/memory").to_path_buf());
    let texts = own.chain(machine).filter_map(|path| fs::read_to_string(path).ok());
    texts.into_iter().any(|text| is_pressed_by(&text))
}

fn is_pressed_by(text: &str) -> bool {
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="));
    let percent = some.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    percent.is_some_and(|percent| percent > PRESSED_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn bounds(text: &str) -> Result<Bounds, String> {
        Bounds::parse(text).unwrap()
    }

    #[test]
    fn auto_is_auto_with_or_without_bounds() {
        assert!(Bounds::parse("512M").is_none() && Bounds::parse("50%").is_none());
        let plain = bounds("auto").unwrap();
        assert_eq!(plain.ceiling_bytes, dram_bytes());
        let given = bounds("auto:16M-64M").unwrap();
        assert_eq!((given.floor_bytes, given.ceiling_bytes), (16 * MIB, 64 * MIB));
        for (text, why) in [
            ("auto:64M-16M", "below the floor"),
            ("auto:1M-16M", "too little"),
            ("auto:x-16M", "x: not a size"),
            ("auto:16M", "auto:FLOOR-CEILING"),
            ("automatic", "auto:FLOOR-CEILING"),
        ] {
            assert!(bounds(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn it_gives_way_at_once_and_grows_step_by_step() {
        let bounds = Bounds { floor_bytes: 16 * MIB, ceiling_bytes: 900 * MIB };
        let next = |limit, used, spare, is_pressed| {
            let [limit_bytes, used_bytes, spare_bytes] = [limit, used, spare].map(|it| it * MIB);
            bounds.next(Seen { limit_bytes, used_bytes, spare_bytes, is_pressed }) / MIB
        };
        assert_eq!(next(400, 400, 80, false), 400, "just enough");
        assert_eq!(next(400, 400, 48, false), 392);
        assert_eq!(next(400, 400, 0, false), 350);
        assert_eq!(next(400, 400, 600, false), 425);
        assert_eq!(next(400, 400, 600, true), 375);
        assert_eq!(next(880, 800, 6000, false), 900);
        assert_eq!(next(40, 30, 0, false), 16);
    }

    #[test]
    fn pressure_is_what_some_wait_for() {
        let text = |some: &str| {
            format!("some avg10={some} avg60=0.00 avg300=0.00 total=5\nfull avg10=90.00\n")
        };
        assert!(!is_pressed_by(&text("9.50")) && is_pressed_by(&text("10.50")));
        assert!(!is_pressed_by("") && !is_pressed_by("some avg10="));
    }
}
