#!/usr/bin/env bash
# Boots Debian kernels in QEMU and runs checks in them: Linux 5.10, which lacks userfaultfd for
# unprivileged users, 6.1, which lacks UFFDIO_MOVE, and the newest kernel of the package archive. The
# guest has hardware that few machines have: an NVMe disk with a poll queue and one without. The guest
# with Linux 5.10 also has a Debian 11 on a disk, in which the wheel of dist/ is installed and tested.
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
# Release of Linux 5.10, and the wheel to test with it, if they are available.
old_release='' wheel=''
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

# Makes a Debian 11 with its kernel. Prints why, if it cannot.
make_debian_11() {
    local fresh=$work/debian11 release
    [ ! -d "$cache/debian11" ] || return 0
    is_root || { echo "note: no guest with Linux 5.10: debootstrap needs root"; return 1; }
    command -v debootstrap >/dev/null ||
        { update_once && apt_get install -y --no-install-recommends debootstrap; } ||
        { echo "note: no guest with Linux 5.10: no debootstrap: $(why_not)"; return 1; }
    echo "downloading Debian 11"
    debootstrap --variant=minbase --include=linux-image-amd64,python3-venv bullseye "$fresh" \
        >"$work/debootstrap.log" 2>&1 ||
        { echo "note: no guest with Linux 5.10: $(tail -n 1 "$work/debootstrap.log")"; return 1; }
    release=$(ls "$fresh/lib/modules")
    # In the form of other unpacked kernels. Debian 11 itself needs neither.
    rm -rf "${cache:?}/$release"
    mkdir -p "$cache/$release/lib"
    mv "$fresh/boot" "$cache/$release/boot"
    mv "$fresh/lib/modules" "$cache/$release/lib/modules"
    mv "$fresh" "$cache/debian11"
}

# Installs the wheel in Debian 11 as a user does, without a compiler. pip downloads NumPy outside,
# where it is configured, for Debian's Python.
install_wheel() {
    local root=$cache/debian11 packages=$cache/debian11/packages
    rm -rf "$packages" "$root/venv" "$root/job"
    mkdir "$packages" "$root/job"
    python3 -m pip download --quiet --disable-pip-version-check --dest "$packages" \
        --only-binary=:all: --python-version 3.9 --platform manylinux2014_x86_64 numpy || return
    cp "$1" "$packages/"
    cp crates/python/tests/test_wheel.py tests/programs/sqlite.py tests/programs/common.py "$root/job/"
    chroot "$root" python3 -m venv /venv && chroot "$root" env -u PIP_FIND_LINKS /venv/bin/pip install \
        --quiet --disable-pip-version-check --no-index --find-links /packages softswap numpy
}

# Adds Linux 5.10 to the kernels, and the wheel if one is built for an old glibc.
add_linux_5_10() {
    make_debian_11 || return 0
    old_release=$(find "$cache" -maxdepth 1 -name '5.10.*-amd64' -printf '%f\n' | sort -V | tail -n 1)
    kernels=$(printf '%s\n' "$old_release" "$kernels" | sort -Vu)
    wheel=$(find dist -name 'softswap-*-manylinux_2_28_x86_64.whl' 2>/dev/null | tail -n 1)
    if [ -z "$wheel" ]; then
        echo "note: no wheel is tested with Linux 5.10: build it by \`make wheel GLIBC=2.28\`"
    elif ! install_wheel "$wheel"; then
        echo "note: no wheel is tested with Linux 5.10: pip cannot install it"
        wheel=''
    fi
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
    chmod -R a+rX "$root"
    chmod 755 "$root/init"
}

# make_checks RELEASE DIR: copies the scripts that apply to the kernel. Linux 5.10 lacks null_blk's
# poll queues and the limits on zswap.
make_checks() {
    local checks=(tests/guest/check_{kernel_polling,polling,run,swap}.sh)
    if [ "$1" = "$old_release" ]; then
        checks=(tests/guest/check_run.sh)
        [ -z "$wheel" ] || checks+=(tests/guest/check_wheel.sh)
    fi
    cp "${checks[@]}" "$2/"
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
# There the kernel also takes a late timer for a broken one, unless told not to test it.
boot() {
    local release=$1 dir=$work/$1 arguments=() memory=512 limit_s=$boot_limit_s bus
    mkdir "$dir"
    cp -r "$work/root" "$dir/root"
    make_checks "$release" "$dir/root/checks"
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
    if [ -n "$wheel" ] && [ "$release" = "$old_release" ]; then
        truncate -s 4G "$dir/debian11.ext4"
        mkfs.ext4 -q -F -O ^has_journal -d "$cache/debian11" "$dir/debian11.ext4"
        add_namespace "$dir/debian11.ext4" plain 3
        # The wheel's tests take several minutes, and have an array of 1 GiB.
        memory=2048 limit_s=3600
    fi
    timeout -k 5 "$limit_s" qemu-system-x86_64 -M q35 -accel tcg -cpu max -smp 1 -m "$memory" \
        -nodefaults -no-reboot -display none \
        -serial "file:$dir/console" -serial "file:$dir/results" \
        -kernel "$cache/$release/boot/vmlinuz-$release" -initrd "$dir/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check" \
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
    for name in $(sed -n 's/^check \([a-z0-9-]*\) .*/\1/p' "$dir/root/init" "$dir"/root/checks/*.sh); do
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
add_linux_5_10

# If the user sets a directory, it contains the built programs.
[ -n "${SOFTSWAP_BIN_DIR:-}" ] || cargo build --workspace
copy_programs "$work/root"
start=$SECONDS
for release in $kernels; do boot "$release"; done
for guest in "${guests[@]}"; do wait "$guest" || echo "QEMU ended with status $?"; done
guests=()
echo "the guests took $((SECONDS - start)) s"
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
