#!/usr/bin/env bash
# Programs that may not make memory executable, gain rights or be dumped run as ever.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case no_writable_code.c
echo a >"$D/f"
for kind in mdwe nnp dump; do
    status=0
    got=$("$T/program" $kind cat "$D/f" 2>&1) || status=$?
    [ $status = 77 ] || equal "$got" a "$kind"
done
if command -v python3 >/dev/null; then
    status=0
    got=$("$T/program" mdwe python3 -c 'import json, sqlite3, ssl, sys; print(open(sys.argv[1]).read(), end="")' "$D/f" 2>&1) || status=$?
    [ $status = 77 ] || equal "$got" a "Python"
fi
