#!/usr/bin/env bash
# gcc: compile, link and run on the file system; static library; the program reads itself.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc ar
cd "$D"
cat >main.c <<'END'
#include <stdio.h>
int twice(int);
int main(int c, char **v) { FILE *f = fopen(v[0], "rb"); int e = f ? fgetc(f) : -1; printf("%d %02x %d\n", twice(21), e, c); return 0; }
END
echo 'int twice(int x) { return 2 * x; }' >twice.c
gcc -O2 -g -c main.c -o main.o
gcc -O2 -g -c twice.c
gcc -o program main.o twice.o
equal "$(./program a b)" "42 7f 3"
equal "$("$D/program")" "42 7f 1"
ar rcs libtwice.a twice.o
gcc -o linked main.c -L. -ltwice
equal "$(./linked)" "42 7f 1"
gcc -pipe -save-temps -O2 -o saved main.c twice.c
equal "$(./saved)" "42 7f 1"
gcc -MMD -MF deps -c main.c
grep -q main.c deps
gcc -flto -O2 -o lto main.c twice.c
equal "$(./lto)" "42 7f 1"
cp program "$T/local" && equal "$("$T/local")" "42 7f 1"
