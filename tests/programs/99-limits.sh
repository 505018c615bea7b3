#!/usr/bin/env bash
# `RLIMIT_FSIZE` is obeyed, as on a local file: SIGXFSZ, EFBIG, and a shorter write up to the limit.
# The bytes that a program reads and writes hardly count as its own resident memory.
. "${BASH_SOURCE[0]%/*}/lib.sh"
need python3

(trap '' XFSZ; ulimit -f 4; head -c 100000 /dev/zero >"$D/big") 2>/dev/null || true
equal "$(stat -c %s "$D/big")" 4096 "size at the limit"
status=0
(ulimit -c 0; ulimit -f 4; exec head -c 100000 /dev/zero >"$D/big") 2>/dev/null || status=$?
equal "$status" 153 "ended by SIGXFSZ"
python "$SRC/limits.py" "$D"
