#!/bin/sh
# Init process of the guest: loads drivers, sets up disks, runs the checks and powers off. Kernel
# messages go to the first serial port. Output of this script goes to the second, so the kernel
# cannot interrupt a line.
#
# Each check prints `CHECK name ok|FAIL detail`. The host reads the names of the checks from these
# scripts, and reports missing results.
export PATH=/bin HOME=/tmp NO_COLOR=1

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p /dev/shm /swap /plain
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
exec </dev/null >/dev/ttyS1 2>&1

# check NAME COMMAND [ARG...]: the last line of the command's output is the detail.
check() {
    name=$1
    shift
    echo "-- $name"
    "$@" >/tmp/check 2>&1 </dev/null
    status=$?
    detail=$(tail -n 1 /tmp/check)
    if [ "$status" -eq 0 ]; then
        sed '$d' /tmp/check
        echo "CHECK $name ok $detail"
    else
        cat /tmp/check
        echo "CHECK $name FAIL status $status: $detail"
    fi
}

# kernel_is MAJOR MINOR: true if the kernel has at least this version.
kernel_is() {
    [ "$kernel_major" -gt "$1" ] || { [ "$kernel_major" -eq "$1" ] && [ "$kernel_minor" -ge "$2" ]; }
}

# controller SERIAL: prints its name, such as nvme0. The order of controllers is random.
controller() {
    for dir in /sys/class/nvme/*; do
        [ "$(tr -d ' ' <"$dir/serial")" != "$1" ] || basename "$dir"
    done
}

# namespace CONTROLLER NSID: prints its name, such as nvme0n1. The last number is random, too.
namespace() {
    for dir in /sys/block/"$1"n*; do
        [ "$(cat "$dir/nsid")" != "$2" ] || basename "$dir"
    done 2>/dev/null
}

# Finds two controllers with two disks each, a raw one and one with a file system. They appear in
# any order.
find_disks() {
    for try in $(seq 100); do
        polled=$(controller polled)
        plain=$(controller plain)
        polled_disk=$(namespace "$polled" 1)
        plain_disk=$(namespace "$plain" 1)
        slow_disk=$(namespace "$polled" 3)
        polled_files=$(namespace "$polled" 2)
        plain_files=$(namespace "$plain" 2)
        [ ! -b "/dev/$polled_disk" ] || [ ! -b "/dev/$slow_disk" ] || [ ! -b "/dev/$polled_files" ] ||
            [ ! -b "/dev/$plain_disk" ] || [ ! -b "/dev/$plain_files" ] || return 0
        usleep 100000
    done
    echo "disks after 10 s: $(ls /sys/class/nvme /sys/block | tr '\n' ' ')"
    return 1
}

disks_are_there() {
    find_disks && mount -t ext4 -o noatime "/dev/$polled_files" /swap &&
        mount -t ext4 -o noatime "/dev/$plain_files" /plain && chmod 1777 /swap /plain ||
        return
    dmesg | grep 'default/read/poll queues'
    echo "$polled with a poll queue, $plain without"
}

# io_poll DISK: 1 if the disk has a poll queue, else 0.
io_poll() {
    cat "/sys/block/$1/queue/io_poll"
}

# interrupts CONTROLLER: total of its I/O queues on all CPUs. Poll queues have no vector and no line
# here; queue 0 is the admin queue.
interrupts() {
    awk -v queue="^$1q[1-9]" '$NF ~ queue {
        for (i = 2; $i ~ /^[0-9]+$/; i++) sum += $i
    } END { print sum + 0 }' /proc/interrupts
}

# interrupts_of CONTROLLER COMMAND...: counts interrupts during the command in $counted. Keeps its
# status, and its output in /tmp/output.
interrupts_of() {
    before=$(interrupts "$1")
    who=$1
    shift
    "$@" >/tmp/output 2>&1
    status=$?
    counted=$(($(interrupts "$who") - before))
    return "$status"
}

# True if at most 4 interrupts were counted during 64 or more reads. Without polling each read
# raises one. A few unrelated interrupts are possible: the file system on the same controller
# writes, or the interrupt of an earlier polled request arrives late.
polled_instead() {
    [ "$counted" -le 4 ]
}

release=$(uname -r)
kernel_major=${release%%.*}
kernel_minor=${release#*.}
kernel_minor=${kernel_minor%%.*}
echo "guest: Linux $release, up after $(cut -d ' ' -f 1 /proc/uptime) s"

# ext4 requests crc32c by a name that needs the full set of modules.
modprobe crc32c_generic
modprobe ext4
modprobe nvme poll_queues=1
modprobe null_blk nr_devices=0
mount -t configfs configfs /sys/kernel/config

check disks disks_are_there
for script in /checks/*.sh; do
    . "$script"
done

echo "guest: done after $(cut -d ' ' -f 1 /proc/uptime) s"
# Wait until the serial port has sent all output.
sleep 0.2
poweroff -f
