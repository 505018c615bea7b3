#!/usr/bin/env bash
# sed -i with and without backup; awk reading many files and writing several.
. "${BASH_SOURCE[0]%/*}/lib.sh"

seq 10000 >"$D/file"
chmod 640 "$D/file"
sed -i 's/^5/five/' "$D/file"
seq 10000 | sed 's/^5/five/' | cmp - "$D/file"
equal "$(stat -c %a "$D/file")" 640
sed -i.bak -e '1d' -e '$d' "$D/file"
equal "$(wc -l <"$D/file") $(wc -l <"$D/file.bak")" "9998 10000"
sed -n "3,5w $D/part" "$D/file.bak"
equal "$(tr '\n' ' ' <"$D/part")" "3 4 five "
need awk
seq 3000 | awk -v d="$D" '{ print > (d "/mod-" ($1 % 3)); sum += $1 } END { print sum > (d "/sum") }'
equal "$(cat "$D/sum")" 4501500
for k in 0 1 2; do seq 3000 | awk -v k=$k '$1 % 3 == k' | cmp - "$D/mod-$k"; done
equal "$(awk 'FNR == 1 { n++ } END { print n, NR }' "$D"/mod-*)" "3 3000"
awk -v f="$D/sum" 'BEGIN { while ((getline line < f) > 0) print "got", line; print "more" >> f; close(f) }' | grep 'got 4501500' >/dev/null
equal "$(tail -1 "$D/sum")" more
equal "$(find "$D" -name 'sed*' | wc -l)" 0 "temporary files left"
