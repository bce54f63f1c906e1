# softswap runs complete programs on this kernel. Their data must be correct.

# Kernels with UFFDIO_MOVE, and with userfaultfd for users without privileges.
kernel_is 6 8 && moves=true || moves=false
kernel_is 5 11 && faults=userfaultfd || faults=protection

doctor_agrees() {
    softswap doctor --swap /swap || return
    softswap doctor --swap /swap --json >/tmp/doctor.json
    tr -d ' \n' </tmp/doctor.json >/tmp/doctor
    echo "expected: faults by $faults, support of userfaultfd-move: $moves"
    case $faults-$moves in
        protection-*) finds_check userfaultfd-user-mode missing && finds_check page-protection ok ;;
        *-true) finds_check userfaultfd-move ok ;;
        *) finds_check userfaultfd-move missing ;;
    esac
}

finds_check() { grep -q "\"name\":\"$1\",\"status\":\"$2\"" /tmp/doctor; }

figure() {
    sed -n "s/^ *\"$1\": \(.*[^,]\),*\$/\1/p" /tmp/report.json
}

# says KEY PATTERN: checks a value in the report.
says() {
    figure "$1" | grep -qx "$2" || { echo "$1: expected $2, got $(figure "$1")"; return 1; }
}

# swaps USER SWAP_DIR [OPTION...]: the program must read pages from disk, compute the same result,
# and use the mechanisms that this kernel supports.
swaps() {
    user=$1 dir=$2
    shift 2
    rm -f /tmp/report.json
    su -s /bin/sh "$user" -c "cd /tmp && softswap run --memory 8M --swap $dir --reserve 16M \
        --report /tmp/report.json $* -- \
        tiers --mib 4 --pressure 10 --only malloc-random --require-out" || return
    says engine_started true && says uses_move "$moves" && says fault_mechanism "\"$faults\"" && says uses_direct_io true &&
        says uses_io_uring true && says checksum_errors 0 && says read_errors 0 &&
        says write_errors 0 && says bytes_written '[1-9][0-9]*' && says bytes_read '[1-9][0-9]*' ||
        return
    echo "as $user in $dir, $(figure bytes_read) bytes from disk in $(figure wall_s) s"
}

check doctor doctor_agrees
check run-as-root swaps root /swap
check run-unprivileged swaps nobody /swap
check run-on-a-disk-without-poll-queue swaps nobody /plain
