#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static sigjmp_buf j;
static void bus(int s) {
    siglongjmp(j, 1);
}
int main(int c, char **v) {
    int bad = 0;
    char p[400], q[400], b = 0;
    snprintf(p, 400, "%s/a", v[1]);
    signal(SIGBUS, bus);
    size_t n = 20 << 20, o = 9000000;
    int f = open(p, O_RDWR | O_CREAT | O_TRUNC, 0644);
    ftruncate(f, n);
    char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    memset(m, 'a', n);
    ftruncate(f, 4096);
    static char buf[1 << 20];
    memset(buf, 'B', sizeof buf);
    int g[40];
    for (int i = 0; i < 40; i++) {
        snprintf(q, 400, "%s/b%d", v[1], i);
        g[i] = open(q, O_RDWR | O_CREAT | O_TRUNC, 0644);
        for (int k = 0; k < 4; k++)
            write(g[i], buf, sizeof buf);
    }
    if (!sigsetjmp(j, 1)) {
        char x = m[o];
        printf("beyond the cut the map reads '%c' (SIGBUS expected)\n", x);
        bad |= 1;
        if (x == 'B')
            bad |= 8;
        for (size_t i = 8192; i < n; i += 4096)
            m[i] = '!';
    }
    long hurt = 0;
    for (int i = 0; i < 40; i++)
        for (int k = 0; k < 4; k++) {
            pread(g[i], buf, sizeof buf, (off_t)k << 20);
            for (size_t x = 0; x < sizeof buf; x++)
                hurt += buf[x] != 'B';
        }
    if (hurt) {
        printf("%ld bytes of other files were changed by the map\n", hurt);
        bad |= 4;
    }
    ftruncate(f, n);
    pread(f, &b, 1, o);
    if (b) {
        printf("grown again, read %d\n", b);
        bad |= 2;
    }
    if (!sigsetjmp(j, 1)) {
        if (m[o]) {
            printf("grown again, the map reads '%c' where the file has zeros\n", m[o]);
            bad |= 2;
        }
        m[o] = 'n';
        pread(f, &b, 1, o);
        if (b != 'n') {
            puts("what was stored by the map is not in the file");
            bad |= 2;
        }
        pwrite(f, "w", 1, o);
        if (m[o] != 'w') {
            puts("what was written is not in the map");
            bad |= 2;
        }
    } else {
        puts("SIGBUS after it was grown");
        bad |= 2;
    }
    return bad;
}
