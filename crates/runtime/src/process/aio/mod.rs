//! POSIX asynchronous I/O, in threads that can bring pages in.
//!
//! The C library's own helpers start inside it, past our `pthread_create`, with
//! SIGBUS and SIGSYS blocked: one that meets managed memory that is out is killed
//! on the spot. So requests are done here, by threads that are like the program's:
//! at most twenty, each with one request at a time. Those about one
//! descriptor are done one after the other, by priority and then in their order.
//!
//! What became of a request stands in its control block, where the C library's
//! `aio_error` and `aio_return` read it. From the moment in which it no longer
//! says EINPROGRESS the block is the program's, and is not looked at again.

mod aio_request;
mod worker_thread;
mod completion;
pub(crate) mod queue;
mod aio_calls;
