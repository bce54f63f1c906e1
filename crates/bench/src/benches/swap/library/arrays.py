"""The steps of `bench library` over an array of NumPy's, wherever its bytes lie: `--own` tells
what Python and the modules have in memory themselves."""
import argparse
import json
import os
import time

import numpy

WORDS = 512
CHUNK = 256 * WORDS
ONE = numpy.uint64(1 << 32)
LOW = numpy.uint64(0xffffffff)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--own", action="store_true")
    for name in ("--pages", "--touches", "--seed", "--memory"):
        parser.add_argument(name, type=int, default=0)
    return parser.parse_args()


def own_bytes():
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def opened(args, count):
    """The array, and how its order is told where it can be told."""
    path = os.path.join(args.dir, args.place)
    if args.place == "numpy_pool":
        import softswap
        if args.own:
            return None
        pool = softswap.Pool(memory=args.memory, swap=args.dir)
        array = pool.empty(count, "u8")
        return array, lambda order: pool.advise(array, order)
    if args.place == "numpy_memmap":
        import mmap
        if args.own:
            return None
        array = numpy.memmap(path, dtype="u8", mode="w+", shape=count)
        # It goes with the process.
        os.unlink(path)
        orders = {"random": mmap.MADV_RANDOM, "sequential": mmap.MADV_SEQUENTIAL}
        return array, lambda order: array._mmap.madvise(orders[order])
    if args.place == "blosc2":
        import blosc2
        if args.own:
            return None
        array = blosc2.empty(count, dtype="u8", chunks=(CHUNK,), urlpath=path, mode="w")
    else:
        import zarr
        if args.own:
            return None
        array = zarr.create_array(path, shape=(count,), chunks=(CHUNK,), dtype="u8", overwrite=True)
    return array, None


def content(page, count):
    """What pages hold at first: every fourth word but the first has no pattern."""
    words = numpy.empty((count, WORDS), "u8")
    words[:] = numpy.arange(page, page + count, dtype="u8")[:, None]
    noise = numpy.random.default_rng(page).integers(0, 1 << 64, (count, WORDS // 4 - 1), "u8")
    words[:, 4::4] = noise
    return words.ravel()


def shuffled(args, step):
    return numpy.random.default_rng(args.seed + step).permutation(args.pages)


def main():
    args = arguments()
    count = args.pages * WORDS
    array = opened(args, count)
    if args.own:
        # With what the steps make on their way.
        made = [content(0, CHUNK // WORDS) for _ in range(2)], shuffled(args, 0)
        print(own_bytes())
        del made
        return
    array, tell = array
    told, expected, begin = [], 0, time.perf_counter_ns()
    for start in range(0, count, CHUNK):
        words = content(start // WORDS, min(CHUNK, count - start) // WORDS)
        expected += int(words.sum())
        array[start:start + len(words)] = words
    told.append((time.perf_counter_ns() - begin) / args.pages)
    for step in range(4):
        # Only where a word can be touched by itself.
        if tell is None:
            told.append(None)
            continue
        is_random, is_write = step >= 2, step % 2 == 1
        pages = numpy.arange(args.pages)
        if is_random:
            pages = shuffled(args, step)[:args.touches]
        tell("random" if is_random else "sequential")
        begin = time.perf_counter_ns()
        for some in numpy.array_split(pages, max(1, len(pages) // 256)):
            first = array[some * WORDS]
            assert ((first & LOW) == some).all(), "a page does not hold what was written"
            if is_write:
                array[some * WORDS] = first + ONE
        told.append((time.perf_counter_ns() - begin) / len(pages))
        expected += (len(pages) << 32) * is_write
    if tell is not None:
        tell("sequential")
    begin = time.perf_counter_ns()
    total = sum(int(array[start:start + CHUNK].sum()) for start in range(0, count, CHUNK))
    told.append((time.perf_counter_ns() - begin) / args.pages)
    assert (total - expected) % (1 << 64) == 0, "the sum is not that of what was written"
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
