#!/bin/sh
# Compares self-tuning watermarks with the fixed defaults, in turn ROUNDS times: bursts of 70 % of the memory, then
# a working set of 70 % that is read again and again. Prints medians; with OUT=DIR writes the series of the last
# round of each as DIR/watermarks-{fixed,auto}.csv, and DIR/watermarks.svg. Needs the release build and python3;
# cleans up after itself.
set -eu
MEMORY=${MEMORY:-512}
ROUNDS=${ROUNDS:-3}
bin=$(cd "$(dirname "$0")/../target/release" && pwd)
place=$(mktemp -d)
export XDG_RUNTIME_DIR="$place" FOREBAY_DIR="$place" FOREBAY="$bin/forebay" MEMORY
end() {
    # Between two rounds no instance is running.
    "$FOREBAY" stop --name watermarks >/dev/null 2>&1 || true
    rm -rf "$place"
}
trap end EXIT INT TERM

cat >"$place/load.py" <<'PROGRAM'
import os, sys, time
memory, at, block = int(os.environ['MEMORY']), '/forebay', os.urandom(4 << 20)

def write(name, mib):
    begun = time.monotonic()
    for n in range(mib // 4):
        fd = os.open(f'{at}/{name}.{n}', os.O_CREAT | os.O_WRONLY)
        assert os.write(fd, block) == len(block)
        os.close(fd)
    return time.monotonic() - begun

burst, count = memory * 7 // 10 // 4 * 4, 5
took = []
for n in range(count):
    took.append(write(f'burst{n}', burst))
    time.sleep(1.5)
for n in range(count):
    for part in range(burst // 4):
        os.unlink(f'{at}/burst{n}.{part}')
write('set', burst)
spent, read, ends = 0.0, 0, time.monotonic() + 6
while time.monotonic() < ends:
    for n in range(burst // 4):
        begun = time.monotonic()
        fd = os.open(f'{at}/set.{n}', os.O_RDONLY)
        read += len(os.read(fd, 4 << 20))
        os.close(fd)
        spent += time.monotonic() - begun
        time.sleep(2 / (burst // 4))
print(burst * count * 1.048576 / sum(took), read / 1e6 / spent)
PROGRAM

cat >"$place/watch.py" <<'PROGRAM'
import json, os, subprocess, sys, threading, time
out, forebay = sys.argv[1], os.environ['FOREBAY']
KEYS = ['memory_free', 'demote_low_watermark_bytes', 'demote_min_watermark_bytes', 'bytes_allocated', 'bytes_overflowed', 'bytes_demoted',
        'bytes_refaulted', 'write_wait_us']
def state():
    text = subprocess.run([forebay, 'status', '--name', 'watermarks', '--json'], capture_output=True).stdout
    return json.loads(text)['daemons'][0]['state']
begun, rows, is_over = time.monotonic(), [], threading.Event()
def watch():
    while not is_over.wait(0.1):
        now = state()
        rows.append([round(time.monotonic() - begun, 2)] + [now[key] for key in KEYS])
watcher = threading.Thread(target=watch)
watcher.start()
load = [forebay, 'run', '--name', 'watermarks', '--', 'python3', sys.argv[2]]
written, read = subprocess.run(load, capture_output=True, check=True, text=True).stdout.split()
is_over.set()
watcher.join()
with open(out, 'w') as csv:
    print('seconds', *KEYS, sep=',', file=csv)
    for row in rows:
        print(*row, sep=',', file=csv)
last = state()
print(written, read, *[last[key] / (1 << 20) for key in ['bytes_overflowed', 'bytes_demoted', 'bytes_refaulted']])
PROGRAM

cat >"$place/plot_watermarks.py" <<'PROGRAM'
import csv, os, sys
place, memory, scripts = sys.argv[1], int(os.environ['MEMORY']), sys.argv[2]
sys.path.insert(0, scripts)
import plot
LINES = [('memory_free', 'free'), ('demote_low_watermark_bytes', 'low watermark'),
         ('demote_min_watermark_bytes', 'min watermark'), ('bytes_overflowed', 'overflowed, total')]
tables = {how: list(csv.DictReader(open(f'{place}/watermarks-{how}.csv'))) for how in ['fixed', 'auto']}
titles = {'fixed': '50 --demote-min-watermark 10', 'auto': 'auto --demote-min-watermark auto'}
end = max(float(rows[-1]['seconds']) for rows in tables.values())
top = max([memory] + [int(rows[-1]['bytes_overflowed']) / (1 << 20) for rows in tables.values()])
def line(rows, key):
    return [(float(row['seconds']), int(row[key]) / (1 << 20)) for row in rows]
plot.write(sys.argv[3], [
    plot.Panel(f'--demote-low-watermark {titles[how]}', ' s', [(f'{name} (MiB)', line(rows, key)) for key, name in LINES],
               range(0, int(end) + 1, 5), end, top) for how, rows in tables.items()])
PROGRAM

once() {
    how=$1; shift
    "$FOREBAY" start --name watermarks --memory "${MEMORY}MiB" --ssd "$((MEMORY * 8))MiB" "$@" >/dev/null
    python3 "$place/watch.py" "$place/watermarks-$how.csv" "$place/load.py" >>"$place/$how"
    "$FOREBAY" stop --name watermarks --discard >/dev/null
}
for round in $(seq "$ROUNDS"); do
    once fixed --demote-low-watermark 50 --demote-min-watermark 10
    once auto --demote-low-watermark auto --demote-min-watermark auto
done
median() { cut -d' ' -f"$2" "$place/$1" | sort -g | sed -n "$(((ROUNDS + 1) / 2))p"; }
echo "memory $MEMORY MiB; medians of $ROUNDS"
echo "         bursts MB/s  reads MB/s  overflowed MiB  demoted MiB  refaulted MiB"
for how in fixed auto; do
    printf '%-8s %11.0f %11.0f %15.0f %12.0f %14.0f\n' "$how" "$(median $how 1)" "$(median $how 2)" \
        "$(median $how 3)" "$(median $how 4)" "$(median $how 5)"
done
if [ -n "${OUT:-}" ]; then
    cp "$place/watermarks-fixed.csv" "$place/watermarks-auto.csv" "$OUT"
    python3 "$place/plot_watermarks.py" "$place" "$(dirname "$0")" "$OUT/watermarks.svg"
fi
