#!/bin/sh
# Makes what the linker needs of an older glibc: its libraries without code, which have only the
# symbols of that version, and its startup code. Uses zig, which has the symbol lists of all
# versions. The compilers, the linker and the headers are the system's.
#
# usage: glibc.sh VERSION DIRECTORY
set -eu

version=$1
directory=$2
fresh=$directory.new
rm -rf "$fresh"
mkdir -p "$fresh/cache"
echo 'int main(void) { return 0; }' >"$fresh/main.c"
ZIG_GLOBAL_CACHE_DIR=$fresh/cache ZIG_LOCAL_CACHE_DIR=$fresh/cache \
    python-zig cc -target "x86_64-linux-gnu.$version" -O1 -pie \
    -o "$fresh/main" "$fresh/main.c"
find "$fresh/cache" \( -name 'lib*.so.*' -o -name Scrt1.o -o -name libc_nonshared.a \) \
    -exec cp {} "$fresh/" \;
for name in m pthread dl rt util; do
    ln -s "$(basename "$fresh/lib$name".so.*)" "$fresh/lib$name.so"
done
echo "GROUP(libc.so.6 libc_nonshared.a AS_NEEDED($(basename "$fresh"/libld.so.*)))" >"$fresh/libc.so"
rm -r "$fresh/cache" "$fresh/main" "$fresh/main.c"
rm -rf "$directory"
mv "$fresh" "$directory"
