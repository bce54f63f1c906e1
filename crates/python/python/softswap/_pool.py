"""Pools of memory larger than DRAM, for NumPy."""
import contextlib
import json
import math

from . import _softswap


def _size(memory):
    # A size is a text with a unit, or a number of bytes.
    return f"{memory}B" if isinstance(memory, int) else memory


class Pool:
    """A budget of DRAM with disk behind it.

    `memory` is the budget ("2G", or bytes), `swap` a directory for what does not fit, with a
    limit on its size if one is wanted ("/var/tmp:50G"), or a list of those. Arrays of a pool are
    plain arrays, and keep what they need of it also after `close`.

    A system call cannot wait for a page that is out: one that is handed such an array fails with
    EFAULT. Hand it copies of pieces.
    """

    def __init__(self, memory="1G", swap="/var/tmp", *, encrypt=True):
        areas = [swap] if isinstance(swap, str) else list(swap)
        self._pool = _softswap.Pool(_size(memory), areas, encrypt)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Lets go of the pool: it ends with the last of its arrays."""
        self._pool = None

    def _open(self):
        if self._pool is None:
            raise ValueError("the pool is closed")
        return self._pool

    def empty(self, shape, dtype=float, order="C"):
        """A new array in the pool. Its bytes are zero, and take no DRAM before they are touched."""
        import numpy

        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise ValueError(f"{dtype} holds objects, which cannot be in a pool; give another dtype")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        pool = self._open()
        if nbytes == 0:
            return numpy.empty(shape, dtype, order)
        return numpy.ndarray(shape, dtype, numpy.asarray(pool.map(nbytes)), order=order)

    zeros = empty

    @contextlib.contextmanager
    def numpy(self):
        """In this block what NumPy allocates for arrays, from 64 KiB up, lies in the pool (NEP 49)."""
        before = _softswap.Handler(self._open()).put_in_force()
        try:
            yield self
        finally:
            _softswap.restore(before)

    def advise(self, array, advice):
        """Says what is expected of an array made by `empty`, or of a contiguous part of one.

        "willneed" brings it in, "cold" lets it leave first, "dontneed" drops what it holds (it
        reads as zero), "sequential" and "random" are hints.
        """
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError("only a contiguous array can be advised on; give a part that is one")
        region = array
        while region is not None and not isinstance(region, _softswap.Region):
            region = getattr(region, "base", None)
        if region is None:
            raise ValueError("this array is not of a pool; make it with Pool.empty")
        start = array.__array_interface__["data"][0] - region.address
        region.advise(start, start + array.nbytes, advice)

    def set_memory(self, memory):
        """Changes the budget."""
        self._open().set_memory(_size(memory))

    def stats(self):
        """The pool's figures, by name: sizes in bytes, times in ns."""
        return json.loads(self._open().stats())
