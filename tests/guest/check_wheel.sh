# The wheel in Debian 11, which has glibc 2.31 and Python 3.9, on its own kernel.

debian=/debian
mkdir "$debian"

debian_is_there() {
    mount -t ext4 "/dev/$(namespace "$plain" 3)" "$debian" || return
    mount -t proc proc "$debian/proc" && mount -t sysfs sysfs "$debian/sys" &&
        mount --bind /dev "$debian/dev" && mount --bind /dev/shm "$debian/dev/shm" || return
    inside root /venv/bin/softswap --version
}

# inside USER COMMAND...: runs a command in Debian 11.
inside() {
    user=$1
    shift
    chroot "$debian" /usr/bin/setpriv --reuid="$user" --regid=65534 --clear-groups /usr/bin/env -i \
        HOME=/tmp TMPDIR=/var/tmp LANG=C.UTF-8 PATH=/usr/bin:/bin SOFTSWAP_SWAP=/var/tmp "$@"
}

doctor_names_protection() {
    inside nobody /venv/bin/softswap doctor || return
    inside nobody /venv/bin/softswap doctor --json | tr -d ' \n' >/tmp/doctor
    finds_check userfaultfd-user-mode missing && finds_check page-protection ok
}

# The program of `make demo`, in a quarter of its memory.
demo_has_equal_answer() {
    job="/usr/bin/python3 -B /job/sqlite.py --mib 128"
    inside nobody $job >/tmp/plain || return
    inside nobody /venv/bin/softswap run --memory 48M --report /var/tmp/report.json -- $job \
        >/tmp/swapped || return
    cmp /tmp/plain /tmp/swapped || return
    cp "$debian/var/tmp/report.json" /tmp/report.json
    says fault_mechanism '"protection"' && says engine_started true && tail -n 1 /tmp/swapped
}

wheel_passes_its_tests() {
    inside nobody /venv/bin/python /job/test_wheel.py
}

check debian-11 debian_is_there
check debian-11-doctor doctor_names_protection
check debian-11-demo demo_has_equal_answer
check debian-11-wheel wheel_passes_its_tests
umount "$debian/dev/shm" "$debian/dev" "$debian/sys" "$debian/proc" "$debian"
