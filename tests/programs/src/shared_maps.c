// A file that one process has mapped, and that it and others read, write, cut, grow and punch by calls: all see one
// file, accesses beyond its end raise SIGBUS, and nothing reaches the bytes of another file.
#include "check.h"
#include <setjmp.h>
#include <linux/falloc.h>
#include <sys/sendfile.h>

#define BYTES (8 << 20)
static sigjmp_buf back;
static volatile sig_atomic_t got;
static char *map;

static void caught(int number) {
    got = number;
    siglongjmp(back, 1);
}

// The byte at an offset of the map, or minus the signal.
static int at(size_t offset) {
    if (sigsetjmp(back, 1)) return -got;
    return *(volatile unsigned char *)(map + offset);
}

static int store(size_t offset, int byte) {
    if (sigsetjmp(back, 1)) return -got;
    return *(volatile unsigned char *)(map + offset) = byte;
}

static int byte_at(int file, off_t offset) {
    unsigned char byte;
    return pread(file, &byte, 1, offset) == 1 ? byte : -1;
}

// Runs in another process with a descriptor that it opens itself, or that it had before.
#define OTHER(...) CHILD(int other = open("f", O_RDWR); MUST(other >= 0); __VA_ARGS__; close(other))

static void bytes(int file) {
    CHECK(store(0, 'a') == 'a' && store(5000000, 'b') == 'b');
    CHECK(byte_at(file, 0) == 'a' && byte_at(file, 5000000) == 'b');
    OTHER(CHECK(byte_at(other, 5000000) == 'b'); CHECK(pwrite(other, "c", 1, 5000001) == 1));
    CHECK(at(5000001) == 'c' && byte_at(file, 5000001) == 'c');
    // Neighbours in one page, stored and written in turns.
    for (int i = 0; i < 200; i += 2) {
        CHECK(store(10000 + i, 'x') == 'x');
        CHECK(pwrite(file, "y", 1, 10001 + i) == 1);
    }
    for (int i = 0; i < 200; i++) CHECK(at(10000 + i) == "xy"[i % 2] && byte_at(file, 10000 + i) == "xy"[i % 2]);
    char text[8];
    struct iovec parts[2] = {{text, 2}, {text + 2, 3}};
    CHECK(lseek(file, 9999, SEEK_SET) == 9999 && readv(file, parts, 2) == 5 && memcmp(text + 1, "xyxy", 4) == 0);
    CHECK(lseek(file, 0, SEEK_CUR) == 10004);
    CHILD(CHECK(read(file, text, 2) == 2 && text[0] == 'x'));
    CHECK(lseek(file, 0, SEEK_CUR) == 10006 && write(file, "zz", 2) == 2 && at(10007) == 'z');
    CHECK(preadv2(file, parts, 2, 5000000, 0) == 5 && text[0] == 'b' && text[1] == 'c');
    CHECK(pwritev2(file, parts, 1, 6000000, 0) == 2 && at(6000001) == 'c');
    off_t offset = 5000000;
    int copy = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(sendfile(copy, file, &offset, 2) == 2 && holds("copy", "bc"));
    off_t to = 6500000;
    offset = 0;
    CHECK(copy_file_range(copy, &offset, file, &to, 2, 0) == 2 && at(6500001) == 'c');
    close(copy);
    CHECK(fsync(file) == 0 && msync(map, BYTES, MS_SYNC) == 0);
}

static void ends(int file) {
    CHECK(store(BYTES - 1, 'e') == 'e' && store(3000000, 'm') == 'm');
    static char others[1 << 20];
    for (int way = 0; way < 4; way++) {
        switch (way) {
        case 0: CHECK(ftruncate(file, 4096) == 0); break;
        case 1: OTHER(CHECK(ftruncate(other, 4096) == 0)); break;
        case 2: CHILD(CHECK(truncate("f", 4096) == 0)); break;
        case 3: CHILD(int cut = open("f", O_WRONLY | O_TRUNC); CHECK(cut >= 0); close(cut)); break;
        }
        CHECK(size_of("f") == (way == 3 ? 0 : 4096));
        // The freed space goes to other files, which the map does not reach.
        int other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0644);
        memset(others, 'o', sizeof others);
        for (int i = 0; i < 10; i++) MUST(write(other, others, sizeof others) == sizeof others);
        for (size_t i = 8192; i < BYTES; i += 65536) CHECK(store(i, '!') == -SIGBUS);
        for (int i = 0; i < 10; i++) {
            MUST(pread(other, others, sizeof others, (off_t)i << 20) == sizeof others);
            for (size_t k = 0; k < sizeof others; k += 1024) CHECK(others[k] == 'o');
        }
        close(other);
        CHECK(unlink("other") == 0 && at(3000000) == -SIGBUS);
        if (way % 2) OTHER(CHECK(ftruncate(other, BYTES) == 0));
        else CHECK(ftruncate(file, BYTES) == 0);
        CHECK(at(3000000) == 0 && at(8192) == 0 && byte_at(file, BYTES - 1) == 0);
        CHECK(store(3000000, 'n') == 'n' && byte_at(file, 3000000) == 'n');
    }
    OTHER(CHECK(fallocate(other, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2990080, 65536) == 0 || errno == EOPNOTSUPP));
    CHECK(byte_at(file, 3000000) == at(3000000));
    CHECK(at(3000000) == 0 || byte_at(file, 3000000) == 'n');
}

static void names(int file) {
    CHECK(store(100, 'k') == 'k');
    CHILD(int new = make("new", "replacement"); close(new); CHECK(rename("new", "f") == 0));
    CHECK(at(100) == 'k' && byte_at(file, 100) == 'k' && holds("f", "replacement"));
    CHECK(close(file) == 0);
    CHECK(store(101, 'l') == 'l' && at(100) == 'k' && at(101) == 'l' && holds("f", "replacement"));
    CHECK(munmap(map, BYTES) == 0);
}

static void rights(void) {
    close(make("r", "original"));
    int file = open("r", O_RDONLY);
    FAILS(EACCES, (long)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    char *seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    MUST(seen != MAP_FAILED && memcmp(seen, "original", 8) == 0);
    FAILS(EACCES, mprotect(seen, 4096, PROT_READ | PROT_WRITE));
    int writer = open("r", O_RDWR);
    CHECK(pwrite(writer, "O", 1, 0) == 1 && seen[0] == 'O');
    char *both = mmap(NULL, 4096, PROT_READ, MAP_SHARED, writer, 0);
    CHECK(mprotect(both, 4096, PROT_READ | PROT_WRITE) == 0);
    both[1] = 'R';
    CHECK(seen[1] == 'R' && byte_at(file, 1) == 'R');
    CHILD(both[2] = 'I'; CHECK(byte_at(file, 2) == 'I'));
    CHECK(seen[2] == 'I' && byte_at(writer, 2) == 'I');
    close(writer);
    close(file);
    CHECK(both[2] == 'I' && munmap(both, 4096) == 0 && munmap(seen, 4096) == 0 && holds("r", "ORIginal"));
}

int main(int count, char **arguments) {
    enter(count, arguments);
    signal(SIGBUS, caught);
    int file = open("f", O_RDWR | O_CREAT, 0644);
    MUST(file >= 0);
    map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(map != MAP_FAILED);
    CHECK(at(0) == -SIGBUS);
    OTHER(CHECK(ftruncate(other, BYTES) == 0));
    bytes(file);
    ends(file);
    names(file);
    rights();
    return finish();
}
