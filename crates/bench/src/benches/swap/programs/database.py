# An in-memory database analysis: grouping, joins, sorting, changes, scans.
import random
import sqlite3
import sys

ROW_BYTES = 480  # measured: a row of `orders` with its share of the indexes

count = int(sys.argv[1]) // ROW_BYTES
draw = random.Random(1)
base = sqlite3.connect(":memory:")
base.execute("PRAGMA temp_store = MEMORY")
base.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, discount INTEGER)")
base.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER,"
             " region TEXT, remark TEXT, scan BLOB)")
base.executemany("INSERT INTO customers VALUES (?, ?, ?)",
                 ((n, "customer %d" % n, draw.randrange(30)) for n in range(20_000)))
remark = "delivered as ordered, paid in time; "
base.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)",
                 ((n, int(draw.random() * 20_000), int(draw.random() * (1 << 20)),
                   ("north", "east", "south", "west")[n & 3], remark * 4, draw.randbytes(220))
                  for n in range(count)))
base.execute("CREATE INDEX by_amount ON orders (amount)")
for query in (
    "SELECT name, sum(amount * (100 - discount)) AS paid FROM orders JOIN customers"
    " ON customers.id = customer GROUP BY customer ORDER BY paid DESC, name LIMIT 20",
    "SELECT id, customer, hex(scan) FROM orders ORDER BY amount DESC, id LIMIT 20",
    "SELECT count(*), sum(id), hex(min(scan)) FROM orders WHERE amount BETWEEN 400000 AND 440000",
):
    print(base.execute(query).fetchall())
base.execute("UPDATE orders SET amount = amount + 7 WHERE id % 13 = 5")
print(base.execute("SELECT sum(amount), sum(id * (amount % 97)), sum(length(scan)) FROM orders").fetchall())
