#!/usr/bin/env bash
# uniq, wc, comm, join, paste, tac, shuf, cut, tr, nl, fold, expand, tsort on files.
. "${BASH_SOURCE[0]%/*}/lib.sh"

seq 1 2 20001 >"$D/odd"
seq 1 3 20001 >"$D/thirds"
sort "$D/odd" -o "$D/a"
sort "$D/thirds" -o "$D/b"
cp "$D/a" "$D/b" "$D/odd" "$T"
both() {
    comm -12 "$1/a" "$1/b"
    join "$1/a" "$1/b" | wc
    paste -d, "$1/odd" "$1/b"
    tac "$1/odd"
    wc "$1/odd" "$1/b" | awk '{print $1, $2, $3}'
    cut -c2- "$1/a" | sort | uniq -c
    nl "$1/b" | fold -w 3 | expand | md5sum
    tr 0-9 a-j <"$1/a"
    shuf --random-source="$1/odd" "$1/b"
}
both "$T" >"$T/expected"
both "$D" >"$D/got"
cmp "$T/expected" "$D/got"
equal "$(shuf "$D/odd" | sort -n | sha256sum)" "$(sha256sum <"$T/odd")"
