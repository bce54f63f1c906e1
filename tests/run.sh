#!/usr/bin/env bash
# `run.sh`: all checks required before a merge: format, order, lints, models of the lock-free parts,
# and the tests (tests/executables.py chooses the users). `run.sh long`: before a release, all tests
# in all configurations, with many repetitions. `run.sh flaky ARGUMENTS`: the tests under load;
# tests/executables.py has the arguments.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

toolchain=$(tests/toolchain.sh)
[ -z "$toolchain" ] || export RUSTUP_TOOLCHAIN=$toolchain
target=${CARGO_TARGET_DIR:-$PWD/target}
log=$(mktemp "${TMPDIR:-/tmp}/softswap-log.XXXXXX")
current_step="getting ready"
table=""

summarise() {
    local status=$?
    printf '\n%s' "$table"
    [ "$status" -eq 0 ] || {
        echo "FAILED: $current_step" >&2
        grep -E '^test .* FAILED$|^failed ' "$log" >&2 || true
    }
    # Skipped steps do not count as passed.
    grep -E '^(skipped: |guest test SKIPPED: )' "$log" || true
    awk '/^test result:/ { passed += $4; failed += $6 }
         /^(skipped: |guest test SKIPPED: )/ { skipped++ }
         END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
    rm -f "$log"
    exit "$status"
}
trap summarise EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() {
    current_step=$1
    local begin=$SECONDS
    shift
    printf '\n== %s\n' "$current_step"
    "$@"
    table+=$(printf '%5d s  %s' $((SECONDS - begin)) "$current_step")$'\n'
}

# Runs a command whose `test result:` lines count.
counted() { "$@" 2>&1 | tee -a "$log"; }

is_root() { [ "$(id -u)" -eq 0 ]; }

install_packages() {
    if is_root && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
    else
        echo "the tests need $*: install them with your package manager" >&2
        return 1
    fi
}

has_numpy() {
    python3 -c 'import numpy' 2>/dev/null || /usr/bin/python3 -c 'import numpy' 2>/dev/null
}

install_what_is_missing() {
    local missing=()
    # The C library's headers are in libc6-dev, which gcc only recommends.
    command -v gcc >/dev/null && [ -e /usr/include/stdio.h ] || missing+=(gcc libc6-dev)
    command -v python3 >/dev/null || missing+=(python3)
    ! is_root || command -v setpriv >/dev/null || missing+=(util-linux)
    ! is_root || command -v man >/dev/null || missing+=(man-db)
    # Terminal for the tests of `softswap top`.
    ! is_root || command -v tmux >/dev/null || missing+=(tmux)
    # File systems for the tests of raw swap files.
    ! is_root || command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
    ! is_root || command -v mkfs.xfs >/dev/null || missing+=(xfsprogs)
    ! is_root || command -v fuse2fs >/dev/null || missing+=(fuse2fs)
    # Server for the tests of clusters.
    ! is_root || command -v redis-server >/dev/null || missing+=(redis-server)
    ! is_root || command -v openssl >/dev/null || missing+=(openssl)
    # Programs that the library refuses, debuggers, and shells with completions.
    ! is_root || command -v musl-gcc >/dev/null || missing+=(musl-tools)
    ! is_root || command -v valgrind >/dev/null || missing+=(valgrind)
    ! is_root || command -v gdb >/dev/null || missing+=(gdb)
    ! is_root || command -v zsh >/dev/null || missing+=(zsh)
    ! is_root || command -v fish >/dev/null || missing+=(fish)
    # The tests of the Python module use the first Python that has NumPy.
    ! is_root || has_numpy || missing+=(python3-numpy)
    # Header for the C library's test with an allocator of the program's own.
    ! is_root || [ -e /usr/include/jemalloc/jemalloc.h ] || missing+=(libjemalloc-dev)
    [ "${#missing[@]}" -eq 0 ] || install_packages "${missing[@]}"
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
}

models() {
    local before after
    before=$(grep -c '^test .* ok$' "$log" || true)
    counted cargo test -p softswap-engine --lib --features loom model
    counted cargo test -p softswap-shared --lib --features loom model
    after=$(grep -c '^test .* ok$' "$log" || true)
    [ "$after" -gt "$before" ] || { echo "no model test was run" >&2; return 1; }
}

step "tools" install_what_is_missing
if [ "${1:-}" = flaky ]; then
    step "build" cargo build --workspace
    step "tests under load" counted tests/executables.py --load "${@:2}"
    exit
fi
step "format" cargo fmt --all --check
step "tests of the module order check" tests/order_test.py
step "order of modules" tests/order.py
step "names in the documents" tests/names.py
step "versions" tests/versions.py
step "plain English" tests/prose.py
step "lints" cargo clippy --workspace --all-targets -- -D warnings
step "dependencies (cargo-deny)" counted tests/deny.sh
# The tests start softswap, which preloads the library from its own directory.
step "build" cargo build --workspace
step "tests: build" cargo test --workspace --no-run
case ${1:-} in
long)
    export SOFTSWAP_FAULTS=${SOFTSWAP_FAULTS:-500} SOFTSWAP_TREE_TURNS=${SOFTSWAP_TREE_TURNS:-1000}
    export SOFTSWAP_RAW_KILLS=${SOFTSWAP_RAW_KILLS:-200} SOFTSWAP_RAW_MOVES=${SOFTSWAP_RAW_MOVES:-50}
    export SOFTSWAP_TRANSFERS_FAULTS=${SOFTSWAP_TRANSFERS_FAULTS:-200}
    export SOFTSWAP_ADVERSARY_SECONDS=${SOFTSWAP_ADVERSARY_SECONDS:-60}
    export SOFTSWAP_TURNS=${SOFTSWAP_TURNS:-500} SOFTSWAP_FUZZ_SECONDS=${SOFTSWAP_FUZZ_SECONDS:-60}
    step "all tests in all configurations" counted tests/executables.py --long
    ;;
*) step "tests" counted tests/executables.py ;;
esac
step "models (loom)" models
step "examples in the documentation" counted cargo test --workspace --doc
if [ "${1:-}" = long ]; then
    step "guests" counted tests/guest/run.sh
    step "third-party programs" counted make test-compat
fi
printf '\nall steps passed\n'
