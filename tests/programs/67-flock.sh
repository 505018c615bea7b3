#!/usr/bin/env bash
# flock(1): exclusive, shared, non-blocking and with a time limit; a counter that four shells share.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need flock
cd "$D"
echo 0 >count
for _ in 1 2 3 4; do
    (for _ in $(seq 40); do
        (flock 9; read -r n <count; echo $((n + 1)) >count) 9>lock
    done) &
done
wait
equal "$(cat count)" 160
flock lock sleep 120 &
holder=$!
until ! flock -n lock true; do sleep 0.02; done
status=0; flock -w 0.2 -E 42 lock true || status=$?
equal $status 42
pkill -P $holder || kill $holder
wait $holder 2>/dev/null || true
timeout 300 flock lock true || fail "not freed by death"
(flock -s 8; flock -n -s lock true) 8>lock
(flock -s 8; refuses flock -n -x lock true) 8>lock
