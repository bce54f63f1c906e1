#!/bin/sh
# Links the shared library to install from the archive that cargo has built. Cargo passes the linker
# a list of symbols without versions, and the linker refuses a second list. So cargo-c, which links
# with cargo, cannot be used.
#
# usage: link.sh libsoftswap_c.a DIRECTORY
#
# Writes the library to DIRECTORY, with links for the loader (the soname) and the linker.
set -eu

archive=$1
directory=$2
here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml")
# Before version 1 a new minor version may change the interface.
soname=libsoftswap_c.so.${version%.*}
library=libsoftswap_c.so.$version

mkdir -p "$directory"
# nodelete: the library stays loaded, because its SIGBUS handler stays installed.
"${CC:-cc}" ${LDFLAGS:-} -shared -o "$directory/$library" \
    -Wl,-soname,"$soname" -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now \
    -Wl,--version-script="$here/softswap_c.map" -Wl,--gc-sections \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl
ln -sf "$library" "$directory/$soname"
ln -sf "$soname" "$directory/libsoftswap_c.so"
