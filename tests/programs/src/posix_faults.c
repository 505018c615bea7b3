// Bad pointers give EFAULT and never a crash.
#include "check.h"

int main(int count, char **arguments) {
    enter(count, arguments);
    char *volatile bad = (char *)1;
    int fd = make("f", "0123456789");
    FAILS(EFAULT, read(fd, bad, 1));
    FAILS(EFAULT, write(fd, bad, 1));
    FAILS(EFAULT, pread(fd, bad, 1, 0));
    FAILS(EFAULT, open(bad, O_RDONLY));
    FAILS(EFAULT, fstat(fd, (struct stat *)bad));
    FAILS(EFAULT, stat("f", (struct stat *)bad));
    FAILS(EFAULT, stat(bad, (struct stat *)bad));
    FAILS(EFAULT, rename("f", bad));
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(map + 4096, 4096, PROT_NONE) == 0);
    strcpy(map + 4094, "f");
    struct stat status;
    CHECK(stat(map + 4094, &status) == 0 && "a name that ends with its page");
    CHECK(holds("f", "0123456789"));
    return finish();
}
