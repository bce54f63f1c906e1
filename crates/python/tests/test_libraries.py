"""Libraries that use NumPy, with arrays of a pool: the results must equal those without."""
import os
import pickle
import tempfile
import unittest

import numpy
import pandas
import pyarrow
import pyarrow.compute
import pyarrow.feather
import pyarrow.parquet
import scipy.fft
import scipy.linalg
import scipy.ndimage
import scipy.sparse

import softswap

MIB = 2**20


class Arrays(unittest.TestCase):
    def setUp(self):
        self.pool = softswap.Pool(memory="24M", swap=tempfile.gettempdir(), encrypt=False)
        self.random = numpy.random.default_rng(7)

    def both(self, shape, dtype="f8"):
        """Returns the same numbers in the pool and in ordinary memory."""
        outside = self.random.standard_normal(shape).astype(dtype)
        inside = self.pool.empty(shape, dtype)
        inside[:] = outside
        return inside, outside

    def equal(self, one, other):
        numpy.testing.assert_array_equal(one, other)

    def test_scipy(self):
        inside, outside = self.both((1500, 1500))
        with self.pool.numpy():
            spectrum = scipy.fft.rfft2(inside)
            solved = scipy.linalg.solve(inside, inside[:, :20])
            blurred = scipy.ndimage.gaussian_filter(inside, 2)
            sparse = scipy.sparse.csr_matrix(numpy.where(inside > 1.5, inside, 0))
            product = sparse @ inside
        self.equal(spectrum, scipy.fft.rfft2(outside))
        numpy.testing.assert_allclose(solved, scipy.linalg.solve(outside, outside[:, :20]))
        self.equal(blurred, scipy.ndimage.gaussian_filter(outside, 2))
        expected = scipy.sparse.csr_matrix(numpy.where(outside > 1.5, outside, 0)) @ outside
        self.equal(product, expected)

    def test_pandas(self):
        (inside, outside), keys = self.both((600_000, 4)), self.random.integers(0, 1000, 600_000)
        frames = []
        for values in (inside, outside):
            with self.pool.numpy():
                frame = pandas.DataFrame(values, columns=list("abcd"), copy=False)
                frame["key"] = keys
                groups = frame.groupby("key").agg(["mean", "std", "max"])
                order = frame.sort_values(["key", "a"], kind="stable").reset_index(drop=True)
                joined = order.merge(groups["a"], left_on="key", right_index=True)
            frames.append((groups, order, joined))
        for one, other in zip(*frames):
            pandas.testing.assert_frame_equal(one, other)
        with tempfile.TemporaryFile() as file:
            pickle.dump(frames[0][1], file, protocol=5)
            file.seek(0)
            pandas.testing.assert_frame_equal(pickle.load(file), frames[1][1])

    def test_arrow_over_arrays_of_a_pool(self):
        inside, outside = self.both(4 * MIB)
        array = pyarrow.array(inside)
        self.assertEqual(array.buffers()[1].address, inside.__array_interface__["data"][0])
        self.assertEqual(pyarrow.compute.sum(array), pyarrow.compute.sum(pyarrow.array(outside)))
        table = pyarrow.table({"a": array})
        with tempfile.TemporaryDirectory() as directory:
            for kind in (pyarrow.feather, pyarrow.parquet):
                path = os.path.join(directory, "table")
                write = getattr(kind, "write_table", None) or kind.write_feather
                write(table, path, compression="zstd")
                self.equal(kind.read_table(path)["a"].to_numpy(), outside)
            with pyarrow.OSFile(os.path.join(directory, "raw"), "wb") as file:
                file.write(pyarrow.py_buffer(inside))
            self.equal(numpy.fromfile(os.path.join(directory, "raw")), outside)
            # Reads into an array of the pool: Arrow accepts no memory pool from Python.
            with pyarrow.OSFile(os.path.join(directory, "raw"), "rb") as file:
                inside[:] = 0
                self.assertEqual(file.readinto(inside), inside.nbytes)
            self.equal(inside, outside)


if __name__ == "__main__":
    unittest.main(verbosity=2)
