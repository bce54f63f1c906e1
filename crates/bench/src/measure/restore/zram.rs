//! A zram device of one's own.

use softswap_cli::refusal::plain;
use std::fs;
use std::io;
use std::time::Duration;

const CONTROL: &str = "/sys/class/zram-control";
pub(crate) const ALGORITHM: &str = "lz4";
/// What looks at new devices may have this one open for a moment.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn add() -> Result<u32, String> {
    let text =
        fs::read_to_string(format!("{CONTROL}/hot_add")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                "this kernel has no zram, or not loaded it (modprobe zram)".into()
            }
            io::ErrorKind::PermissionDenied => "only root may add a device".into(),
            _ => format!("no device could be added: {}", plain(&error)),
        })?;
    text.trim().parse().map_err(|_| format!("the kernel added a device called {text:?}"))
}

pub(crate) fn set_up(number: u32, bytes: u64) -> Result<(), String> {
    let set = |name: &str, value: &str| {
        fs::write(format!("/sys/block/zram{number}/{name}"), value)
            .map_err(|error| format!("its {name} cannot be {value}: {}", plain(&error)))
    };
    set("comp_algorithm", ALGORITHM)?;
    set("disksize", &bytes.to_string())
}

pub(crate) fn remove(number: u32) -> Result<(), String> {
    let mut tried = Ok(());
    for _ in 0..ATTEMPTS {
        tried = fs::write(format!("/sys/block/zram{number}/reset"), "1")
            .and_then(|()| fs::write(format!("{CONTROL}/hot_remove"), number.to_string()));
        match &tried {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
            _ => break,
        }
    }
    tried.map_err(|error| {
        format!(
            "zram{number} could not be removed: {}; `echo {number} > {CONTROL}/hot_remove`",
            plain(&error)
        )
    })
}

/// The DRAM that a device takes for packed pages.
pub(crate) fn used_bytes(name: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/block/{name}/mm_stat")).unwrap_or_default();
    // orig_data_size compr_data_size mem_used_total ...
    text.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
}
