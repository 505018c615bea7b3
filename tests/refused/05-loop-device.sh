#!/usr/bin/env bash
# A loop device with a file system in a file.
# preload-only: refused: not supported
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need losetup mkfs.ext4 unshare
[ "$(id -u)" = 0 ] && [ -e /dev/loop-control ] || { echo "not allowed: loop devices"; exit 77; }
cd "$D"
truncate -s 16M here "$T/local"
mkfs.ext4 -q -F here
mkfs.ext4 -q -F "$T/local"
device=$(losetup -f --show "$T/local" 2>/dev/null) || { echo "not allowed: loop devices"; exit 77; }
losetup -d "$device"
device=$(losetup -f --show here)
unshare --mount bash -c 'mkdir "$T/m" && mount "$1" "$T/m" && echo text >"$T/m/file" && umount "$T/m"' loop "$device" || { losetup -d "$device"; fail "mount"; }
losetup -d "$device"
fsck.ext4 -fn here >/dev/null 2>&1 || fail "fsck"
grep -qa text here || fail "nothing was written by the device"
