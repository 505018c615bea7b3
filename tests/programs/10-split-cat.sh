#!/usr/bin/env bash
# split into parts and cat them together again; csplit.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bytes 3000000 >"$T/big"
cp "$T/big" "$D/big"
(cd "$D" && split -b 70000 -d -a 3 big part-)
equal "$(find "$D" -name 'part-*' | wc -l)" 43
cat "$D"/part-* >"$D/joined"
cmp "$T/big" "$D/joined"
cat "$D"/part-* | cmp - "$T/big"
seq 1000 >"$D/lines"
split -n l/4 "$D/lines" "$D/quarter-"
cat "$D"/quarter-* | cmp - "$D/lines"
csplit -s -f "$D/chunk-" "$D/lines" '/^500$/'
equal "$(wc -l <"$D/chunk-00")" 499
cat "$D/big" >>"$D/joined"
cat "$T/big" "$T/big" | cmp - "$D/joined"
