"""Tests the installed wheel: `tests/wheel.sh` runs this in a new environment."""
import errno
import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy

import softswap

MIB = 2**20
SUM = "import numpy; a = numpy.arange(2**27, dtype='f8'); a *= 3; print(int(a[::4097].sum()))"


def run(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


class TheCommand(unittest.TestCase):
    def test_command_has_this_version(self):
        from importlib.metadata import version

        output = run(softswap.command(), "--version")
        self.assertEqual(output, f"softswap {version('softswap')}\n")
        self.assertEqual(run(sys.executable, "-m", "softswap", "--version"), output)

    def test_documents_that_messages_name_are_installed(self):
        documents = pathlib.Path(sys.prefix, "share/doc/softswap")
        for name in ("limits.md", "containers.md", "README.md"):
            self.assertTrue((documents / name).is_file(), name)

    def test_array_larger_than_budget_has_same_sum(self):
        with tempfile.NamedTemporaryFile("r") as report:
            within = run(softswap.command(), "run", "--memory", "256M", "--report", report.name,
                         "--", sys.executable, "-c", SUM)
            figures = json.load(report)
        self.assertEqual(within, run(sys.executable, "-c", SUM))
        self.assertGreater(figures["mapped_peak_bytes"], 1024 * MIB)
        self.assertLessEqual(figures["used_peak_bytes"], 256 * MIB)

    def test_notebook_shows_memory(self):
        # The first line wakes the process: a sleeping one has no figures.
        program = ("kept = bytearray(96 << 20)\nfrom softswap import _magic\n"
                   "bar = _magic.softswap('stats')\nprint(repr(bar))\n"
                   "print(bar._repr_html_())\n_magic.softswap('nonsense')\n"
                   "_magic.softswap('set memory=68M')\n_magic.softswap('set memory 72M')")
        output = run(softswap.command(), "run", "-q", "--memory", "64M", "--",
                     sys.executable, "-c", program)
        whole = r"budget ([\d.]+ MiB \(peak )?64\.0 MiB\)?: "
        self.assertRegex(output, whole + r"resident [\d.]+ MiB, pool [\d.]+ MiB, disk")
        self.assertIn("memory = 68M\nmemory = 72M", output)
        self.assertIn("disk (in swap slots)", output)
        self.assertIn("usage: %softswap stats", output)
        self.assertIn("softswap", run(sys.executable, "-c", "from softswap import _magic\n"
                                      "_magic.softswap('stats')"))

    def test_notebook_shows_peak_of_budget(self):
        from softswap import _magic

        bar = _magic.Bar({"budget_bytes": 63 * MIB, "budget_peak_bytes": 64 * MIB,
                          "used_bytes": MIB, "disk_bytes": 0, "pool": {"used_bytes": 0}})
        for text in (repr(bar), bar._repr_html_()):
            self.assertIn("budget 63.0 MiB (peak 64.0 MiB)", text)

    def test_repr_of_pool(self):
        pool = softswap.Pool("16M", tempfile.gettempdir())
        self.assertRegex(repr(pool), r"^<softswap.Pool: budget 16\.0 MiB, used [\d.]+ MiB, on the "
                         r"disk 0\.0 MiB>$")
        pool.stats = lambda: {"budget_bytes": 16 * MIB, "used_bytes": 9 * MIB,
                              "disk_bytes": 3 * MIB, "swap_bytes": 64 * MIB}
        self.assertIn("on the disk 3.0 MiB>", repr(pool))
        pool.close()
        self.assertEqual(repr(pool), "<softswap.Pool, closed>")


class APool(unittest.TestCase):
    def setUp(self):
        self.pool = softswap.Pool(memory="16M", swap=tempfile.gettempdir(), encrypt=False)

    def test_array_of_four_times_the_budget_keeps_its_content(self):
        a = self.pool.empty((4, 2 * MIB), "f8")
        self.assertIs(type(a), numpy.ndarray)
        self.assertTrue((a[0, :512] == 0).all())
        expected = numpy.arange(8 * MIB, dtype="f8").reshape(4, -1)
        a[:] = expected
        self.assertTrue((a == expected).all())
        self.assertTrue((numpy.sort(a[::-1], axis=None) == expected.ravel()).all())
        stats = self.pool.stats()
        self.assertEqual(stats["budget_bytes"], 16 * MIB)
        self.assertLessEqual(stats["used_peak_bytes"], 16 * MIB)
        self.assertGreater(stats["pages_out"], 0)
        self.assertLessEqual(stats["disk_bytes"], stats["swap_bytes"])

    def test_default_budget_is_at_most_1_gib(self):
        budget = softswap.Pool(swap=tempfile.gettempdir()).stats()["budget_bytes"]
        self.assertTrue(8 * MIB <= budget <= 1024 * MIB, budget)

    def test_orders_types_and_empty_arrays(self):
        f = self.pool.empty((3, 5), "c16", order="F")
        self.assertTrue(f.flags.f_contiguous and f.shape == (3, 5) and f.dtype == "c16")
        self.assertEqual(self.pool.empty((0, 7)).shape, (0, 7))
        self.assertEqual(self.pool.empty(10).dtype, float)
        self.assertRaises(ValueError, self.pool.empty, 10, object)
        self.assertRaises(ValueError, self.pool.empty, -1)
        self.assertRaises(ValueError, self.pool.empty, (-1, -1))
        with self.assertRaisesRegex(ValueError, "36,893,488,147,419,103,232 bytes are too many"):
            self.pool.empty((1 << 62,))

    def test_an_array_outlives_the_pool(self):
        with self.pool as pool:
            a = pool.empty(MIB, "u1")
        self.assertRaises(ValueError, pool.empty, 1)
        del pool, self.pool
        a[:] = 7
        self.assertEqual(int(a.sum()), 7 * MIB)
        self.assertEqual(int(pickle.loads(pickle.dumps(a)).sum()), 7 * MIB)

    def test_advice(self):
        a = self.pool.empty(4 * MIB, "u1")
        a[:] = 1
        for advice in ["cold", "willneed", "sequential", "random", "normal"]:
            self.pool.advise(a, advice)
        self.pool.advise(a[:MIB], "dontneed")
        self.assertEqual(int(a.sum()), 3 * MIB)
        self.assertRaises(ValueError, self.pool.advise, a, "hope")
        self.assertRaises(ValueError, self.pool.advise, a[::2], "cold")
        self.assertRaises(ValueError, self.pool.advise, numpy.ones(3), "cold")
        view = a.view()
        view.flags.writeable = False
        self.assertRaises(ValueError, self.pool.advise, view, "dontneed")
        self.pool.advise(view, "cold")
        self.assertEqual(int(a.sum()), 3 * MIB)

    def test_files_and_sockets_take_arrays(self):
        expected = numpy.arange(8 * MIB, dtype="f8")
        a = self.pool.empty(8 * MIB)
        a[:] = expected
        with tempfile.TemporaryFile() as file:
            a.tofile(file)
            file.seek(0)
            with self.pool.numpy():
                b = numpy.fromfile(file)
            self.assertTrue((b == expected).all())
            a[:] = 0
            file.seek(0)
            self.assertEqual(file.readinto(a), a.nbytes)
            self.assertTrue((a == expected).all())
            file.seek(0)
            numpy.save(file, a)
            file.seek(0)
            with self.pool.numpy():
                self.assertTrue((numpy.load(file) == expected).all())
            a[:] = 0
            self.assertEqual(os.pwrite(file.fileno(), b, 0), b.nbytes)
            self.assertEqual(os.preadv(file.fileno(), [bytearray(8)], 8), 8)
            with self.pool.pinned(a[:100_000]) as part:
                self.assertEqual(os.preadv(file.fileno(), [part], 0), part.nbytes)
            self.assertTrue((a[:100_000] == expected[:100_000]).all())
        one, other = socket.socketpair()
        sender = threading.Thread(target=one.sendall, args=(b,))
        sender.start()
        self.assertEqual(other.recv_into(a, a.nbytes, socket.MSG_WAITALL), a.nbytes)
        sender.join()
        one.close()
        other.close()
        self.assertTrue((a == expected).all())
        self.assertLessEqual(self.pool.stats()["used_peak_bytes"], 16 * MIB)

    def test_call_guard_can_be_disabled(self):
        # Runs in its own process, because this one already has a seccomp filter.
        program = ("import errno, numpy, os, softswap\n"
                   "def filters():\n"
                   "    lines = open('/proc/self/status').readlines()\n"
                   "    return [line for line in lines if line.startswith('Seccomp')]\n"
                   "before = filters()\n"
                   "pool = softswap.Pool('16M', guard_calls=False)\n"
                   "a = pool.empty(1 << 20, 'u1')\n"
                   "file = os.open('/dev/zero', os.O_RDONLY)\n"
                   "try:\n    os.readv(file, [a])\nexcept OSError as error:\n"
                   "    assert error.errno == errno.EFAULT\nelse:\n    raise AssertionError\n"
                   "assert filters() == before\n"
                   "with pool.pinned(a):\n    assert os.readv(file, [a]) == len(a)\n")
        run(sys.executable, "-c", program)

    def test_pins(self):
        a = self.pool.empty(8 * MIB, "u1")
        with self.pool.pinned(a[MIB:2 * MIB]), self.pool.pinned(a[:1000]):
            self.assertRaises(OSError, self.pool.advise, a, "dontneed")
            self.pool.advise(a, "cold")
        self.pool.advise(a, "dontneed")
        with self.assertRaises(OSError):
            with self.pool.pinned(a):
                pass
        self.assertRaises(ValueError, self.pool.pinned(numpy.ones(3)).__enter__)

    def test_invalid_arguments_are_refused(self):
        self.assertRaises(ValueError, softswap.Pool, memory="lots")
        for little in ("1M", "10", 10):
            with self.assertRaisesRegex(ValueError, "too little; give at least 8M"):
                softswap.Pool(memory=little)
        file = tempfile.NamedTemporaryFile()
        self.addCleanup(file.close)
        for directory, number, message in [("/nowhere", errno.ENOENT, "mkdir -p /nowhere"),
                                           (file.name, errno.EINVAL, "give a directory"),
                                           ("/dev/shm", errno.EINVAL, "is a tmpfs"),
                                           ("/proc", errno.EOPNOTSUPP, "stores no files")]:
            with self.assertRaises(softswap.SwapError) as refused:
                softswap.Pool(memory="16M", swap=directory)
            self.assertIsInstance(refused.exception, ValueError)
            self.assertEqual(refused.exception.errno, number)
            self.assertIn(message, str(refused.exception))
        self.assertRaises(ValueError, softswap.Pool, memory=-1)
        self.assertRaises(ValueError, softswap.Pool, swap=[])
        self.assertRaises(TypeError, softswap.Pool, memory=2.0)
        self.assertRaises(TypeError, softswap.Pool, swap=[b"/var/tmp"])
        self.pool.set_memory("24M")
        self.assertEqual(self.pool.stats()["budget_bytes"], 24 * MIB)
        self.pool.set_memory(20 * MIB)
        self.assertEqual(self.pool.stats()["budget_bytes"], 20 * MIB)

    def test_paths_and_numbers_of_other_types(self):
        directory = pathlib.Path(tempfile.gettempdir())
        for swap in (directory, [directory], (str(directory),)):
            pool = softswap.Pool(numpy.int64(16 * MIB), swap)
            self.assertEqual(pool.stats()["budget_bytes"], 16 * MIB)
        self.assertEqual(pool.empty(numpy.int64(5)).shape, (5,))
        self.assertEqual(pool.empty((numpy.int32(2), 3)).shape, (2, 3))
        pool.set_memory(numpy.uint32(20 * MIB))
        self.assertEqual(pool.stats()["budget_bytes"], 20 * MIB)
        self.assertRaises(TypeError, pool.set_memory, 2.0)
        self.assertRaises(TypeError, pool.empty, 2.0)

    def test_a_forked_child_allocates_plain_memory(self):
        with self.pool.numpy():
            kept = numpy.ones(MIB)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    a = numpy.arange(MIB, dtype="f8")
                    zeros = numpy.zeros((1000, 1000))
                    grown = numpy.fromiter(range(300_000), "i8")
                    expected = (MIB * (MIB - 1) // 2, 0, 299_999 * 150_000)
                    status = int((a.sum(), zeros.sum(), grown.sum()) != expected)
                    del a, zeros, grown, kept
                finally:
                    os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(float(kept.sum()), MIB)

    def test_numpy_allocates_in_it(self):
        before = numpy.core.multiarray.get_handler_name() if numpy.__version__ < "2" else \
            numpy._core.multiarray.get_handler_name()
        with self.pool.numpy():
            a = numpy.arange(6 * MIB, dtype="f8") + 1
            small = numpy.zeros(3)
        with self.pool.numpy(at_least=1):
            tiny = numpy.zeros(3)
            grown = numpy.fromiter(range(300_000), "i8")
        mapped = self.pool.stats()["mapped_bytes"]
        self.assertGreater(mapped, 48 * MIB)
        outside = numpy.ones(16 * MIB)
        self.assertEqual(self.pool.stats()["mapped_bytes"], mapped)
        self.assertEqual(float(a.sum()), 6 * MIB * (6 * MIB + 1) / 2)
        self.assertEqual(int(grown.sum()), 299_999 * 150_000)
        self.assertEqual(float(small.sum() + tiny.sum() + outside[0]), 1.0)
        after = numpy.core.multiarray.get_handler_name() if numpy.__version__ < "2" else \
            numpy._core.multiarray.get_handler_name()
        self.assertEqual(before, after)

    def test_threads_share_an_array(self):
        a = self.pool.empty((4, 8 * MIB), "u1")

        def fill(row):
            a[row] = row + 1

        threads = [threading.Thread(target=fill, args=(row,)) for row in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([int(row.sum()) for row in a], [8 * MIB * (row + 1) for row in range(4)])

    def test_dropped_pools_release_threads_and_descriptors(self):
        def resources():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        before = resources()
        for _ in range(20):
            softswap.Pool("16M", tempfile.gettempdir()).empty(MIB, "u1")[:] = 1
        self.assertEqual(resources(), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
