# shellcheck shell=bash
# Common beginning of these cases, which come from public reports of faults of other file systems and programs. They look
# at each status themselves, and collect in `bad` what is wrong.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"
set +e

# compile_case SOURCE [FLAG...]: builds src/SOURCE of this directory into $T/program.
compile_case() {
    need gcc
    local source=$1
    shift
    gcc -O1 -g -w -D_GNU_SOURCE -o "$T/program" "${BASH_SOURCE[0]%/*}/src/$source" "$@" -lpthread -ldl -lrt 2>"$T/compiler" ||
        { echo "not compiled: $(head -n 1 "$T/compiler")"; exit 77; }
}
