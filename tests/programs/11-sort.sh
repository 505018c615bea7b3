#!/usr/bin/env bash
# sort of a big file with temporary files on the file system, in place, merge, unique.
. "${BASH_SOURCE[0]%/*}/lib.sh"

seq 200000 | shuf --random-source=<(yes) >"$T/lines"
cp "$T/lines" "$D/lines"
sort -n -S 1M -T "$D" -o "$D/sorted" "$D/lines"
seq 200000 | cmp - "$D/sorted"
sort -n -c "$D/sorted"
sort -rn -o "$D/lines" "$D/lines"
equal "$(head -1 "$D/lines")" 200000 "sorted in place"
sort -S 1M -T "$D" "$D/sorted" >"$D/words"
sort "$T/lines" | cmp - "$D/words"
cat "$D/sorted" "$D/sorted" | sort -nu --parallel=2 | cmp - "$D/sorted"
sort -n -m "$D/sorted" "$D/sorted" | uniq -d | cmp - "$D/sorted"
equal "$(find "$D" -name 'sort*' ! -name sorted | wc -l)" 0 "temporary files left"
