"""Pools of memory larger than DRAM, for NumPy."""
import contextlib
import json
import math
import operator
import os
import sys

from . import _softswap


class SwapError(OSError, ValueError):
    """A swap area cannot be used: an invalid argument, or a system error with its `errno`."""


def _mib(size):
    return f"{size / 2**20:,.1f} MiB"


def _size(memory):
    """Converts a size: a text with a unit, or a number of bytes."""
    if isinstance(memory, str):
        return memory
    try:
        number = operator.index(memory)
    except TypeError:
        raise TypeError(
            f'memory={memory!r}: use a string with a unit ("2G") or a whole number of bytes'
        ) from None
    if number < 0:
        raise ValueError(f"memory={number}: must not be negative")
    return str(number)


def _areas(swap):
    one = isinstance(swap, (str, os.PathLike))
    areas = [os.fspath(area) for area in ([swap] if one else swap)]
    if not areas:
        raise ValueError("swap=[]: name a directory for pages that do not fit in memory")
    for area in areas:
        if not isinstance(area, str):
            raise TypeError(f"swap={area!r}: use a string or a path")
    return areas


def _shape(shape):
    try:
        lengths = (operator.index(shape),)
    except TypeError:
        lengths = tuple(operator.index(length) for length in shape)
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape={shape!r}: a length must not be negative")
    return lengths


def _part(array):
    """Returns the region that contains a contiguous array, and the array's range in the region."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError("this array is not contiguous; use a contiguous part of it")
    region = array
    while region is not None and not isinstance(region, _softswap.Region):
        region = getattr(region, "base", None)
    if region is None:
        raise ValueError("this array is not in a pool; create it with Pool.empty")
    start = array.__array_interface__["data"][0] - region.address
    return region, start, start + array.nbytes


class Pool:
    """A budget of DRAM with swap space on disk.

    `memory` is the budget ("2G", or bytes). Default: 1 GiB, or half of the available memory if that
    is less. `swap` is a directory for pages beyond it, optionally with a size limit
    ("/var/tmp:50G"), or a list of those. Arrays of a pool are ordinary arrays. They stay valid
    after `close`.

    System calls may use such arrays (`a.tofile(f)`, `f.readinto(a)`), except calls with several
    buffers at once (`os.readv`, `socket.sendmsg`): use `pinned` for these. For system calls the
    first pool installs a seccomp filter for the whole process, which cannot be removed. If the
    process is unprivileged, `sudo` no longer works in the programs that it starts. With
    `guard_calls=False` no filter is installed, and calls with swapped-out arrays fail with EFAULT.
    With `guard_calls=True` the pool is refused if no filter can be installed.

    A forked child (`multiprocessing` by "fork") cannot use pools of its parent: a touch of such
    an array is a segmentation fault. It may create pools of its own. Install a handler of
    SIGBUS before the first pool (of SIGSEGV where userfaultfd is refused, as in containers).
    """

    def __init__(self, memory=None, swap="/var/tmp", *, encrypt=True, guard_calls=None):
        try:
            budget = None if memory is None else _size(memory)
            self._pool = _softswap.Pool(budget, _areas(swap), encrypt, guard_calls)
        except _softswap.AreaError as error:
            raise SwapError(error.errno, f"swap={swap!r}: {error.strerror}") from None

    def __repr__(self):
        if self._pool is None:
            return "<softswap.Pool, closed>"
        stats = self.stats()
        budget, used, disk = (_mib(stats[f"{name}_bytes"]) for name in ("budget", "used", "disk"))
        return f"<softswap.Pool: budget {budget}, used {used}, on the disk {disk}>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Releases the pool; its memory is freed with the last of its arrays."""
        self._pool = None

    def _open(self):
        if self._pool is None:
            raise ValueError("the pool is closed")
        return self._pool

    def empty(self, shape, dtype=float, order="C"):
        """Returns a new array in the pool, filled with zeroes. Pages take no DRAM before the
        first touch."""
        import numpy

        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise ValueError(f"{dtype} holds objects, which a pool cannot store; use another dtype")
        shape = _shape(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > sys.maxsize:
            raise ValueError(
                f"shape={shape!r}: {nbytes:,} bytes are too many; an array can have at most "
                f"{sys.maxsize:,} bytes"
            )
        pool = self._open()
        if nbytes == 0:
            return numpy.empty(shape, dtype, order)
        return numpy.ndarray(shape, dtype, numpy.asarray(pool.map(nbytes)), order=order)

    zeros = empty

    @contextlib.contextmanager
    def numpy(self, at_least=65536):
        """In this block NumPy allocates the data of arrays in the pool (NEP 49), if it has at
        least `at_least` bytes, in whole pages. This applies to the current thread or task,
        like a context variable: threads that start inside use NumPy's own allocator, and
        forked children ordinary memory."""
        before = _softswap.Handler(self._open(), at_least).put_in_force()
        try:
            yield self
        finally:
            _softswap.restore(before)

    def advise(self, array, advice):
        """Announces the use of an array made by `empty`, or of a contiguous part of one.

        "willneed" faults it in. "cold" makes it the first to be evicted. "dontneed" drops its
        content; it then reads as zero. With "sequential" readahead starts at the first touch, with
        "random" there is no readahead, with "normal" (the default) the order is detected. Do not
        use `mmap.madvise` for arrays of a pool: softswap stops the program when it touches a page
        dropped that way.
        """
        region, start, end = _part(array)
        if advice == "dontneed" and not array.flags.writeable:
            raise ValueError("this array is read-only, and \"dontneed\" would fill it with zeroes")
        region.advise(start, end, advice)

    @contextlib.contextmanager
    def pinned(self, array):
        """In this block an array made by `empty`, or a contiguous part of one, stays in DRAM, for
        calls and devices that cannot wait for a page. All such blocks together may pin at most a
        quarter of the pool's budget."""
        region, start, end = _part(array)
        pin = region.pin(start, end)
        try:
            yield array
        finally:
            pin.release()

    def set_memory(self, memory):
        """Changes the budget. It rises at once, and falls as pages are evicted; the call waits
        for evictions for at most 100 ms."""
        self._open().set_memory(_size(memory))

    def stats(self):
        """Returns the pool's figures, by name: sizes in bytes, times in ns. `used_peak_bytes`
        and `mapped_bytes` are peaks; `budget_bytes`, `used_bytes`, `pool_bytes`, `pool_pages`,
        `disk_bytes` (swap slots in use) and `swap_bytes` (size of the swap areas, with their free
        slots) are current values; the others are counters."""
        return json.loads(self._open().stats())
