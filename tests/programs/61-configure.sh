#!/usr/bin/env bash
# A configure script of the classic kind: conftest programs, here documents, config.status.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc make
cp "$SRC/configure" "$SRC/configured.c" "$D"
cd "$D"
sh ./configure --prefix="$D/usr" >"$T/log" 2>&1 || fail "$(tail -n 20 "$T/log")"
make -s
equal "$(./program)" "configured: stdio.h 1, no_such.h 0, printf 1"
make -s install
equal "$("$D/usr/bin/program")" "configured: stdio.h 1, no_such.h 0, printf 1"
mkdir apart && (cd apart && sh ../configure >"$T/log" 2>&1 && make -s && ./program >/dev/null)
equal "$(find . -name 'conftest*' | wc -l)" 0
