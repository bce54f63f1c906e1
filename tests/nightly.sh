#!/usr/bin/env bash
# Checks that need a nightly compiler, run manually: `nightly.sh miri`, `nightly.sh tsan`,
# `nightly.sh fuzz TARGET SECONDS`.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
host=x86_64-unknown-linux-gnu

skip() {
    printf 'skipped: %s: %s\n' "$1" "$2"
    exit 0
}

needs() {
    local what=$1 component
    shift
    cargo +nightly --version >/dev/null 2>&1 ||
        skip "$what" 'there is no nightly compiler (`rustup toolchain install nightly`)'
    for component; do
        rustup component list --toolchain nightly --installed | grep -q "^$component" ||
            skip "$what" "\`rustup component add --toolchain nightly $component\` is required"
    done
}

# Miri runs the engine's modules that make no system calls: arithmetic, tables, locks. Property
# tests run few cases, because Miri is some hundred times slower. Excluded: modules that map memory,
# open files or call the kernel (page tables, pool, codec, I/O).
miri() {
    needs Miri miri rust-src
    local leaves=(base::average base::likelihood codec::same_filled codec::compressed_slot
        policy store::swap::contents store::swap::discard store::swap::header
        api::live_settings api::control)
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-deterministic-floats" PROPTEST_CASES=8 CARGO_TARGET_DIR="$target/miri" \
        cargo +nightly miri test -p softswap-engine --lib -- "${leaves[@]}"
}

# ThreadSanitizer runs the tests of the engine and of `crates/shared`, including those with
# SimDevice. Excluded: tests that handle faults in a SIGBUS handler, because the sanitizer delays
# signals until the thread makes a call (`faults`), and the sys crate, whose memory the kernel
# changes without the sanitizer's knowledge.
tsan() {
    needs ThreadSanitizer rust-src
    RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR="$target/tsan" \
        TSAN_OPTIONS="halt_on_error=1" \
        cargo +nightly test -Zbuild-std --target "$host" -p softswap-engine -p softswap-shared --lib -- "$@"
}

fuzz() {
    needs fuzzing
    cargo +nightly fuzz --version >/dev/null 2>&1 ||
        skip fuzzing 'cargo-fuzz is not installed (`cargo install cargo-fuzz`)'
    [ -n "${1:-}" ] || {
        echo "set TARGET=NAME, with one of the names $(ls fuzz/corpus | xargs)" >&2
        return 2
    }
    # New inputs are stored separately, so that the committed corpus remains small.
    mkdir -p "fuzz/found/$1"
    cd fuzz
    # A snapshot's counters are deliberately never freed, so do not detect leaks.
    cargo +nightly fuzz run --features libfuzzer --target-dir "$target/fuzz" "$1" \
        "found/$1" "corpus/$1" -- -max_total_time="${2:-60}" -detect_leaks=0
}

"$@"
