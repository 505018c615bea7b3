# Sourced by what is measured beside a slow device: an ext4 on a loop device that the kernel holds to so
# many MB/s, reads and writes each, and of whose pages it keeps at most 16 MiB that are not written. Needs
# root, loop devices and the blkio controller.
controller=/sys/fs/cgroup/blkio
device=

# limit MB/s: both ways; 0: none any more.
limit() {
    for way in read write; do
        echo "$(cat "/sys/block/${device#/dev/}/dev") $(($1 * 1000000))" \
            >"$controller/blkio.throttle.${way}_bps_device" || true
    done
}

# throttled PLACE MIB RATE: an empty file system of so many MiB at PLACE/at.
throttled() {
    if [ ! -w "$controller/blkio.throttle.write_bps_device" ]; then
        echo "$0: no blkio controller at $controller, or not root" >&2
        exit 2
    fi
    truncate -s "$2M" "$1/image"
    device=$(losetup --show -f "$1/image")
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$device"
    mkdir "$1/at"
    mount "$device" "$1/at"
    number=$(cat "/sys/block/${device#/dev/}/dev")
    limit "$3"
    # Else the kernel takes gigabytes before it slows a writer down.
    echo 1 >"/sys/class/bdi/$number/strict_limit"
    echo $((16 << 20)) >"/sys/class/bdi/$number/max_bytes"
}

# unthrottled PLACE: nothing is left of it. What is not there yet, or no more, is no mistake.
unthrottled() {
    if [ -n "$device" ]; then
        limit 0
        umount "$1/at" 2>/dev/null || true
        losetup -d "$device" || true
        device=
    fi
}
