#!/usr/bin/env bash
# Logs: followed by tail -f and -F, renamed under their writer, copied and truncated as logrotate does.
. "${BASH_SOURCE[0]%/*}/lib.sh"

log=$D/log
echo first >"$log"
tail -n +1 -s 0.1 -f "$log" >"$T/f" 2>"$T/f-errors" & followers=$!
tail -n +1 -s 0.1 -F "$log" >"$T/F" 2>"$T/F-errors" & followers="$followers $!"
# until_seen WORD FILE: waits; the time limit of the case ends it.
until_seen() {
    # shellcheck disable=SC2086  # two
    until grep -q "$1" "$2"; do kill -0 $followers || fail "tail ended: $(cat "$T"/*-errors)"; done
}
until_seen first "$T/f" && until_seen first "$T/F"
echo second >>"$log"
until_seen second "$T/f" && until_seen second "$T/F"
mv "$log" "$log.1"
echo third >"$log"
until_seen third "$T/F"
# shellcheck disable=SC2086  # two
kill $followers
wait 2>/dev/null
exec 8>>"$D/appended" 9>"$D/written"
echo old >&8
echo old >&9
cp "$D/appended" "$D/appended.1"
: >"$D/appended"
: >"$D/written"
echo new >&8
echo new >&9
equal "$(cat "$D/appended")" new "what appends, after a truncation"
equal "$(stat -c %s "$D/written") $(tr -d '\0' <"$D/written")" "8 new" "what writes on, after a truncation"
if command -v logrotate >/dev/null; then
    printf '%s {\n size 1\n copytruncate\n rotate 3\n compress\n su root root\n}\n' "$D/appended" >"$T/c"
    chmod 755 "$D"
    logrotate -s "$T/s" "$T/c" 2>"$T/e" || fail "logrotate: $(head -n 2 "$T/e")"
    echo newer >&8
    equal "$(cat "$D/appended") $(zcat "$D/appended.1.gz")" "newer new" logrotate
fi
