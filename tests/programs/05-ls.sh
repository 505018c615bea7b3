#!/usr/bin/env bash
# ls -lR, -a, -i, -S and -t show what was made, sorted as asked.
. "${BASH_SOURCE[0]%/*}/lib.sh"

make_tree "$T/tree"
cp -a "$T/tree" "$D/tree"
list() {
    (cd "$1" && ls -lR --time-style=+%s . | sed -E 's/^total .*//; /^d/s/^(\S+) +\S+ (\S+ \S+) +[0-9]+/\1 \2/' | tr -s ' ')
}
list "$T/tree" >"$T/expected"
list "$D/tree" | diff "$T/expected" -
equal "$(ls -a "$D/tree/empty" | tr '\n' ' ')" ". .. "
equal "$(ls -S "$D/tree/a" | head -1)" file-300000
touch -d '2030-01-01' "$D/tree/many/entry-77"
equal "$(ls -t "$D/tree/many" | head -1)" entry-77
equal "$(ls -f "$D/tree/many" | sort | uniq -d | wc -l)" 0 "names shown twice"
equal "$(ls "$D/tree/many" | wc -l)" 200
equal "$(ls -i "$D/tree/a/b/hard" | awk '{print $1}')" "$(stat -c %i "$D/tree/a/file-4097")"
equal "$(ls -F "$D/tree" | grep -c '/$')" 4
