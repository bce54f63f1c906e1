"""Programs of other people: each computes something, plain and managed, and must
print the same both times.

A script is shell text. `run COMMAND...` in it starts the command as it is, or
under softswap; what the script prints is the answer. Input is made by the
script itself, the same each time.
"""

from dataclasses import dataclass
from pathlib import Path
import os
import re
import shutil
import subprocess
import tempfile

from machine import (SMALLEST_BUDGET, install, last_lines, read_reports, run, show_bytes)


@dataclass
class Program:
    name: str
    packages: list
    version: str
    script: str
    # The budget as a share of what the program takes without one.
    share: float = 0.5
    limit: int = 240
    # What stays outside the budget, in a user's words.
    unmanaged: str = "-"


MAKE_TEXT = r"""
perl -e 'srand 7; for (1..600000) { printf "%08x %s\n", rand 2**32, join "", map { chr 97 + rand 26 } 1..40 }' >text
"""

PYTHON = """
import hashlib, random
random.seed(7)
numbers = [random.random() for _ in range(1_500_000)]
table = {str(number): index for index, number in enumerate(numbers)}
numbers.sort()
digest = hashlib.sha256(repr(numbers[::1000]).encode())
digest.update(str(sum(table[str(n)] for n in numbers[::7])).encode())
print(digest.hexdigest())
"""

POOL = """
import concurrent.futures, hashlib, multiprocessing
def work(seed):
    block = bytearray(48 << 20)
    for at in range(0, len(block), 4096):
        block[at:at + 8] = (at * seed).to_bytes(8, "little")
    return hashlib.sha256(block).hexdigest()
if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        print(*threads.map(work, range(4)))
    for method in "fork", "spawn", "forkserver":
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, *pool.map(work, range(2)))
"""

JAVA = """
import java.util.*;
public class Work {
    public static void main(String[] args) throws Exception {
        long[] sums = new long[4];
        Thread[] threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            final int id = t;
            threads[t] = new Thread(() -> {
                Random random = new Random(id);
                Map<Integer, String> map = new HashMap<>();
                for (int i = 0; i < 250_000; i++) map.put(random.nextInt(), "value " + i);
                List<Integer> keys = new ArrayList<>(map.keySet());
                Collections.sort(keys);
                long sum = 0;
                for (int i = 0; i < keys.size(); i += 3) sum = sum * 31 + map.get(keys.get(i)).hashCode();
                sums[id] = sum;
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        System.out.println(Arrays.toString(sums));
    }
}
"""


def java(collector):
    return f"""
cat >Work.java <<'END'{JAVA}END
javac Work.java
run java -XX:+Use{collector}GC -Xmx400m -XX:TieredStopAtLevel=1 Work
"""


NODE = """
const { createHash } = require("crypto");
const { Worker, isMainThread, parentPort } = require("worker_threads");
function work(seed) {
  const map = new Map(); let state = seed;
  for (let i = 0; i < 400000; i++) { state = (state * 1103515245 + 12345) % 2147483648; map.set("k" + state, { i, text: "v" + i }); }
  const keys = [...map.keys()].sort();
  const hash = createHash("sha256");
  for (let i = 0; i < keys.length; i += 5) hash.update(keys[i] + map.get(keys[i]).text);
  return hash.digest("hex");
}
if (isMainThread) {
  console.log(work(1));
  new Worker(__filename).on("message", (m) => console.log(m));
} else parentPort.postMessage(work(2));
"""

REDIS_LOAD = """
import random, sys
random.seed(7)
for at in range(60000):
    key, value = f"key:{at}", "%0500x" % random.getrandbits(1900)
    sys.stdout.write(f"*3\\r\\n$3\\r\\nSET\\r\\n${len(key)}\\r\\n{key}\\r\\n${len(value)}\\r\\n{value}\\r\\n")
"""

POSTGRES = """
create table t as select i, md5(i::text) as hash, repeat(md5((i * 7)::text), 3) as pad from generate_series(1, 250000) i;
create index on t (hash);
set work_mem = '200MB';
set max_parallel_workers_per_gather = 0;
select count(*), md5(string_agg(hash, '' order by pad)) from t;
select a.hash, count(*) from t a join t b on a.hash = md5((b.i + 1)::text) group by a.hash order by a.hash limit 5;
"""

PROGRAMS = [
    Program("python3", ["python3"], "/usr/bin/python3 --version", f"""
cat >work.py <<'END'{PYTHON}END
run /usr/bin/python3 work.py
""", unmanaged="code and other files that are mapped"),
    Program("python3 pools", ["python3"], "/usr/bin/python3 --version", f"""
cat >work.py <<'END'{POOL}END
run /usr/bin/python3 -W ignore work.py
""", unmanaged="memory that processes share; a forked child's, until it calls exec"),
    Program("sort", ["coreutils"], "sort --version", MAKE_TEXT + """
LC_ALL=C.UTF-8 run sort --parallel=2 -S 200M text | sha256sum
"""),
    Program("zstd", ["zstd"], "zstd --version", MAKE_TEXT + """
run zstd -q -T2 -17 --long=27 -c text >text.zst
zstd -q -dc --long=27 text.zst | sha256sum; sha256sum text.zst
"""),
    Program("xz", ["xz-utils"], "xz --version", MAKE_TEXT + """
run xz -T2 -3 -c text | sha256sum
""", share=0.8),  # its tables are met at random
    Program("perl", ["perl"], "perl -e 'print $^V'", """
PERL_HASH_SEED=0 run perl -e 'srand 7; my %h; $h{rand()} = "x" x 100 . $_ for 1..400000;
    my $s = 0; $s = ($s * 31 + ord substr $h{$_}, -1) % 1000003 for sort keys %h; print "$s\\n"'
"""),
    Program("ruby", ["ruby"], "ruby --version", """
run ruby -e 'threads = 4.times.map { |t| Thread.new { r = Random.new(t)
    a = Array.new(300_000) { |i| "#{r.rand(1 << 60)} #{i}" }; a.sort!; a.each_slice(99).map(&:first).join.sum(32) } }
    p threads.map(&:value)'
"""),
    Program("php", ["php-cli"], "php --version", """
run php -d memory_limit=-1 -r 'mt_srand(7); $a = []; for ($i = 0; $i < 1500000; $i++) $a["k" . mt_rand()] = $i;
    ksort($a); echo md5(implode(",", array_keys($a))), "\\n";'
"""),
    Program("node", ["nodejs"], "node --version", f"""
cat >work.js <<'END'{NODE}END
run node work.js
"""),
    Program("java (Serial)", ["default-jdk-headless"], "java --version", java("Serial"),
            unmanaged="code that the JVM makes; class data, which is mapped from a file"),
    Program("java (G1)", ["default-jdk-headless"], "java --version", java("G1"),
            unmanaged="as with Serial"),
    Program("java (ZGC)", ["default-jdk-headless"], "java --version", java("Z"),
            unmanaged="its heap, which is a file in memory that is mapped several times"),
    Program("gcc", ["gcc", "libc6-dev"], "gcc --version", """
perl -e 'for my $f (1..2500) { print "int f$f(int x, int *p) { int s = 0; for (int i = 0; i < x; i++) { s += p[i] * $f; if (s % 7 == $f % 7) s ^= f".($f > 1 ? $f - 1 : 1)."(i, p); } return s; }\n" }' | sed '1iint f1(int, int *);' >work.c
run gcc -O1 -c work.c -o work.o && objdump -d work.o | tail -n +4 | sha256sum
"""),
    Program("sqlite3", ["sqlite3"], "sqlite3 --version", """
run sqlite3 :memory: "pragma cache_size=-200000;
    create table t as with recursive n(i) as (select 1 union all select i + 1 from n where i < 500000)
        select i, hex(i * 2654435761 % 4294967296) as h, printf('%0100d', i) as pad from n;
    create index x on t(h); select count(distinct h), sum(length(pad)), min(h) from t;
    select group_concat(h) from (select h from t order by h desc limit 5);"
"""),
    Program("git", ["git"], "git --version", """
git init -q r && cd r && git config user.name t && git config user.email t@example.org
for n in 1 2 3 4 5 6; do perl -e "srand $n; print join ' ', map { int rand 1e9 } 1..400000" >big$n; git add . ;
    GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' git commit -qm $n; done
run git -c pack.threads=2 repack -adfq && git fsck --full 2>&1 && git rev-parse HEAD && git count-objects
"""),
    Program("redis", ["redis-server", "redis-tools"], "redis-server --version", f"""
cat >load.py <<'END'{REDIS_LOAD}END
run redis-server --port 0 --unixsocket "$PWD/s" --save '' --appendonly no --dir "$PWD" --enable-debug-command local >log 2>&1 &
until redis-cli -s s ping >/dev/null 2>&1; do sleep 0.1; kill -0 $! || exit 9; done
python3 load.py | redis-cli -s s --pipe | tail -1
redis-cli -s s debug digest; redis-cli -s s dbsize
redis-cli -s s bgsave >/dev/null
until redis-cli -s s info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; done
redis-cli -s s info persistence | grep rdb_last_bgsave_status; redis-cli -s s debug digest
redis-cli -s s shutdown nosave; wait $!
"""),
    Program("postgresql", ["postgresql"], "psql --version", f"""
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as() {{ if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --init-groups "$@"; else "$@"; fi; }}
chmod 711 . ; mkdir data && if [ "$(id -u)" = 0 ]; then chown postgres data; fi
as $bin/initdb -D data -E UTF8 --locale=C.UTF-8 -N >/dev/null
cat >work.sql <<'END'{POSTGRES}END
chmod a+r work.sql
run_as=as run $bin/postgres -D data -k "$PWD/data" -c listen_addresses= -c shared_buffers=32MB -c fsync=off >log 2>&1 &
server=$!
until as psql -h "$PWD/data" postgres -c 'select 1' >/dev/null 2>&1; do sleep 0.2; kill -0 $server || exit 9; done
as psql -h "$PWD/data" -At postgres -f work.sql
kill -INT $(head -1 data/postmaster.pid); wait $server
""", unmanaged="its shared buffers, which processes share; each session's own memory, as a session is a "
     "forked child"),
    Program("nginx", ["nginx-light"], "nginx -v 2>&1", """
perl -e 'srand 7; print pack "N*", map { rand 2**32 } 1..2000000' >big; chmod 755 . ; chmod 644 big
cat >conf <<END
daemon off; error_log stderr crit; pid $PWD/pid; worker_processes 2; user root;
events {} http { access_log off; gzip on; gzip_types *; gzip_comp_level 1; client_body_temp_path $PWD/b; proxy_temp_path $PWD/p;
fastcgi_temp_path $PWD/f; uwsgi_temp_path $PWD/u; scgi_temp_path $PWD/g; server { listen unix:$PWD/s; root $PWD; } }
END
run nginx -e stderr -c "$PWD/conf" >log 2>&1 &
server=$!; until [ -S s ]; do sleep 0.1; kill -0 $server || exit 9; done
for n in 1 2 3 4 5 6; do curl -s --unix-socket s http://x/big | sha256sum; curl -s --compressed --unix-socket s http://x/big | sha256sum; done
kill -QUIT $(cat pid); wait $server
"""),
    Program("bubblewrap", ["bubblewrap"], "bwrap --version", f"""
cat >work.py <<'END'{PYTHON}END
run bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --bind "$PWD" "$PWD" --unshare-pid /usr/bin/python3 work.py
"""),
    Program("unshare", ["util-linux"], "unshare --version", f"""
cat >work.py <<'END'{PYTHON}END
run unshare -r /usr/bin/python3 work.py
"""),
    Program("shell tree", ["bash", "gawk"], "bash --version", MAKE_TEXT + """
cat >work.sh <<'END'
for part in 1 2 3; do awk -v p=$part 'NR % 3 == p - 1 { n[$1] = $2 } END { for (k in n) print k, n[k] }' text | sort | cksum; done
END
run bash work.sh
"""),
]

PREAMBLE = """
set -u
run() {
    if [ -n "$COMPAT_BUDGET" ]; then
        set -- "$COMPAT_SOFTSWAP" run --memory "$COMPAT_BUDGET" --reserve 0 --swap "$COMPAT_SWAP" \
            --quiet --report "$COMPAT_REPORT" -- "$@"
    else
        set -- /usr/bin/python3 "$COMPAT_PEAK" "$COMPAT_REPORT" "$@"
    fi
    ${run_as:-} "$@"
}
"""


def measure(program, softswap, folder, budget_bytes):
    """One run of a program's script; the outcome, and the peak of what `run` started."""
    work = Path(tempfile.mkdtemp(dir=folder))
    report_dir = Path(tempfile.mkdtemp(dir=folder))
    report_dir.chmod(0o777)
    report = report_dir / "report.json"
    env = dict(
        os.environ, LC_ALL="C.UTF-8", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/bin",
        COMPAT_BUDGET=str(budget_bytes or ""), COMPAT_SOFTSWAP=str(softswap.command),
        COMPAT_SWAP=str(softswap.swap_dir), COMPAT_REPORT=str(report),
        COMPAT_PEAK=str(Path(__file__).resolve().parent / "peak.py"))
    outcome = run(["bash", "-c", PREAMBLE + program.script], cwd=work, env=env,
                  limit=program.limit)
    outcome.reports = read_reports(report_dir)
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(report_dir, ignore_errors=True)
    return outcome


def reported(outcome, key):
    values = [report.get(key) for report in outcome.reports]
    return max((value for value in values if value), default=0)


def version_of(program):
    found = subprocess.run(["bash", "-c", program.version], capture_output=True, text=True)
    number = re.search(r"\d+(\.\d+)+", found.stdout + found.stderr)
    return number.group() if number else "?"


def examine(program, softswap, folder):
    """A row of the table, and what went wrong; None for the row where it was skipped."""
    missing = install(program.packages)
    if missing:
        return None, f"skipped: {program.name}: {', '.join(missing)} cannot be installed"
    plain = measure(program, softswap, folder, None)
    peak = reported(plain, "peak_bytes")
    if plain.status != 0 or not peak:
        return None, f"skipped: {program.name}: fails without softswap: {plain.ended}: {last_lines(plain)}"
    budget = max(SMALLEST_BUDGET, int(peak * program.share))
    managed = measure(program, softswap, folder, budget)
    equal = (managed.status, managed.output) == (plain.status, plain.output)
    has_left = reported(managed, "pages_out") > 0
    # What `run` itself took, without the making of its input, where that is told.
    spent = [reported(outcome, "wall_s") or outcome.seconds for outcome in (plain, managed)]
    row = [program.name, version_of(program),
           f"{show_bytes(budget)} ({100 * budget / peak:.0f} %)",
           ("yes" if has_left else "yes, all in DRAM") if equal else "**no**",
           f"{spent[1] / spent[0]:.1f} x" if equal else "-", program.unmanaged]
    if equal:
        return row, None
    why = managed.ended if managed.status != plain.status else "another answer"
    return row, f"{program.name}: at {show_bytes(budget)}: {why}: {last_lines(managed)}"


HEAD = ["program", "version", "budget (share of its peak)", "same answer", "slowdown",
        "what is not managed"]
