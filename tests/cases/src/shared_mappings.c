#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            printf("line %d: %s: %s\n", __LINE__, #x, strerror(errno));                                                \
            bad = 1;                                                                                                   \
        }                                                                                                              \
    } while (0)
static int bad;
static sigjmp_buf j;
static void bus(int s) {
    siglongjmp(j, s);
}
int main(int c, char **v) {
    char p[400];
    snprintf(p, 400, "%s/m", v[1]);
    int f = open(p, O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct stat s;
    char b[16];
    signal(SIGBUS, bus);
    signal(SIGSEGV, bus);
    size_t n = 20 << 20;
    char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    MUST(m != MAP_FAILED);
    if (m == MAP_FAILED)
        return 1;
    int k = sigsetjmp(j, 1);
    if (!k) {
        volatile char x = m[0];
        (void)x;
        puts("no SIGBUS on an empty file's map");
        bad = 1;
    } else
        MUST(k == SIGBUS);
    ftruncate(f, n);
    k = sigsetjmp(j, 1);
    if (!k) {
        m[0] = 'a';
        m[9000000] = 'b';
        m[n - 1] = 'c';
    } else {
        puts("SIGBUS though the file has grown");
        return 1;
    }
    MUST(pread(f, b, 1, 9000000) == 1 && b[0] == 'b');
    pwrite(f, "d", 1, 5000000);
    MUST(m[5000000] == 'd');
    // Another process's map sees it.

    if (!fork()) {
        m[77] = 'z';
        _exit(0);
    }
    wait(0);
    MUST(m[77] == 'z');
    if (!fork()) {
        int g = open(p, O_RDWR);
        char *q = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, g, 0);
        if (q == MAP_FAILED)
            _exit(2);
        int ok = q[77] == 'z';
        q[78] = 'y';
        _exit(!ok);
    }
    int st;
    wait(&st);
    MUST(st == 0);
    MUST(m[78] == 'y');
    // Shrink: SIGBUS; grow: zeros.

    ftruncate(f, 4096);
    k = sigsetjmp(j, 1);
    if (!k) {
        volatile char x = m[9000000];
        printf("read %d beyond a cut\n", x);
        bad = 1;
    } else
        MUST(k == SIGBUS);
    ftruncate(f, n);
    k = sigsetjmp(j, 1);
    if (!k) {
        MUST(m[9000000] == 0 && m[77] == 'z');
    } else {
        puts("SIGBUS after growing again");
        bad = 1;
    }
    // Mremap.

    char *q = mremap(m, n, n * 2, MREMAP_MAYMOVE);
    MUST(q != MAP_FAILED);
    if (q != MAP_FAILED) {
        m = q;
        ftruncate(f, 2 * n);
        k = sigsetjmp(j, 1);
        if (!k) {
            m[2 * n - 1] = 'e';
            m[77] = 'Z';
        } else {
            puts("signal in the grown map");
            bad = 1;
        }
        MUST(pread(f, b, 1, 2 * n - 1) == 1 && b[0] == 'e');
        MUST(pread(f, b, 1, 77) == 1 && b[0] == 'Z');
    }
    // Partial unmap and fixed.

    MUST(munmap(m + (1 << 20), 1 << 20) == 0);
    k = sigsetjmp(j, 1);
    if (!k) {
        volatile char x = m[(1 << 20) + 5];
        (void)x;
        puts("unmapped part can be read");
        bad = 1;
    } else
        MUST(k == SIGSEGV);
    char *x = mmap(m + (1 << 20), 1 << 20, PROT_READ, MAP_SHARED | MAP_FIXED, f, 4 << 20);
    MUST(x == m + (1 << 20));
    pwrite(f, "q", 1, (4 << 20) + 3);
    MUST(x[3] == 'q');
    // Rights.

    int r = open(p, O_RDONLY);
    MUST(mmap(0, 4096, PROT_WRITE | PROT_READ, MAP_SHARED, r, 0) == MAP_FAILED && errno == EACCES);
    char *ro = mmap(0, 4096, PROT_READ, MAP_SHARED, r, 0);
    MUST(ro != MAP_FAILED);
    MUST(mprotect(ro, 4096, PROT_READ | PROT_WRITE) != 0 && errno == EACCES);
    char *cow = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, r, 0);
    MUST(cow != MAP_FAILED);
    cow[77] = 'P';
    MUST(pread(f, b, 1, 77) == 1 && b[0] == 'Z');
    int w = open(p, O_WRONLY);
    MUST(mmap(0, 4096, PROT_READ, MAP_SHARED, w, 0) == MAP_FAILED && errno == EACCES);
    MUST(mmap(0, 4096, PROT_READ, MAP_SHARED, f, 100) == MAP_FAILED && errno == EINVAL);
    MUST(mmap(0, 0, PROT_READ, MAP_SHARED, f, 0) == MAP_FAILED && errno == EINVAL);
    // Punched by madvise.

    pwrite(f, "XXXX", 4, 8192);
    MUST(madvise(m + 8192, 4096, MADV_REMOVE) == 0 || errno == EOPNOTSUPP || errno == EINVAL);
    pwrite(f, "W", 1, 12288);
    madvise(m + 12288, 4096, MADV_DONTNEED);
    MUST(m[12288] == 'W');
    MUST(msync(m, 4096, MS_SYNC) == 0);
    MUST(msync(m, 4096, MS_ASYNC) == 0);
    // Lives beyond close and unlink.

    close(f);
    close(r);
    close(w);
    unlink(p);
    m[0] = 'L';
    MUST(m[0] == 'L' && m[77] == 'Z');
    fstat(0, &s);
    // The time of modification moves by a store and msync.

    f = open(p, O_RDWR | O_CREAT, 0644);
    ftruncate(f, 8192);
    struct timespec past[2] = {{1000, 0}, {1000, 0}};
    futimens(f, past);
    m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    m[1] = 1;
    msync(m, 8192, MS_SYNC);
    munmap(m, 8192);
    fstat(f, &s);
    MUST(s.st_mtime != 1000);
    return bad;
}
