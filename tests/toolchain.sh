#!/usr/bin/env bash
# Prints `stable` if that toolchain has the pinned version and rustup has no toolchain with the
# version as its name. Otherwise prints nothing, and rust-toolchain.toml selects the toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v rustup >/dev/null || exit 0
[ -z "${RUSTUP_TOOLCHAIN:-}" ] || { echo "$RUSTUP_TOOLCHAIN"; exit 0; }
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
! rustup toolchain list | grep -q "^$pinned-" || exit 0
[ "$(rustc +stable --version 2>/dev/null | cut -d ' ' -f 2)" != "$pinned" ] || echo stable
