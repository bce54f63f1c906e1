//! What a refusal is for C: a negative number, and a text kept for the thread.

use softswap::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DETAIL: RefCell<CString> = RefCell::default();
}

const EINVAL: c_int = 22;
const ENOTRECOVERABLE: c_int = 131;

/// Why a call is refused.
pub(crate) enum Refusal {
    Of(Error),
    /// An argument that cannot be, by its name and what it is to be.
    Argument(&'static str),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Of(error)
    }
}

fn keep(text: String) {
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // Not there any more only at the thread's end.
    let _ = DETAIL.try_with(|detail| detail.replace(text));
}

/// Runs `body`: 0, or a negative `errno` and the text kept. A panic goes no further.
pub(crate) fn answer(body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    let (number, text) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(Refusal::Of(error))) => (error.raw_os_error(), error.to_string()),
        Ok(Err(Refusal::Argument(what))) => (EINVAL, what.to_string()),
        Err(_) => (ENOTRECOVERABLE, "a bug in softswap; what it said is on standard error".into()),
    };
    keep(text);
    -number
}

/// The reason of this thread's last refusal, in English; empty where there was none. It stays
/// until the thread's next refusal. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_strerror_detail() -> *const c_char {
    DETAIL.try_with(|detail| detail.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
