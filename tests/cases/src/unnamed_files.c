#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static char d[300];
static char *at(const char *n) {
    static char b[8][400];
    static int i;
    i = (i + 1) % 8;
    snprintf(b[i], 400, "%s/%s", d, n);
    return b[i];
}
#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            printf("line %d: %s: %s\n", __LINE__, #x, strerror(errno));                                                \
            bad = 1;                                                                                                   \
        }                                                                                                              \
    } while (0)
static int bad;
static void put(const char *n, const char *t) {
    int f = open(at(n), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    write(f, t, strlen(t));
    close(f);
}
static int is(const char *n, const char *t) {
    char b[64] = {0};
    int f = open(at(n), O_RDONLY);
    if (f < 0)
        return 0;
    read(f, b, 63);
    close(f);
    return !strcmp(b, t);
}
int main(int c, char **v) {
    strcpy(d, v[1]);
    struct stat s;
    char l[64];
    int f = open(d, O_TMPFILE | O_RDWR, 0640);
    if (f < 0) {
        if (errno == EOPNOTSUPP)
            puts("no O_TMPFILE");
        else
            MUST(f >= 0);
    } else {
        write(f, "late", 4);
        fstat(f, &s);
        MUST(s.st_nlink == 0);
        snprintf(l, 64, "/proc/self/fd/%d", f);
        MUST(linkat(AT_FDCWD, l, AT_FDCWD, at("named"), AT_SYMLINK_FOLLOW) == 0);
        MUST(is("named", "late"));
        fstat(f, &s);
        MUST(s.st_nlink == 1);
        MUST(linkat(f, "", AT_FDCWD, at("named2"), AT_EMPTY_PATH) == 0);
        MUST(is("named2", "late"));
        close(f);
        f = open(d, O_TMPFILE | O_WRONLY | O_EXCL, 0600);
        snprintf(l, 64, "/proc/self/fd/%d", f);
        MUST(linkat(AT_FDCWD, l, AT_FDCWD, at("never"), AT_SYMLINK_FOLLOW) != 0);
        close(f);
    }
    put("a", "A");
    put("b", "B");
    MUST(renameat2(AT_FDCWD, at("a"), AT_FDCWD, at("b"), RENAME_EXCHANGE) == 0);
    MUST(is("a", "B") && is("b", "A"));
    MUST(renameat2(AT_FDCWD, at("a"), AT_FDCWD, at("b"), RENAME_NOREPLACE) != 0 && errno == EEXIST);
    MUST(renameat2(AT_FDCWD, at("a"), AT_FDCWD, at("new"), RENAME_NOREPLACE) == 0 && is("new", "B"));
    mkdir(at("dir"), 0755);
    put("dir/x", "X");
    f = open(at("dir/x"), O_RDWR);
    int g = open(at("dir"), O_RDONLY | O_DIRECTORY);
    MUST(unlink(at("dir/x")) == 0);
    MUST(rmdir(at("dir")) == 0);
    fstat(f, &s);
    MUST(s.st_nlink == 0);
    MUST(pwrite(f, "Y", 1, 0) == 1);
    MUST(pread(f, l, 1, 0) == 1 && l[0] == 'Y');
    MUST(openat(g, "new-in-removed", O_CREAT | O_WRONLY, 0644) < 0 && errno == ENOENT);
    fstat(g, &s);
    MUST(s.st_nlink == 0);
    // Open, write, rename, write more, rename over.

    put("old", "OLD");
    int o = open(at("old"), O_RDONLY);
    f = open(at("w"), O_CREAT | O_WRONLY, 0644);
    write(f, "1", 1);
    MUST(rename(at("w"), at("old")) == 0);
    write(f, "2", 1);
    close(f);
    MUST(is("old", "12"));
    memset(l, 0, 64);
    MUST(pread(o, l, 9, 0) == 3);
    put("n", "");
    unlink(at("n"));
    MUST(link(at("nowhere"), at("n")) < 0 && errno == ENOENT);
    MUST(mkdir(at("p"), 0755) == 0 && mkdir(at("p/q"), 0755) == 0 && rename(at("p"), at("p/q/r")) < 0 &&
         errno == EINVAL);
    put("p/file", "f");
    MUST(rename(at("a2"), at("p")) < 0);
    put("a2", ".");
    MUST(rename(at("a2"), at("p")) < 0 && errno == EISDIR);
    mkdir(at("e"), 0755);
    MUST(rename(at("e"), at("p")) < 0 && (errno == ENOTEMPTY || errno == EEXIST));
    MUST(rename(at("e"), at("a2")) < 0 && errno == ENOTDIR);
    return bad;
}
