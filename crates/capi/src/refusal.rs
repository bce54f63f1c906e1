//! Errors in C: a negative `errno`, and a text stored per thread.

use softswap::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DETAIL: RefCell<CString> = RefCell::default();
}

const EINVAL: c_int = 22;
const ENOTRECOVERABLE: c_int = 131;

pub(crate) enum Refusal {
    Of(Error),
    /// An invalid argument: its name and the reason.
    Argument(&'static str),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Of(error)
    }
}

fn store_detail(text: String) {
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // The variable is missing only while the thread exits.
    let _ = DETAIL.try_with(|detail| detail.replace(text));
}

/// Runs `body` and catches its panics. Returns 0, or a negative `errno` after storing the reason.
pub(crate) fn to_errno(body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    let (number, text) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(Refusal::Of(error))) => (error.raw_os_error(), error.to_string()),
        Ok(Err(Refusal::Argument(what))) => (EINVAL, what.to_string()),
        Err(_) => (
            ENOTRECOVERABLE,
            "internal error in softswap, printed to standard error; please report it".into(),
        ),
    };
    store_detail(text);
    -number
}

/// Returns the reason of this thread's last refusal, in English; empty if there was none. The text
/// is valid until the thread's next refusal. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_strerror_detail() -> *const c_char {
    DETAIL.try_with(|detail| detail.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
