#!/usr/bin/env bash
# A container without container tools: mount and process namespaces, its root on the mount, and one whose
# root is an overlay over it.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need busybox unshare chroot
if ldd "$(command -v busybox)" >/dev/null 2>&1; then echo "not static: busybox"; exit 77; fi
[ "$(id -u)" = 0 ] && unshare -mp --fork true 2>/dev/null || { echo "no namespaces here"; exit 77; }
root=$D/root
mkdir -p "$root"/{bin,proc,tmp,etc,dev}
cp "$(command -v busybox)" "$root/bin/busybox"
chroot "$root" /bin/busybox --install -s /bin
echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
cat >"$root/etc/work" <<'END'
set -e
[ "$(readlink /proc/self/exe)" = /bin/busybox ]
[ "$$" = 1 ] && [ "$(ps | grep -c '[s]leep')" = 0 ]
sleep 100 &
# The process is a copy of this shell until it executes `sleep`.
until [ "$(ps | grep -c '[s]leep')" = 1 ]; do [ -e /proc/$! ]; done
cd /tmp
for i in $(seq 50); do echo "$i" >"file$i"; done
cat file* | sort -n | tail -n 1
echo nothing >/dev/null
mkfifo pipe && { echo through >pipe & } && cat pipe
mv file1 file2 && ! [ -e file1 ]
tar -cf /tmp/etc.tar /etc 2>/dev/null && tar -tf /tmp/etc.tar | grep -c work
rm -rf /tmp/* && echo "host $(hostname -s >/dev/null && id -un)"
END
container() {
    local begin='touch "$0/dev/null" && mount --bind /dev/null "$0/dev/null" && mount -t proc proc "$0/proc" &&
        exec chroot "$0" /bin/sh /etc/work'
    unshare --mount --pid --uts --ipc --fork sh -c "$begin" "$1"
}
wanted=$'50\nthrough\n1\nhost root'
equal "$(container "$root")" "$wanted"
# Images are read-only layers under the writable layer of a container.
mkdir "$T/upper" "$T/merged"
mount -t tmpfs layers "$T/upper" 2>/dev/null || exit 0
# The upper layer must be removed also where the layers were never mounted together.
trap 'umount "$T/merged" 2>/dev/null || true; umount "$T/upper"' EXIT
mkdir "$T/upper/upper" "$T/upper/work"
mount -t overlay over -o "lowerdir=$root,upperdir=$T/upper/upper,workdir=$T/upper/work" "$T/merged"
echo changed >>"$T/merged/etc/passwd"
equal "$(container "$T/merged")" "$wanted"
equal "$(cat "$root/etc/passwd")" "root:x:0:0::/:/bin/sh"
# Processes of the container may still be ending.
until umount "$T/merged" 2>/dev/null; do sleep 0.05; done
