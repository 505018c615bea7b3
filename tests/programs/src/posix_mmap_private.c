// Read-only and private mappings: a copy is enough to serve them.
#include "check.h"
#include <setjmp.h>

static sigjmp_buf back;
static void on_bus(int number) { siglongjmp(back, number); }

int main(int count, char **arguments) {
    enter(count, arguments);
    enum { SIZE = 200000 };
    static char text[SIZE];
    for (int i = 0; i < SIZE; i++) text[i] = (char)(i * 7 + i / 4096);
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    MUST(write(fd, text, SIZE) == SIZE);
    char *map = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
    MUST(map != MAP_FAILED);
    CHECK(!memcmp(map, text, SIZE));
    for (int i = SIZE; i < (SIZE + 4095) / 4096 * 4096; i++) if (map[i]) { CHECK(!"zeros behind the end"); break; }
    char *part = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 16384);
    CHECK(part != MAP_FAILED && !memcmp(part, text + 16384, 8192));
    char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED);
    memset(own, 'x', 10000);
    char read_back[16];
    CHECK(pread(fd, read_back, 16, 0) == 16 && !memcmp(read_back, text, 16) && own[9999] == 'x' && own[10000] == text[10000]);
    CHILD({ CHECK(own[5] == 'x' && map[100] == text[100]); own[5] = 'y'; });
    CHECK(own[5] == 'x');
    own = mremap(own, SIZE, 2 * 8192, 0);
    CHECK(own != MAP_FAILED && own[0] == 'x');
    CHECK(mprotect(own, 4096, PROT_READ) == 0 && munmap(own, 2 * 8192) == 0);
    close(fd);
    CHECK(!memcmp(map, text, SIZE) && "a map outlives its descriptor");
    CHECK(unlink("f") == 0 && !memcmp(map, text, SIZE) && munmap(map, SIZE) == 0 && munmap(part, 8192) == 0);

    fd = make("g", "short");
    char *wished = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map = mmap(wished + 4096, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
    CHECK(map == wished + 4096 && !memcmp(map, "short", 6));
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
    int writer = open("g", O_WRONLY);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, writer, 0) == MAP_FAILED && errno == EACCES);
    int reader = open("g", O_RDONLY);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED && errno == EACCES);
    CHECK((own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, reader, 0)) != MAP_FAILED && (own[0] = 'S') && holds("g", "short"));
    int directory = open(".", O_RDONLY);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, directory, 0) == MAP_FAILED && errno == ENODEV);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 9999, 0) == MAP_FAILED && errno == EBADF);

    // A page wholly beyond the end of the file cannot be read.
    map = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED && map[0] == 's');
    signal(SIGBUS, on_bus);
    signal(SIGSEGV, on_bus);
    volatile char sink;
    int number = sigsetjmp(back, 1);
    if (number == 0) {
        sink = map[4096];
        (void)sink;
        CHECK(!"read beyond the end");
    } else CHECK(number == SIGBUS);
    CHECK(madvise(map, 4096, MADV_WILLNEED) == 0);
    return finish();
}
