#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
int main(int c, char **v) {
    char b[64] = {0};
    int e = 0;
    int f = open(v[1], O_WRONLY | O_CREAT | O_APPEND, 0200);
    write(f, "foo\n", 4);
    close(f);
    f = open(v[1], O_WRONLY | O_APPEND);
    write(f, "bar\n", 4);
    pwrite(f, "baz\n", 4, 0); // Linux: appends.

    close(f);
    f = open(v[1], O_WRONLY);
    struct iovec i = {"qux\n", 4};
    if (pwritev2(f, &i, 1, 0, RWF_APPEND) != 4)
        perror("RWF_APPEND"), e = 1;
    close(f);
    chmod(v[1], 0600);
    f = open(v[1], O_RDONLY);
    read(f, b, 63);
    if (strcmp(b, "foo\nbar\nbaz\nqux\n")) {
        printf("got '%s'\n", b);
        e = 1;
    }
    return e;
}
