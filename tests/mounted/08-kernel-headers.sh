#!/usr/bin/env bash
# make headers of a Linux kernel whose sources are on the mount: its own tools are built, and thousands of files
# created, read, compared and moved; compared with the same build on the local disk.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need make gcc xz rsync
packed=$(find /usr/src -maxdepth 1 -name 'linux-source-*.tar.xz' | sort -V | tail -n 1)
[ -n "$packed" ] || { echo "not installed: linux-source"; exit 77; }
name=${packed##*/}
name=${name%.tar.xz}
mkdir "$D/source"
xz -dc "$packed" | tar -x -C "$D/source" --strip-components=1 \
    "$name"/{Makefile,Kbuild,Kconfig,scripts,include,arch/x86,usr,tools/include}
cd "$D/source"
make -s -j2 ARCH=x86 O="$D/out" headers >"$T/make.log" 2>&1 || fail "$(tail -n 5 "$T/make.log")"
make -s -j2 ARCH=x86 O="$T/out" headers >"$T/make.log" 2>&1 || fail "$(tail -n 5 "$T/make.log")"
diff -r "$D/out/usr/include" "$T/out/usr/include"
[ "$(find "$D/out/usr/include" -type f | wc -l)" -gt 500 ] || fail "few headers"
# Nothing must be rebuilt: the times of files are those that make compares.
[ "$(make -j2 ARCH=x86 O="$D/out" headers 2>/dev/null | grep -cE '^ +(HDRINST|HOSTCC)')" = 0 ] || fail "made again"
rm -rf "$D/source" "$D/out"
