#!/usr/bin/env bash
# xargs -P4 and -n: parallel programs create, read and delete files of one directory.
. "${BASH_SOURCE[0]%/*}/lib.sh"

cd "$D"
seq 400 | xargs -P 4 -n 7 sh -c 'for i; do echo "$i" >"file-$i"; done' -
equal "$(cat file-* | sort -n | sha256sum)" "$(seq 400 | sha256sum)"
find . -name 'file-*' -print0 | xargs -0 -P 4 -n 20 sha256sum >"$T/sums"
equal "$(sort -u "$T/sums" | wc -l)" 400
seq 400 | xargs -P 4 -n 10 sh -c 'for i; do mv "file-$i" "moved-$i"; done' -
equal "$(find . -name 'moved-*' | wc -l) $(find . -name 'file-*' | wc -l)" "400 0"
printf '%s\n' 1 2 3 4 | xargs -P 4 -I{} sh -c 'mkdir only 2>/dev/null && echo {} >>made; true'
equal "$(wc -l <made)" 1 "mkdir has one winner; one file, one entry"
printf 'moved-%s\n' {1..400} | xargs -P 4 -n 25 rm
equal "$(find . -name 'moved-*' | wc -l)" 0
