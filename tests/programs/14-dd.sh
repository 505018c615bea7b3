#!/usr/bin/env bash
# dd with block sizes, seek, skip, conv=notrunc, append, sparse, fsync and O_DIRECT where it is supported.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bytes 1000000 >"$T/in"
dd if="$T/in" of="$D/out" bs=4097 status=none
cmp "$T/in" "$D/out"
cp "$T/in" "$T/out"
for out in "$T/out" "$D/out"; do
    dd if="$T/in" of="$out" bs=1000 count=7 skip=13 seek=500 conv=notrunc status=none
    dd if="$T/in" of="$out" bs=1 count=100 seek=2000000 conv=notrunc,fsync status=none
    dd if="$T/in" of="$out" bs=512 count=1 oflag=append conv=notrunc status=none
    dd if="$T/in" of="$out" bs=64k count=3 seek=9 conv=notrunc,fdatasync oflag=seek_bytes status=none
done
cmp "$T/out" "$D/out"
dd if=/dev/zero of="$D/sparse" bs=1M count=4 conv=sparse status=none
equal "$(stat -c %s "$D/sparse")" 4194304
equal "$(dd if="$D/out" bs=4096 skip=10 count=2 status=none | sha256sum)" \
    "$(dd if="$T/out" bs=4096 skip=10 count=2 status=none | sha256sum)"
dd if="$T/in" of="$D/cut" bs=1000 count=5 seek=3 status=none
equal "$(stat -c %s "$D/cut")" 8000
if dd if=/dev/zero of="$D/direct" bs=64k count=16 oflag=direct status=none 2>/dev/null; then
    equal "$(sum_of "$D/direct")" "$(head -c 1048576 /dev/zero | sha256sum | cut -d' ' -f1)"
fi
refuses dd if="$T/in" of="$D/out" conv=excl status=none
dd if="$D/out" of=/dev/null bs=1M iflag=fullblock status=none
