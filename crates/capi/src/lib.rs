//! The C library `softswap_c`: what the crate `softswap` offers, for C and what calls C.
//!
//! Handles are opaque; functions return 0 or a negative `errno`, and keep a text about the last
//! refusal of the calling thread. The header `include/softswap.h` is the documentation, and is
//! compared with this by a test.
#![warn(missing_docs)]

mod refusal;
mod options;
mod handles;

pub use handles::*;
pub use options::softswap_options;
pub use refusal::softswap_strerror_detail;
