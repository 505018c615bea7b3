#!/usr/bin/env bash
# sqlite3: WAL mode (a shared map), a reader beside a writer, checkpoint.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need sqlite3
db=$D/wal.db
equal "$(sqlite3 "$db" 'PRAGMA journal_mode=wal;')" wal
sqlite3 "$db" 'CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT);'
for _ in {1..20}; do
    sqlite3 "$db" "PRAGMA busy_timeout=20000; BEGIN IMMEDIATE; WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100)
        INSERT INTO t (v) SELECT 'row ' || x FROM n; COMMIT;" >/dev/null
done &
writer=$!
for _ in {1..20}; do
    count=$(sqlite3 "$db" 'PRAGMA busy_timeout=20000; SELECT count(*) FROM t;' | tail -n 1)
    equal $((count % 100)) 0 "a reader saw half a transaction: $count"
done
wait $writer
equal "$(sqlite3 "$db" 'PRAGMA integrity_check; SELECT count(*) FROM t; PRAGMA wal_checkpoint(TRUNCATE);')" $'ok\n2000\n0|0|0'
equal "$(sqlite3 "$db" 'PRAGMA mmap_size=100000000; SELECT count(v) FROM t; PRAGMA integrity_check;' | tail -n 2)" $'2000\nok'
