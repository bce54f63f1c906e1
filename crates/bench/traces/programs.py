#!/usr/bin/env python3
"""Small workloads for record.sh without a program of their own: hash_join, page_rank, bfs,
table, redis load."""
import random
import subprocess
import sys
import time

random.seed(1)


def hash_join(rows=260_000, probes=900_000):
    """Builds a table of rows by key, then looks up keys of which half exist."""
    table = {key * 2: f"row {key:07}" for key in range(rows)}
    found = 0
    for _ in range(probes):
        found += table.get(random.randrange(2 * rows), "") != ""
    print(found)


def power_law_graph(nodes, edges):
    import array
    ends = array.array("I", bytes(4 * 2 * edges))
    for at in range(edges):
        # Endpoints of earlier edges are reused: preferential attachment.
        near = random.randrange(nodes) if at < 8 or random.random() < 0.4 else ends[random.randrange(2 * at)]
        ends[2 * at], ends[2 * at + 1] = random.randrange(nodes), near
    first = array.array("I", bytes(4 * (nodes + 1)))
    for end in ends:
        first[end + 1] += 1
    for node in range(nodes):
        first[node + 1] += first[node]
    place = array.array("I", first)
    neighbours = array.array("I", bytes(4 * 2 * edges))
    for at in range(0, 2 * edges, 2):
        for one, other in ((ends[at], ends[at + 1]), (ends[at + 1], ends[at])):
            neighbours[place[one]] = other
            place[one] += 1
    return first, neighbours


def page_rank(nodes=1_200_000, edges=3_000_000, rounds=3):
    import array
    first, neighbours = power_law_graph(nodes, edges)
    rank = array.array("d", [1.0 / nodes]) * nodes
    for _ in range(rounds):
        following = array.array("d", [0.15 / nodes]) * nodes
        for node in range(nodes):
            begin, end = first[node], first[node + 1]
            if begin < end:
                share = 0.85 * rank[node] / (end - begin)
                for at in range(begin, end):
                    following[neighbours[at]] += share
        rank = following
    print(max(rank))


def bfs(nodes=1_500_000, edges=4_000_000):
    first, neighbours = power_law_graph(nodes, edges)
    import array
    level = array.array("b", [-1]) * nodes
    level[neighbours[0]], front, depth = 0, [neighbours[0]], 0
    while front:
        depth, following = depth + 1, []
        for node in front:
            for at in range(first[node], first[node + 1]):
                other = neighbours[at]
                if level[other] < 0:
                    level[other] = depth
                    following.append(other)
        front = following
    print(depth)


def table(rows=400_000):
    """Columns like those of pandas, and a group-by through a dictionary."""
    import array
    prices = array.array("d", (random.gauss(100, 15) for _ in range(rows)))
    shops = array.array("H", (int(random.paretovariate(1)) % 500 for _ in range(rows)))
    names = [f"item-{random.randrange(rows):06}" for _ in range(rows)]
    sums = {}
    for _ in range(2):
        for shop, price, name in zip(shops, prices, names):
            of_shop = sums.setdefault(shop, {})
            of_shop[name[:9]] = of_shop.get(name[:9], 0.0) + price
    order = sorted(range(rows), key=prices.__getitem__)
    print(sum(len(names[at]) for at in order[::3]), len(sums))


def key_value_load(port):
    """Fills the redis server at a port, then reads and writes keys by Zipf's law."""
    import socket
    for _ in range(100):
        try:
            server = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.1)
    keys, answers = 110_000, server.makefile("rb")

    def send(commands):
        text = b"".join(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
            for words in commands
        )
        server.sendall(text)
        for _ in commands:
            line = answers.readline()
            if line.startswith(b"$") and line != b"$-1\r\n":
                answers.read(int(line[1:]) + 2)

    value = lambda key: (b"value of %08d " % key) * 16 + random.randbytes(200)
    for begin in range(0, keys, 100):
        send([(b"SET", b"key:%08d" % key, value(key)) for key in range(begin, begin + 100)])
    for _ in range(6000):
        ranks = [int(keys ** random.random()) for _ in range(30)]
        picked = [(rank * 7919) % keys for rank in ranks]
        send([
            (b"SET", b"key:%08d" % key, value(key)) if at % 5 == 0 else (b"GET", b"key:%08d" % key)
            for at, key in enumerate(picked)
        ])
    send([(b"SHUTDOWN", b"NOSAVE")])


if __name__ == "__main__":
    {"hash_join": hash_join, "page_rank": page_rank, "bfs": bfs, "table": table,
     "key_value_load": lambda: key_value_load(int(sys.argv[2]))}[sys.argv[1]]()
