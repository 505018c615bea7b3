#!/usr/bin/env bash
# An MPI-IO program: collective and strided writes, read back by other ranks.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need mpicc mpirun
mpicc -O1 -Wall -o "$T/program" "$SRC/mpi_io.c"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run() {
    mpirun --oversubscribe --bind-to none -np 4 --mca btl self,vader --mca btl_base_warn_component_unused 0 "$@"
}
run "$T/program" "$D/shared"
equal "$(stat -c %s "$D/shared")" $((4 * 64 * 4096))
run --mca io ^ompio "$T/program" "$D/romio"
cmp "$D/shared" "$D/romio"
