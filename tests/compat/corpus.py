"""The programs: the computation of each, its share of memory, and its memory outside the budget.

A script is shell text. `run COMMAND...` in it starts the command, without or under softswap; the
output of the script is the answer. The script generates its input, the same in each run.
"""

from dataclasses import dataclass, field


@dataclass
class Program:
    name: str
    packages: list
    version: str
    script: str
    # Budget as a share of the program's memory without a budget.
    share: float = 0.5
    limit: int = 300
    # User-visible description of memory outside the budget.
    unmanaged: str = "-"
    # Packages from PyPI. `$PYTHON` in the script is the Python in which they are installed.
    wheels: list = field(default_factory=list)


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

POLARS = """
import polars as pl
n = 2_500_000
t = pl.DataFrame({"i": range(n)}).with_columns(k=pl.col("i").hash(7) % 50_000, v=(pl.col("i") * 7919) % 100_003)
print(t.group_by("k").agg(pl.col("v").sum(), pl.col("v").max().alias("m")).sort("k").hash_rows(1).sum())
print(t.join(t.select(i=pl.col("i") * 2, w="v"), on="i").sort("k", "i").select(pl.col("w").head(5).sum(), pl.len()).rows())
"""

PYARROW = """
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq, hashlib
n = 1_500_000
i = pa.array(range(n), pa.int64())
t = pa.table({"i": i, "k": pc.bit_wise_and(pc.multiply(i, 7919), 8191), "s": pc.cast(pc.multiply(i, 31), pa.string())})
pq.write_table(t, "t.parquet", compression="zstd")
t = pq.read_table("t.parquet").sort_by([("k", "ascending"), ("s", "descending")])
g = t.group_by("k").aggregate([("i", "sum"), ("s", "max")]).sort_by("k")
print(hashlib.sha256(str(g.to_pylist()[::9]).encode()).hexdigest(), t["s"][12345])
"""

PANDAS = """
import numpy as np, pandas as pd
r = np.random.default_rng(7)
t = pd.DataFrame({"k": r.integers(0, 20_000, 1_500_000), "v": r.integers(0, 1 << 40, 1_500_000)})
t["s"] = t["v"].astype(str).str[-4:]
g = t.groupby("k")["v"].agg(["sum", "max", "count"])
print(int(g.values.sum()), t.merge(g, on="k").sort_values(["s", "v"])["v"].iloc[::1000].sum(), t["s"].nunique())
"""

DUCKDB = """
import duckdb
d = duckdb.connect(); d.execute("set threads=2")
d.execute("create table t as select i, hash(i) % 100000 as k, md5(i::varchar) as s from range(1500000) r(i)")
print(d.execute("select sum(c), max(m) from (select k, count(*) c, max(s) m from t group by k)").fetchall())
print(d.execute("select count(*), min(a.s || b.s) from t a join t b on a.s = md5((b.i + 1)::varchar)").fetchall())
print(d.execute("select s from t order by s desc limit 3 offset 700000").fetchall())
"""

SKLEARN = """
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.decomposition import PCA
r = np.random.default_rng(7)
x = r.integers(0, 255, (60_000, 60)).astype(np.float64); y = (x[:, 3] + x[:, 7] > 250).astype(int)
m = RandomForestClassifier(16, random_state=7, n_jobs=2).fit(x, y)
print(int(m.predict(x).sum()), m.score(x, y), [e.tree_.node_count for e in m.estimators_])
print(np.round(PCA(3, svd_solver="full").fit(x).explained_variance_, 3))
"""

XGBOOST = """
import numpy as np, xgboost as xgb
r = np.random.default_rng(7)
x = r.random((250_000, 40), dtype=np.float32); y = (x[:, 0] * x[:, 1] > x[:, 2] * 0.4).astype(int)
m = xgb.train({"objective": "binary:logistic", "tree_method": "hist", "nthread": 2, "max_depth": 6}, xgb.DMatrix(x, y), 15)
print(np.round(m.predict(xgb.DMatrix(x[:1000])), 4).sum(), len(m.get_dump()[7]))
"""

LIGHTGBM = """
import numpy as np, lightgbm as lgb
r = np.random.default_rng(7)
x = r.random((300_000, 40)); y = (x[:, 0] * x[:, 1] > x[:, 2] * 0.4).astype(int)
m = lgb.train({"objective": "binary", "num_threads": 2, "verbose": -1, "deterministic": True, "force_row_wise": True}, lgb.Dataset(x, y), 20)
print(np.round(m.predict(x[:1000]), 4).sum(), m.num_trees())
"""

GO = """
package main
/*
#include <stdlib.h>
*/
import "C"
import ("crypto/sha256"; "fmt"; "sort"; "sync")
func work(seed uint64) string {
    m := map[uint64]string{}
    for i := 0; i < 300000; i++ { seed = seed*6364136223846793005 + 1442695040888963407; m[seed] = fmt.Sprint("value ", i) }
    keys := make([]uint64, 0, len(m)); for k := range m { keys = append(keys, k) }
    sort.Slice(keys, func(a, b int) bool { return keys[a] < keys[b] })
    h := sha256.New(); for i := 0; i < len(keys); i += 5 { fmt.Fprint(h, keys[i], m[keys[i]]) }
    return fmt.Sprintf("%x", h.Sum(nil))
}
func main() {
    C.free(C.malloc(100))
    var all [4]string; var wait sync.WaitGroup
    for t := range all { wait.Add(1); go func(t int) { all[t] = work(uint64(t)); wait.Done() }(t) }
    wait.Wait(); fmt.Println(all)
}
"""

DAEMON = """
import ctypes, hashlib, os, subprocess, sys
block = bytearray(os.urandom(1) * (160 << 20))
for at in range(0, len(block), 4096): block[at:at + 8] = (at * 7).to_bytes(8, "little")
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
for n in range(4):
    pid = os.fork()
    if pid == 0:
        total = sum(block[at + 1] for at in range(n * 4096, len(block), 4 * 4096))
        os.write(1, b"%d\\n" % total); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print(os.getresuid(), subprocess.run(["id", "-u"], capture_output=True).stdout, flush=True)
print(sum(block[at + 1] for at in range(0, len(block), 4096)))
"""

MEMCACHED_LOAD = """
import hashlib, socket
s = socket.socket(socket.AF_UNIX); s.connect("s"); f = s.makefile("rwb")
for at in range(90000):
    value = hashlib.sha512(b"%d" % at).hexdigest().encode() * 8
    f.write(b"set key:%d 0 0 %d noreply\\r\\n" % (at, len(value)) + value + b"\\r\\n")
f.flush(); digest = hashlib.sha256()
for at in range(0, 90000, 3):
    f.write(b"get key:%d\\r\\n" % at); f.flush()
    head = f.readline().split(); digest.update(f.read(int(head[3]) + 2)); assert f.readline() == b"END\\r\\n"
print(digest.hexdigest()); f.write(b"shutdown\\r\\n"); f.flush()
"""

MAKE_GENOME = """
perl -e 'srand 7; my $g = ""; $g .= join "", map { (qw(A C G T))[rand 4] } 1..100000 for 1..40; print ">g\\n$g\\n";
    open my $r, ">", "reads.fq"; for (1..20000) { my $s = substr $g, rand(length($g) - 150), 150;
    substr($s, rand 150, 1) = "A"; print $r "\\@r$_\\n$s\\n+\\n", "I" x 150, "\\n" }' >g.fa
"""

R = """
set.seed(7); n <- 600000
d <- data.frame(k = sample(5000, n, TRUE), v = sample(1e6, n, TRUE), s = as.character(sample(1e5, n, TRUE)))
a <- aggregate(v ~ k, d, sum); print(sum(a$v)); print(head(d[order(d$s, -d$v), "v"], 5))
m <- matrix(as.numeric(sample(100, 360000, TRUE)), 600); print(round(det(crossprod(m) / 1e6 + diag(600)) > 0)); print(length(unique(d$s)))
"""

MARIADB = """
create database w; use w;
create table t (i int primary key, h char(32), pad varchar(200), key (h)) engine=innodb charset=latin1;
insert into t select seq, md5(seq), repeat(md5(seq * 7), 3) from seq_1_to_150000;
select count(*), md5(sum(crc32(concat(h, pad)))) from t;
set join_cache_level = 0;
select a.h, b.i from t b straight_join t a force index (h) on a.h = convert(md5(b.i + 1) using latin1) order by a.h limit 5;
set sort_buffer_size = 100000000; select md5(group_concat(h)) from (select h from t order by pad desc limit 20) x;
"""

ERLANG = """
Work = fun(S) -> T = ets:new(t, [ordered_set]), L = lists:foldl(fun(I, X) -> Y = (X * 1103515245 + 12345) rem 2147483648,
    ets:insert(T, {Y, integer_to_list(I) ++ " value"}), Y end, S, lists:seq(1, 200000)),
    {L, ets:info(T, size), erlang:phash2(ets:tab2list(T))} end,
Me = self(), [spawn(fun() -> Me ! {N, Work(N)} end) || N <- [1, 2]],
[receive {N, R} -> io:format("~p~n", [{N, R}]) end || N <- [1, 2]], halt().
"""

PYPY = """
import random
r = random.Random(7)
table = {str(r.random()): i for i in range(700000)}
keys = sorted(table)
print(keys[::100000], sum(table[k] * (n % 7) for n, k in enumerate(keys)))
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
run zstd -q -T2 -6 --long=27 -c text >text.zst
zstd -q -dc --long=27 text.zst | sha256sum; sha256sum text.zst
""", share=0.8),  # its tables are accessed at random, like those of xz
    Program("xz", ["xz-utils"], "xz --version", MAKE_TEXT + """
run xz -T2 -3 -c text | sha256sum
""", share=0.8),  # its tables are accessed at random
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
run bwrap --ro-bind / / --dev /dev --proc /proc --bind /tmp /tmp --bind "${{COMPAT_SWAP%:*}}" "${{COMPAT_SWAP%:*}}" --bind "$PWD" "$PWD" --unshare-pid /usr/bin/python3 work.py
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
    Program("polars", ["python3-venv"], "", f"""
cat >work.py <<'END'{POLARS}END
run "$PYTHON" work.py
""", wheels=["polars"]),
    Program("pyarrow", ["python3-venv"], "", f"""
cat >work.py <<'END'{PYARROW}END
run "$PYTHON" work.py
""", wheels=["pyarrow"]),
    Program("pandas and NumPy", ["python3-venv"], "", f"""
cat >work.py <<'END'{PANDAS}END
run "$PYTHON" work.py
""", wheels=["pandas"]),
    Program("DuckDB", ["python3-venv"], "", f"""
cat >work.py <<'END'{DUCKDB}END
run "$PYTHON" work.py
""", wheels=["duckdb"]),
    Program("scikit-learn", ["python3-venv"], "", f"""
cat >work.py <<'END'{SKLEARN}END
run "$PYTHON" work.py
""", wheels=["scikit-learn"]),
    Program("XGBoost", ["python3-venv", "libgomp1"], "", f"""
cat >work.py <<'END'{XGBOOST}END
run "$PYTHON" work.py
""", wheels=["xgboost-cpu"]),
    Program("LightGBM", ["python3-venv", "libgomp1"], "", f"""
cat >work.py <<'END'{LIGHTGBM}END
run "$PYTHON" work.py
""", wheels=["lightgbm"]),
    Program("R", ["r-base-core"], "R --version", f"""
cat >work.R <<'END'{R}END
run Rscript --vanilla work.R
"""),
    Program("Octave", ["octave"], "octave --version", """
run octave-cli --norc --eval 'x = reshape(mod((1:9e6) * 7919, 100003), 3000, 3000); y = sort(x(:));
    printf("%d %d %d\\n", sum(y(1:1000:end)), trace(mod(x * 2 + transpose(x), 1009)), numel(unique(y)))'
"""),
    Program("PyPy", ["pypy3"], "pypy3 --version", f"""
cat >work.py <<'END'{PYPY}END
run pypy3 work.py
"""),
    Program("Erlang", ["erlang-base"], "dpkg-query -W erlang-base", f"""
cat >work.erl <<'END'{ERLANG}END
run erl -noinput -eval "$(cat work.erl)"
"""),
    Program("Go (with cgo)", ["golang-go", "gcc", "libc6-dev"], "go version", f"""
cat >work.go <<'END'{GO}END
HOME=${{HOME:-$PWD}} CGO_ENABLED=1 go build -o work work.go && run ./work
"""),
    Program("Go (with cgo; starts programs)", ["golang-go", "gcc", "libc6-dev"], "go version", f"""
sed -e 's|^func main() {{|func main() {{ out, err := exec.Command("echo", "started").Output(); fmt.Println(string(out), err);|' \\
    -e 's|^import (|import ("os/exec"; |' <<'END' >work.go{GO}END
HOME=${{HOME:-$PWD}} CGO_ENABLED=1 go build -o work work.go && run ./work
""", unmanaged="all of it: Go blocks signals by instructions of its own before it starts programs"),
    Program("Go (without cgo)", ["golang-go"], "go version", f"""
grep -v -e 'C[.]' -e 'import "C"' -e '^/[*]' -e '^[*]/' -e include <<'END' >work.go{GO}END
HOME=${{HOME:-$PWD}} CGO_ENABLED=0 go build -buildmode=pie -o work work.go && run ./work
""", unmanaged="all of it: Go maps memory by instructions of its own. The summary says how much it is"),
    Program("make and gcc", ["make", "gcc", "libc6-dev"], "make --version", """
for n in 1 2 3 4; do perl -e 'my $n = shift; for my $f (1..700) { print "int f${n}_$f(int x) { int s = x; for (int i = 0; i < x; i++) s = s * 31 + (s >> 7) % ($f + 1); return s; }\\n" }' $n >w$n.c; done
{ for n in 1 2 3 4; do for f in 1 99 700; do echo "int f${n}_$f(int);"; done; done; echo '#include <stdio.h>'; echo 'int main(void) { unsigned s = 0;'
  for n in 1 2 3 4; do for f in 1 99 700; do echo "s = s * 7 + f${n}_$f(1000);"; done; done; echo 'printf("%u\\n", s); return 0; }'; } >main.c
printf 'work: main.o w1.o w2.o w3.o w4.o\\n\\tcc -o $@ $^\\n%%.o: %%.c\\n\\tcc -O2 -c $<\\n' >Makefile
run make -s -j2 && ./work && cat *.o | sha256sum
"""),
    Program("cargo and rustc", ["cargo"], "rustc --version", """
mkdir src; printf '[package]\\nname = "work"\\nversion = "0.1.0"\\nedition = "2021"\\n' >Cargo.toml
{ for n in $(seq 250); do echo "fn f$n(v: &[u64]) -> u64 { let m: std::collections::BTreeMap<u64, String> = v.iter().map(|x| (x * $n % 1009, format!(\\"{x}\\"))).collect(); m.values().map(|s| s.len() as u64).sum() }"; done
  echo 'fn main() { let v: Vec<u64> = (0..5000).collect(); let mut s = 0u64;'; for n in $(seq 250); do echo "s = s * 3 % 1000003 + f$n(&v);"; done; echo 'println!("{s}"); }'; } >src/main.rs
run cargo build -q --offline && target/debug/work
"""),
    Program("ffmpeg", ["ffmpeg"], "ffmpeg -version", """
run ffmpeg -v error -f lavfi -i testsrc2=s=1280x720:r=25:d=3 -c:v libx264 -preset medium -threads 2 -f h264 - | sha256sum
"""),
    Program("ImageMagick", ["imagemagick"], "convert -version", """
run convert -size 2400x2400 -seed 7 plasma:red-blue -rotate 30 -resize 60% -depth 8 rgb:- | sha256sum
""", unmanaged="images beyond its own memory limit, which it keeps in files"),
    Program("samtools sort", ["samtools"], "samtools --version", """
perl -e 'srand 7; print "\\@SQ\\tSN:g\\tLN:3000000\\n"; for (1..300000) { print "r$_\\t0\\tg\\t", 1 + int rand 2999000, "\\t60\\t50M\\t*\\t0\\t0\\t", join("", map { (qw(A C G T))[rand 4] } 1..50), "\\t", "I" x 50, "\\n" }' >in.sam
run samtools sort -@ 2 -m 100M --no-PG -O sam in.sam | sha256sum
"""),
    Program("bwa index", ["bwa"], "bwa 2>&1", MAKE_GENOME + """
run bwa index g.fa 2>/dev/null; cat g.fa.bwt g.fa.sa | sha256sum
"""),
    Program("minimap2", ["minimap2"], "minimap2 --version", MAKE_GENOME + """
run minimap2 -ax sr -t 2 g.fa reads.fq 2>/dev/null | grep -v '^@PG' | sha256sum
"""),
    Program("jq", ["jq"], "jq --version", """
perl -e 'srand 7; print "[", join(",", map { sprintf q({"id":%d,"name":"n%d","tags":["a%d","b"]}), $_, rand 1e6, rand 99 } 1..250000), "]"' >in.json
run jq -c 'group_by(.tags[0]) | map([.[0].tags[0], length, (map(.id) | add)])' in.json | sha256sum
"""),
    Program("MariaDB", ["mariadb-server-core", "mariadb-client-core"], "mariadbd --version", f"""
mkdir data tmp; who=$([ "$(id -u)" = 0 ] && echo --user=root)
cat >work.sql <<'END'{MARIADB}END
sed -z 's/\\n\\([^s]\\)/ \\1/g' work.sql >boot.sql
mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal $who >/dev/null 2>&1
run mariadbd --no-defaults --datadir="$PWD/data" --tmpdir="$PWD/tmp" --socket="$PWD/s" --skip-networking --innodb-buffer-pool-size=128M --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync $who >log 2>&1 &
until mariadb -S "$PWD/s" -u root -e 'select 1' >/dev/null 2>&1; do sleep 0.3; kill -0 $! || {{ tail -5 log >&2; exit 9; }}; done
mariadb -S "$PWD/s" -u root -N <work.sql
mariadb -S "$PWD/s" -u root -e shutdown; wait $!
"""),
    Program("memcached", ["memcached"], "memcached --version", f"""
chmod 777 .; cat >load.py <<'END'{MEMCACHED_LOAD}END
run memcached -s "$PWD/s" -a 777 -A -m 300 -t 4 -u nobody >log 2>&1 &
until [ -S s ]; do sleep 0.1; kill -0 $! || exit 9; done
python3 load.py; wait $!; echo "ended: $?"
"""),
    Program("daemon that drops root", ["python3"], "/usr/bin/python3 --version", f"""
[ "$(id -u)" = 0 ] || exit 9
cat >work.py <<'END'{DAEMON}END
run /usr/bin/python3 work.py
""", unmanaged="what a forked child writes, until it calls exec"),
]
