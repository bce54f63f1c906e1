#!/bin/sh
# The first process in the guest: loads the drivers, sets up the disks, runs the
# checks and powers off. Kernel messages go to the first serial port; what this
# prints goes to the second, where nothing can break into a line.
#
# Each check prints `CHECK name ok|FAIL detail`. The host knows the names from
# these scripts, and misses those that were not printed.
export PATH=/bin HOME=/tmp NO_COLOR=1

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p /dev/shm /swap /plain
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
exec </dev/null >/dev/ttyS1 2>&1

# check NAME COMMAND [ARG...]: the command prints one line of detail last.
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

# Whether this kernel is at least MAJOR.MINOR.
kernel_is() {
    [ "$kernel_major" -gt "$1" ] || { [ "$kernel_major" -eq "$1" ] && [ "$kernel_minor" -ge "$2" ]; }
}

# The controller with this serial number, such as nvme0: which comes first is chance.
controller() {
    for dir in /sys/class/nvme/*; do
        [ "$(tr -d ' ' <"$dir/serial")" != "$1" ] || basename "$dir"
    done
}

# namespace CONTROLLER NSID: such as nvme0n1, where the last 1 is chance as well.
namespace() {
    for dir in /sys/block/"$1"n*; do
        [ "$(cat "$dir/nsid")" != "$2" ] || basename "$dir"
    done 2>/dev/null
}

# Two controllers with two disks each, a raw one and one with a file system;
# all come up in their own time.
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
    echo "after 10 s there are only: $(ls /sys/class/nvme /sys/block | tr '\n' ' ')"
    return 1
}

disks_are_there() {
    find_disks && mount -t ext4 -o noatime "/dev/$polled_files" /swap &&
        mount -t ext4 -o noatime "/dev/$plain_files" /plain && chmod 1777 /swap /plain ||
        return
    dmesg | grep 'default/read/poll queues'
    echo "$polled with a poll queue, $plain without"
}

# Whether the disk has a poll queue: 1 or 0.
io_poll() {
    cat "/sys/block/$1/queue/io_poll"
}

# interrupts CONTROLLER: of its I/O queues, all CPUs together. Poll queues have
# no vector and so no line here; queue 0 is the admin queue.
interrupts() {
    awk -v queue="^$1q[1-9]" '$NF ~ queue {
        for (i = 2; $i ~ /^[0-9]+$/; i++) sum += $i
    } END { print sum + 0 }' /proc/interrupts
}

# interrupts_of CONTROLLER COMMAND...: those counted while the command runs, in
# $counted; its status and its output in /tmp/output.
interrupts_of() {
    before=$(interrupts "$1")
    who=$1
    shift
    "$@" >/tmp/output 2>&1
    status=$?
    counted=$(($(interrupts "$who") - before))
    return "$status"
}

# Whether of 64 reads or more, which raise an interrupt each where they are not polled
# for, none did. One now and then of those $counted is none of theirs: the file system on
# the same controller writes, or one comes late for a request seen done before it.
polled_instead() {
    [ "$counted" -le 4 ]
}

release=$(uname -r)
kernel_major=${release%%.*}
kernel_minor=${release#*.}
kernel_minor=${kernel_minor%%.*}
echo "guest: Linux $release, up after $(cut -d ' ' -f 1 /proc/uptime) s"

# ext4 asks for crc32c by a name that only a full set of modules can resolve.
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
# Lets the port drain.
sleep 0.2
poweroff -f
