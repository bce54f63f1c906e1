#!/bin/sh
# The shared library that is installed, linked from the archive that cargo has built: cargo gives
# what it links itself a list of symbols without versions, and a second list is refused. So
# cargo-c, which has cargo link, will not do.
#
# usage: link.sh libsoftswap_c.a DIRECTORY
#
# DIRECTORY gets the library and the names by which the loader (its soname) and the linker know it.
set -eu

archive=$1
directory=$2
here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml")
# Before version 1 a new minor version may change what there is.
soname=libsoftswap_c.so.${version%.*}
library=libsoftswap_c.so.$version

mkdir -p "$directory"
# It stays loaded (nodelete): its handler of SIGBUS is in force for good.
"${CC:-cc}" -shared -o "$directory/$library" \
    -Wl,-soname,"$soname" -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now \
    -Wl,--version-script="$here/softswap_c.map" -Wl,--gc-sections \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl
ln -sf "$library" "$directory/$soname"
ln -sf "$soname" "$directory/libsoftswap_c.so"
