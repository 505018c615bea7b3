#!/usr/bin/env bash
# fio posixaio and sync: aio_read and aio_write of the C library, verified.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need fio
run() {
    (cd "$D" && fio --output="$T/fio.log" --aux-path="$T" --directory="$D" --verify=crc32c --verify_fatal=1 \
        --verify_state_save=0 --allow_mounted_write=1 --thread="${THREAD:-0}" "$@") || fail "$(cat "$T/fio.log")"
    rm -f "$D"/*
}
run --name=a --ioengine=posixaio --iodepth=8 --rw=randwrite --bs=8k --size=8m
run --name=b --ioengine=sync --rw=rw --bs=16k --size=8m --numjobs=2
