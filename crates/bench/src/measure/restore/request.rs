//! What the restorer can be asked for, and what it answers.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the restorer can be asked for, one JSON object in a line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Be the only restorer that swaps: settings of the machine have one owner.
    HoldSwap,
    /// A directory of one's own below this one.
    MakeDirectory {
        under: PathBuf,
    },
    /// A zram device; the answer is its name.
    AddZram {
        bytes: u64,
    },
    /// A swap area in a file that has all its storage.
    MakeSwapFile {
        path: PathBuf,
        bytes: u64,
    },
    /// A swap header on a device.
    Format {
        path: PathBuf,
    },
    SwapOn {
        path: PathBuf,
    },
    SwapOff {
        path: PathBuf,
    },
    /// A setting of the machine; the answer is what it was.
    Set {
        path: PathBuf,
        value: String,
    },
    /// A memory control group; the answer is its directory.
    MakeGroup {
        limit_bytes: Option<u64>,
        may_swap: bool,
    },
    /// Ends what runs in it.
    RemoveGroup {
        path: PathBuf,
    },
}

/// What it answers: a text, or why not.
pub(crate) type Answer = Result<String, String>;
