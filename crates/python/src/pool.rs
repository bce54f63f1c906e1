//! Pools and their regions. Python's global lock (GIL) is released during each call of softswap.

use crate::errors::to_python_error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use softswap::{Advice, Error, PinOwned};
use std::sync::{Arc, Mutex, PoisonError};

/// A budget of DRAM with swap space on disk.
#[pyclass(frozen, module = "softswap._softswap")]
pub(crate) struct Pool {
    pub(crate) pool: softswap::Pool,
}

#[pymethods]
impl Pool {
    /// `memory` of `None` selects the library's default. If `guard_calls` is `None`, calls are guarded unless the kernel lacks the required features.
    #[new]
    fn new(
        py: Python<'_>,
        memory: Option<&str>,
        swap: Vec<String>,
        encrypt: bool,
        guard_calls: Option<bool>,
    ) -> PyResult<Pool> {
        py.detach(|| {
            let mut builder = softswap::Pool::builder().encrypt(encrypt);
            if let Some(memory) = memory {
                builder = builder.memory(memory)?;
            }
            for area in &swap {
                builder = builder.swap(area)?;
            }
            let guarded = builder.clone().guard_calls(guard_calls.unwrap_or(true)).build();
            let pool = match guarded {
                Err(Error::Unsupported { .. }) if guard_calls.is_none() => builder.build()?,
                guarded => guarded?,
            };
            Ok(Pool { pool })
        })
        .map_err(to_python_error)
    }

    fn map(&self, py: Python<'_>, nbytes: usize) -> PyResult<Region> {
        let mut region = py.detach(|| self.pool.map(nbytes)).map_err(to_python_error)?;
        let address = region.as_mut_ptr().addr();
        Ok(Region { address, nbytes, region: Mutex::new(Arc::new(region)) })
    }

    fn set_memory(&self, py: Python<'_>, memory: &str) -> PyResult<()> {
        py.detach(|| self.pool.set_memory(memory)).map_err(to_python_error)
    }

    /// Returns the figures as one JSON object.
    fn stats(&self, py: Python<'_>) -> String {
        py.detach(|| self.pool.snapshot_stats_json())
    }
}

/// Bytes of a pool for a NumPy array, which keeps them alive.
#[pyclass(frozen, module = "softswap._softswap")]
pub(crate) struct Region {
    #[pyo3(get)]
    address: usize,
    #[pyo3(get)]
    nbytes: usize,
    /// The bytes are accessed through arrays only, so no Rust reference to them exists.
    region: Mutex<Arc<softswap::Region>>,
}

#[pymethods]
impl Region {
    /// The interface of `numpy.asarray`. Python's stable interface has buffers only since 3.11.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.nbytes,))?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }

    fn advise(&self, py: Python<'_>, start: usize, end: usize, advice: &str) -> PyResult<()> {
        let advice = match advice {
            "willneed" => Advice::WillNeed,
            "cold" => Advice::Cold,
            "dontneed" => Advice::DontNeed,
            "sequential" => Advice::Sequential,
            "random" => Advice::Random,
            "normal" => Advice::Normal,
            other => {
                return Err(PyValueError::new_err(format!(
                    "{other:?} is not an advice; use willneed, cold, dontneed, sequential, \
                     random or normal"
                )));
            }
        };
        py.detach(|| {
            let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
            match Arc::get_mut(&mut region) {
                Some(region) => region.advise(start..end, advice),
                // Part of it is pinned.
                None => region.advise_shared(start..end, advice),
            }
        })
        .map_err(to_python_error)
    }

    fn pin(&self, py: Python<'_>, start: usize, end: usize) -> PyResult<Pin> {
        py.detach(|| {
            let region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(Pin(Mutex::new(Some(softswap::Region::pin_owned(&region, start..end)?))))
        })
        .map_err(to_python_error)
    }
}

/// Bytes that stay in DRAM until `release`.
#[pyclass(frozen, module = "softswap._softswap")]
pub(crate) struct Pin(Mutex<Option<PinOwned>>);

#[pymethods]
impl Pin {
    fn release(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}
