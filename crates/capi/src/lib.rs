//! The C library `softswap_c`: the crate `softswap` for C and languages that call C.
//!
//! Handles are opaque. Functions return 0 or a negative `errno`; the reason for the last refusal is
//! stored per thread. The header `include/softswap.h` is the documentation; a test compares it with
//! this code.
#![warn(missing_docs)]

mod refusal;
mod options;
mod handles;

pub use handles::*;
pub use options::softswap_options;
pub use refusal::softswap_strerror_detail;
