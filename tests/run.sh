#!/usr/bin/env bash
# Everything that must hold before a change goes in: format, order, lints, the models
# of the lock-free parts, all tests (tests/executables.py says who runs which).
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

toolchain=$(tests/toolchain.sh)
[ -z "$toolchain" ] || export RUSTUP_TOOLCHAIN=$toolchain
target=${CARGO_TARGET_DIR:-$PWD/target}
log=$(mktemp "${TMPDIR:-/tmp}/softswap-log.XXXXXX")
current_step="getting ready"

summarise() {
    local status=$?
    [ "$status" -eq 0 ] || {
        echo "FAILED: $current_step" >&2
        grep -E '^test .* FAILED$|^failed: ' "$log" >&2 || true
    }
    # A step that was skipped has passed nothing.
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
    shift
    printf '\n== %s\n' "$current_step"
    "$@"
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

install_what_is_missing() {
    local missing=()
    # The C library's headers come with libc6-dev, which gcc only recommends.
    command -v gcc >/dev/null && [ -e /usr/include/stdio.h ] || missing+=(gcc libc6-dev)
    command -v python3 >/dev/null || missing+=(python3)
    ! is_root || command -v setpriv >/dev/null || missing+=(util-linux)
    ! is_root || command -v man >/dev/null || missing+=(man-db)
    # What `softswap top` is driven in.
    ! is_root || command -v tmux >/dev/null || missing+=(tmux)
    # The cluster that keeps pages.
    ! is_root || command -v redis-server >/dev/null || missing+=(redis-server)
    ! is_root || command -v openssl >/dev/null || missing+=(openssl)
    [ "${#missing[@]}" -eq 0 ] || install_packages "${missing[@]}"
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
}

models() {
    local before after
    before=$(grep -c '^test .* ok$' "$log" || true)
    RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_TARGET_DIR="$target/loom" \
        counted cargo test -p softswap-engine --release --lib model
    after=$(grep -c '^test .* ok$' "$log" || true)
    [ "$after" -gt "$before" ] || { echo "no model test was run" >&2; return 1; }
}

step "tools" install_what_is_missing
step "format" cargo fmt --all --check
step "order of rooms: what the check refuses" tests/order_test.py
step "order of rooms" tests/order.py
step "what the documents name" tests/names.py
step "versions" tests/versions.py
step "lints" cargo clippy --workspace --all-targets -- -D warnings
step "dependencies (cargo-deny)" counted tests/deny.sh
step "models (loom)" models
# The tests start softswap, which preloads the library beside it.
step "build" cargo build --workspace
step "tests" counted tests/executables.py
step "examples in the documentation" counted cargo test --workspace --doc
step "guest test" counted tests/guest/run.sh
printf '\nall steps passed\n'
