//! The kernel's interfaces, made safe for the engine.
//!
//! The engine forbids unsafe code, so whatever talks to the kernel or handles
//! raw memory is here, behind interfaces that cannot be misused from safe
//! code. Those whose soundness the caller must vouch for are `unsafe`, and
//! say what they ask for.
//!
//! | modules                                        | what they are for                      |
//! |------------------------------------------------|----------------------------------------|
//! | [`raw`], [`seccomp`], [`syscall_table`],       | system calls from the instructions     |
//! | [`exemption`], [`place`]                       | that filters let through               |
//! | [`memory`], [`alloc`], [`shared`], [`segment`] | memory that never swaps                |
//! | [`secret`]                                     | a key that nobody else sees            |
//! | [`uffd`], [`window`]                           | managed memory, and how pages enter    |
//! |                                                | and leave it                           |
//! | [`signals`], [`inline`], [`child`], [`futex`]  | handlers, their stacks, masks, waiting |
//! | [`heirloom`]                                   | whether forked children are there yet  |
//! | [`file`], [`fiemap`], [`ring`], [`descriptor`] | the swap file and I/O to it            |
//! | [`claim`], [`holders`], [`layout`]             | a named file or device of one's own    |
//! | [`control`]                                    | the socket for `stat` and `ctl`        |
//! | [`load`], [`threads`]                          | how many threads want to run; this     |
//! |                                                | process's own                          |
//! | [`pinners`]                                    | who else may reach a program's memory  |
//! | [`linked`], [`code`]                           | what the loader has put together       |
//! | [`simd`]                                       | comparing a page with wide registers   |
//! | [`kernel_swap`]                              | the kernel's own swap, for comparisons |
//! | [`lz4`], [`zstd`]                              | the codecs, C libraries                |
//! | [`probe`]                                      | trying out what a machine allows       |
//!
//! Two rules hold throughout. No Rust reference points into the window: its
//! pages come and go, so they are named by number. And what may run in a
//! signal handler (faults, page-out, the re-issued call) does not allocate.
#![warn(missing_docs)]

pub mod affinity;
pub mod alloc;
pub mod child;
pub mod claim;
pub mod code;
pub mod control;
pub mod descriptor;
pub mod exemption;
pub mod fiemap;
pub mod file;
pub mod futex;
pub mod heirloom;
pub mod hold;
pub mod holders;
pub mod inline;
pub mod kept;
pub mod kernel_swap;
pub mod layout;
pub mod linked;
pub mod locked;
pub mod load;
pub mod lz4;
pub mod memory;
pub mod pinners;
pub mod place;
pub mod probe;
pub mod raw;
pub mod ring;
pub mod seccomp;
pub mod secret;
pub mod segment;
pub mod shared;
pub mod signals;
pub mod simd;
pub mod syscall_table;
pub mod threads;
pub mod uffd;
pub mod window;
pub mod zstd;

pub use memory::{PAGE_SIZE, Page};
