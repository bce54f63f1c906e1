#!/usr/bin/env bash
# The wheel given, or that in dist/, as somebody gets it who has neither root nor a compiler:
# installed into a fresh environment; as root by uid 65534. pip fetches NumPy.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath "${1:-$(ls dist/softswap-*.whl)}")
work=$(mktemp -d "${TMPDIR:-/tmp}/softswap-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$wheel" crates/python/tests/test_wheel.py "$work/"
chmod 755 "$work"
mkdir -m 1777 "$work/home"
# The system's, if there is one: another may lie at root's home.
python=$(PATH=/usr/bin:/bin:$PATH command -v python3)

as_user=()
[ "$(id -u)" -ne 0 ] || as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
inside() {
    "${as_user[@]}" env -i HOME="$work/home" TMPDIR="$work/home" LANG=C.UTF-8 \
        PATH=/usr/bin:/bin SOFTSWAP_SWAP="$work/home" "$@"
}
inside "$python" -m venv "$work/home/venv"
inside "$work/home/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/*.whl numpy
cd "$work"
inside "$work/home/venv/bin/python" test_wheel.py
