#!/usr/bin/env bash
# Sandboxes: bubblewrap, a root in the file system, namespaces of mounts and users, mounts on it and of it.
# preload-only: refused: failed:
. "${BASH_SOURCE[0]%/*}/lib.sh"

need unshare
unshare --mount --user --map-root-user true 2>/dev/null || { echo "not allowed: namespaces"; exit 77; }
cd "$D" || exit 1
echo seen >f
mkdir "$T/m"
if command -v bwrap >/dev/null && bwrap --ro-bind / / true 2>/dev/null; then
    equal "$(bwrap --ro-bind / / --dev /dev --proc /proc --bind "$D" "$D" cat "$D/f" 2>/dev/null)" seen bwrap
    alone=(--ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/bin /bin --dev /dev --proc /proc)
    equal "$(bwrap "${alone[@]}" --bind "$D" /data sh -c 'cat /data/f; echo out >/data/out' 2>/dev/null)" seen "at another path"
    equal "$(cat out)" out
    bwrap "${alone[@]}" --tmpfs /tmp --dir "$D" sh -c 'echo lost >"$0/inside"' "$D" 2>/dev/null
    [ ! -e inside ] || fail "a sandbox without the file system wrote into it"
fi
if [ "$(id -u)" = 0 ] && command -v busybox >/dev/null; then
    mkdir -p root/bin
    cp "$(command -v busybox)" root/bin/sh
    echo inside >root/x
    equal "$(chroot root /bin/sh -c 'read line </x; echo $line')" inside chroot
fi
equal "$(unshare --user --map-root-user cat f)" seen "in a user namespace"
user=()
[ "$(id -u)" = 0 ] || user=(--user --map-root-user)
equal "$(unshare "${user[@]}" --mount sh -c 'cat f; echo 2 >u')" seen "in a mount namespace"
equal "$(cat u)" 2
equal "$(unshare "${user[@]}" --mount sh -c 'mkdir on && mount -t tmpfs none on && echo t >on/t && cat on/t')" t "a mount on it"
equal "$(unshare "${user[@]}" --mount sh -c 'mount --bind "$0" "$1" && cat "$1/f"' "$D" "$T/m")" seen "a mount of it"
