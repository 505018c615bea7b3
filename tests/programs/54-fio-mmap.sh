#!/usr/bin/env bash
# fio mmap: written and verified through shared maps.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need fio
run() {
    (cd "$D" && fio --output="$T/fio.log" --aux-path="$T" --directory="$D" --verify=crc32c --verify_fatal=1 \
        --verify_state_save=0 --allow_mounted_write=1 --thread="${THREAD:-0}" "$@") || fail "$(cat "$T/fio.log")"
    rm -f "$D"/*
}
run --name=a --ioengine=mmap --rw=write --bs=64k --size=8m
run --name=b --ioengine=mmap --rw=randwrite --bs=4k --size=4m --numjobs=2
