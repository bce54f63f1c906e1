//! The `softswap` command. The code is in the library of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    softswap_cli::main()
}
