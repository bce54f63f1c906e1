#!/bin/sh
# Checks that files do not name the place where they were built. Fails if a
# file names this directory, its builder's home, or the directories of cargo or the compiler.
#
# usage: paths.sh FILE...
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
cargo=${CARGO_HOME:-$HOME/.cargo}
status=0
for file; do
    for path in "$here" "$HOME/" "$cargo" "$(rustc --print sysroot)"; do
        # "/" occurs in every file.
        [ "${#path}" -gt 2 ] || continue
        if strings -a "$file" | grep -F -m 3 -e "$path" >&2; then
            echo "$file names $path" >&2
            status=1
        fi
    done
done
exit $status
