// Linked statically: what the kernel says of its working directory, of descriptors and of paths.
// "cwd", a descriptor's number, or a path: prints device, inode and, for a regular file, its text.
#include "check.h"

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *what = arguments[i];
        struct stat status;
        int is_descriptor = what[0] >= '0' && what[0] <= '9';
        const char *path = strcmp(what, "cwd") == 0 ? "." : what;
        if (is_descriptor ? fstat(atoi(what), &status) : stat(path, &status)) {
            printf("%s: %s\n", what, strerrorname_np(errno));
            failures++;
            continue;
        }
        printf("%ld %ld", (long)status.st_dev, (long)status.st_ino);
        if (S_ISREG(status.st_mode)) {
            char text[4096];
            int file = is_descriptor ? atoi(what) : open(path, O_RDONLY);
            ssize_t length = read(file, text, sizeof text);
            if (length < 0) printf(" %s", strerrorname_np(errno));
            else printf(" %zd %.*s", length, (int)length, text);
        }
        printf("\n");
    }
    return failures != 0;
}
