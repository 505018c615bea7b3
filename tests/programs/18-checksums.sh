#!/usr/bin/env bash
# md5sum, sha1sum, sha256sum, b2sum, cksum and sum agree with the local disk; -c checks.
. "${BASH_SOURCE[0]%/*}/lib.sh"

for size in 0 1 4096 65535 1048576 3000001; do bytes "$size" >"$T/f$size"; done
mkdir "$D/d"
cp "$T"/f* "$D/d"
for program in md5sum sha1sum sha256sum sha512sum b2sum cksum sum; do
    equal "$(cd "$D/d" && "$program" f*)" "$(cd "$T" && "$program" f*)" "$program"
done
(cd "$D/d" && sha256sum f* >SUMS && sha256sum --status -c SUMS)
# Sixteen bytes: a single byte could equal the random one that it replaces.
printf 0123456789abcdef | dd of="$D/d/f4096" bs=1 seek=2048 conv=notrunc status=none
(cd "$D/d" && refuses sha256sum --status -c SUMS)
