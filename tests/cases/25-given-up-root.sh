#!/usr/bin/env bash
# Programs that give up root (setuid and its relatives, a set-id program) keep nothing of the instance's memory.
. "${BASH_SOURCE[0]%/*}/lib.sh"

[ "$(id -u)" = 0 ] && setpriv --reuid 65534 true 2>/dev/null || { echo "not allowed: another user"; exit 77; }
compile_case given_up_root.c -I"$SRC"
chmod 755 "$D"
"$T/program" "$D" </dev/null || fail "the program"
# A program with the set-id bit of another user.
echo text >"$D/file"
chmod 755 "$T"
cp /bin/cat "$T/cat"
chown 65534 "$T/cat"
chmod 4755 "$T/cat"
! "$T/cat" /proc/self/maps 2>/dev/null | grep -E '/dev/shm/|/memfd:' || fail "a set-id program has shared memory"
