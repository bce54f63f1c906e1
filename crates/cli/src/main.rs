//! The `softswap` command. The code is in the library of this crate.
// Not forbidden: the macro names a section of the executable, which is an unsafe attribute.
#![deny(unsafe_code)]

use std::process::ExitCode;

#[allow(unsafe_code, reason = "the function of that section is safe to call before `main`")]
mod inherited {
    softswap_sys::note_inherited_before_main!();
}

fn main() -> ExitCode {
    softswap_cli::main()
}
