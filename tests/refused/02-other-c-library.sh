#!/usr/bin/env bash
# A program of another C library, which cannot load this library.
# preload-only: refused: cannot be loaded
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need musl-gcc
cat >"$T/open.c" <<'END'
#include <stdio.h>
int main(int count, char **words) {
    char line[99] = "";
    FILE *file = fopen(words[1], "r");
    if (!file || !fgets(line, sizeof line, file)) return 3;
    fputs(line, stdout);
    return 0;
}
END
musl-gcc -o "$T/program" "$T/open.c"
echo text >"$D/file"
equal "$("$T/program" "$D/file")" text
