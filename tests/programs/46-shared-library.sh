#!/usr/bin/env bash
# A shared library on the file system: rpath, $ORIGIN, LD_LIBRARY_PATH and dlopen.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc
mkdir "$D/lib" "$D/bin"
cd "$D"
echo 'int answer(void) { static int calls; return 41 + ++calls; }' >answer.c
gcc -shared -fPIC -o lib/libanswer.so answer.c
printf '#include <stdio.h>\nint answer(void);\nint main(void) { printf("%%d\\n", answer()); return 0; }\n' >main.c
gcc -o bin/absolute main.c -Llib -lanswer -Wl,-rpath,"$D/lib"
gcc -o bin/origin main.c -Llib -lanswer -Wl,-rpath,'$ORIGIN/../lib'
gcc -o bin/plain main.c -Llib -lanswer
cat >load.c <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int c, char **v) {
    void *h = dlopen(v[1], RTLD_NOW);
    if (!h) { puts(dlerror()); return 1; }
    int (*f)(void) = (int (*)(void))dlsym(h, "answer");
    printf("%d\n", f() + f());
    return dlclose(h);
}
END
gcc -o bin/load load.c -ldl
equal "$(bin/load "$D/lib/libanswer.so")" 85 dlopen
equal "$(cd bin && ./load ../lib/libanswer.so)" 85 "dlopen of a relative path"
equal "$(bin/absolute)" 42 rpath
equal "$(bin/origin)" 42 '$ORIGIN'
equal "$(LD_LIBRARY_PATH=$D/lib bin/plain)" 42 LD_LIBRARY_PATH
mv lib/libanswer.so lib/moved.so
refuses bin/absolute
