//! The program that `softswap bench` and `softswap analyze` run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    softswap_bench::main()
}
