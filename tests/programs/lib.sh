# shellcheck shell=bash
# Common beginning of every case: strict mode, and functions for expectations.
# D is an empty directory on the file system under test; perhaps only preloaded programs see it, so a case
# inspects it with external programs. T is an empty directory on the local disk.
set -euo pipefail
: "${D:?the directory under test}" "${T:?a scratch directory on the local disk}"
export LC_ALL=C.UTF-8 TMPDIR=$T
SRC=$(cd "${BASH_SOURCE[0]%/*}/src" && pwd)
export SRC

# fail WORDS: ends the case as failed.
fail() {
    echo "failed: $*" >&2
    exit 1
}

# need PROGRAM...: ends the case as skipped unless all are installed.
need() {
    local program
    for program; do
        command -v "$program" >/dev/null || { echo "not installed: $program"; exit 77; }
    done
}

# python CODE-OR-FILE...: the system's own Python, which has the packaged modules.
python() {
    if [ -x /usr/bin/python3 ]; then /usr/bin/python3 -B "$@"; else python3 -B "$@"; fi
}

# need_module NAME...: ends the case as skipped unless Python can import all.
need_module() {
    need python3
    local module
    for module; do
        python -c "import $module" 2>/dev/null || { echo "not installed: python $module"; exit 77; }
    done
}

# equal GOT EXPECTED [WHAT]
equal() {
    [ "$1" = "$2" ] || fail "${3:-value}: got '$1', expected '$2'"
}

# refuses COMMAND...: the command must fail.
refuses() {
    if "$@" >/dev/null 2>&1; then fail "succeeded, should not: $*"; fi
}

# same_as DIRECTORY SCRIPT: src/SCRIPT prints the same in a directory under test and in a subdirectory of
# DIRECTORY.
same_as() {
    local here
    here=$(mktemp -d "$1/same-XXXXXX")
    (cd "$here" && bash "$SRC/$2") >"$T/there" 2>&1 || true
    rm -rf "$here"
    mkdir "$D/same"
    (cd "$D/same" && bash "$SRC/$2") >"$T/here" 2>&1 || true
    [ -s "$T/there" ] || fail "src/$2 prints nothing"
    diff "$T/there" "$T/here" || fail "differs from $1"
}

# bytes COUNT: that many random bytes on stdout.
bytes() {
    head -c "$1" /dev/urandom
}

# compile SOURCE [FLAG...]: builds src/SOURCE into $T/program on the local disk.
compile() {
    need gcc
    local source=$1
    shift
    gcc -O1 -Wall -I"$SRC" -o "$T/program" "$SRC/$source" "$@"
}

# make_tree DIRECTORY: files of odd sizes, many small ones, links of both kinds, modes, times.
make_tree() {
    local root=$1 size number
    mkdir -p "$root/a/b/c" "$root/empty" "$root/many" "$root/with space"
    : >"$root/zero"
    for size in 1 4095 4096 4097 65537 300000; do bytes "$size" >"$root/a/file-$size"; done
    for ((number = 0; number < 200; number++)); do
        echo "entry $number" >"$root/many/entry-$number"
    done
    echo "a name with more than letters" >"$root/with space/näme"
    ln "$root/a/file-4097" "$root/a/b/hard"
    ln -s ../file-1 "$root/a/b/soft"
    ln -s nowhere "$root/a/dangling"
    chmod 600 "$root/a/file-1"
    chmod 755 "$root/zero"
    touch -d '2001-02-03 04:05:06' "$root/a/file-4096" "$root/zero"
    chmod 750 "$root/a/b"
    touch -d '2002-03-04 05:06:07' "$root/empty" "$root/a/b" "$root/a"
}

# tree_of DIRECTORY: everything that a copy must preserve, one line per entry, then the checksums.
tree_of() {
    (
        cd "$1"
        find . \( -type d -printf '%y %m %Ts %p\n' \) -o \( -type f -printf '%y %m %n %s %Ts %p\n' \) \
            -o -printf '%y %p -> %l\n' | sort
        find . -type f -print0 | sort -z | xargs -0 -r sha256sum
    )
}

# sum_of FILE...: the SHA-256 of their contents, joined.
sum_of() {
    cat "$@" | sha256sum | cut -d' ' -f1
}
