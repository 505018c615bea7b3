#!/bin/sh
# Measures how jobs share the backing store: a job reads FILES files of MIB MiB, one after the other, that are in the
# backing directory alone, beside none, 8 and 64 readers of another job. The directory is on a loop device of RATE
# MB/s. BIN: directory of other programs, to compare with (default target/release). Needs root, ext4, loop devices
# and the blkio controller; cleans up after itself.
set -eu
RATE=${RATE:-100}
FILES=${FILES:-20}
MIB=${MIB:-4}
instance=readers
. "$(dirname "$0")/throttled.sh"
bin=${BIN:-$bin}
throttled "$place/at" 8192 "$RATE"
# Files of the one reader, and enough for the others.
limit "${devices##*=}" 0
mkdir "$place/at/one" "$place/at/many"
for number in $(seq "$FILES"); do head -c "${MIB}M" /dev/urandom >"$place/at/one/$number"; done
for number in $(seq 640); do head -c "${MIB}M" /dev/urandom >"$place/at/many/$number"; done
sync
limit "${devices##*=}" "$RATE"

cat >"$place/program.py" <<'PROGRAM'
import os, signal, sys, time
directory, readers, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def read(number):
    with open(f'{directory}/{number}', 'rb') as file:
        while file.read(1 << 20): pass

if readers == 0:
    for number in range(1, files + 1):
        begun = time.monotonic()
        read(number)
        print(time.monotonic() - begun, flush=True)
else:
    os.setpgrp()
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    for reader in range(readers):
        if os.fork() == 0:
            for number in range(reader + 1, files + 1, readers): read(number)
            os._exit(0)
    print('ready', flush=True)
    for _ in range(readers): os.wait()
PROGRAM

# run READERS: measures one reader beside READERS readers of another job.
run() {
    echo 3 >/proc/sys/vm/drop_caches
    forebay start --local 1 --name "$instance" --memory 4GiB --ssd 0 --backing "$place/at" >/dev/null
    others=
    if [ "$1" -gt 0 ]; then
        mkfifo "$place/ready"
        "$bin/forebay" run -q --name "$instance" --job many -- python3 "$place/program.py" /forebay/many "$1" 640 \
            >"$place/ready" &
        others=$!
        read -r _ <"$place/ready"
    fi
    forebay run -q --name "$instance" --job one -- python3 "$place/program.py" /forebay/one 0 "$FILES" >"$place/seconds"
    if [ -n "$others" ]; then
        kill "$others" 2>/dev/null || echo "the other readers ended first: more files are needed" >&2
        # They were killed, so their exit status is that of the signal.
        wait "$others" || true
        rm "$place/ready"
    fi
    sort -g "$place/seconds" | awk -v readers="$1" '
        { seconds[NR] = $1 }
        END {
            middle = (seconds[int((NR + 1) / 2)] + seconds[int(NR / 2) + 1]) / 2
            printf "| %d | %.0f ms | %.0f ms |\n", readers, 1000 * middle, 1000 * seconds[NR]
        }'
    forebay stop --name "$instance" --discard >/dev/null
}

echo "| readers of the other job | a file, median | longest |"
echo "|---|---|---|"
for readers in 0 8 64; do run "$readers"; done
