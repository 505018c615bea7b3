#!/usr/bin/env bash
# fio psync: sequential and random writes, verified, in processes and threads, with fsync.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need fio
run() {
    (cd "$D" && fio --output="$T/fio.log" --aux-path="$T" --directory="$D" --verify=crc32c --verify_fatal=1 \
        --verify_state_save=0 --allow_mounted_write=1 --thread="${THREAD:-0}" "$@") || fail "$(cat "$T/fio.log")"
    rm -f "$D"/*
}
run --name=a --ioengine=psync --rw=write --bs=64k --size=16m --numjobs=2 --end_fsync=1
run --name=b --ioengine=psync --rw=randwrite --bs=8k --size=8m --numjobs=2 --fsync=64
THREAD=1 run --name=c --ioengine=psync --rw=randrw --bs=4k --size=4m --numjobs=2
run --name=d --ioengine=pvsync2 --rw=write --bsrange=1k-100k --size=8m
run --name=e --ioengine=vsync --rw=randwrite --bs=4k --size=4m
