#!/usr/bin/env bash
# ed, ex-like edits by script; nano's version at least starts.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need ed
cd "$D"
seq 100 >file
printf '%s\n' '1,10d' ',s/9/nine/g' '$a' 'appended' '.' '0r !echo first' 'w' 'w copy' 'q' | ed -s file
{ echo first; seq 11 100 | sed 's/9/nine/g'; echo appended; } | cmp - file
cmp file copy
printf '%s\n' 'r copy' 'wq' | ed -s file
equal "$(wc -l <file)" 184
