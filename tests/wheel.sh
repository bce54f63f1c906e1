#!/usr/bin/env bash
# Tests the given wheel, or that in dist/, for a user without root and without a compiler: installs
# it into a new environment, as uid 65534 if run by root. pip downloads NumPy and libraries based on
# it. Runs softswap's tests with each, and NumPy's own array tests with all arrays in a pool.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath "${1:-$(ls dist/softswap-*.whl)}")
work=$(mktemp -d "${TMPDIR:-/tmp}/softswap-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$wheel" crates/python/tests/*.py "$work/"
chmod 755 "$work"
mkdir -m 1777 "$work/home"
# Prefer the system's Python, because another one may be in root's home directory.
python=$(PATH=/usr/bin:/bin:$PATH command -v python3)

as_user=()
[ "$(id -u)" -ne 0 ] || as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
inside() {
    "${as_user[@]}" env -i HOME="$work/home" TMPDIR="$work/home" LANG=C.UTF-8 \
        PATH=/usr/bin:/bin SOFTSWAP_SWAP="$work/home" "$@"
}
inside "$python" -m venv "$work/home/venv"
inside "$work/home/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/*.whl numpy
python="$work/home/venv/bin/python"
cd "$work"
inside "$python" test_wheel.py
inside "$python" -m pip install --quiet --disable-pip-version-check \
    scipy pandas pyarrow pytest hypothesis
inside "$python" test_libraries.py
# Tests of sorting, files, pickling, FFT and linear algebra, without those that need gigabytes or
# fork.
numpy=$(inside "$python" -c 'import os, numpy; print(os.path.dirname(numpy.__file__))')
core=$numpy/_core/tests
[ -d "$core" ] || core=$numpy/core/tests
chosen="sort or partition or pickl or IO or fromfile or tofile or fft or linalg or format"
inside "$python" -m pytest -q -p pool_plugin -p no:faulthandler -p no:cacheprovider \
    --rootdir "$work/home" \
    -k "($chosen) and not huge and not large and not xerbla" "$core/test_multiarray.py" "$numpy/fft/tests" \
    "$numpy/linalg/tests" "$numpy/lib/tests/test_format.py"
