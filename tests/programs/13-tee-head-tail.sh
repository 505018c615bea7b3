#!/usr/bin/env bash
# tee, tee -a, head, tail -c, tail -f, od and cmp.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bytes 500000 >"$T/file"
tee "$D/one" "$D/two" <"$T/file" >"$D/three"
for copy in one two three; do cmp "$T/file" "$D/$copy"; done
head -c 1000 "$T/file" | tee -a "$D/one" >/dev/null
cat "$T/file" <(head -c 1000 "$T/file") | cmp - "$D/one"
equal "$(tail -c 777 "$D/two" | sha256sum)" "$(tail -c 777 "$T/file" | sha256sum)"
equal "$(tail -c +499000 "$D/two" | sha256sum)" "$(tail -c +499000 "$T/file" | sha256sum)"
equal "$(head -c -499000 "$D/two" | sha256sum)" "$(head -c -499000 "$T/file" | sha256sum)"
equal "$(od -A x -t x4 -j 4096 -N 64 "$D/two")" "$(od -A x -t x4 -j 4096 -N 64 "$T/file")"
seq 100 >"$D/lines"
equal "$(tail -n 2 "$D/lines" | tr '\n' ' ')" "99 100 "
(
    sleep 0.3
    echo last >>"$D/lines"
) &
timeout 300 sh -c 'tail -n 1 -f --pid='$$' -s 0.1 ---disable-inotify "$1" | sed "/last/q"' - "$D/lines" >"$T/tail" &
follower=$!
wait %1
wait "$follower" || true
equal "$(tail -n 1 "$T/tail")" last "tail -f"
refuses cmp "$D/one" "$D/two"
