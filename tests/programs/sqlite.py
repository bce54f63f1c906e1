#!/usr/bin/env python3
"""An in-memory SQLite analysis: orders of customers, joined, grouped, sorted.

The database takes about --mib of memory; the answers are printed with a digest.
"""

import sqlite3

from common import Digest, Random, finish, options

ROW_BYTES = 850  # measured: a row of `orders` with its share of the indexes
SCAN_BYTES = 500


def rows(count, random):
    """Yields order rows: distributed numbers, a compressible text, an incompressible blob."""
    regions = ["north", "east", "south", "west", "overseas"]
    remark = "delivered as ordered, paid in time, nothing to add; "
    blob, at = b"", 0
    for number in range(count):
        if at + SCAN_BYTES > len(blob):
            blob, at = random.bytes(SCAN_BYTES * 1024), 0
        draw = random.next()
        yield (
            number,
            draw % 50_000,
            draw >> 20 & 0xFFFFF,
            regions[(draw >> 40) % 5],
            remark * 4 + str(draw & 0xFFFF),
            blob[at:at + SCAN_BYTES],
        )
        at += SCAN_BYTES


def main():
    arguments = options(__doc__, 1024)
    count = arguments.mib * 1024 * 1024 // ROW_BYTES
    random = Random(1)
    digest = Digest()

    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, discount INTEGER)")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER,"
                     " amount INTEGER, region TEXT, remark TEXT, scan BLOB)")
    database.executemany("INSERT INTO customers VALUES (?, ?, ?)",
                         ((n, f"customer {n}", random.next() % 30) for n in range(50_000)))
    database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", rows(count, random))
    database.execute("CREATE INDEX by_amount ON orders (amount)")
    if arguments.corrupt:
        database.execute("UPDATE orders SET amount = amount + 1 WHERE id = ?", (count // 2,))

    queries = {
        "turnover by region":
            "SELECT region, count(*), sum(amount), max(amount) FROM orders GROUP BY region"
            " ORDER BY region",
        "best customers":
            "SELECT name, sum(amount * (100 - discount)) AS paid FROM orders"
            " JOIN customers ON customers.id = customer GROUP BY customer"
            " ORDER BY paid DESC, name LIMIT 20",
        "largest orders":
            "SELECT id, customer, amount, hex(scan) FROM orders ORDER BY amount DESC, id LIMIT 20",
        "amounts in a range":
            "SELECT count(*), sum(length(remark)), sum(id), hex(min(scan)) FROM orders"
            " WHERE amount BETWEEN 400000 AND 440000",
        "remarks that end in 77":
            "SELECT count(*), sum(id) FROM orders WHERE remark LIKE '%77'",
    }
    for name, query in queries.items():
        answer = database.execute(query).fetchall()
        digest.add(answer)
        print(f"{name}: {len(answer)} rows, first {str(answer[0])[:60]}")

    # Modify a part and query again: dirty pages must be correct, too.
    database.execute("UPDATE orders SET amount = amount + 7 WHERE id % 13 = 5")
    digest.add(database.execute("SELECT sum(amount), sum(id * (amount % 97)) FROM orders").fetchall())
    for start in range(0, count, 65_536):
        for (scan,) in database.execute("SELECT scan FROM orders WHERE id >= ? AND id < ?",
                                        (start, start + 65_536)):
            digest.hash.update(scan)
    print(f"{count} orders")
    finish(digest, arguments)


if __name__ == "__main__":
    main()
