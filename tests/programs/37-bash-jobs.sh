#!/usr/bin/env bash
# bash: background jobs append to one log, wait, traps; a pipeline of ten programs.
. "${BASH_SOURCE[0]%/*}/lib.sh"

cd "$D"
for i in {1..8}; do
    (for j in {1..50}; do echo "job $i line $j" >>log; done) &
done
wait
equal "$(wc -l <log)" 400
for i in {1..8}; do equal "$(grep -c "^job $i " log)" 50 "lines of job $i"; done
bash -c 'trap "echo trapped >>traps" EXIT; echo start >traps; exit 3' || equal $? 3
equal "$(tr '\n' ' ' <traps)" "start trapped "
seq 20000 | tee a | sort -r | tee b | sort -n | sed 's/$/ /' | tr -d ' ' | tac | tac | cat | tee c | wc -l >d
cmp a c
equal "$(<d) $(sort -n b | cmp - a && echo same)" "20000 same"
coproc sh -c 'read x; echo "got $x" >from-coproc'
echo hello >&"${COPROC[1]}"
wait "$COPROC_PID"
equal "$(<from-coproc)" "got hello"
(sleep 30 >sleeping) &
until [ -e sleeping ]; do sleep 0.01; done
kill $!; wait $! 2>/dev/null || true
