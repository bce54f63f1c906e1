//! zram's side: a device of the bench's own, one page at a time through the
//! block layer.
//!
//! A process of its own, the keeper, adds the device and takes it away when its
//! standard input ends, which it does however this process ends. It is in a
//! process group of its own, so what the terminal or a shell ends does not
//! include it. Devices that exist are never touched.

use super::stores::{Hand, Store, waste_percent};
use crate::refusal::{Refusal, plain};
use clap::Args;
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use softswap_sys::claim::claim;
use softswap_sys::file::SwapFile;
use softswap_sys::memory::Page;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

const CONTROL: &str = "/sys/class/zram-control";
const ALGORITHM: &str = "lz4";
/// What looks at new devices may have this one open for a moment.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

/// Adds a zram device and removes it when standard input ends; of no use by itself.
#[derive(Args)]
pub(crate) struct KeeperArgs {
    #[arg(long)]
    bytes: u64,
}

/// The keeper: says `zramN` when the device is there, or why there is none.
pub(in super::super) fn keep(args: &KeeperArgs) -> Result<ExitCode, Refusal> {
    let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    let _held = SignalQueue::hold(&ends)
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let added = add();
    let ready = added.as_ref().map_err(String::clone).and_then(|number| {
        set_up(*number, args.bytes)?;
        Ok(format!("zram{number}"))
    });
    // Nobody listens any more? Then input has ended, too.
    let _ = writeln!(io::stdout(), "{}", ready.unwrap_or_else(|why| why));
    let _ = io::stdin().read_to_end(&mut Vec::new());
    if let Ok(number) = added {
        remove(number).map_err(|error| {
            Refusal::own(format!(
                "zram{number} could not be removed: {}; `echo {number} > {CONTROL}/hot_remove`",
                plain(&error)
            ))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn add() -> Result<u32, String> {
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

fn set_up(number: u32, bytes: u64) -> Result<(), String> {
    let set = |name: &str, value: &str| {
        fs::write(format!("/sys/block/zram{number}/{name}"), value)
            .map_err(|error| format!("its {name} cannot be {value}: {}", plain(&error)))
    };
    set("comp_algorithm", ALGORITHM)?;
    set("disksize", &bytes.to_string())
}

fn remove(number: u32) -> io::Result<()> {
    let mut tried = Ok(());
    for _ in 0..ATTEMPTS {
        tried = fs::write(format!("/sys/block/zram{number}/reset"), "1")
            .and_then(|()| fs::write(format!("{CONTROL}/hot_remove"), number.to_string()));
        match &tried {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
            _ => break,
        }
    }
    tried
}

/// The device. The fields are dropped in this order: it cannot be removed
/// while it is open.
pub(super) struct Zram {
    file: SwapFile,
    name: String,
    _keeper: Keeper,
}

/// The keeper's process, which ends when this goes.
struct Keeper(Child);

impl Drop for Keeper {
    fn drop(&mut self) {
        // Closes its input first.
        let _ = self.0.wait();
    }
}

impl Zram {
    /// Adds a device of `pages` pages, or says why there is none.
    pub(super) fn new(pages: usize) -> Result<Zram, String> {
        let program = std::env::current_exe().map_err(|error| plain(&error))?;
        let mut child = Command::new(program)
            .args(["bench", "pool-keeper", "--bytes"])
            .arg((pages * PAGE_SIZE).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| plain(&error))?;
        let said = child.stdout.take();
        let keeper = Keeper(child);
        let mut line = String::new();
        if let Some(said) = said {
            BufReader::new(said).read_line(&mut line).map_err(|error| plain(&error))?;
        }
        let name = line.trim().to_string();
        let is_name = name.strip_prefix("zram").is_some_and(|number| number.parse::<u32>().is_ok());
        if !is_name {
            return Err(name);
        }
        let claimed = claim(&Path::new("/dev").join(&name)).map_err(|error| error.to_string())?;
        if !claimed.file.is_direct() {
            return Err(format!("{name} cannot be used past the page cache"));
        }
        Ok(Zram { file: claimed.file, name, _keeper: keeper })
    }
}

impl Store for Zram {
    fn hand(&self, _first: usize, _count: usize) -> Box<dyn Hand + '_> {
        Box::new(ZramHand(&self.file))
    }

    fn waste_percent(&self) -> Result<f64, String> {
        let text = fs::read_to_string(format!("/sys/block/{}/mm_stat", self.name))
            .map_err(|error| format!("mm_stat: {}", plain(&error)))?;
        // orig_data_size compr_data_size mem_used_total ...
        let numbers: Vec<u64> =
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [_, stored_bytes, used_bytes, ..] => Ok(waste_percent(stored_bytes, used_bytes)),
            _ => Err(format!("mm_stat says {text:?}")),
        }
    }
}

struct ZramHand<'z>(&'z SwapFile);

impl Hand for ZramHand<'_> {
    fn store(&mut self, page: usize, content: &Page) -> Result<(), String> {
        whole(self.0.write_at(&content.0, offset(page)))
    }

    fn load(&mut self, page: usize, to: &mut Page) -> Result<(), String> {
        whole(self.0.read_at(&mut to.0, offset(page)))
    }

    fn invalidate(&mut self, page: usize) -> Result<(), String> {
        self.0.discard(offset(page), PAGE_SIZE as u64).map_err(|error| plain(&error))
    }
}

fn offset(page: usize) -> u64 {
    (page * PAGE_SIZE) as u64
}

fn whole(transferred: io::Result<usize>) -> Result<(), String> {
    match transferred {
        Ok(PAGE_SIZE) => Ok(()),
        Ok(bytes) => Err(format!("{bytes} bytes of a page were transferred")),
        Err(error) => Err(plain(&error)),
    }
}
