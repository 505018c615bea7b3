// Reading and writing at offsets, holes, space, limits; each byte is compared with a copy in memory.
#include "check.h"

enum { SIZE = 3 << 20 };
static unsigned char model[SIZE], got[SIZE];
static uint64_t seed = 88172645463325252u;

static uint64_t next_random(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}

// A thousand operations of random place and length on a file and on the copy, compared as we go.
static void against_model(void) {
    int fd = open("model", O_CREAT | O_RDWR, 0600);
    long size = 0;
    MUST(fd >= 0);
    for (int i = 0; i < 1500; i++) {
        long at = next_random() % (SIZE / 2), length = next_random() % (i % 10 ? 20000 : SIZE / 2 - 1);
        switch (next_random() % 6) {
        case 0: case 1:
            for (long k = 0; k < length; k++) model[at + k] = (unsigned char)(k * 31 + i);
            MUST(pwrite(fd, model + at, length, at) == length);
            if (length && at + length > size) size = at + length;
            break;
        case 2: {
            long expected = at >= size ? 0 : at + length > size ? size - at : length;
            MUST(pread(fd, got, length, at) == expected);
            MUST(memcmp(got, model + at, expected) == 0);
            break;
        }
        case 3:
            if (i % 7) break;
            MUST(ftruncate(fd, at) == 0);
            if (at < size) memset(model + at, 0, size - at);
            size = at;
            break;
        case 4: {
            struct iovec parts[3] = {{model + at, length / 3}, {model + at + length / 3, length / 2}, {model + at, 0}};
            long sum = length / 3 + length / 2;
            if (at + sum > size) break;
            MUST(pwritev(fd, parts, 3, at) == sum);
            break;
        }
        default:
            MUST(lseek(fd, at, SEEK_SET) == at);
            ssize_t n = read(fd, got, length);
            MUST(n == (at >= size ? 0 : at + length > size ? size - at : length));
            MUST(lseek(fd, 0, SEEK_CUR) == at + n && memcmp(got, model + at, n) == 0);
        }
    }
    struct stat status;
    MUST(fstat(fd, &status) == 0 && status.st_size == size);
    MUST(pread(fd, got, SIZE, 0) == size && memcmp(got, model, size) == 0);
    close(fd);
}

static void vectors(void) {
    int fd = make("vectors", "0123456789");
    char a[3] = {0}, b[4] = {0};
    struct iovec parts[2] = {{a, 2}, {b, 3}};
    CHECK(readv(fd, parts, 2) == 5 && !strcmp(a, "01") && !strcmp(b, "234") && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(preadv(fd, parts, 2, 7) == 3 && a[0] == '7' && b[0] == '9');
    CHECK(preadv2(fd, parts, 2, 1, 0) == 5 && a[0] == '1' && preadv2(fd, parts, 2, -1, 0) == 5 && lseek(fd, 0, SEEK_CUR) == 10);
    struct iovec out[2] = {{"ab", 2}, {"cd", 2}};
    CHECK(pwritev2(fd, out, 2, 8, 0) == 4 && holds("vectors", "01234567abcd"));
    CHECK(pwritev2(fd, out, 1, 0, RWF_APPEND) == 2 && holds("vectors", "01234567abcdab"));
    volatile int negative = -1;
    FAILS(EINVAL, readv(fd, parts, negative));
    FAILS(EINVAL, pread(fd, a, 1, -1));
    FAILS(EINVAL, lseek(fd, -1, SEEK_SET));
    FAILS(EINVAL, lseek(fd, 0, 77));
    CHECK(read(fd, a, 0) == 0 && write(fd, NULL, 0) == 0);
    CHECK(lseek(fd, 100, SEEK_END) == 114 && read(fd, a, 1) == 0 && size_of("vectors") == 14);
    close(fd);
}

static void holes(void) {
    int fd = open("holes", O_CREAT | O_RDWR, 0600);
    CHECK(pwrite(fd, "x", 1, 10 << 20) == 1 && size_of("holes") == (10 << 20) + 1);
    CHECK(pread(fd, got, 4096, 5 << 20) == 4096 && got[0] == 0 && !memcmp(got, got + 1, 4095));
    off_t data = lseek(fd, 0, SEEK_DATA), hole = lseek(fd, 0, SEEK_HOLE);
    CHECK(data >= 0 && data <= (10 << 20) && hole >= 0 && hole <= (10 << 20) + 1);
    CHECK(lseek(fd, 10 << 20, SEEK_DATA) == 10 << 20 && lseek(fd, 10 << 20, SEEK_HOLE) == (10 << 20) + 1);
    FAILS(ENXIO, lseek(fd, 11 << 20, SEEK_DATA));
    FAILS(ENXIO, lseek(fd, 11 << 20, SEEK_HOLE));
    CHECK(ftruncate(fd, 1L << 40) == 0 && size_of("holes") == 1L << 40);
    CHECK(pwrite(fd, "end", 3, (1L << 40) - 3) == 3 && pread(fd, got, 10, (1L << 40) - 3) == 3 && !memcmp(got, "end", 3));
    CHECK(ftruncate(fd, 0) == 0 && ftruncate(fd, 100) == 0 && pread(fd, got, 200, 0) == 100 && got[0] == 0);
    FAILS(EINVAL, ftruncate(fd, -1));
    FAILS(EINVAL, truncate("holes", -1));
    FAILS(ENOENT, truncate("absent", 1));
    close(fd);
}

// fallocate: reserving must work or be refused; what it does must then be right.
static void space(void) {
    int fd = open("space", O_CREAT | O_RDWR, 0600);
    CHECK(posix_fallocate(fd, 0, 100000) == 0 && size_of("space") == 100000);
    CHECK(pread(fd, got, 100000, 0) == 100000 && got[0] == 0 && !memcmp(got, got + 1, 99999));
    memset(got, 'a', 100000);
    CHECK(pwrite(fd, got, 100000, 0) == 100000);
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 200000) == 0) CHECK(size_of("space") == 100000);
    else CHECK(errno == EOPNOTSUPP);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 40000) == 0) {
        CHECK(pread(fd, got, 100000, 0) == 100000 && got[4999] == 'a' && got[5000] == 0 && got[44999] == 0 && got[45000] == 'a');
    } else CHECK(errno == EOPNOTSUPP);
    if (fallocate(fd, FALLOC_FL_ZERO_RANGE, 90000, 20000) == 0) {
        CHECK(size_of("space") == 110000 && pread(fd, got, 1, 95000) == 1 && got[0] == 0);
    } else CHECK(errno == EOPNOTSUPP);
    FAILS(EINVAL, fallocate(fd, 0, -1, 10));
    FAILS(EINVAL, fallocate(fd, 0, 0, 0));
    close(fd);
    fd = open("space", O_RDONLY);
    FAILS(EBADF, fallocate(fd, 0, 0, 10));
    close(fd);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    against_model();
    vectors();
    holes();
    space();
    return finish();
}
