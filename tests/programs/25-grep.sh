#!/usr/bin/env bash
# grep -r, -l, -c, -z, -f and --include over a tree.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$D/t"
cd "$D/t"
equal "$(grep -r 'entry 19' many | wc -l)" 11
equal "$(grep -rl '^entry 42$' .)" ./many/entry-42
equal "$(grep -rhc 'entry' --include='entry-5' .)" 1
echo 'entry 7' >"$T/patterns"
equal "$(grep -rxl -f "$T/patterns" many)" many/entry-7
refuses grep -r 'never there' many
seq 100000 >"$D/numbers"
equal "$(grep -c 7 "$D/numbers")" "$(seq 100000 | grep -c 7)"
equal "$(grep -n '^99999$' "$D/numbers")" 99999:99999
seq 5 | grep 3 >>"$D/numbers"
equal "$(tail -1 "$D/numbers")" 3
