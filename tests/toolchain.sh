#!/usr/bin/env bash
# Prints the toolchain to use where rustup knows the pinned compiler only by
# another name: `stable`, if it is of that very version. Prints nothing
# otherwise, and rust-toolchain.toml decides.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v rustup >/dev/null || exit 0
[ -z "${RUSTUP_TOOLCHAIN:-}" ] || { echo "$RUSTUP_TOOLCHAIN"; exit 0; }
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
! rustup toolchain list | grep -q "^$pinned-" || exit 0
[ "$(rustc +stable --version 2>/dev/null | cut -d ' ' -f 2)" != "$pinned" ] || echo stable
