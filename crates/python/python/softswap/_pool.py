"""Pools of memory larger than DRAM, for NumPy."""
import contextlib
import json
import math

from . import _softswap


def _size(memory):
    # A size is a text with a unit, or a number of bytes.
    return f"{memory}B" if isinstance(memory, int) else memory


def _part(array):
    """The region that a contiguous array lies in, and where."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError("this array is not contiguous; give a part that is")
    region = array
    while region is not None and not isinstance(region, _softswap.Region):
        region = getattr(region, "base", None)
    if region is None:
        raise ValueError("this array is not of a pool; make it with Pool.empty")
    start = array.__array_interface__["data"][0] - region.address
    return region, start, start + array.nbytes


class Pool:
    """A budget of DRAM with disk behind it.

    `memory` is the budget ("2G", or bytes), `swap` a directory for what does not fit, with a
    limit on its size if one is wanted ("/var/tmp:50G"), or a list of those. Arrays of a pool are
    plain arrays, and keep what they need of it also after `close`.

    System calls may be given such arrays (`a.tofile(f)`, `f.readinto(a)`), but for those that
    take several buffers at once (`os.readv`, `socket.sendmsg`): use `pinned` for these. For that
    the first pool puts a seccomp filter in force for the whole process, for good; as a side effect
    `sudo` gains nothing in what an unprivileged process starts. With `guard_calls=False` it does
    without, and calls that are given what is not in DRAM fail with EFAULT; with True it is an
    error where there can be no filter.
    """

    def __init__(self, memory="1G", swap="/var/tmp", *, encrypt=True, guard_calls=None):
        areas = [swap] if isinstance(swap, str) else list(swap)
        self._pool = _softswap.Pool(_size(memory), areas, encrypt, guard_calls)

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
    def numpy(self, at_least=65536):
        """In this block what NumPy allocates for arrays lies in the pool (NEP 49), if it is at
        least so many bytes: each takes whole pages."""
        before = _softswap.Handler(self._open(), at_least).put_in_force()
        try:
            yield self
        finally:
            _softswap.restore(before)

    def advise(self, array, advice):
        """Says what is expected of an array made by `empty`, or of a contiguous part of one.

        "willneed" brings it in, "cold" lets it leave first, "dontneed" drops what it holds (it
        reads as zero). With "sequential" what follows a touch is brought in at once, with "random"
        nothing is, with "normal" the order is found out, as at first.
        """
        region, start, end = _part(array)
        region.advise(start, end, advice)

    @contextlib.contextmanager
    def pinned(self, array):
        """In this block an array made by `empty`, or a contiguous part of one, stays in DRAM: for
        calls and devices that cannot wait for it. All such blocks of a pool may hold a quarter of
        its memory."""
        region, start, end = _part(array)
        pin = region.pin(start, end)
        try:
            yield array
        finally:
            pin.release()

    def set_memory(self, memory):
        """Changes the budget."""
        self._open().set_memory(_size(memory))

    def stats(self):
        """The pool's figures, by name: sizes in bytes, times in ns."""
        return json.loads(self._open().stats())
