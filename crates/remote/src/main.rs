//! Entry point of `softswap remote`; the library implements everything.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    softswap_remote::main()
}
