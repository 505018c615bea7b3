#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
static char p[400];
static void use(const char *w) {
    int f = open(p, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char b[8];
    if (f < 0 || write(f, "12345", 5) != 5 || pread(f, b, 8, 0) != 5) {
        perror(w);
        exit(1);
    }
    close(f);
}
int main(int c, char **v) {
    snprintf(p, 400, "%s/f", v[1]);
    use("begin");
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    long n = r.rlim_cur > 70000 ? 70000 : r.rlim_cur;
    for (int i = 3; i < n; i++)
        close(i);
    use("after close loop");
    syscall(SYS_close_range, 3, ~0u, 0);
    use("after close_range");
    closefrom(3);
    use("after closefrom");
    int z = open("/dev/null", O_RDWR);
    for (int i = 3; i < 1100 && i < n; i++)
        if (i != z)
            dup2(z, i);
    use("after all numbers were taken");
    if (fork() == 0) {
        for (int i = 3; i < n; i++)
            close(i);
        use("in the child");
        _exit(0);
    }
    int s;
    wait(&s);
    if (s)
        return 1;
    for (int i = 3; i < n; i++)
        close(i);
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    while ((e = readdir(d))) {
        int k = atoi(e->d_name);
        if (k > 2 && k != dirfd(d))
            close(k);
    }
    closedir(d);
    use("after closing what /proc/self/fd lists");
    // The lowest free number comes back.

    int a = open(p, O_RDONLY);
    close(a);
    int b2 = open(p, O_RDONLY);
    if (a != b2 || a != 3) {
        printf("numbers %d %d\n", a, b2);
        return 1;
    }
    close(b2);
    close(0);
    int q = open(p, O_RDONLY);
    if (q != 0) {
        printf("0 expected, %d\n", q);
        return 1;
    }
    char t[8];
    if (fread(t, 1, 8, stdin) != 5) {
        puts("stdin");
        return 1;
    }
    // At the limit.

    r.rlim_cur = 20;
    setrlimit(RLIMIT_NOFILE, &r);
    int k = 0, last;
    while ((last = open(p, O_RDONLY)) >= 0)
        k++;
    if (k != 17) {
        printf("opened %d with a limit of 20\n", k);
        return 1;
    }
    return 0;
}
