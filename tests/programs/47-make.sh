#!/usr/bin/env bash
# make -j2: dependencies by time; touching one source rebuilds what needs it, and only that.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need make gcc
cd "$D"
for i in 0 1 2 3 4 5 6 7; do echo "#include \"all.h\"
int f$i(void) { return $i + BASE; }" >f$i.c; done
echo '#define BASE 100' >all.h
printf 'int %s;\n#include <stdio.h>\nint main(void) { printf("%%d\\n", %s); return 0; }\n' \
    'f0(void), f1(void), f2(void), f3(void), f4(void), f5(void), f6(void), f7(void)' 'f0()+f1()+f2()+f3()+f4()+f5()+f6()+f7()' >main.c
printf 'OBJ := $(patsubst %%.c,%%.o,$(sort $(wildcard *.c)))\nprogram: $(OBJ)\n\t$(CC) -o $@ $^\nf%%.o: f%%.c all.h\n\t$(CC) -c -o $@ $<\n\t@echo built $@ >>log\nclean:\n\trm -f *.o program\n' >Makefile
make -s -j2
equal "$(./program) $(wc -l <log)" "828 8"
make -s -j2
equal "$(wc -l <log)" 8 "built again without need"
make -q
sleep 0.01
touch f3.c
refuses make -q
make -s -j2
equal "$(wc -l <log) $(tail -n 1 log)" "9 built f3.o"
sleep 0.01
sed -i s/100/200/ all.h
make -s -j2
equal "$(./program) $(wc -l <log)" "1628 17"
make -s clean
equal "$(find . -name '*.o' | wc -l)" 0
