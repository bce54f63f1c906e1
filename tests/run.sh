#!/usr/bin/env bash
# Everything that must hold before a change goes in: format, order, lints, the models
# of the lock-free parts, all tests; as root, a second time as a user without any
# privilege, because that is how most people run softswap, what may depend on that.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/.."

toolchain=$(tests/toolchain.sh)
[ -z "$toolchain" ] || export RUSTUP_TOOLCHAIN=$toolchain
target=${CARGO_TARGET_DIR:-$PWD/target}
log=$(mktemp "${TMPDIR:-/tmp}/softswap-log.XXXXXX")
unprivileged_dir=
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
    rm -rf "$log" ${unprivileged_dir:+"$unprivileged_dir"}
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

# Of the crates in which it matters who the user is.
test_executables() {
    cargo test --workspace --no-run --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    crate = message.get("target", {}).get("src_path", "").split("/crates/")[-1].split("/")[0]
    is_shape = message.get("target", {}).get("name") == "shape"
    if crate in ("remote", "manual", "view") or is_shape:
        continue
    if message.get("executable") and message.get("profile", {}).get("test"):
        print(message["executable"])'
}

# Copies what the tests run to where that user may read it, and nothing else.
prepare_unprivileged() {
    local executable executables
    unprivileged_dir=$(mktemp -d /tmp/softswap-tests.XXXXXX)
    chmod 755 "$unprivileged_dir"
    mkdir "$unprivileged_dir"/{bin,tests,programs,abi,fuzz}
    mkdir -m 1777 "$unprivileged_dir/tmp"
    cp "$target/debug/softswap" "$target/debug/softswap-bench" "$target/debug/softswap-remote" \
        "$target/debug/libsoftswap.so" "$unprivileged_dir/bin/"
    cp tests/programs/*.[ch] tests/programs/*.py "$unprivileged_dir/programs/"
    cp tests/abi/* "$unprivileged_dir/abi/"
    cp -r fuzz/corpus "$unprivileged_dir/fuzz/"
    executables=$(test_executables)
    [ -n "$executables" ] || { echo "no test executables were found" >&2; return 1; }
    for executable in $executables; do
        cp "$executable" "$unprivileged_dir/tests/"
    done
    chmod -R a+rX "$unprivileged_dir"
}

# Without what looks at the tests' own programs.
unprivileged() {
    local executable
    for executable in "$unprivileged_dir"/tests/*; do
        printf '\n-- %s\n' "$(basename "$executable")"
        (
            cd "$unprivileged_dir/tmp"
            setpriv --reuid=65534 --regid=65534 --clear-groups \
                env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
                HOME="$unprivileged_dir/tmp" TMPDIR="$unprivileged_dir/tmp" LANG=C.UTF-8 \
                SOFTSWAP_BIN_DIR="$unprivileged_dir/bin" \
                SOFTSWAP_SOURCE_DIR="$unprivileged_dir/programs" \
                SOFTSWAP_ABI_DIR="$unprivileged_dir/abi" SOFTSWAP_ABI_WAYS=8M,wakes \
                SOFTSWAP_FUZZ_DIR="$unprivileged_dir/fuzz" SOFTSWAP_FUZZ_SECONDS=0 \
                "$executable" --test-threads=2 \
                --skip every_case_of_every_program_notices --skip every_program_passes_without \
                --skip the_python_programs_repeat
        )
    done
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
step "tests as $(id -un)" counted cargo test --workspace --no-fail-fast
if is_root; then
    step "tests for a user without privileges: copies" prepare_unprivileged
    step "tests as uid 65534" counted unprivileged
fi
step "guest test" counted tests/guest/run.sh
printf '\nall steps passed\n'
