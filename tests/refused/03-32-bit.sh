#!/usr/bin/env bash
# A 32-bit program.
# preload-only: refused: 32-bit
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need gcc
cat >"$T/open.c" <<'END'
int main(int count, char **words) { return 0; }
END
gcc -m32 -o "$T/program" "$T/open.c" 2>/dev/null || { echo "not installed: 32-bit libraries of gcc"; exit 77; }
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
gcc -m32 -o "$T/program" "$T/open.c"
echo text >"$D/file"
equal "$("$T/program" "$D/file")" text
