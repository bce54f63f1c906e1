# A database in memory: a table, an index over it, changes to both. Grows to as
# many bytes as it is told, says so, and waits.
import random
import sqlite3
import sys


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def rows(rng, start, count):
    for key in range(start, start + count):
        name = "item %08x" % rng.getrandbits(32)
        yield key, name, rng.random(), rng.randbytes(rng.randrange(120)), "note " * rng.randrange(20)


def main():
    goal_bytes = int(sys.argv[1])
    rng = random.Random(2)
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL, data BLOB, note TEXT)")
    base.execute("CREATE INDEX by_name ON items (name)")
    count = 0
    while resident_bytes() < goal_bytes:
        base.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows(rng, count, 2000))
        base.execute("DELETE FROM items WHERE id % 10 = 3 AND id >= ?", (count,))
        base.execute("UPDATE items SET note = '' WHERE id % 10 = 7 AND id >= ?", (count,))
        base.commit()
        count += 2000
    print("ready", flush=True)
    sys.stdin.read()


main()
