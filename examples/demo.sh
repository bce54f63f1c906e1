#!/usr/bin/env bash
# Runs an analysis that needs about 1 GiB of memory, first without softswap,
# then within 256 MiB under softswap. The answers must be equal.
#
#   demo.sh            an in-memory database if python3 is installed, else GNU sort
#   demo.sh --sort     GNU sort
#   demo.sh --cgroup   also inside a memory control group of 320 MiB without
#                      kernel swap, where the plain run is killed (needs root)
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

memory=256M
group_bytes=$((320 << 20))
softswap=${SOFTSWAP_BIN_DIR:-${CARGO_TARGET_DIR:-target}/release}/softswap
job=database
in_group=no

while [ $# -gt 0 ]; do
    case $1 in
    --cgroup) in_group=yes ;;
    --sort) job=sort ;;
    *)
        sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
    shift
done

if [ ! -x "$softswap" ]; then
    echo "$softswap is missing: run \`make demo\`, or \`cargo build --release --workspace\` first" >&2
    exit 1
fi

work=$(mktemp -d /var/tmp/softswap-demo.XXXXXX)
group=
clean_up() {
    rm -rf "$work"
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- the job: `answer FILE` writes a run's answer to FILE ---------------------

python=$(python3 -c 'import os, sqlite3, sys; print(os.path.realpath(sys.executable))' 2>/dev/null) ||
    job=sort

case $job in
database)
    what="an in-memory SQLite analysis in Python, about 1 GiB"
    command_line() { command=("$python" -B tests/programs/sqlite.py --mib 1024 --rss); }
    answer() { cp "$1.stdout" "$1"; }
    ;;
sort)
    what="GNU sort of a file of random lines, about 1.2 GiB of memory"
    lines=$work/lines
    export LC_ALL=C # not through env(1), so that softswap starts sort itself
    # 600 MB of base64 in random order, in lines of equal length.
    head -c 450000000 /dev/urandom | base64 -w 60 >"$lines"
    command_line() { command=(sort -S 2G --parallel=2 -T "$work" "$lines"); }
    answer() { sha256sum <"$1.stdout" >"$1"; }
    ;;
esac

# Runs a command, keeps its output, and prints how long it took. $1 names the files.
timed() {
    local name=$1 start=$EPOCHREALTIME status=0
    shift
    "$@" >"$work/$name.stdout" 2>"$work/$name.stderr" || status=$?
    seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    return "$status"
}

peak() { grep -o 'peak RSS [0-9]* MiB' "$work/$1.stderr" || echo "peak RSS not measured"; }

failed() {
    echo "FAILED: $1" >&2
    tail -n 20 "$work/$2.stderr" >&2
    exit 1
}

compare() {
    answer "$work/$1"
    if ! cmp -s "$work/plain" "$work/$1"; then
        echo "FAILED: the answers differ:" >&2
        diff "$work/plain" "$work/$1" >&2 || true
        exit 1
    fi
}

command_line
echo "The job: $what."
echo
echo "1. As it is ..."
timed plain "${command[@]}" || failed "the plain run" plain
plain_seconds=$seconds
answer "$work/plain"
echo "   $seconds s, $(peak plain)"
echo
echo "2. softswap run --memory $memory -- ..."
timed swapped "$softswap" run --memory "$memory" -- "${command[@]}" ||
    failed "the run under softswap" swapped
echo "   $seconds s, $(peak swapped); softswap says:"
sed -n '/^softswap:/,$ { /^peak RSS/d; s/^/   | /; p; }' "$work/swapped.stderr"
compare swapped
echo
sed 's/^/   = /' "$work/swapped" | cut -c 1-100
echo "The answers are equal: $plain_seconds s as it is, $seconds s within $memory."

# ---- --cgroup: the plain run is killed ----------------------------------------

make_group() {
    local root
    [ "$(id -u)" -eq 0 ] || { echo "--cgroup needs root" >&2; return 1; }
    root=$(awk '$3 == "cgroup" && ("," $4 ",") ~ /,memory,/ { print $2; exit }' /proc/self/mounts)
    if [ -n "$root" ]; then
        group=$root/softswap-demo-$$
        mkdir "$group"
        echo "$group_bytes" >"$group/memory.limit_in_bytes"
        echo "$group_bytes" 2>/dev/null >"$group/memory.memsw.limit_in_bytes" || true
        echo 0 >"$group/memory.swappiness"
        return
    fi
    root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
    [ -n "$root" ] || { echo "no memory control groups here" >&2; return 1; }
    echo +memory >"$root/cgroup.subtree_control"
    group=$root/softswap-demo-$$
    mkdir "$group"
    echo "$group_bytes" >"$group/memory.max"
    [ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
}

# The shell joins the group, then executes the program.
inside() { sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"; }

if [ "$in_group" = yes ]; then
    make_group
    echo
    echo "3. In a memory control group of 320 MiB without kernel swap, as it is ..."
    status=0
    timed confined_plain inside "${command[@]}" 2>/dev/null || status=$?
    # 137: killed by the kernel. sort may also exit by itself.
    [ "$status" -ne 0 ] || failed "the plain run fits in 320 MiB: the group limits nothing" confined_plain
    echo "   ended with status $status after $seconds s"
    echo
    echo "4. ... and with softswap run --memory $memory"
    timed confined inside "$softswap" run --memory "$memory" -- "${command[@]}" ||
        failed "the run under softswap in the group" confined
    compare confined
    echo "   $seconds s; the answers are equal."
fi
