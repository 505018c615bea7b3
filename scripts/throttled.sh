# shellcheck shell=sh
# Sourced by measurements on a slow device, which set `instance` to the name of an instance: creates the
# temporary directory $place, which is removed at the end, and defines `throttled`, an ext4 file system on a loop
# device that the kernel limits to a rate for reads and for writes, with at most 16 MiB of dirty pages. Needs root,
# loop devices and the blkio controller.
bin=$(dirname "$0")/../target/release
place=$(mktemp -d)
export XDG_RUNTIME_DIR="$place" FOREBAY_DIR="$place"
forebay() { "$bin/forebay" "$@"; }

controller=/sys/fs/cgroup/blkio
devices=

# limit DEVICE RATE: limits reads and writes to RATE MB/s each; 0: no limit.
limit() {
    for way in read write; do
        echo "$(cat "/sys/block/${1#/dev/}/dev") $(($2 * 1000000))" \
            >"$controller/blkio.throttle.${way}_bps_device"
    done
}

# throttled AT MIB RATE: mounts an empty file system of MIB MiB at AT, a new directory, with RATE MB/s.
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
    # Otherwise the kernel buffers gigabytes before it throttles a writer.
    echo 1 >"/sys/class/bdi/$number/strict_limit"
    echo $((16 << 20)) >"/sys/class/bdi/$number/max_bytes"
}

# Cleans up at the end, also after an early failure: missing parts are no error, and a step that fails does not
# prevent the others.
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
