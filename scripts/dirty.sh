#!/bin/sh
# Measures bounds on dirty bytes where only the backing directory takes bytes from memory: a
# job writes BURST MiB every PAUSE seconds, ROUNDS times, beside a program that writes without end, over a directory on a
# loop device of RATE MB/s and an instance of MEMORY MiB without an SSD. The other program is not there, a part of
# the same job, a job of its own, or one with the rule dirty=32M. Needs root, ext4, loop devices and the blkio
# controller; cleans up after itself.
set -eu
RATE=${RATE:-20}
MEMORY=${MEMORY:-256}
BURST=${BURST:-32}
PAUSE=${PAUSE:-8}
ROUNDS=${ROUNDS:-6}
instance=dirty
. "$(dirname "$0")/throttled.sh"
throttled "$place/at" 4096 "$RATE"

cat >"$place/program.py" <<'PROGRAM'
import itertools, os, sys, time
MIB = 1 << 20
what, top = sys.argv[1], sys.argv[2]
block = os.urandom(MIB)

def write(path, mib):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    for at in range(mib): assert os.pwrite(fd, block, at * MIB) == MIB
    os.close(fd)

if what == 'stream':
    # New files, each an eighth of the memory, once or without end.
    mib, files = int(sys.argv[3]), int(sys.argv[4])
    for number in itertools.count() if files == 0 else range(files):
        write(f'{top}/stream{number}', mib // 8)
        if number >= 20: os.remove(f'{top}/stream{number - 20}')
        if number == 10: print('ready', flush=True)
else:
    mib, pause, rounds = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    for number in range(rounds):
        begun = time.monotonic()
        write(f'{top}/burst{number}', mib)
        print(time.monotonic() - begun, flush=True)
        time.sleep(pause)
PROGRAM

# run NAME JOB RULE: the bursts beside a stream of this job; no job: alone.
run() {
    forebay start --local 1 --name "$instance" --memory "${MEMORY}MiB" --ssd 0 \
        --enospc-timeout 60s --backing "$place/at" >/dev/null
    [ -z "$3" ] || forebay qos set --name "$instance" "$3"
    stream=
    if [ -n "$2" ]; then
        mkfifo "$place/ready"
        "$bin/forebay" run -q --name "$instance" --job "$2" -- python3 "$place/program.py" stream /forebay "$MEMORY" 0 \
            >"$place/ready" &
        stream=$!
        read -r _ <"$place/ready"
    else
        # The memory is full of bytes that were written back.
        forebay run -q --name "$instance" -- python3 "$place/program.py" stream /forebay "$MEMORY" 10
        forebay flush --name "$instance" >/dev/null
    fi
    forebay run -q --name "$instance" --job bursts -- \
        python3 "$place/program.py" bursts /forebay "$BURST" "$PAUSE" "$ROUNDS" >"$place/seconds"
    if [ -n "$stream" ]; then
        kill "$stream"
        wait "$stream" || true
        rm "$place/ready"
    fi
    sort -g "$place/seconds" | awk -v name="$1" -v first="$(head -n 1 "$place/seconds")" '
        { seconds[NR] = $1 }
        END {
            middle = (seconds[int((NR + 1) / 2)] + seconds[int(NR / 2) + 1]) / 2
            printf "| %s | %.0f ms | %.0f ms | %.0f ms |\n", name, 1000 * first, 1000 * middle, 1000 * seconds[NR]
        }'
    forebay stop --name "$instance" --discard >/dev/null
    find "$place/at" -type f -delete
}

echo "| the other program | first burst | median | longest |"
echo "|---|---|---|---|"
run "not there" "" ""
run "the same job" bursts ""
run "a job of its own" stream ""
run "a job of its own with dirty=32M" stream "stream jobid={stream} dirty=32M"
