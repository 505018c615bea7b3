#!/usr/bin/env bash
# python sqlite3: four processes add to one counter; every transaction counts.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need_module sqlite3
cat >"$T/program.py" <<'END'
import multiprocessing, sqlite3, sys
path = sys.argv[1] + "/count.db"
def work(n):
    c = sqlite3.connect(path, timeout=60, isolation_level=None)
    for _ in range(50):
        c.execute("BEGIN IMMEDIATE"); c.execute("UPDATE t SET n = n + 1"); c.execute("INSERT INTO log VALUES (?)", (n,)); c.execute("COMMIT")
if __name__ == "__main__":
    c = sqlite3.connect(path); c.executescript("CREATE TABLE t (n); INSERT INTO t VALUES (0); CREATE TABLE log (worker);"); c.close()
    with multiprocessing.Pool(4) as pool: pool.map(work, range(4))
    c = sqlite3.connect(path)
    assert c.execute("SELECT n FROM t").fetchone() == (200,)
    assert c.execute("SELECT count(*), sum(worker) FROM log").fetchone() == (200, 300)
    assert c.execute("PRAGMA integrity_check").fetchone() == ("ok",)
END
python "$T/program.py" "$D"
