//! Settings that can be changed while the program runs.

use crate::api::engine::Engine;
use crate::api::settings::BadPoolLimit;
use crate::codec::BadChoice;
use crate::policy::pool_limit::size_of_text;
use crate::store::io::poll::mode::{Knobs, MAX_SLEEP_NS, Mode, Sleep};

pub struct LiveSetting {
    pub key: &'static str,
    pub values: &'static str,
    pub meaning: &'static str,
    get: fn(&Engine) -> String,
    set: fn(&Engine, &str) -> Result<(), String>,
}

/// In display order.
pub const LIVE_SETTINGS: [LiveSetting; 6] = [
    LiveSetting {
        key: "bounce.peak",
        values: "0, to reset it",
        meaning: "the largest number of pages in bounce buffers at once",
        get: |engine| engine.buffers().usage().high_water.to_string(),
        set: |engine, text| match text {
            "0" => {
                engine.buffers().reset_high_water();
                Ok(())
            }
            _ => Err(format!("{text:?}: a peak can only be set to 0, which resets it")),
        },
    },
    LiveSetting {
        key: "codec",
        values: "auto, lz4, zstd, zstd:LEVEL with a level from -5 to 9, or none",
        meaning: "the codec for pages that are swapped out from now on",
        get: |engine| engine.codec().get().to_string(),
        set: |engine, text| {
            engine.codec().set(text.parse().map_err(|bad: BadChoice| bad.to_string())?);
            Ok(())
        },
    },
    LiveSetting {
        key: "io.poll",
        values: "interrupt, poll, hybrid or auto; N:MODE for swap area N alone",
        meaning: "how a thread waits for a page from the disk",
        get: |engine| by_area(engine.knobs().map(|knobs| knobs.mode().to_string())),
        set: |engine, text| {
            let (areas, text) = areas_of(engine, text)?;
            let mode: Mode = text.parse().map_err(|bad| format!("{bad}"))?;
            areas.for_each(|knobs| knobs.set_mode(mode));
            Ok(())
        },
    },
    LiveSetting {
        key: "io.poll_sleep",
        values: "auto, 0, or a time such as 20us, at most 100ms; N:TIME for swap area N alone",
        meaning: "how long hybrid polling sleeps before it polls",
        get: |engine| by_area(engine.knobs().map(|knobs| show_sleep(knobs.sleep()))),
        set: |engine, text| {
            let (areas, text) = areas_of(engine, text)?;
            let sleep = parse_sleep(text)?;
            areas.for_each(|knobs| knobs.set_sleep(sleep));
            Ok(())
        },
    },
    LiveSetting {
        key: "memory",
        values: "a size such as 64M",
        meaning: "the DRAM budget of this process, with --memory-per-process",
        get: Engine::memory_limit,
        set: |engine, text| {
            let bytes = size_of_text(text)
                .ok_or_else(|| format!("{text:?} is not a size; give one such as 64M or 2G"))?;
            engine.set_memory_limit(bytes).map_err(|refused| refused.to_string())
        },
    },
    LiveSetting {
        key: "pool.limit",
        values: "auto, a share of the budget up to 80% (such as 20%), or a size (such as 64M)",
        meaning: "the limit of the compressed pool",
        get: |engine| engine.pool_limit().to_string(),
        set: |engine, text| {
            let limit = text.parse().map_err(|bad: BadPoolLimit| bad.to_string())?;
            engine.set_pool_limit(limit);
            Ok(())
        },
    },
];

pub fn get(engine: &Engine, key: &str) -> Result<String, String> {
    find(key).map(|setting| (setting.get)(engine))
}

pub fn set(engine: &Engine, key: &str, value: &str) -> Result<(), String> {
    let setting = find(key)?;
    (setting.set)(engine, value).map_err(|why| format!("{key}: {why}"))
}

pub(crate) fn all(engine: &Engine) -> impl Iterator<Item = (&'static str, String)> {
    LIVE_SETTINGS.iter().map(|setting| (setting.key, (setting.get)(engine)))
}

fn find(key: &str) -> Result<&'static LiveSetting, String> {
    static TABLE: [LiveSetting; LIVE_SETTINGS.len()] = LIVE_SETTINGS;
    TABLE.iter().find(|setting| setting.key == key).ok_or_else(|| {
        let keys = TABLE.each_ref().map(|setting| setting.key);
        let [first @ .., last] = &keys;
        format!("there is no setting {key:?}; the settings are {} and {last}", first.join(", "))
    })
}

/// Returns the areas that a value applies to, and the value: `N:VALUE` is for area N.
fn areas_of<'e, 't>(
    engine: &'e Engine,
    text: &'t str,
) -> Result<(impl Iterator<Item = &'e Knobs>, &'t str), String> {
    let count = engine.knobs().count();
    let (areas, value) = match text.split_once(':') {
        None => (0..count, text),
        Some((number, value)) => {
            let number = number.parse().ok().filter(|number| *number < count);
            let number: usize = number.ok_or_else(|| {
                format!("{text:?} is not a swap area; they are numbered from 0 to {}", count - 1)
            })?;
            (number..number + 1, value)
        }
    };
    Ok((engine.knobs().skip(areas.start).take(areas.len()), value))
}

/// Returns one value if all areas have the same, else each area's with its number.
fn by_area(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<_> = values.collect();
    if values.iter().all(|value| *value == values[0]) {
        return values.swap_remove(0);
    }
    let numbered = values.iter().enumerate().map(|(number, value)| format!("{number}:{value}"));
    numbered.collect::<Vec<_>>().join(" ")
}

/// Units of a time, largest first, in ns.
const UNITS: [(&str, u32); 3] = [("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

pub fn parse_sleep(text: &str) -> Result<Sleep, String> {
    if text == "auto" {
        return Ok(Sleep::Adaptive);
    }
    let ns = if text == "0" { Some(0) } else { parse_ns(text) };
    ns.filter(|ns| *ns <= MAX_SLEEP_NS).map(Sleep::Fixed).ok_or_else(|| {
        let most = show_sleep(Sleep::Fixed(MAX_SLEEP_NS));
        format!(
            "{text:?} is not a duration; give auto, 0, or a whole number of ns, us or ms, at most \
             {most}"
        )
    })
}

fn parse_ns(text: &str) -> Option<u32> {
    let with_unit = |(unit, ns): &(&str, u32)| Some((text.strip_suffix(unit)?, *ns));
    let (count, unit_ns) = UNITS.iter().find_map(with_unit)?;
    // `parse` accepts a sign; the option does not.
    let is_plain = count.bytes().all(|byte| byte.is_ascii_digit());
    count.parse::<u32>().ok().filter(|_| is_plain)?.checked_mul(unit_ns)
}

pub fn show_sleep(sleep: Sleep) -> String {
    match sleep {
        Sleep::Adaptive => "auto".to_string(),
        Sleep::Fixed(0) => "0".to_string(),
        Sleep::Fixed(ns) => {
            let fits = UNITS.iter().find(|(_, size)| ns.is_multiple_of(*size));
            let (unit, size) = fits.unwrap_or(&("ns", 1));
            format!("{}{unit}", ns / size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_display_round_trips() {
        for (text, sleep) in [
            ("auto", Sleep::Adaptive),
            ("0", Sleep::Fixed(0)),
            ("20us", Sleep::Fixed(20_000)),
            ("1ms", Sleep::Fixed(1_000_000)),
            ("100ms", Sleep::Fixed(MAX_SLEEP_NS)),
            ("1500us", Sleep::Fixed(1_500_000)),
            ("7ns", Sleep::Fixed(7)),
        ] {
            assert_eq!(parse_sleep(text), Ok(sleep));
            assert_eq!(show_sleep(sleep), text);
        }
    }

    #[test]
    fn invalid_sleep_is_rejected_with_valid_form() {
        let bad =
            ["", "banana", "20", "us", "-1us", "+1us", "1.5ms", "101ms", "9999999999ms", "1s"];
        for text in bad.into_iter().chain([" 1ms", "1 ms", "AUTO", "5000000us", "١ms"]) {
            let refused = parse_sleep(text).unwrap_err();
            for part in [&format!("{text:?}"), "auto", "100ms", "ns, us or ms"] {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }
}
