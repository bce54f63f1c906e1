//! The part of the module `softswap` that needs the engine. The rest is Python.

mod errors;
mod pool;
mod numpy_memory;

#[pyo3::pymodule]
mod _softswap {
    #[pymodule_export]
    use crate::errors::AreaError;
    #[pymodule_export]
    use crate::numpy_memory::{Handler, restore};
    #[pymodule_export]
    use crate::pool::{Pin, Pool, Region};
}
