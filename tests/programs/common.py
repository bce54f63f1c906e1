"""Helpers of the Python test programs: options, reproducible data, digests.

Standard output is the same for every run with the same options, so that the output of a run
under softswap can be compared byte for byte with one without.
"""

import argparse
import hashlib
import resource
import sys


def options(description, default_mib):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mib", type=int, default=default_mib, help="memory to use, about")
    parser.add_argument("--rss", action="store_true", help="print the peak RSS on standard error")
    parser.add_argument("--corrupt", action="store_true",
                        help="change one value on the way: the output must differ")
    return parser.parse_args()


class Random:
    """A small generator: the numbers of `random` may change with Python."""

    def __init__(self, seed):
        self.state = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF | 1

    def next(self):
        x = self.state
        x ^= x << 13 & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 7
        x ^= x << 17 & 0xFFFFFFFFFFFFFFFF
        self.state = x
        return x * 0x2545F4914F6CDD1D & 0xFFFFFFFFFFFFFFFF

    def bytes(self, count):
        """Returns incompressible bytes, at the speed of a hash rather than of Python."""
        return hashlib.shake_128(self.next().to_bytes(8, "little")).digest(count)


class Digest:
    """Adds up results in order; a program prints its hex digest."""

    def __init__(self):
        self.hash = hashlib.sha256()

    def add(self, value):
        self.hash.update(repr(value).encode() + b"\n")

    def text(self):
        return self.hash.hexdigest()


def finish(digest, arguments):
    print("digest", digest.text())
    if arguments.rss:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"peak RSS {peak // 1024} MiB", file=sys.stderr)
