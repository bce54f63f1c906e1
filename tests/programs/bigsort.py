#!/usr/bin/env python3
"""Sorts an array of numbers and a list of strings of about --mib together."""

import array
import sys

from common import Digest, Random, finish, options


def main():
    arguments = options(__doc__, 400)
    random = Random(2)
    digest = Digest()

    # A quarter of the memory each for the packed numbers, for the number objects during the sort,
    # and for the strings.
    numbers = array.array("Q")
    numbers.frombytes(random.bytes(arguments.mib * 1024 * 1024 // 8 // 8 * 8))
    if arguments.corrupt:
        numbers[len(numbers) // 2] ^= 1
    ordered = array.array("Q", sorted(numbers))
    assert all(ordered[i] <= ordered[i + 1] for i in range(0, len(ordered) - 1, 7)), "not sorted"
    digest.hash.update(memoryview(numbers).cast("B"))
    digest.hash.update(memoryview(ordered).cast("B"))
    print(f"{len(ordered)} numbers from {ordered[0]} to {ordered[-1]}")

    words = [f"{random.next() % 1_000_000_007:09d} and some text that all lines share"
             for _ in range(arguments.mib * 1024 * 1024 // 4 // 120)]
    words.sort()
    digest.add(words[:: max(1, len(words) // 1000)])
    for word in words:
        digest.hash.update(word.encode())
    print(f"{len(words)} lines from {words[0][:9]} to {words[-1][:9]}")
    finish(digest, arguments)


if __name__ == "__main__":
    sys.exit(main())
