//! `--memory auto`: a budget that follows the memory available on the machine and in its groups.
//!
//! The budget is the tree's resident memory plus available memory, minus a margin. It shrinks at
//! once, before the kernel has to reclaim and under pressure (PSI), and grows in steps.

use softswap_engine::api::settings::MIN_MEMORY_BYTES;
use softswap_sys::memory::dram_bytes;
use softswap_sys::memory_limits::{self, Available, GroupVersion};
use softswap_view::units::{self, parse_size};
use std::fs;
use std::path::Path;
use std::time::Duration;

pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// Smallest budget of plain `auto`, unless half of the memory available at the start is less.
const FLOOR_BYTES: u64 = 64 << 20;
/// Divisor of usable memory for the margin: free memory for allocations between two updates, by
/// other programs and outside the budget.
const MARGIN_FRACTION: u64 = 8;
const MIN_MARGIN_BYTES: u64 = 32 << 20;
const MAX_MARGIN_BYTES: u64 = 1 << 30;
/// Divisor of the budget for the largest growth or shrinking by pressure in one update.
const GROWTH_FRACTION: u64 = 16;
const MIN_GROWTH_BYTES: u64 = MIN_MEMORY_BYTES;
/// Divisor: pressure on the machine counts only if less than this part of DRAM is available.
const LOW_FRACTION: u64 = 4;
/// Share of the last 10 s above which waits for memory count as pressure.
const PRESSURE_PERCENT: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) floor_bytes: u64,
    ceiling_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs {
    pub(super) limit_bytes: u64,
    /// Memory that a sleeping process has committed but not touched is not included: it is
    /// available.
    pub(super) resident_bytes: u64,
    pub(super) available_bytes: u64,
    /// DRAM, or the lowest limit of a control group.
    pub(super) capacity_bytes: u64,
    pub(super) has_memory_pressure: bool,
}

impl Default for Bounds {
    fn default() -> Bounds {
        let floor_bytes = default_floor(memory_limits::available().bytes);
        Bounds { floor_bytes, ceiling_bytes: dram_bytes().max(floor_bytes) }
    }
}

impl Bounds {
    /// Parses `auto` and `auto:FLOOR-CEILING`. Returns `None` for any other text, such as a size.
    pub(super) fn parse(text: &str) -> Option<Result<Bounds, String>> {
        let rest = text.strip_prefix("auto")?;
        if rest.is_empty() {
            return Some(Ok(Bounds::default()));
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
            return Err(format!("the floor {floor} is too small; give at least 8M"));
        }
        if ceiling_bytes < floor_bytes {
            return Err(format!("the ceiling {ceiling} is below the floor {floor}"));
        }
        let max_bytes = dram_bytes();
        Ok(Bounds {
            floor_bytes: floor_bytes.min(max_bytes),
            ceiling_bytes: ceiling_bytes.min(max_bytes),
        })
    }

    pub(super) fn first(self) -> u64 {
        let available_bytes = memory_limits::available().bytes;
        self.within(available_bytes.saturating_sub(margin(available_bytes)))
    }

    pub(super) fn next(self, seen: Inputs) -> u64 {
        let Inputs {
            limit_bytes,
            resident_bytes,
            available_bytes,
            capacity_bytes,
            has_memory_pressure,
        } = seen;
        let usable_bytes = (resident_bytes + available_bytes).min(capacity_bytes);
        let fits_bytes = usable_bytes.saturating_sub(margin(usable_bytes));
        let growth_bytes = (limit_bytes / GROWTH_FRACTION).max(MIN_GROWTH_BYTES);
        let next_bytes = if fits_bytes < limit_bytes {
            fits_bytes
        } else if has_memory_pressure {
            limit_bytes - limit_bytes / GROWTH_FRACTION
        } else if fits_bytes < limit_bytes + growth_bytes {
            // Too little memory for a whole step.
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

pub(crate) fn fitting_bytes() -> u64 {
    advised_bytes(memory_limits::available().bytes, 0)
}

/// `outside_bytes` is known to be needed outside the budget; the margin covers a little.
pub(super) fn advised_bytes(available_bytes: u64, outside_bytes: u64) -> u64 {
    let kept_bytes = margin(available_bytes).max(outside_bytes + MIN_MARGIN_BYTES);
    let most_bytes = available_bytes.saturating_sub(outside_bytes);
    let floor_bytes = default_floor(available_bytes).min(most_bytes);
    available_bytes.saturating_sub(kept_bytes).max(floor_bytes)
}

/// `shown` is the budget as requested; `remedy` says how to set a size in MiB.
pub(crate) fn note_on_excess(
    shown: &str,
    bytes: u64,
    available: &Available,
    remedy: impl FnOnce(u64) -> String,
) -> Option<String> {
    let fits_bytes = advised_bytes(available.bytes, 0);
    let physical_bytes = dram_bytes();
    let problem = if available.is_group && bytes > fits_bytes {
        format!(
            "is too large for the {} that the {} allows: code, stacks and other memory outside the \
             budget also count, so the kernel may kill the program",
            units::bytes(available.bytes),
            available.because
        )
    } else if bytes > physical_bytes {
        format!(
            "is more than the machine's {} of DRAM; the program may use all DRAM, so the kernel \
             may swap, or kill the program",
            units::bytes(physical_bytes)
        )
    } else {
        return None;
    };
    Some(format!("{shown} {problem}; use {}", remedy(fits_bytes >> 20)))
}

fn default_floor(available_bytes: u64) -> u64 {
    FLOOR_BYTES.min(available_bytes / 2).max(MIN_MEMORY_BYTES)
}

fn margin(usable_bytes: u64) -> u64 {
    (usable_bytes / MARGIN_FRACTION).clamp(MIN_MARGIN_BYTES, MAX_MARGIN_BYTES)
}

/// If much memory is available on the machine, waits there are caused by another group's limit.
pub(super) fn has_memory_pressure() -> bool {
    let groups = memory_limits::hierarchies();
    let own = groups.iter().filter(|it| it.version == GroupVersion::Two);
    let own = own.map(|it| it.own.join("memory.pressure"));
    let is_low = memory_limits::available_on_machine() < dram_bytes() / LOW_FRACTION;
    let machine = is_low.then(|| Path::new("/proc/pressure/memory").to_path_buf());
    let texts = own.chain(machine).filter_map(|path| fs::read_to_string(path).ok());
    texts.into_iter().any(|text| shows_pressure(&text))
}

fn shows_pressure(text: &str) -> bool {
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="));
    let percent = some.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    percent.is_some_and(|percent| percent > PRESSURE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn bounds(text: &str) -> Result<Bounds, String> {
        Bounds::parse(text).unwrap()
    }

    #[test]
    fn auto_accepts_optional_bounds() {
        assert!(Bounds::parse("512M").is_none() && Bounds::parse("50%").is_none());
        let plain = bounds("auto").unwrap();
        assert_eq!(plain.ceiling_bytes, dram_bytes());
        let given = bounds("auto:16M-64M").unwrap();
        assert_eq!((given.floor_bytes, given.ceiling_bytes), (16 * MIB, 64 * MIB));
        for (text, why) in [
            ("auto:64M-16M", "below the floor"),
            ("auto:1M-16M", "too small"),
            ("auto:x-16M", "x: not a size"),
            ("auto:16M", "auto:FLOOR-CEILING"),
            ("automatic", "auto:FLOOR-CEILING"),
        ] {
            assert!(bounds(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn advised_budget_leaves_memory_outside_it() {
        let advised = |available: u64, outside| advised_bytes(available * MIB, outside) / MIB;
        assert_eq!(advised(352, 0), 308);
        assert_eq!(advised(352, 268 << 10), 308, "covered by the margin");
        assert_eq!(advised(352, 45 * MIB), 275);
        assert_eq!((advised(80, 0), advised(80, 60 * MIB)), (48, 20));
    }

    #[test]
    fn auto_budget_shrinks_immediately_and_grows_in_steps() {
        let bounds = Bounds { floor_bytes: 16 * MIB, ceiling_bytes: 900 * MIB };
        let next = |limit, resident, available, has_memory_pressure| {
            let [limit_bytes, resident_bytes, available_bytes] =
                [limit, resident, available].map(|it| it * MIB);
            let capacity_bytes = 8000 * MIB;
            let seen = Inputs {
                limit_bytes,
                resident_bytes,
                available_bytes,
                capacity_bytes,
                has_memory_pressure,
            };
            bounds.next(seen) / MIB
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
    fn pressure_uses_psi_some() {
        let text = |some: &str| {
            format!("some avg10={some} avg60=0.00 avg300=0.00 total=5\nfull avg10=90.00\n")
        };
        assert!(!shows_pressure(&text("9.50")) && shows_pressure(&text("10.50")));
        assert!(!shows_pressure("") && !shows_pressure("some avg10="));
    }
}
