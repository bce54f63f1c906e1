//! POSIX asynchronous I/O, in threads that can fault in pages.
//!
//! The C library starts its helper threads internally, without the runtime's `pthread_create`, with
//! SIGBUS and SIGSYS blocked. Such a thread would be killed when it touches an absent page. So the
//! runtime carries out requests by threads like the program's: at most twenty, each with one
//! request at a time. Requests for one descriptor run one after the other, by priority and then in
//! order of submission.
//!
//! The result of a request is stored in its control block, where the C library's `aio_error` and
//! `aio_return` read it. Once the block's error is not EINPROGRESS, the block belongs to the
//! program, and the runtime does not access it again.

mod aio_request;
mod worker_thread;
mod completion;
pub(crate) mod queue;
mod aio_calls;
