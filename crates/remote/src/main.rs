//! What `softswap remote` hands over to; all of it lies in the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    softswap_remote::main()
}
