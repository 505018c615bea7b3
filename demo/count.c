// Increments the number in a file a thousand times, each time under a process lock and a flock: `count FILE`.
// Compiled both statically and dynamically.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static void must(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    int file = argc == 2 ? open(argv[1], O_RDWR) : -1;
    must(file >= 0, "open");
    for (int round = 0; round < 1000; round++) {
        char text[32] = {0};
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        must(fcntl(file, F_SETLKW, &range) == 0, "lock");
        must(flock(file, LOCK_EX) == 0, "flock");
        must(pread(file, text, sizeof text - 1, 0) >= 0, "read");
        int length = sprintf(text, "%08ld\n", strtol(text, NULL, 10) + 1);
        must(pwrite(file, text, length, 0) == length, "write");
        must(flock(file, LOCK_UN) == 0, "flock");
        range.l_type = F_UNLCK;
        must(fcntl(file, F_SETLK, &range) == 0, "unlock");
    }
    return close(file);
}
