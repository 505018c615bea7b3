#!/usr/bin/env bash
# PostgreSQL, as an ordinary user: initdb, pgbench with several clients, a crash, and all of it again.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] && export PATH=$bin:$PATH
need initdb pg_ctl pgbench psql createdb
as=()
if [ "$(id -u)" = 0 ]; then
    # PostgreSQL refuses to run as root.
    need setpriv
    as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    chown 65534 "$D"
    chmod 711 "$D/.."
    "${as[@]}" test -w "$D" || { echo "other users cannot use the directory here"; exit 77; }
fi
export PGDATA=$D/data PGHOST=$D PGDATABASE=postgres HOME=$D
cd "$D"
"${as[@]}" initdb -A trust >"$T/initdb.log" 2>&1 || fail "$(cat "$T/initdb.log")"
server() {
    "${as[@]}" pg_ctl -w -t 60 -l "$D/log" -o "-c listen_addresses= -c unix_socket_directories=$D" "$@" \
        >"$T/ctl.log" 2>&1 || fail "$(cat "$T/ctl.log" "$D/log")"
}
# Usually it is stopped by then: the status of the script counts.
trap '"${as[@]}" pg_ctl -m immediate stop >/dev/null 2>&1 || true' EXIT
totals() {
    "${as[@]}" psql -Atc 'select sum(abalance), (select sum(tbalance) from pgbench_tellers),
        (select sum(bbalance) from pgbench_branches), (select count(*) from pgbench_history),
        (select sum(delta) from pgbench_history) from pgbench_accounts'
}
server start
"${as[@]}" pgbench -i -q >/dev/null 2>&1
"${as[@]}" pgbench -c 4 -j 2 -t 100 >"$T/bench.log" 2>&1 || fail "$(cat "$T/bench.log")"
before=$(totals)
IFS='|' read -r accounts tellers branches count deltas <<<"$before"
equal "$count $tellers $branches $deltas" "400 $accounts $accounts $accounts"
# Killed in the middle: committed transactions are there.
"${as[@]}" pgbench -n -c 4 -j 2 -t 100000 >/dev/null 2>&1 &
bench=$!
until [ "$("${as[@]}" psql -Atc 'select count(*) from pgbench_history')" -gt 700 ]; do :; done
server -m immediate stop
if wait $bench; then fail "the benchmark did not notice the end of the server"; fi
server start
IFS='|' read -r accounts tellers branches count deltas <<<"$(totals)"
equal "$tellers $branches $deltas" "$accounts $accounts $accounts"
[ "$count" -gt 700 ] || fail "$count transactions are left"
"${as[@]}" psql -qAt -c 'create index on pgbench_history (mtime)' -c 'vacuum full' -c checkpoint \
    -c 'reindex table pgbench_accounts' >/dev/null
server stop
"${as[@]}" pg_controldata | grep -q 'shut down$'
if command -v pg_checksums >/dev/null; then
    "${as[@]}" pg_checksums --enable >/dev/null 2>&1
    "${as[@]}" pg_checksums --check >/dev/null
fi
