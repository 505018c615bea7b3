// Bytes that the kernel moves: between files, pipes and sockets.
#include "check.h"
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

enum { SIZE = 300000 };
static char text[SIZE], got[SIZE];

static int same_as_text(const char *name, size_t size) {
    int fd = open(name, O_RDONLY);
    ssize_t n = read(fd, got, SIZE);
    close(fd);
    return n == (ssize_t)size && !memcmp(got, text, size);
}

// Copies until `left` bytes are done; a call may do less than asked.
static void send_all(int out, int in, size_t left) {
    while (left) {
        ssize_t n = sendfile(out, in, NULL, left);
        MUST(n > 0);
        left -= n;
    }
}

static void files(int in) {
    int out = open("sent", O_CREAT | O_RDWR, 0600);
    send_all(out, in, SIZE);
    CHECK(same_as_text("sent", SIZE) && lseek(in, 0, SEEK_CUR) == SIZE);
    off_t at = 1000;
    CHECK(sendfile(out, in, &at, 5) == 5 && at == 1005 && pread(out, got, 5, SIZE) == 5 && !memcmp(got, text + 1000, 5));
    close(out);
    out = open("copied", O_CREAT | O_RDWR, 0600);
    off_t from = 0, to = 0;
    while (from < SIZE) {
        ssize_t n = copy_file_range(in, &from, out, &to, SIZE - from, 0);
        if (n < 0 && from == 0 && (errno == EOPNOTSUPP || errno == EXDEV || errno == ENOSYS || errno == EINVAL)) break;
        MUST(n > 0);
    }
    CHECK(from == 0 || same_as_text("copied", SIZE));
    // FICLONE is refused or right.
    if (ioctl(out, 0x40049409, in) == 0) CHECK(same_as_text("copied", SIZE));
    else CHECK(errno == EOPNOTSUPP || errno == ENOTTY || errno == EINVAL || errno == EXDEV || errno == ENOSYS);
    close(out);
}

// Calls that are refused as a whole, before anything is copied.
static void ranges(void) {
    int file = make("one-file", "0123456789"), appended = open("one-file", O_WRONLY | O_APPEND);
    MUST(appended >= 0);
    for (loff_t to = 2; to <= 7; to += 5) {
        loff_t from = 4, at = to;
        FAILS(EINVAL, copy_file_range(file, &from, file, &at, 4, 0));
        CHECK(from == 4 && at == to);
    }
    loff_t from = 0, to = 0;
    FAILS(EBADF, copy_file_range(file, &from, appended, &to, 4, 0));
    // By the descriptors' own offset, which they share.
    FAILS(EINVAL, copy_file_range(file, NULL, file, NULL, 4, 0));
    CHECK(lseek(file, 0, SEEK_CUR) == 0 && holds("one-file", "0123456789"));
    // Adjacent ranges do not overlap; nor do ranges that the end of the file separates.
    from = 0, to = 4;
    CHECK(copy_file_range(file, &from, file, &to, 4, 0) == 4 && from == 4 && to == 8 && holds("one-file", "0123012389"));
    from = 6, to = 10;
    CHECK(copy_file_range(file, &from, file, &to, 100, 0) == 4 && holds("one-file", "01230123892389"));
    from = 14, to = 0;
    CHECK(copy_file_range(file, &from, file, &to, 100, 0) == 0 && holds("one-file", "01230123892389"));
    close(file), close(appended);
}

static void pipes(int in) {
    int ends[2];
    MUST(pipe(ends) == 0);
    CHECK(sendfile(ends[1], in, (off_t[]){0}, 4096) == 4096 && read(ends[0], got, SIZE) == 4096 && !memcmp(got, text, 4096));
    int out = open("spliced", O_CREAT | O_RDWR, 0600);
    loff_t from = 0, to = 0;
    while (from < SIZE) {
        ssize_t n = splice(in, &from, ends[1], NULL, 32768, 0);
        if (n < 0 && from == 0 && errno == EINVAL) break;
        MUST(n > 0);
        while (n > 0) {
            ssize_t m = splice(ends[0], NULL, out, &to, n, 0);
            MUST(m > 0);
            n -= m;
        }
    }
    CHECK(from == 0 || same_as_text("spliced", SIZE));
    close(out), close(ends[0]), close(ends[1]);
}

static void sockets(int in) {
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        lseek(in, 0, SEEK_SET);
        send_all(pair[1], in, SIZE);
        _exit(0);
    }
    close(pair[1]);
    size_t size = 0;
    for (ssize_t n; size < SIZE && (n = read(pair[0], got + size, SIZE - size)) > 0;) size += n;
    CHECK(size == SIZE && !memcmp(got, text, SIZE));
    close(pair[0]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // From a pipe or a socket into a file, in parts.
    int ends[2], out = open("received", O_CREAT | O_RDWR, 0600);
    MUST(pipe(ends) == 0);
    if ((child = fork()) == 0) {
        close(ends[0]);
        for (size_t at = 0; at < SIZE; at += 10000) if (write(ends[1], text + at, 10000) != 10000) _exit(1);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], got, 7777)) > 0;) MUST(write(out, got, n) == n);
    CHECK(waitpid(child, &status, 0) == child && status == 0 && same_as_text("received", SIZE));
    close(out), close(ends[0]);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    for (int i = 0; i < SIZE; i++) text[i] = (char)(i * 13 + i / 1000);
    int in = open("in", O_CREAT | O_RDWR, 0600);
    MUST(write(in, text, SIZE) == SIZE && lseek(in, 0, SEEK_SET) == 0);
    files(in);
    ranges();
    pipes(in);
    sockets(in);
    return finish();
}
