#!/usr/bin/env python3
"""Many Python objects of different kinds, about --mib of them, changed and read back."""

import gc

from common import Digest, Random, finish, options


def main():
    arguments = options(__doc__, 300)
    random = Random(3)
    digest = Digest()
    budget = arguments.mib * 1024 * 1024

    # Each structure uses about a sixth of the memory.
    share = budget // 6
    by_key = {f"key {n}": (n, n * 1.5, f"value of {n}") for n in range(share // 330)}
    numbers = {random.next(): n for n in range(share // 110)}
    blobs = [random.bytes(3000) for _ in range(share // 3040)]
    texts = [("all work and no play " * (n % 40 + 1)) + str(n) for n in range(share // 520)]
    zeros = bytearray(share)
    nested = [[n, [n + 1, {"depth": n}], (n,)] for n in range(share // 460)]

    if arguments.corrupt:
        zeros[share // 2] = 1
    # Drop and rebuild parts, so that freed memory is reused.
    for turn in range(3):
        for n in range(turn, len(blobs), 5):
            blobs[n] = blobs[n][::-1] + bytes([turn])
        for key in [k for k in list(by_key)[turn::17]]:
            by_key[key + "'"] = by_key.pop(key)
        for n in range(turn, len(texts), 7):
            texts[n] = texts[n].upper()
        gc.collect()

    digest.add(sum(len(k) + v[0] + int(v[1]) + len(v[2]) for k, v in by_key.items()))
    digest.add(sum((k ^ v) & 0xFFFF for k, v in numbers.items()))
    for blob in blobs:
        digest.hash.update(blob)
    for text in texts:
        digest.hash.update(text.encode())
    digest.hash.update(zeros)
    digest.add(zeros.count(0))
    digest.add(sum(a + b[0] + b[1]["depth"] + c[0] for a, b, c in nested))
    print(f"{len(by_key)} named, {len(numbers)} numbered, {len(blobs)} blobs, {len(texts)} texts")
    finish(digest, arguments)


if __name__ == "__main__":
    main()
