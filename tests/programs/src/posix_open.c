// open(2): the meaning of each flag and the error of each misuse.
#include "check.h"

static void creation(void) {
    umask(022);
    int fd = open("new", O_CREAT | O_EXCL | O_WRONLY, 0666);
    MUST(fd >= 0);
    struct stat status;
    CHECK(fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0644 && S_ISREG(status.st_mode) && status.st_nlink == 1 && status.st_size == 0);
    CHECK(status.st_uid == geteuid());
    FAILS(EEXIST, open("new", O_CREAT | O_EXCL | O_RDWR, 0600));
    CHECK(write(fd, "12345", 5) == 5);
    FAILS(EBADF, read(fd, &status, 1));
    CHECK(close(fd) == 0);
    FAILS(EBADF, close(fd));
    FAILS(EBADF, write(fd, "x", 1));
    fd = open("new", O_RDONLY);
    FAILS(EBADF, write(fd, "x", 1));
    FAILS(EINVAL, ftruncate(fd, 1));
    close(fd);
    fd = open("new", O_WRONLY | O_TRUNC);
    CHECK(fd >= 0 && size_of("new") == 0 && close(fd) == 0);
    fd = open("reader", O_CREAT | O_RDWR, 0400);
    CHECK(fd >= 0 && write(fd, "may", 3) == 3 && close(fd) == 0);
    CHECK((fd = creat("made", 0600)) >= 0 && close(fd) == 0);
    FAILS(ENOENT, open("absent", O_RDWR));
    FAILS(ENOENT, open("absent/below", O_RDWR | O_CREAT, 0600));
    FAILS(ENOENT, open("", O_RDONLY));
    FAILS(ENOTDIR, open("new/below", O_RDONLY));
    FAILS(ENOTDIR, open("new/", O_RDONLY));
    FAILS(ENOTDIR, open("new", O_RDONLY | O_DIRECTORY));
}

static void directories(void) {
    MUST(mkdir("dir", 0755) == 0);
    FAILS(EISDIR, open("dir", O_WRONLY));
    FAILS(EISDIR, open("dir", O_RDWR));
    FAILS(EEXIST, mkdir("dir", 0755));
    FAILS(ENOENT, mkdir("absent/dir", 0755));
    int fd = open("dir", O_RDONLY | O_DIRECTORY);
    char byte;
    CHECK(fd >= 0);
    FAILS(EISDIR, read(fd, &byte, 1));
    FAILS(EISDIR, pread(fd, &byte, 1, 0));
    CHECK(close(fd) == 0);
    FAILS(EISDIR, unlink("dir"));
    FAILS(ENOTDIR, rmdir("new"));
    int inner = open("dir/file", O_CREAT | O_WRONLY, 0644);
    close(inner);
    FAILS(ENOTEMPTY, rmdir("dir"));
    FAILS(EINVAL, rmdir("dir/."));
    CHECK(unlink("dir/file") == 0 && rmdir("dir") == 0 && !exists("dir"));
}

static void links(void) {
    close(make("target", "text"));
    CHECK(symlink("target", "link") == 0 && symlink("nowhere", "dangling") == 0 && symlink("self", "self") == 0);
    FAILS(ELOOP, open("link", O_RDONLY | O_NOFOLLOW));
    FAILS(ELOOP, open("self", O_RDONLY));
    FAILS(EEXIST, open("dangling", O_CREAT | O_EXCL | O_RDWR, 0600));
    FAILS(EEXIST, symlink("x", "link"));
    FAILS(ENOENT, symlink("", "empty"));
    int fd = open("dangling", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && exists("nowhere") && close(fd) == 0);
    char text[16] = {0};
    CHECK(readlink("link", text, sizeof text) == 6 && !strcmp(text, "target"));
    CHECK(readlink("link", text, 3) == 3);
    FAILS(EINVAL, readlink("target", text, sizeof text));
    CHECK(holds("link", "text"));
}

static void names(void) {
    char name[260];
    memset(name, 'n', sizeof name);
    name[255] = 0;
    int fd = open(name, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && close(fd) == 0 && exists(name) && unlink(name) == 0);
    name[255] = 'n';
    name[256] = 0;
    FAILS(ENAMETOOLONG, open(name, O_CREAT | O_WRONLY, 0600));
    FAILS(ENAMETOOLONG, mkdir(name, 0700));
    static char path[PATH_MAX + 10];
    for (size_t i = 0; i < sizeof path - 1; i += 2) memcpy(path + i, "./", 2);
    FAILS(ENAMETOOLONG, open(path, O_RDONLY));
    path[2000] = 0;
    CHECK((fd = open(path, O_RDONLY)) >= 0 && close(fd) == 0);
    const char *odd[] = {" ", "\n", "\\", "*?[", "-rf", "\xff\xfe", "...", "日本", "a\tb"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        fd = open(odd[i], O_CREAT | O_EXCL | O_WRONLY, 0600);
        CHECK(fd >= 0 && close(fd) == 0 && exists(odd[i]) && unlink(odd[i]) == 0);
    }
    CHECK(mkdir("deep", 0700) == 0 && chdir("deep") == 0);
    for (int i = 0; i < 60; i++) CHECK(mkdir("directory-below-directory-below", 0700) == 0 && chdir("directory-below-directory-below") == 0);
    close(make("bottom", "deep"));
    for (int i = 0; i < 60; i++) CHECK(chdir("..") == 0);
    CHECK(chdir("..") == 0 && exists("deep"));
    FAILS(EBADF, fcntl(9999, F_GETFL));
}

static void flags(void) {
    int fd = open("flags", O_CREAT | O_RDWR | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0600);
    int got = fcntl(fd, F_GETFL);
    CHECK((got & O_ACCMODE) == O_RDWR && (got & O_APPEND) && (got & O_NONBLOCK) && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(fcntl(fd, F_SETFL, 0) == 0 && !(fcntl(fd, F_GETFL) & O_APPEND));
    CHECK(write(fd, "abc", 3) == 3 && fcntl(fd, F_SETFL, O_APPEND) == 0 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "d", 1) == 1 && holds("flags", "abcd"));
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0 && syncfs(fd) == 0);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL) == 0 && readahead(fd, 0, 4) == 0);
    CHECK(!isatty(fd) && errno == ENOTTY);
    CHECK(close(fd) == 0);
    fd = open("flags", O_RDWR | O_SYNC | O_NOATIME);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0 && holds("flags", "xbcd"));
}

int main(int count, char **arguments) {
    enter(count, arguments);
    creation();
    directories();
    links();
    names();
    flags();
    return finish();
}
