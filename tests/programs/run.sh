#!/usr/bin/env bash
# Runs the cases of this directory, one after the other, each on an empty directory of the file system
# under test, and prints one line per case and a summary "N passed, M failed, K skipped".
#
#   run.sh [--only PATTERN] [--keep] DIRECTORY       on a directory of a mounted file system
#   run.sh [--only PATTERN] [--keep] --in-forebay    on a new instance for each case
#
# --access WAY says how programs see the instance: auto (default), preload or mount. With a directory, it
# only says how this script itself was started.
# --cases DIRECTORY runs the cases of another directory.
# --only PATTERN runs the cases whose name matches the shell pattern; it may be given again.
# --keep leaves the scratch directory with the logs; without it, only logs of failed cases are shown.
# With --in-forebay, FOREBAY_BIN names the program (default: forebay on PATH) and FOREBAY_LOCAL the
# number of daemons (default 1). CASE_SECONDS bounds one case (default 300); after 9/10 of them, its log
# gets the processes of the case and the system calls that they wait in.
#
# A case passes with exit status 0 and is skipped with 77 (a program is not installed). A case with the
# line "# preload-only: refused: TEXT" does what the preload library cannot do alone: without a mount, it
# passes if it fails and TEXT is in its output, and only then.
set -euo pipefail

here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
mode=directory
patterns=()
keep=no
directory=
access=${FOREBAY_ACCESS:-auto}
while [ $# -gt 0 ]; do
    case $1 in
    --in-forebay) mode=forebay ;;
    --cases) here=$(cd "$2" && pwd); shift ;;
    --access) access=$2; shift ;;
    --only) patterns+=("$2"); shift ;;
    --keep) keep=yes ;;
    -*) echo "unknown option: $1" >&2; exit 2 ;;
    *) directory=$1 ;;
    esac
    shift
done
case $access in auto | preload | mount) ;; *) echo "--access is auto, preload or mount" >&2; exit 2 ;; esac
export FOREBAY_ACCESS=$access
# Without the device, there is no mount beneath the preload library.
if [ "$access" = auto ] && [ ! -e /dev/fuse ]; then access=preload; fi
# Where programs see the instance. Preload-only it is not mounted: what the library does not serve must find
# nothing there, so it is not where instances of other tests are mounted meanwhile.
at=/forebay
[ "$access" != preload ] || at=/forebay-of-the-library
if [ "$mode" = directory ]; then
    [ -d "$directory" ] || { echo "usage: run.sh [--only PATTERN] [--keep] DIRECTORY | --in-forebay" >&2; exit 2; }
    directory=$(mktemp -d "$(cd "$directory" && pwd)/programs-XXXXXX")
fi

scratch=$(mktemp -d "${TMPDIR:-/tmp}/forebay-programs-XXXXXX")
logs=$scratch/logs
mkdir "$logs"
mkfifo "$scratch/silent"
clean() {
    if [ "$mode" = directory ]; then rm -rf "$directory"; fi
    if [ "$keep" = yes ]; then echo "logs: $logs"; else rm -rf "$scratch"; fi
}
trap clean EXIT
trap 'exit 130' INT TERM

selected() {
    local pattern
    [ ${#patterns[@]} -eq 0 ] && return 0
    for pattern in "${patterns[@]}"; do
        # shellcheck disable=SC2053  # the right side is a pattern
        [[ $1 == $pattern ]] && return 0
    done
    return 1
}

# processes PID: prints PID and the processes below it, each with the system call that it waits in.
processes() {
    local child
    ps -o pid=,ppid=,stat=,etimes=,args= -p "$1" || return 0
    sed 's/^/    /' "/proc/$1/syscall" "/proc/$1/stack" 2>/dev/null || true
    for child in $(pgrep -P "$1"); do
        [ "$child" = "$BASHPID" ] || processes "$child"
    done
}

# watch_case LOG: describes a case that nears its time limit, in its log.
watch_case() {
    # Nothing comes out of the pipe: this waits without another process.
    read -rt $((${CASE_SECONDS:-300} * 9 / 10)) <>"$scratch/silent" || true
    {
        echo "the time limit is near; the processes and their system calls:"
        processes $$
    } >>"$1" 2>&1
}

# run_case FILE LOG: runs one case to its end or its time limit and returns its status.
run_case() {
    local name=${1##*/}
    name=${name%.sh}
    export T=$scratch/$name
    mkdir "$T"
    local limit=(timeout -k 5 "${CASE_SECONDS:-300}")
    if [ "$mode" = directory ]; then
        export D=$directory/$name
        mkdir "$D"
        (cd "$T" && exec "${limit[@]}" bash "$1") >"$2" 2>&1 </dev/null
    else
        export D=$at/case
        (
            cd "$T"
            exec "${limit[@]}" "${FOREBAY_BIN:-forebay}" run --local "${FOREBAY_LOCAL:-1}" --at "$at" -- \
                bash -c 'mkdir "$D" && exec bash "$1"' case "$1"
        ) >"$2" 2>&1 </dev/null
    fi
}

passed=0 failed=0 skipped=0 failures=()
for file in "$here"/[0-9]*.sh; do
    name=${file##*/}
    name=${name%.sh}
    selected "$name" || continue
    log=$logs/$name.log
    begin=${EPOCHREALTIME/[.,]/}
    status=0
    watch_case "$log" &
    watch=$!
    run_case "$file" "$log" || status=$?
    kill $watch 2>/dev/null || true
    wait $watch 2>/dev/null || true
    seconds=$(printf '%d.%02d' $(((${EPOCHREALTIME/[.,]/} - begin) / 1000000)) $(((${EPOCHREALTIME/[.,]/} - begin) / 10000 % 100)))
    note=
    refusal=$(sed -n 's/^# preload-only: refused: //p' "$file")
    if [ "$access" = preload ] && [ -n "$refusal" ] && [ $status -ne 77 ]; then
        if [ $status -eq 0 ]; then
            echo "not refused: expected '$refusal'" >>"$log"
            status=1
        elif grep -qF -- "$refusal" "$log"; then
            status=0 note=" (refused, as expected)"
        fi
    fi
    case $status in
    0) passed=$((passed + 1)); echo "ok    $name ${seconds}s$note" ;;
    77) skipped=$((skipped + 1)); echo "skip  $name ${seconds}s ($(tail -n 1 "$log"))" ;;
    *)
        failed=$((failed + 1))
        failures+=("$name")
        [ $status -eq 124 ] && echo "time limit reached" >>"$log"
        echo "FAIL  $name ${seconds}s (status $status)"
        tail -n 60 "$log" | sed 's/^/      | /'
        ;;
    esac
    [ "$keep" = yes ] || { chmod -R u+rwX "$T" 2>/dev/null || true; rm -rf "$T"; }
    if [ "$mode" = directory ]; then rm -rf "$D"; fi
done

[ ${#failures[@]} -eq 0 ] || echo "failed: ${failures[*]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
