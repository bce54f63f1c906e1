# The kernel's own polling without softswap, on which the checks of softswap's polling depend.
#
#   polled   an NVMe controller with a poll queue
#   plain    a controller with a single queue pair, so without a poll queue
#   nullb1   a null_blk with a poll queue
#   nullb0   a null_blk without a poll queue

READS=64

make_null_blk() {
    dir=/sys/kernel/config/nullb/nullb$1
    mkdir "$dir" || return
    for setting in size=16 queue_mode=2 memory_backed=1 submit_queues=1 "poll_queues=$1" power=1; do
        echo "${setting#*=}" >"$dir/${setting%%=*}" || return
    done
}

null_blk_is_made() {
    make_null_blk 0 && make_null_blk 1 && [ -b /dev/nullb0 ] && [ -b /dev/nullb1 ] &&
        echo "16 MiB each, held in memory"
}

poll_queues_are_there() {
    found="polled $(io_poll "$polled_disk"), plain $(io_poll "$plain_disk")"
    found="$found, nullb1 $(io_poll nullb1), nullb0 $(io_poll nullb0)"
    echo "queue/io_poll: $found"
    [ "$found" = "polled 1, plain 0, nullb1 1, nullb0 0" ]
}

# Checks that interrupts are counted, which the other checks require.
interrupts_are_counted() {
    iopoll "/dev/$polled_disk" write "$READS" || return
    interrupts_of "$polled" iopoll "/dev/$polled_disk" interrupt "$READS"
    echo "$(cat /tmp/output), $counted interrupts"
    [ "$status" -eq 0 ] && [ "$counted" -ge "$READS" ]
}

# The same controller also has a file system. Its writes raise interrupts, so call sync first, here
# and below.
polled_reads_raise_none() {
    sync || return
    interrupts_of "$polled" iopoll "/dev/$polled_disk" polled "$READS"
    echo "$(cat /tmp/output), $counted interrupts"
    [ "$status" -eq 0 ] && polled_instead
}

# The file system supports polling.
polled_file_reads_raise_none() {
    iopoll /swap/blocks write "$READS" && sync || return
    interrupts_of "$polled" iopoll /swap/blocks polled "$READS"
    echo "$(cat /tmp/output), $counted interrupts"
    rm -f /swap/blocks
    [ "$status" -eq 0 ] && polled_instead
}

# Old kernels wait for the interrupt, and new kernels fail.
without_a_poll_queue() {
    iopoll "$1" write "$READS" || return
    interrupts_of "$plain" iopoll "$1" polled "$READS"
    echo "$(cat /tmp/output), $counted interrupts"
    case $status in
        0) [ "$1" = /dev/nullb0 ] || [ "$counted" -ge "$READS" ] ;;
        3) grep -q 'Operation not supported' /tmp/output ;;
        *) return 1 ;;
    esac
}

null_blk_polls() {
    iopoll /dev/nullb1 write "$READS" && iopoll /dev/nullb1 polled "$READS"
}

check null-blk null_blk_is_made
check poll-queues poll_queues_are_there
check kernel-nvme-interrupts interrupts_are_counted
check kernel-nvme-polled polled_reads_raise_none
check kernel-ext4-polled polled_file_reads_raise_none
check kernel-null-blk-polled null_blk_polls
check kernel-nvme-no-poll-queue without_a_poll_queue "/dev/$plain_disk"
check kernel-null-blk-no-poll-queue without_a_poll_queue /dev/nullb0
