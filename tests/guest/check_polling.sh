# softswap's polling. Under emulation only the counts of polls and interrupts matter, not the speed.

# bench DISK VARIANT [SECONDS]: writes its JSON without spaces to /tmp/polling, and the controller's
# interrupts to $counted.
bench() {
    bench_disk=$1 bench_variant=$2
    interrupts_of "${1%n*}" softswap bench io "/dev/$1" --only "$2" --no-fio --rounds 1 \
        --size 4M --seconds "${3:-0.5}" --json -
    [ "$status" -eq 0 ] || { cat /tmp/output; return 1; }
    tr -d ' \n' </tmp/output >/tmp/polling
    echo "$2 on $1: $(of_mode considered) reads, $(of_mode polled) polled for," \
        "$(of_mode hit) seen, $(of_mode slept) slept on, $counted interrupts"
}

# of_mode COUNTER: prints a counter of the last variant.
of_mode() {
    sed "s/.*\"$bench_variant\":{\([^}]*\)}.*/\1/; s/.*\"$1\":\([0-9]*\).*/\1/" /tmp/polling
}

asks_the_device() {
    grep -q '"device_polling":true' /tmp/polling
}

polls_the_device() {
    bench "$1" poll || return
    asks_the_device && [ "$(of_mode considered)" -gt 0 ] &&
        [ "$(of_mode polled)" -eq "$(of_mode considered)" ] && [ "$(of_mode hit)" -gt 0 ]
}

no_interrupt_when_polling() {
    polls_the_device "$polled_disk" && polled_instead
}

# Control: the same disk with interrupts.
interrupts_when_told_to() {
    bench "$polled_disk" interrupt || return
    [ "$(of_mode polled)" -eq 0 ] && [ "$counted" -ge "$(of_mode considered)" ]
}

falls_back() {
    bench "$1" poll || return
    ! asks_the_device && [ "$(of_mode considered)" -gt 0 ] && [ "$(of_mode hit)" -gt 0 ]
}

hybrid_sleeps_then_polls() {
    bench "$slow_disk" hybrid 3 || return
    asks_the_device && polled_instead &&
        [ "$(of_mode slept)" -gt 0 ] && [ "$(of_mode polled)" -gt 0 ] && [ "$(of_mode hit)" -gt 0 ]
}

check polling-nvme no_interrupt_when_polling
check polling-nvme-by-interrupt interrupts_when_told_to
check polling-null-blk polls_the_device nullb1
check polling-falls-back-on-nvme falls_back "$plain_disk"
check polling-falls-back-on-null-blk falls_back nullb0
check polling-hybrid hybrid_sleeps_then_polls
echo "emulated: ratios only"
