#!/usr/bin/env bash
# mkfifo either makes a pipe that carries data or is refused clearly, leaving nothing.
. "${BASH_SOURCE[0]%/*}/lib.sh"

if mkfifo "$D/pipe" 2>"$T/error"; then
    equal "$(stat -c %F "$D/pipe")" fifo
    seq 10000 >"$D/pipe" &
    timeout 300 cat "$D/pipe" | cmp - <(seq 10000)
    wait
else
    grep -Eq 'not supported|not permitted|not implemented' "$T/error" || fail "$(cat "$T/error")"
    refuses stat "$D/pipe"
fi
