//! A zram device created by the benchmark.

use softswap_cli::refusal::{OrRefuse, plain};
use std::fs;
use std::io;
use std::time::Duration;

const CONTROL: &str = "/sys/class/zram-control";
pub(crate) const ALGORITHM: &str = "lz4";
pub(super) const ATTEMPTS: u32 = 1500;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn retried(
    act: impl Fn() -> io::Result<()>,
    may_pass: impl Fn(&io::Error) -> bool,
) -> io::Result<()> {
    let mut tried = act();
    for _ in 1..ATTEMPTS {
        if !tried.as_ref().is_err_and(&may_pass) {
            break;
        }
        std::thread::sleep(PAUSE);
        tried = act();
    }
    tried
}

pub(crate) fn add() -> Result<u32, String> {
    let text =
        fs::read_to_string(format!("{CONTROL}/hot_add")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                "this kernel has no zram, or the module is not loaded (modprobe zram)".into()
            }
            io::ErrorKind::PermissionDenied => "only root may add a zram device".into(),
            _ => format!("no zram device could be added: {}", plain(&error)),
        })?;
    text.trim()
        .parse()
        .map_err(|_| format!("the kernel returned {text:?} as the number of a new zram device"))
}

pub(crate) fn set_up(number: u32, bytes: u64) -> Result<(), String> {
    let set = |name: &str, value: &str| {
        fs::write(format!("/sys/block/zram{number}/{name}"), value)
            .or_text(format!("the zram device's {name} cannot be set to {value}"))
    };
    set("comp_algorithm", ALGORITHM)?;
    set("disksize", &bytes.to_string())
}

pub(crate) fn remove(number: u32) -> Result<(), String> {
    let remove = || {
        fs::write(format!("/sys/block/zram{number}/reset"), "1")
            .and_then(|()| fs::write(format!("{CONTROL}/hot_remove"), number.to_string()))
    };
    let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
    // Device managers briefly open new devices.
    let tried = retried(remove, is_busy);
    tried.or_text(format!(
        "zram{number} could not be removed; run `echo {number} > {CONTROL}/hot_remove`"
    ))
}

pub(crate) fn used_bytes(name: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/block/{name}/mm_stat")).unwrap_or_default();
    // orig_data_size compr_data_size mem_used_total ...
    text.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
}
