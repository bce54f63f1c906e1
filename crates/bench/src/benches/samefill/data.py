# A program with data: records, lists, text, arrays of numbers that are partly
# used, buffers. Grows to as many bytes as it is told, says so, and waits.
import array
import json
import random
import sys


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def records(rng, start, count):
    cities = ["Bergen", "Turku", "Aarhus", "Lund", "Porto", "Graz"]
    return {
        start + at: {
            "name": "customer %d" % (start + at),
            "city": rng.choice(cities),
            "balance": rng.random() * 1e4,
            "visits": [rng.randrange(1 << 30) for _ in range(rng.randrange(8))],
        }
        for at in range(count)
    }


def series(rng, count):
    # Doubled as it grows, as most containers do: the end is not used yet.
    used = count * rng.randrange(50, 100) // 100
    values = array.array("d", bytes(8 * count))
    for at in range(used):
        values[at] = rng.gauss(0.0, 1.0)
    return values


def main():
    goal_bytes = int(sys.argv[1])
    rng = random.Random(1)
    kept = []
    while resident_bytes() < goal_bytes:
        part = records(rng, 1500 * len(kept), 1500)
        text = json.dumps(list(part.values())[:200])
        kept.append((part, text, series(rng, 8192), bytearray(16384), [None] * 4096))
        if len(kept) % 4 == 0:
            # What was freed leaves its traces.
            for at in range(0, 1500, 3):
                del part[next(iter(part))]
    print("ready", flush=True)
    sys.stdin.read()


main()
