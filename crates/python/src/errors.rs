//! Converts a pool's errors into Python exceptions.

use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(_softswap, AreaError, PyOSError);

pub(crate) fn to_python_error(error: softswap::Error) -> PyErr {
    const ENOMEM: i32 = 12;
    const EINVAL: i32 = 22;
    let text = error.to_string();
    match error.raw_os_error() {
        number if matches!(error, softswap::Error::Area { .. } | softswap::Error::Swap { .. }) => {
            AreaError::new_err((number, text))
        }
        _ if matches!(error, softswap::Error::TooLittleMemory { .. }) => {
            PyValueError::new_err(text)
        }
        EINVAL => PyValueError::new_err(text),
        ENOMEM => PyMemoryError::new_err(text),
        number => PyOSError::new_err((number, text)),
    }
}
