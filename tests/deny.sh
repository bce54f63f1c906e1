#!/usr/bin/env bash
# Checks licences, duplicates, sources and known vulnerabilities of dependencies (cargo-deny,
# deny.toml). Checks that cannot run are reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo deny --version >/dev/null 2>&1 || {
    echo "skipped: cargo-deny is not installed (\`cargo install --locked cargo-deny\`)"
    exit 0
}
cargo deny --log-level error check --hide-inclusion-graph bans licenses sources
if output=$(cargo deny fetch db 2>&1); then
    cargo deny --log-level error check --hide-inclusion-graph --disable-fetch advisories
else
    printf '%s\n' "$output" | tail -n 3 >&2
    echo "skipped: the list of advisories cannot be downloaded"
fi
