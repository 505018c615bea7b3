#!/usr/bin/env bash
# RocksDB: written in order and at random, overwritten, read by mappings and by direct I/O, compacted,
# counted, and opened again after a kill.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need db_bench ldb
common=(--db="$D/db" --num=10000 --value_size=200 --compression_type=none --threads=2 --write_buffer_size=1000000)
run() {
    local log=$T/log
    db_bench "${common[@]}" "$@" >"$log" 2>&1 || fail "$* $(tail -n 5 "$log")"
    if grep -iE 'corrupt|IO error' "$log"; then fail "$*"; fi
}
run --benchmarks=fillseq --threads=1
run --benchmarks=overwrite,readrandom,seekrandom --use_existing_db=1
run --benchmarks=readseq,readrandom --use_existing_db=1 --mmap_read=1
run --benchmarks=overwrite,readrandom --use_existing_db=1 --mmap_read=1 --mmap_write=1
run --benchmarks=overwrite,readrandom,compact --use_existing_db=1 --use_direct_reads=1 \
    --use_direct_io_for_flush_and_compaction=1
run --benchmarks=overwrite --use_existing_db=1 --sync=1 --writes=100
run --benchmarks=verifychecksum --use_existing_db=1
count() {
    ldb --db="$D/db" scan --hex --no_value 2>/dev/null | wc -l
}
equal "$(count)" 10000
tables() {
    find "$D/db" -name '*.sst' -newer "$T/begun" | wc -l
}
touch "$T/begun"
db_bench "${common[@]}" --benchmarks=overwrite --use_existing_db=1 --num=1000000 --writes=100000000 \
    >"$T/killed.log" 2>&1 &
bench=$!
until [ "$(tables)" -gt 1 ]; do
    kill -0 $bench 2>/dev/null || fail "$(tail -n 5 "$T/killed.log")"
done
kill -9 $bench
if wait $bench 2>/dev/null; then fail "it ended before it was killed"; fi
[ "$(count)" -gt 10000 ] || fail "$(count) keys are left"
ldb --db="$D/db" checkconsistency >"$T/check.log" 2>&1 || fail "$(cat "$T/check.log")"
