#!/usr/bin/env bash
# One step of the demonstration on one file system: steps.sh STEP DIRECTORY. DIRECTORY is empty at the
# first step; MATERIAL holds what demo.sh prepared, PYTHON is an interpreter with numpy and h5py. Prints the checksum of the result on the last line.
set -euo pipefail
step=$1 directory=$2
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
export HOME=$MATERIAL GIT_CONFIG_NOSYSTEM=1 LC_ALL=C.UTF-8

# One checksum over all names and contents in the directory, without the repository's own files.
checksum() {
    (cd "$1" && find . -name .git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum) | sha256sum | cut -d' ' -f1
}

unpack() {
    mkdir "$directory/source"
    tar -xzf "$MATERIAL/source.tar.gz" -C "$directory/source" --strip-components=1
    checksum "$directory/source"
}

build() {
    cd "$directory/source/src/zlib"
    cp "$here/zlib.mk" Makefile
    cp "$here/pack.c" .
    make -s -j2 >&2
    seq 200000 >input
    ./pack <input >packed
    ./pack -d <packed | cmp - input >&2
    ./pack-shared -d <packed | cmp - input >&2
    sha256sum <packed | cut -d' ' -f1
}

repository() {
    git clone -q "$MATERIAL/history.git" "$directory/clone"
    cd "$directory/clone"
    export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
    for number in 1 2 3 4 5; do
        echo "change $number" >>CHANGES
        git add CHANGES
        git commit -q -m "change $number"
    done
    git checkout -q -b side HEAD~2
    echo side >SIDE && git add SIDE && git commit -q -m side
    git checkout -q main && git merge -q -m merge side
    git gc -q
    git fsck --full --strict >&2
    echo "$(git rev-parse HEAD) $(checksum .)" | sha256sum | cut -d' ' -f1
}

database() {
    sqlite3 "$directory/demo.db" >&2 <<END
CREATE TABLE particle (id INTEGER PRIMARY KEY, x REAL, cell INTEGER);
CREATE INDEX by_cell ON particle (cell);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)
INSERT INTO particle SELECT i, i * 0.5, i * 7919 % 1000 FROM n;
COMMIT;
BEGIN; DELETE FROM particle; ROLLBACK;
END
    for number in {1..50}; do
        sqlite3 "$directory/demo.db" "BEGIN; UPDATE particle SET x = x + 1 WHERE cell = $number; COMMIT;"
    done
    [ "$(sqlite3 "$directory/demo.db" 'PRAGMA integrity_check;')" = ok ]
    sqlite3 "$directory/demo.db" .dump | sha256sum | cut -d' ' -f1
}

arrays() {
    mkdir "$directory/arrays"
    "$PYTHON" -B "$here/arrays.py" "$directory/arrays"
}

checkpoint() {
    mkdir "$directory/checkpoint"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to none -np 4 \
        --mca btl self,vader "$MATERIAL/checkpoint" "$directory/checkpoint"
}

# As on the nodes of node_death.py.
checkpoints() {
    local verb
    mkdir "$directory/checkpoints"
    for verb in write read; do
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to none -np 3 \
            --mca btl self,vader "$MATERIAL/checkpoints" $verb "$directory/checkpoints"
    done
}

# More data than memory, in reproducible files, beside the staged input.
tiers() {
    mkdir "$directory/output"
    for number in {1..24}; do
        head -c 8388608 < <(seq "$number" 1300000) >"$directory/output/$number"
    done
    mv "$directory/output/24" "$directory/last"
    rm "$directory/output/1"
    sums
}

sums() { checksum "$directory"; }

case $step in
unpack | build | repository | database | arrays | checkpoint | checkpoints | tiers | sums) "$step" ;;
*) echo "unknown step $step" >&2; exit 2 ;;
esac
