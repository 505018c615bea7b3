#!/bin/sh
# Measures the gain of staging and draining over a slow capacity tier, as ONFS does (sections 8.7 and 8.8): a
# directory on a loop device of RATE MB/s is read and written by programs directly and by the same programs on an
# instance over it, ROUNDS times in turn. Three programs: one reads staged files, one reads a list of files and
# computes after each (Gathering), one reads little, computes and writes much (OWDM). Needs root, ext4, loop devices
# and the blkio controller; cleans up after itself.
set -eu
RATE=${RATE:-112}
ROUNDS=${ROUNDS:-3}
MEMORY=${MEMORY:-4}
instance=staging
. "$(dirname "$0")/throttled.sh"
throttled "$place/at" 12288 "$RATE"

cat >"$place/program.py" <<'PROGRAM'
import hashlib, os, sys, time
MIB = 1 << 20
what, top = sys.argv[1], sys.argv[2]
block, buffer = os.urandom(MIB), bytearray(MIB)
clock = {'read': [0, 0.0], 'write': [0, 0.0]}

def count(kind, n, begun):
    clock[kind][0] += n
    clock[kind][1] += time.monotonic() - begun

def read(path):
    begun, n = time.monotonic(), 0
    with open(path, 'rb', buffering=0) as f:
        while got := f.readinto(buffer): n += got
    count('read', n, begun)

def write(path, size):
    begun = time.monotonic()
    with open(path, 'wb', buffering=0) as f:
        for _ in range(size // MIB): assert f.write(block) == MIB
    count('write', size, begun)

def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: hashlib.sha256(block).digest()

begun = time.monotonic()
if what == 'read':
    for name in sys.argv[3:]: read(f'{top}/{name}')
elif what == 'gathering':
    for name in sys.argv[4:]:
        read(f'{top}/{name}')
        compute(float(sys.argv[3]))
elif what == 'owdm':
    for name in sys.argv[4:]:
        read(f'{top}/{name}')
        compute(float(sys.argv[3]))
        # The restart file is overwritten for each input, the image stays.
        write(f'{top}/resume', 160 * MIB)
        compute(float(sys.argv[3]))
        write(f'{top}/image-{name}', 60 * MIB)
took = time.monotonic() - begun
speed = {kind: n / 1e6 / t if t else 0 for kind, (n, t) in clock.items()}
print(f'{took:.3f} {speed["read"]:.1f} {speed["write"]:.1f}')
PROGRAM

# cold: empties the kernel's page cache.
cold() { sync; echo 3 >/proc/sys/vm/drop_caches; }
seconds() { date +%s.%N; }
start() { forebay start --name staging --memory "${MEMORY}GiB" --ssd 0 --backing "$place/at" >/dev/null; }
run() { forebay run --name staging -- python3 "$place/program.py" "$@"; }
note() { echo "$*" >>"$place/results"; }

# Twelve inputs of 60 MiB: 0.56 s each at 112 MB/s. As in the paper, computing takes half as long as reading.
names=$(seq -f 'in%02g' 12)
limit "$device" 0
for name in $names; do head -c 60M /dev/urandom >"$place/at/$name"; done
limit "$device" "$RATE"
compute=0.27
for name in $names; do echo "/forebay/$name"; done >"$place/list"

round=1
while [ $round -le "$ROUNDS" ]; do
    cold
    note read-alone "$(python3 "$place/program.py" read "$place/at" $names)"
    start
    cold
    begun=$(seconds)
    forebay stage in --name staging --wait --list "$place/list" >/dev/null
    note stage "$(seconds)" "$begun"
    note read-staged "$(run read /forebay $names)"
    forebay stop --name staging >/dev/null

    cold
    note gathering-alone "$(python3 "$place/program.py" gathering "$place/at" $compute $names)"
    start
    cold
    forebay stage in --name staging --order --list "$place/list" >/dev/null
    note gathering-listed "$(run gathering /forebay $compute $names)"
    forebay stop --name staging >/dev/null

    cold
    note owdm-alone "$(python3 "$place/program.py" owdm "$place/at" 0.6 $(seq -f 'in%02g' 6))"
    rm -f "$place/at/resume" "$place"/at/image-*
    start
    cold
    note owdm "$(run owdm /forebay 0.6 $(seq -f 'in%02g' 6))"
    begun=$(seconds)
    forebay stop --name staging >/dev/null
    note drain "$(seconds)" "$begun"
    rm -f "$place/at/resume" "$place"/at/image-*
    round=$((round + 1))
done

python3 - "$place/results" "$RATE" "$MEMORY" "$ROUNDS" <<'PROGRAM'
import statistics, sys
rows = {}
for line in open(sys.argv[1]):
    what, *values = line.split()
    values = [float(value) for value in values]
    rows.setdefault(what, []).append(values if len(values) == 3 else [values[0] - values[1]])
def middle(what, place): return statistics.median(row[place] for row in rows[what])
def spread(what, place):
    all = sorted(row[place] for row in rows[what])
    return f'{all[0]:.1f} to {all[-1]:.1f}'
print(f'a device of {sys.argv[2]} MB/s, an instance of {sys.argv[3]} GiB over it, medians of {sys.argv[4]}')
def line(text, what, place, unit):
    print(f'{text:44} {middle(what, place):8.1f} {unit:5} ({spread(what, place)})')
line('read, device alone', 'read-alone', 1, 'MB/s')
line('read, staged in', 'read-staged', 1, 'MB/s')
line('  staging in', 'stage', 0, 's')
print(f'  {middle("read-staged", 1) / middle("read-alone", 1):.1f} times')
line('Gathering, device alone', 'gathering-alone', 0, 's')
line('Gathering, list prefetched', 'gathering-listed', 0, 's')
print(f'  {100 - 100 * middle("gathering-listed", 0) / middle("gathering-alone", 0):.1f} % less')
line('OWDM writes, device alone', 'owdm-alone', 2, 'MB/s')
line('OWDM writes, on the instance', 'owdm', 2, 'MB/s')
print(f'  {middle("owdm", 2) / middle("owdm-alone", 2):.1f} times')
line('OWDM, device alone', 'owdm-alone', 0, 's')
line('OWDM, on the instance', 'owdm', 0, 's')
line('  draining at the stop', 'drain', 0, 's')
PROGRAM
