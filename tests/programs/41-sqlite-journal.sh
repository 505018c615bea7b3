#!/usr/bin/env bash
# sqlite3: rollback journal modes, transactions, rollback, vacuum, integrity check.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need sqlite3
for mode in delete truncate persist; do
    db=$D/$mode.db
    equal "$(sqlite3 "$db" "PRAGMA journal_mode=$mode;")" $mode
    sqlite3 "$db" >/dev/null <<END
PRAGMA journal_mode=$mode;
CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, b BLOB);
CREATE INDEX i ON t (v);
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5000)
INSERT INTO t SELECT x, 'value ' || (x * 7919 % 5000), randomblob(x % 500) FROM n;
BEGIN; DELETE FROM t WHERE id % 2; ROLLBACK;
BEGIN; UPDATE t SET v = v || '!' WHERE id % 3 = 0; COMMIT;
DELETE FROM t WHERE id > 4000;
VACUUM;
END
    equal "$(sqlite3 "$db" "PRAGMA integrity_check; SELECT count(*), sum(id), sum(v LIKE '%!') FROM t;")" $'ok\n4000|8002000|1333'
done
refuses stat "$D/delete.db-journal"
cp "$D/delete.db" "$T/copy.db"
equal "$(sqlite3 "$T/copy.db" .sha3sum 2>/dev/null || sqlite3 "$T/copy.db" .dump | sha256sum)" \
    "$(sqlite3 "$D/delete.db" .sha3sum 2>/dev/null || sqlite3 "$D/delete.db" .dump | sha256sum)"
sqlite3 "$D/delete.db" ".backup $D/backup.db"
equal "$(sqlite3 "$D/backup.db" 'PRAGMA integrity_check;')" ok
