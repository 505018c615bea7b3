#!/usr/bin/env bash
# Programs with the sanitizers of the compiler start, see the files, and still report what they find.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc
cat >"$T/sane.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
    char got[32] = "";
    FILE *file = fopen(words[1], "w");
    if (!file || fputs("sane", file) < 0 || fclose(file) != 0) return 2;
    file = fopen(words[1], "r");
    if (!file || !fgets(got, sizeof got, file) || fclose(file) != 0) return 3;
    if (count > 2) {
        volatile int number = atoi(words[2]);
        char *heap = malloc(4);
        heap[number] = 1;
        number += 2147483640;
        free(heap);
    }
    return strcmp(got, "sane") != 0;
}
END
for kind in address undefined thread leak; do
    gcc -g -fsanitize="$kind" -o "$T/$kind" "$T/sane.c" 2>"$T/errors" || { echo "not compiled: $(head -n 1 "$T/errors")"; continue; }
    "$T/$kind" "$D/$kind" || fail "-fsanitize=$kind: status $?"
    equal "$(cat "$D/$kind")" sane
done
if [ -x "$T/address" ]; then
    if "$T/address" "$D/found" 8 2>"$T/report"; then fail "an overflow is not found"; fi
    grep -q heap-buffer-overflow "$T/report" || fail "no report: $(head -n 2 "$T/report")"
fi
