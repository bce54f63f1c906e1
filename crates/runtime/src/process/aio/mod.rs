//! POSIX asynchronous I/O, in threads that can fault in pages.
//!
//! The C library's helper threads block SIGBUS and SIGSYS (see `unsupported.rs`). So the runtime
//! carries out requests by threads like the program's: at most twenty, each with one request at a
//! time. Requests for one descriptor run one after the other, by priority and then in order of
//! submission.
//!
//! `aio_error` and `aio_return` read the result in the request's control block. Once the block's
//! error is not EINPROGRESS, the runtime does not access the block again.

mod aio_request;
mod worker_thread;
mod completion;
pub(crate) mod queue;
mod aio_calls;
