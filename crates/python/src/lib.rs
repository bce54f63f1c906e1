//! What the module `softswap` needs of the engine: pools, and regions of them that NumPy makes
//! arrays of. The rest of it is Python.

mod errors;
mod pool;
mod numpy_memory;

#[pyo3::pymodule]
mod _softswap {
    #[pymodule_export]
    use crate::numpy_memory::{Handler, restore};
    #[pymodule_export]
    use crate::pool::{Pin, Pool, Region};
}
