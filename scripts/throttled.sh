# Sourced by what is measured beside a slow device, with the name of an `instance`: a place that is removed
# at the end with all that is on it, and `throttled`, an ext4 on a loop device that the kernel holds to so many
# MB/s, reads and writes each, and of whose pages it keeps at most 16 MiB that are not written. Needs
# root, loop devices and the blkio controller.
bin=$(dirname "$0")/../target/release
place=$(mktemp -d)
export XDG_RUNTIME_DIR="$place" FOREBAY_DIR="$place"
forebay() { "$bin/forebay" "$@"; }

controller=/sys/fs/cgroup/blkio
devices=

# limit DEVICE MB/s: both ways; 0: no more.
limit() {
    for way in read write; do
        echo "$(cat "/sys/block/${1#/dev/}/dev") $(($2 * 1000000))" \
            >"$controller/blkio.throttle.${way}_bps_device"
    done
}

# throttled AT MIB RATE: an empty file system of so many MiB at AT, which is made.
throttled() {
    if [ ! -w "$controller/blkio.throttle.write_bps_device" ]; then
        echo "$0: no blkio controller at $controller, or not root" >&2
        exit 2
    fi
    truncate -s "$2M" "$1.image"
    device=$(losetup --show -f "$1.image")
    devices="$devices $1=$device"
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$device"
    mkdir "$1"
    mount "$device" "$1"
    number=$(cat "/sys/block/${device#/dev/}/dev")
    limit "$device" "$3"
    # Else the kernel takes gigabytes before it slows a writer down.
    echo 1 >"/sys/class/bdi/$number/strict_limit"
    echo $((16 << 20)) >"/sys/class/bdi/$number/max_bytes"
}

# At the end, however early: so what is not there yet, or no more, is no mistake, and what can not be undone
# keeps nothing else from being undone.
end() {
    forebay stop --name "$instance" --discard >/dev/null 2>&1 || true
    for one in $devices; do
        limit "${one##*=}" 0 || true
        umount "${one%=*}" 2>/dev/null || true
        losetup -d "${one##*=}" || true
    done
    rm -rf "$place"
}
trap end EXIT INT TERM
