#!/usr/bin/env bash
# gzip, bzip2, xz and zstd compress and restore in place, keeping times.
. "${BASH_SOURCE[0]%/*}/lib.sh"

seq 100000 >"$T/file"
touch -d '2010-10-10 UTC' "$T/file"
ran=0
for program in gzip bzip2 xz zstd; do
    command -v "$program" >/dev/null || continue
    ran=$((ran + 1))
    cp -p "$T/file" "$D/file"
    "$program" -q "$D/file"
    packed=$(find "$D" -name 'file.*')
    "$program" -q -t "$packed"
    "$program" -dc "$packed" | cmp - "$T/file"
    rm -f "$D/file"
    "$program" -q -d "$packed"
    cmp "$D/file" "$T/file"
    equal "$(stat -c %Y "$D/file")" 1286668800 "$program keeps the time"
    rm -f "$D"/file*
done
[ "$ran" -gt 0 ] || need gzip
