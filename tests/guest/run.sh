#!/usr/bin/env bash
# Boots Debian kernels in QEMU and runs checks in them: Linux 6.1, which lacks UFFDIO_MOVE, and the
# newest kernel of the package archive. The guest has hardware that few machines have: an NVMe disk
# with a poll queue and one without.
#
# QEMU emulates the CPU, so no KVM is needed. Times in the guest are meaningless; only ratios and
# counts matter.
#
# Packages are unpacked below the target directory and not installed, except for QEMU and mkfs,
# which root installs. If a requirement is unavailable, the script prints that and succeeds.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/../.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cache=$target/guest
busybox=$cache/busybox/bin/busybox
bin_dir=${SOFTSWAP_BIN_DIR:-$target/debug}
# Timeout of a guest. It only detects hangs.
boot_limit_s=300
export PATH=$PATH:/usr/sbin:/sbin

work=
guests=()
clean_up() {
    [ "${#guests[@]}" -eq 0 ] || kill "${guests[@]}" 2>/dev/null || true
    [ -z "$work" ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

skip() {
    printf 'guest test SKIPPED: %s\n' "$1"
    exit 0
}

is_root() { [ "$(id -u)" -eq 0 ]; }

apt_get() { timeout 600 apt-get -q -o APT::Sandbox::User="$(id -un)" "$@" >>"$work/apt.log" 2>&1; }

why_not() { grep '^E: ' "$work/apt.log" | tail -n 1 || echo "apt-get gave no reason"; }

# Updates the package lists once. Outdated lists name packages that no longer exist.
update_once() {
    [ -e "$work/updated" ] || ! is_root || apt_get update || true
    touch "$work/updated"
}

install_what_is_missing() {
    local missing=()
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
    [ "${#missing[@]}" -gt 0 ] || return 0
    is_root || skip "${missing[*]} required: install with your package manager"
    echo "installing ${missing[*]}"
    update_once
    DEBIAN_FRONTEND=noninteractive apt_get install -y --no-install-recommends "${missing[@]}" ||
        skip "${missing[*]} cannot be installed: $(why_not)"
}

# unpack PACKAGE DIR PATTERN...: extracts matching files, downloads the package if needed. The
# directory appears only when complete.
unpack() {
    local package=$1 dir=$2 fresh=$work/unpack
    shift 2
    [ ! -d "$dir" ] || return 0
    echo "downloading $package"
    update_once
    mkdir "$fresh"
    (cd "$fresh" && apt_get download "$package") || skip "$package cannot be downloaded: $(why_not)"
    dpkg-deb --fsys-tarfile "$fresh"/*.deb | tar -x -C "$fresh" --wildcards "$@"
    rm "$fresh"/*.deb
    find "$fresh" -name '*.ko.xz' -exec "$busybox" unxz {} +
    mv "$fresh" "$dir"
}

# Prints releases of Debian's standard kernels (not -cloud, not -rt), oldest first.
offered() {
    apt-cache pkgnames linux-image- 2>/dev/null |
        sed -nE 's/^linux-image-([0-9]+\.[0-9]+\.[0-9]+[-+][a-z0-9.]+-amd64)$/\1/p' | sort -V
}

# Chooses the newest 6.1 and the newest of all. Without the archive, chooses among unpacked kernels.
choose_kernels() {
    local all
    all=$(offered)
    [ -n "$all" ] || all=$(find "$cache" -maxdepth 1 -name '*-amd64' -printf '%f\n' | sort -V)
    { grep '^6\.1\.' <<<"$all" | tail -n 1 || true; tail -n 1 <<<"$all"; } | uniq
}

all_unpacked() {
    local release
    for release in $1; do [ -d "$cache/$release" ] || return 1; done
    [ -n "$1" ]
}

unpack_kernel() {
    unpack "linux-image-$1" "$cache/$1" './boot/vmlinuz-*' './lib/modules/*/modules.*' \
        '*/kernel/drivers/nvme/*' '*/kernel/drivers/block/null_blk/*' '*/kernel/fs/configfs/*' \
        '*/kernel/fs/ext4/*' '*/kernel/fs/jbd2/*' '*/kernel/fs/mbcache.ko*' '*/kernel/block/*' \
        '*/kernel/lib/*' '*/kernel/crypto/*'
    # The packages do not contain modules.dep.
    [ -e "$cache/$1/lib/modules/$1/modules.dep" ] || "$busybox" depmod -b "$cache/$1" "$1"
}

# Copies only the modules that the drivers need, because the guest unpacks slowly.
copy_modules() {
    local from=$cache/$1/lib/modules/$1 to=$2/lib/modules/$1 module file
    mkdir -p "$to"
    cp "$from"/modules.* "$to/"
    for module in nvme null_blk ext4 crc32c_generic; do
        grep "/$module\.ko:" "$from/modules.dep" || true
    done | tr -d : | tr ' ' '\n' | sort -u | while read -r file; do
        mkdir -p "$to/$(dirname "$file")"
        cp "$from/$file" "$to/$file"
    done
}

copy_programs() {
    local root=$1 name library
    mkdir -p "$root"/{bin,checks,dev,etc,proc,sys,tmp}
    cp "$busybox" "$root/bin/busybox"
    for name in $("$busybox" --list); do
        [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
    done
    # Debug information would take most of the space.
    for name in softswap softswap-bench libsoftswap.so; do
        strip -o "$root/bin/$name" "$bin_dir/$name"
    done
    gcc -O2 -Wall -Wextra -o "$root/bin/iopoll" tests/guest/iopoll.c
    gcc -O2 -pthread -o "$root/bin/tiers" tests/programs/tiers.c
    for name in softswap softswap-bench libsoftswap.so iopoll tiers; do ldd "$root/bin/$name"; done |
        grep -o '/[^ ]*' | sort -u | while read -r library; do
        mkdir -p "$root/$(dirname "$library")"
        cp -L "$library" "$root/$library"
    done
    printf 'root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
    cp tests/guest/init.sh "$root/init"
    cp tests/guest/check_*.sh "$root/checks/"
    chmod -R a+rX "$root"
    chmod 755 "$root/init"
}

# make_disks DIR: creates raw disks, and file systems without background writes, which would raise
# interrupts: no journal, no lazily initialized tables.
make_disks() {
    local disk
    truncate -s 16M "$1/polled.raw" "$1/plain.raw"
    # Free space that `softswap doctor` requires.
    truncate -s 1G "$1/polled.ext4" "$1/plain.ext4"
    for disk in polled plain; do
        mkfs.ext4 -q -F -N 128 -O ^has_journal -E lazy_itable_init=0 "$1/$disk.ext4"
    done
}

# add_namespace FILE CONTROLLER NSID [OPTION]: adds the file as a disk to the arguments of boot.
add_namespace() {
    arguments+=(-drive "id=$2$3,file=$1,format=raw,if=none,cache=unsafe${4:+,$4}")
    arguments+=(-device "nvme-ns,drive=$2$3,bus=$2,nsid=$3")
}

# boot RELEASE: uses one CPU, because on a busy host QEMU spends most of its time synchronizing two.
boot() {
    local release=$1 dir=$work/$1 arguments=() bus
    mkdir "$dir"
    cp -r "$work/root" "$dir/root"
    copy_modules "$release" "$dir/root"
    (cd "$dir/root" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$dir/initrd"
    make_disks "$dir"
    for bus in polled plain; do
        add_namespace "$dir/$bus.raw" "$bus" 1
        add_namespace "$dir/$bus.ext4" "$bus" 2
    done
    # A disk whose reads take 2 ms each, long enough for hybrid polling to sleep.
    cp --sparse=always "$dir/polled.raw" "$dir/slow.raw"
    add_namespace "$dir/slow.raw" polled 3 throttling.iops-total=500
    timeout -k 5 "$boot_limit_s" qemu-system-x86_64 -M q35 -accel tcg -cpu max -smp 1 -m 512 \
        -nodefaults -no-reboot -display none \
        -serial "file:$dir/console" -serial "file:$dir/results" \
        -kernel "$cache/$release/boot/vmlinuz-$release" -initrd "$dir/initrd" \
        -append "console=ttyS0 quiet panic=-1" \
        -device nvme,id=polled,serial=polled -device nvme,id=plain,serial=plain,max_ioqpairs=1 \
        "${arguments[@]}" >"$dir/qemu" 2>&1 &
    guests+=($!)
}

# judge RELEASE: prints every check, and counts missing ones as failed.
judge() {
    local dir=$work/$1 log=$cache/$1.log name line failed_before=$failed
    printf '\n-- Linux %s, emulated: only ratios are meaningful\n' "$1"
    touch "$dir/results"
    tr -d '\r' <"$dir/results" >"$log"
    for name in $check_names; do
        line=$(grep "^CHECK $name " "$log" | sed 's/^CHECK [^ ]* //' || true)
        printf '%-32s %s\n' "$name" "${line:-FAIL no result}"
        case $line in
            ok*) passed=$((passed + 1)) ;;
            *)
                failed=$((failed + 1))
                missed+=("$name on Linux $1: ${line:-no result}")
                ;;
        esac
    done
    [ "$failed" -eq "$failed_before" ] || {
        printf '\n-- output of the guest\n'
        cat "$log"
        printf '\n-- last kernel messages, and output of QEMU\n'
        tail -n 40 "$dir/console" "$dir/qemu" || true
    }
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    skip "apt-get and dpkg-deb are required"
[ "$(uname -m)" = x86_64 ] || skip "the processor is not x86_64"
mkdir -p "$cache"
work=$(mktemp -d "$cache/work.XXXXXX")
install_what_is_missing

unpack busybox-static "$cache/busybox" './bin/busybox'
kernels=$(choose_kernels)
if ! all_unpacked "$kernels"; then
    update_once
    kernels=$(choose_kernels)
fi
[ -n "$kernels" ] || skip "the package archive has no Debian kernel"
for release in $kernels; do unpack_kernel "$release"; done
grep -q '^6\.1\.' <<<"$kernels" || echo "note: the archive has no Linux 6.1"
[ "$(wc -l <<<"$kernels")" -gt 1 ] || echo "note: the archive has one kernel only"

# If the user sets a directory, it contains the built programs.
[ -n "${SOFTSWAP_BIN_DIR:-}" ] || cargo build --workspace
copy_programs "$work/root"
start=$SECONDS
for release in $kernels; do boot "$release"; done
for guest in "${guests[@]}"; do wait "$guest" || echo "QEMU ended with status $?"; done
guests=()
echo "the guests took $((SECONDS - start)) s"
check_names=$(sed -n 's/^check \([a-z0-9-]*\) .*/\1/p' tests/guest/init.sh tests/guest/check_*.sh)
passed=0 failed=0 missed=()
for release in $kernels; do judge "$release"; done
verdict=ok
[ "$failed" -eq 0 ] || {
    verdict=FAILED
    # Repeat the failures at the end of a long log.
    printf '\n'
    printf 'failed: %s\n' "${missed[@]}"
}
printf '\ntest result: %s. %s passed; %s failed; in the guest\n' "$verdict" "$passed" "$failed"
[ "$failed" -eq 0 ]
