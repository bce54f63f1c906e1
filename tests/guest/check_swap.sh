# Compares softswap with the kernel's swap in v2 cgroups, which the host may lack. The times mean
# nothing.

groups=/sys/fs/cgroup

bench_swap="softswap bench swap --quick --rounds 1 --no-programs --swap /swap --json -"
# Arguments of the shortest run.
one_pattern="--patterns random_read --threads 1 --working-set 48M"

handed_down() { cat "$groups/cgroup.subtree_control"; }

groups_of_benches() { find "$groups" -name 'softswap-bench-*' 2>/dev/null; }

# as_before HANDED_DOWN: checks that the benchmark left no changes.
as_before() {
    [ -z "$(groups_of_benches)" ] || { echo "remaining groups: $(groups_of_benches)"; return 1; }
    [ "$(handed_down)" = "$1" ] || { echo "handed down: '$(handed_down)', before '$1'"; return 1; }
}

# swaps_in_groups COMMAND...: checks that the command uses v2 cgroups and leaves no changes.
swaps_in_groups() {
    before=$(handed_down)
    "$@" >/tmp/swap.json && as_before "$before" && finds '"cgroup_version": "2"'
}

# finds PATTERN: searches the JSON.
finds() {
    grep "$1" /tmp/swap.json || { echo "there is no $1 in:"; cat /tmp/swap.json; return 1; }
}

# keeps_within SIDE COUNT: checks the number of rows, and that each cgroup's peak is positive and
# within its limit. zswap exceeds the limit slightly; 1 MiB is too much.
keeps_within() {
    awk -F '[:,]' -v side="\"$1\"" -v count="$2" '
        $1 ~ /"side"/ { meant = index($2, side) }
        !meant { next }
        $1 ~ /"pattern"/ { rows++ }
        $1 ~ /"limit_bytes"/ { limit = $2 + 0 }
        $1 ~ /"peak_bytes"/ { within += 0 < $2 + 0 && $2 + 0 <= limit }
        $1 ~ /"outside_bytes"/ { outside += $2 }
        END {
            print side ": " rows " rows, " within " within their limits, " outside + 0 " bytes outside"
            exit rows != count || within != count || outside > 1048576
        }
    ' /tmp/swap.json || { cat /tmp/swap.json; return 1; }
}

beside_the_kernels_swap() {
    swaps_in_groups $bench_swap $one_pattern --sides softswap,kernel_file,kernel_zswap || return
    keeps_within softswap 4 && keeps_within kernel_file 2 && keeps_within kernel_zswap 2 || return
    ! grep same_dram /tmp/swap.json || return
    finds '"random_read_softswap_vs_kernel_zswap"'
}

# A user who owns a cgroup may create children and join them from there.
where_a_user_may() {
    given=$groups/given
    echo +memory >"$groups/cgroup.subtree_control" && mkdir -p "$given/own" || return
    chown nobody "$given" "$given"/cgroup.* "$given/own/cgroup.procs"
    swaps_in_groups sh -c "echo \$\$ >$given/own/cgroup.procs &&
        exec su -s /bin/sh nobody -c '$bench_swap --no-patterns --sides softswap,kernel_file'"
    came=$? still_handed_down=$(cat "$given/cgroup.subtree_control")
    rmdir "$given/own" "$given" && echo -memory >"$groups/cgroup.subtree_control" || return
    [ -z "$still_handed_down" ] || { echo "to the user's groups: $still_handed_down"; return 1; }
    [ "$came" -eq 0 ] && finds 'kernel_file was left out'
}

# within_10_s COMMAND...: repeats the command until it succeeds, for at most 10 s.
within_10_s() {
    for try in $(seq 100); do
        "$@" >/dev/null && return
        usleep 100000
    done
    "$@"
}

a_program_runs() {
    for group in $(groups_of_benches); do
        [ -z "$(cat "$group/cgroup.procs" 2>/dev/null)" ] || return 0
    done
    return 1
}

when_killed() {
    before=$(handed_down)
    $bench_swap $one_pattern --sides kernel_file >/dev/null &
    within_10_s a_program_runs || { echo "no program has started"; return 1; }
    during=$(handed_down)
    kill -9 $! && within_10_s as_before "$before" || return
    echo "available to children during the benchmark: $during; before and after: ${before:-nothing}"
    [ "$during" = memory ]
}

mount -t cgroup2 cgroup2 "$groups"
check bench-swap beside_the_kernels_swap
check bench-swap-unprivileged where_a_user_may
check bench-swap-killed when_killed
umount "$groups"
