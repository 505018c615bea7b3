#!/usr/bin/env bash
# truncate grows with zeros, shrinks, and grows again without old bytes.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bytes 100000 >"$T/file"
cp "$T/file" "$D/file"
for size in 70001 150000 4096 4097 1 0 65536; do
    truncate -s "$size" "$T/file" "$D/file"
    cmp "$T/file" "$D/file" || fail "after truncate to $size"
    equal "$(stat -c %s "$D/file")" "$size"
done
truncate -s +10 "$D/file"
equal "$(stat -c %s "$D/file")" 65546
truncate -s 1G "$D/sparse"
equal "$(stat -c %s "$D/sparse")" $((1 << 30))
equal "$(tail -c 5 "$D/sparse" | od -An -tx1 | tr -d ' \n')" 0000000000
[ "$(stat -c %b "$D/sparse")" -lt 4096 ] || fail "a hole takes space"
truncate -c -s 5 "$D/absent"
refuses stat "$D/absent"
