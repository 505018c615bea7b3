#!/bin/sh
# Measures a writer that is faster than the SSD: 1 MiB writes of ten times the memory, and a burst that fits, on
# an instance whose SSD file is on a loop device of RATE MB/s; for comparison the same program on that device
# alone; and an instance of two daemons, each with such a device. Needs root, ext4, loop devices and the blkio
# controller; cleans up after itself.
set -eu
RATE=${RATE:-112}
MEMORY=${MEMORY:-128}
instance=outrun
. "$(dirname "$0")/throttled.sh"
throttled "$place/at" $((MEMORY * 16)) "$RATE"

cat >"$place/write.py" <<'PROGRAM'
import os, sys, time
path, count = sys.argv[1], int(sys.argv[2])
block, took = bytes(1 << 20), []
fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
begun = last = time.monotonic()
for n in range(count):
    assert os.write(fd, block) == 1 << 20
    now = time.monotonic()
    took.append((now - last) * 1000)
    last = now
written = last - begun
if 'sync' in sys.argv[3:]: os.fsync(fd)
ended = time.monotonic() - begun
took, curve = sorted(took), took
at = lambda part: took[min(count - 1, int(count * part))]
print(f'{sys.argv[4]:22} {count:5} MiB  {count * 1.048576 / ended:7.0f} MB/s   ms: p50 {at(.5):6.2f}  '
      f'p90 {at(.9):6.2f}  p99 {at(.99):6.2f}  p99.9 {at(.999):6.2f}  max {took[-1]:7.2f}')
part = max(1, count // 10)
print(' ' * 23 + 'MB/s for each tenth: ' + ' '.join(
    f'{part * 1048.576 / sum(curve[n:n + part]):.0f}' for n in range(0, part * 10, part)))
PROGRAM

state() { forebay status --name outrun --json | grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2; }
start() { forebay start --name outrun --memory "${MEMORY}MiB" --ssd "$((MEMORY * 14))MiB" --demote-idle-age 100ms; }
start >/dev/null
kill -9 "$(forebay status --name outrun --json | grep -o '"pid":[0-9]*' | head -1 | cut -d: -f2)"
sleep 1
ssd=$place/forebay-$(id -u)-outrun/d0/ssd
touch "$place/at/ssd"
mount --bind "$place/at/ssd" "$ssd"
start >/dev/null
umount -l "$ssd"
run() { forebay run --name outrun -- python3 "$place/write.py" "$@"; }
echo "memory $MEMORY MiB, SSD of $RATE MB/s"
python3 "$place/write.py" "$place/at/alone" $((MEMORY * 4)) sync 'device alone'
rm "$place/at/alone"
sync
run /forebay/fits $((MEMORY * 4 / 10)) no 'burst that fits'
run /forebay/fits2 $((MEMORY * 4 / 10)) no 'second burst'
begun=$(date +%s%N)
while [ "$(state bytes_demoted)" -lt $((MEMORY * 3 / 10 << 20)) ]; do sleep 0.05; done
echo "                       afterwards $(($(state bytes_demoted) >> 20)) MiB demoted within $((($(date +%s%N) - begun) / 1000000)) ms"
forebay run --name outrun -- rm /forebay/fits /forebay/fits2
run /forebay/outruns $((MEMORY * 10)) sync 'ten times the memory'
echo "write_waits $(state write_waits), longest $(state write_wait_us_max) us"

forebay stop --name outrun >/dev/null
rm -f "$place/at/ssd"
throttled "$place/other" $((MEMORY * 16)) "$RATE"
forebay start --name outrun --local 2 --dir "$place/at:$place/other" --memory "$((MEMORY / 2))MiB" \
    --ssd "$((MEMORY * 12))MiB" --demote-idle-age 100ms >/dev/null
run /forebay/outruns $((MEMORY * 10)) sync 'two such devices'
