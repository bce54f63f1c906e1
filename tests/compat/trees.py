"""Trees of processes that share one budget, each in a control group of the budget and 4 MiB for
each concurrent process: the answer must equal that without softswap, and the kernel may kill no
process.

A script is shell text as in corpus.py. The processes that `run` starts are in the group.
"""

import os
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import control_group
from control_group import ControlGroup
from machine import MIB, Result, install, install_wheels, last_lines, run, show_bytes, skipped
from programs import WHEELS

# Outside the budget, per process: code, libraries, kernel memory.
BESIDE_BYTES = 4 * MIB

PREAMBLE = """
set -u
run() {
    if [ -n "$COMPAT_BUDGET" ]; then
        set -- "$COMPAT_SOFTSWAP" run --memory "$COMPAT_BUDGET" --reserve 0 --swap "$COMPAT_SWAP" --quiet -- "$@"
    fi
    sh -c 'echo $$ >"$COMPAT_GROUP/cgroup.procs" && exec "$@"' run ${run_as:-} "$@"
}
"""


@dataclass
class Tree:
    name: str
    packages: list
    budget_mib: int
    # Number of concurrent processes, including `softswap run`.
    processes: int
    script: str
    limit: int = 900
    wheels: list = field(default_factory=list)


FORKS = """
import hashlib, os, random
rng = random.Random(7)
data = bytearray()
for _ in range(300):
    data += rng.randbytes(1_000_000)
ends = []
for child in range(4):
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        table = bytes((value * (2 * child + 1) + child) % 256 for value in range(256))
        for at in range(0, len(data), 1 << 20):
            data[at:at + (1 << 20)] = data[at:at + (1 << 20)].translate(table)
        os.write(writes, hashlib.sha256(data).hexdigest().encode())
        os._exit(0)
    os.close(writes)
    ends.append((pid, reads))
for pid, reads in ends:
    print(os.read(reads, 64).decode(), os.waitpid(pid, 0)[1])
print(hashlib.sha256(data).hexdigest())
"""

# Each worker's arrays are several times its share.
JOBLIB = """
import hashlib, sys
import joblib, numpy

def work(seed):
    rng = numpy.random.default_rng(seed)
    block = rng.integers(0, 1 << 62, 10_000_000)
    order = numpy.sort(block)
    return seed, hashlib.sha256(order[::7].tobytes()).hexdigest(), int((order - block).sum())

if __name__ == "__main__":
    for line in joblib.Parallel(n_jobs=4, backend=sys.argv[1])(joblib.delayed(work)(seed) for seed in range(8)):
        print(*line)
"""

# The load writes to separate keys, which the comparison omits.
REDIS_FILL = """
import random, sys
rng = random.Random(7)
for at in range(100_000):
    value = rng.randbytes(4000)
    sys.stdout.buffer.write(b"*3\\r\\n$3\\r\\nSET\\r\\n$%d\\r\\ndata:%d\\r\\n$4000\\r\\n%s\\r\\n" % (len(str(at)) + 5, at, value))
"""

REDIS = f"""
cat >fill.py <<'END'{REDIS_FILL}END
run redis-server --port 0 --unixsocket "$PWD/s" --save '' --appendonly no --dir "$PWD" --enable-debug-command local >log 2>&1 &
server=$!
until redis-cli -s s ping >/dev/null 2>&1; do sleep 0.1; kill -0 $server || exit 9; done
python3 fill.py | redis-cli -s s --pipe | tail -1
( while [ ! -e done ]; do redis-benchmark -s s -q -c 50 -n 20000 -r 2000 -d 3000 set load:__rand_int__ x >/dev/null; done ) &
load=$!
redis-cli -s s bgsave >/dev/null
until redis-cli -s s info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; kill -0 $server || exit 9; done
redis-cli -s s info persistence | grep rdb_last_bgsave_status
touch done; wait $load
redis-cli -s s shutdown nosave; wait $server; echo "ended: $?"
redis-server --port 0 --unixsocket "$PWD/t" --save '' --appendonly no --dir "$PWD" --enable-debug-command local >log2 2>&1 &
until redis-cli -s t ping 2>/dev/null | grep -q PONG; do sleep 0.1; kill -0 $! || exit 9; done
redis-cli -s t --scan --pattern 'load:*' | xargs -r -n 500 redis-cli -s t del >/dev/null
redis-cli -s t dbsize; redis-cli -s t debug digest
redis-cli -s t shutdown nosave; wait $!
"""

POSTGRES = """
create table t as select i, md5(i::text) as hash, repeat(md5((i * 7)::text), 3) as pad from generate_series(1, 250000) i;
"""

# Without JIT: each process had 8 MiB of LLVM relocations, which no budget covers.
POSTGRES_WORK = """
set work_mem = '200MB';
set max_parallel_workers_per_gather = 0;
select count(*), md5(string_agg(hash, '' order by pad)) from t;
select md5(string_agg(a.hash || b.pad, '' order by a.hash desc)) from t a join t b on a.hash = md5((b.i + 1)::text);
"""

POSTGRESQL = f"""
for at in /usr/local/bin /usr/lib/postgresql/*/bin; do [ -x $at/postgres ] && bin=$at; done
as() {{ if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi; }}
chmod 711 . ; mkdir data && if [ "$(id -u)" = 0 ]; then chown postgres data; fi
as $bin/initdb -D data -E UTF8 --locale=C -N >/dev/null || exit 9
cat >make.sql <<'END'{POSTGRES}END
cat >work.sql <<'END'{POSTGRES_WORK}END
chmod a+r *.sql
run_as="setpriv --reuid=postgres --regid=postgres --init-groups" run $bin/postgres -D data -k "$PWD/data" -c listen_addresses= -c shared_buffers=16MB -c fsync=off -c jit=off >log 2>&1 &
server=$!
until as psql -h "$PWD/data" postgres -c 'select 1' >/dev/null 2>&1; do sleep 0.2; kill -0 $server || {{ cat log >&2; exit 9; }}; done
as psql -h "$PWD/data" -qAt postgres -f make.sql
clients=
for n in 1 2 3 4 5 6 7 8; do as psql -h "$PWD/data" -qAt postgres -f work.sql >out$n 2>&1 & clients="$clients $!"; done
wait $clients
cat out1; for n in 2 3 4 5 6 7 8; do cmp out1 out$n || cat out$n; done
kill -INT $(head -1 data/postmaster.pid); wait $server; echo "ended: $?"
"""

PREFORK = """
import hashlib, os, random, signal, socket, sys
base = random.Random(7).randbytes(40_000_000)
listener = socket.socket(socket.AF_UNIX)
listener.bind("s")
listener.listen(64)

def serve():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    own = []
    while True:
        client, _ = listener.accept()
        with client, client.makefile("rb") as lines:
            for line in lines:
                seed = int(line)
                own.append(random.Random(seed).randbytes(1_000_000))
                whole = hashlib.sha256(base[seed % 1000::1001])
                for part in own:
                    whole.update(part[seed % 100::101])
                client.sendall(b"%d %s\\n" % (seed, whole.hexdigest().encode()))

children = []
for number in range(8):
    pid = os.fork()
    if pid == 0:
        serve()
    children.append(pid)
open("ready", "w").close()
signal.signal(signal.SIGTERM, lambda *_: [os.kill(pid, 15) for pid in children])
print(sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""

# One connection for each of the server's children, all concurrently.
PREFORK_CLIENT = """
import socket
clients = [socket.socket(socket.AF_UNIX) for _ in range(8)]
for client in clients:
    client.connect("s")
files = [client.makefile("rwb") for client in clients]
for turn in range(60):
    for number, file in enumerate(files):
        file.write(b"%d\\n" % (turn * 8 + number)); file.flush()
    answers = [file.readline() for file in files]
    if turn % 10 == 9:
        print(*(answer.decode().strip() for answer in answers))
"""

# Debian's sources of a package, from separate package lists.
MAKE = r"""
lists=$PWD/lists; mkdir -p $lists/partial apt
cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | sed -n 's/^deb /deb-src /p' >apt/all.list
for file in /etc/apt/sources.list.d/*.sources; do [ -e "$file" ] && sed 's/^Types:.*/Types: deb-src/' "$file" >apt/$(basename $file); done
get="apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$PWD/apt -o Dir::State::lists=$lists -o APT::Sandbox::User=root"
{ $get update && $get source fmtlib; } >got 2>&1 || { tail -3 got >&2; exit 9; }
cd fmtlib-*/ && mkdir build && cd build
cmake -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$(dirname $PWD)=." .. >/dev/null || exit 9
run make -s -j4 >log 2>&1 || { tail -5 log >&2; exit 8; }
for test in bin/*-test; do $test >out 2>&1; echo "$(basename $test) $?"; sha256sum <$test; done
"""

TREES = [
    Tree("Python and 4 forked children that change all", ["python3"], 128, 6, f"""
cat >work.py <<'END'{FORKS}END
run /usr/bin/python3 work.py
"""),
    Tree("pipeline of sorts", ["coreutils", "gzip", "perl"], 64, 7, """
perl -e 'srand 7; for (1..2000000) { printf "%08x\\n", rand 1000000 }' | gzip -1 >words.gz
export LC_ALL=C
run bash -c 'zcat words.gz | sort -S 1G | uniq -c | sort -n -S 1G | sha256sum'
"""),
    *(Tree(f"4 joblib workers ({name})", ["python3-venv"], 128, 9, f"""
cat >work.py <<'END'{JOBLIB}END
export JOBLIB_TEMP_FOLDER=$PWD {settings}
run "$PYTHON" work.py {backend}
""", wheels=["joblib", "numpy"])
      for name, backend, settings in [
          ("loky", "loky", ""), ("fork", "multiprocessing", "JOBLIB_START_METHOD=fork"),
          ("forkserver", "multiprocessing", "JOBLIB_START_METHOD=forkserver"),
          ("spawn", "multiprocessing", "JOBLIB_START_METHOD=spawn")]),
    Tree("pre-fork server with 8 children", ["python3"], 128, 10, f"""
cat >work.py <<'END'{PREFORK}END
cat >client.py <<'END'{PREFORK_CLIENT}END
run /usr/bin/python3 work.py &
server=$!
until [ -e ready ]; do sleep 0.1; kill -0 $server || exit 9; done
python3 client.py
pkill -TERM -P $server -f work.py || kill $server
wait $server; echo "ended: $?"
"""),
    Tree("redis that saves under load", ["redis-server", "redis-tools"], 128, 3, REDIS),
    Tree("PostgreSQL with 8 connections", ["postgresql"], 280, 18, POSTGRESQL),
    Tree("make -j4 of C++", ["make", "g++", "cmake", "dpkg-dev"], 384, 24, MAKE, limit=2400),
]
BY_NAME = {tree.name: tree for tree in TREES}


def measure(tree, softswap, folder, budget_bytes, limit_bytes):
    """Runs a tree's script once. Returns the result and the figures of its group, which is
    removed."""
    work = Path(tempfile.mkdtemp(dir=folder))
    group = ControlGroup(limit_bytes)
    try:
        env = dict(
            os.environ, LC_ALL="C.UTF-8", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/bin",
            COMPAT_BUDGET=str(budget_bytes or ""), COMPAT_SOFTSWAP=str(softswap.command),
            COMPAT_SWAP=softswap.swap, COMPAT_GROUP=str(group.path),
            PYTHON=str(WHEELS / "bin" / "python3"))
        outcome = run(["bash", "-c", PREAMBLE + tree.script], cwd=work, env=env, limit=tree.limit)
        return outcome, group.peak_bytes, group.kills, group
    finally:
        group.end()
        shutil.rmtree(work, ignore_errors=True)


def examine(name, softswap, folder, rounds):
    tree = BY_NAME[name]
    if os.geteuid() != 0 or not control_group.place():
        return skipped("it needs root, and a control group for memory")
    missing = install(tree.packages) or install_wheels(tree.wheels, WHEELS)
    if missing:
        return skipped(f"{', '.join(missing)} cannot be installed")
    budget = tree.budget_mib * MIB
    limit = budget + tree.processes * BESIDE_BYTES
    times, peaks, wrong, first = ([], []), [], "", None
    for _ in range(rounds):
        plain, _, _, group = measure(tree, softswap, folder, None, control_group.UNLIMITED)
        if plain.status != 0 or first and plain.output != first.output:
            return skipped(f"fails without softswap: {plain.ended}: {last_lines(plain)}")
        first, needed = first or plain, group.most_anonymous_bytes
        managed, peak, kills, group = measure(tree, softswap, folder, budget, limit)
        times[0].append(plain.seconds)
        times[1].append(managed.seconds)
        peaks.append(peak)
        if kills:
            wrong = f"the kernel killed at {show_bytes(limit)}: {last_lines(managed)}"
        elif (managed.status, managed.output) != (plain.status, plain.output):
            why = managed.ended if managed.status != plain.status else "another answer"
            wrong = f"{why}: {last_lines(managed)}"
        elif not 0 < group.most_processes <= tree.processes:
            wrong = f"{group.most_processes} processes lived at once, not {tree.processes}"
        elif needed <= limit:
            wrong = f"it needs no more than {show_bytes(needed)}, which is within its limit"
        if wrong:
            break
    slowdown = statistics.median(times[1]) / statistics.median(times[0])
    row = [tree.name, show_bytes(needed), show_bytes(budget), show_bytes(limit), show_bytes(max(peaks)),
           "**no**" if wrong else "yes", "-" if wrong else f"{slowdown:.1f} x"]
    return Result(row=row, wrong=wrong, runs=rounds)


HEAD = ["tree", "takes plain", "budget", "limit of the group", "its peak", "same answer", "slowdown"]
