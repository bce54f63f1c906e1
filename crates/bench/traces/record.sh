#!/bin/bash
# Records the traces in this directory again: record.sh [NAME...]. Takes some minutes. Needs
# python3, sqlite3, sort, cc1plus, java, node, redis-server, and `softswap-bench` from PATH or
# $SOFTSWAP_BIN_DIR.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bench=${SOFTSWAP_BIN_DIR:+$SOFTSWAP_BIN_DIR/}softswap-bench
work=$(mktemp -d /var/tmp/traces.XXXXXX)
trap 'rm -rf "$work"' EXIT
out=${TRACES:-$here}

only="$*"
is_wanted() { [ -z "$only" ] || [[ " $only " == *" $1 "* ]]; }

# record NAME SKIP MOST PROGRAM...
record() {
    local name=$1 skip=$2 most=$3
    shift 3
    is_wanted "$name" || return 0
    "$bench" record --out "$out/$name.touches" --skip "$skip" --most "$most" -- "$@" >"$work/out" 2>&1 ||
        { echo "$name failed"; cat "$work/out"; return; }
    tail -n 1 "$work/out"
}

python=$(readlink -f /usr/bin/python3)
awk 'BEGIN { srand(1); for (i = 0; i < 550000; i++) { for (j = 0; j < 4; j++) printf "%08x", rand() * 4294967296; print " " i } }' >"$work/lines"
{
    echo "PRAGMA cache_size=-60000; PRAGMA journal_mode=MEMORY;"
    echo "CREATE TABLE t(id INTEGER PRIMARY KEY, k INT, name TEXT); CREATE INDEX by_k ON t(k);"
    echo "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<500000)"
    echo "INSERT INTO t SELECT i, (i*7919)%300007, 'name '||i||' of a person' FROM n;"
    echo "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<60000)"
    echo "SELECT sum(length(name)) FROM n JOIN t ON t.k=(n.i*104729)%300007;"
    echo "UPDATE t SET name=name||'!' WHERE k%7=0; SELECT count(*), max(name) FROM t WHERE name LIKE '%99%';"
} >"$work/sql"

record sqlite 300000 170000 sqlite3 ":memory:" ".read $work/sql"
record sort 400000 170000 sort -S 80M --parallel=1 -o "$work/sorted" "$work/lines"
record join 150000 130000 "$python" "$here/programs.py" hash_join
record page_rank 200000 130000 "$python" "$here/programs.py" page_rank
record bfs 200000 130000 "$python" "$here/programs.py" bfs
record table 20000 170000 "$python" "$here/programs.py" table
cp "$here/Heap.java" "$work" && (cd "$work" && javac Heap.java 2>/dev/null) || true
record java 20000 170000 java -XX:+UseSerialGC -Xmx80m -Xint -Xshare:off -cp "$work" Heap
record node 0 170000 node --max-old-space-size=80 "$here/heap.js"
record compiler 0 170000 "$(gcc -print-prog-name=cc1plus)" -quiet -imultiarch x86_64-linux-gnu -O2 -std=c++17 -o "$work/large.s" "$here/large.cc"
port=$((20000 + RANDOM % 20000))
is_wanted redis && "$python" "$here/programs.py" key_value_load $port 2>/dev/null &
record redis 40000 130000 redis-server --port $port --save "" --appendonly no --dir "$work" --daemonize no
wait
