#!/usr/bin/env bash
# The wheel given, or that in dist/, as somebody gets it who has neither root nor a compiler:
# installed into a fresh environment; as root by uid 65534. pip fetches NumPy, and what is built
# on it: tests of ours with each, and those of NumPy's own that take arrays, with all arrays in a
# pool.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath "${1:-$(ls dist/softswap-*.whl)}")
work=$(mktemp -d "${TMPDIR:-/tmp}/softswap-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$wheel" crates/python/tests/*.py "$work/"
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
python="$work/home/venv/bin/python"
cd "$work"
inside "$python" test_wheel.py
inside "$python" -m pip install --quiet --disable-pip-version-check \
    scipy pandas pyarrow pytest hypothesis
inside "$python" test_libraries.py
# Sorting, files, pickling, FFT, linear algebra; not what needs gigabytes, nor forks.
numpy=$(inside "$python" -c 'import os, numpy; print(os.path.dirname(numpy.__file__))')
core=$numpy/_core/tests
[ -d "$core" ] || core=$numpy/core/tests
chosen="sort or partition or pickl or IO or fromfile or tofile or fft or linalg or format"
inside "$python" -m pytest -q -p pool_plugin -p no:faulthandler -p no:cacheprovider \
    --rootdir "$work/home" \
    -k "($chosen) and not huge and not large and not xerbla" "$core/test_multiarray.py" "$numpy/fft/tests" \
    "$numpy/linalg/tests" "$numpy/lib/tests/test_format.py"
