// Shared writable mappings: one memory for all mappings, descriptors and processes.
#include "check.h"

int main(int count, char **arguments) {
    enter(count, arguments);
    enum { SIZE = 1 << 20 };
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    MUST(fd >= 0 && ftruncate(fd, SIZE) == 0);
    char *one = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *two = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(one != MAP_FAILED && two != MAP_FAILED);
    char text[16] = {0};
    strcpy(one + 5000, "written by map");
    CHECK(!strcmp(two + 5000, "written by map"));
    CHECK(pread(fd, text, 14, 5000) == 14 && !strcmp(text, "written by map"));
    CHECK(pwrite(fd, "written by call", 16, 70000) == 16 && !strcmp(one + 70000, "written by call"));
    CHILD({
        CHECK(!strcmp(one + 5000, "written by map"));
        strcpy(two + 100, "by the child");
        int own = open("f", O_RDWR);
        char *three = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own, 4096);
        CHECK(three != MAP_FAILED && !strcmp(three + 5000 - 4096, "written by map"));
        strcpy(three + 904, "WRITTEN");
    });
    CHECK(!strcmp(one + 100, "by the child") && !strcmp(one + 5000, "WRITTEN"));
    // Two processes increment one word.
    _Atomic int *word = (_Atomic int *)(one + 8192);
    pid_t child = fork();
    for (int i = 0; i < 100000; i++) ++*word;
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    CHECK(*(int *)(two + 8192) == 200000);
    CHECK(msync(one, SIZE, MS_SYNC) == 0 && msync(one, SIZE, MS_ASYNC) == 0 && fsync(fd) == 0);
    CHECK(munmap(two, SIZE) == 0);
    CHECK(ftruncate(fd, 2 * SIZE) == 0);
    one = mremap(one, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    CHECK(one != MAP_FAILED && (one[2 * SIZE - 1] = 'z') && pread(fd, text, 1, 2 * SIZE - 1) == 1 && text[0] == 'z');
    close(fd);
    strcpy(one + 300000, "after close");
    fd = open("f", O_RDONLY);
    CHECK(pread(fd, text, 12, 300000) == 12 && !strcmp(text, "after close"));
    close(fd);
    CHECK(munmap(one, 2 * SIZE) == 0 && size_of("f") == 2 * SIZE);
    // The tail of the last page is not part of the file.
    fd = make("tail", "tail");
    one = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(one != MAP_FAILED && one[4] == 0);
    one[0] = 'T';
    one[100] = 'x';
    CHECK(munmap(one, 4096) == 0 && holds("tail", "Tail"));
    close(fd);
    // Written through a mapping of a process that ends without any further call.
    CHILD({
        int own = open("tail", O_RDWR);
        char *map = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
        map[1] = 'A';
        close(own);
        failures = 0;
    });
    CHECK(holds("tail", "TAil"));
    return finish();
}
