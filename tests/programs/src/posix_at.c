// Calls that start at a directory's descriptor, and the current directory.
#include "check.h"
#include <sys/syscall.h>

static void below(void) {
    MUST(mkdir("dir", 0755) == 0);
    int dir = open("dir", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat status, other;
    int fd = openat(dir, "file", O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && write(fd, "text", 4) == 4 && holds("dir/file", "text"));
    CHECK(fstatat(dir, "file", &status, 0) == 0 && status.st_size == 4 && fstat(fd, &other) == 0 && status.st_ino == other.st_ino);
    CHECK(mkdirat(dir, "sub", 0700) == 0 && symlinkat("file", dir, "link") == 0);
    CHECK(fstatat(dir, "link", &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode) && fstatat(dir, "link", &status, 0) == 0 && S_ISREG(status.st_mode));
    char text[16] = {0};
    CHECK(readlinkat(dir, "link", text, sizeof text) == 4 && !strcmp(text, "file"));
    CHECK(linkat(dir, "file", AT_FDCWD, "outside", 0) == 0 && renameat(AT_FDCWD, "outside", dir, "inside") == 0 && holds("dir/inside", "text"));
    CHECK(faccessat(dir, "file", R_OK | W_OK, 0) == 0);
    FAILS(ENOENT, faccessat(dir, "absent", F_OK, 0));
    CHECK(fchmodat(dir, "file", 0600, 0) == 0 && fstat(fd, &status) == 0 && (status.st_mode & 0777) == 0600);
    CHECK(fchownat(dir, "file", geteuid(), getegid(), 0) == 0 && fchownat(dir, "link", -1, -1, AT_SYMLINK_NOFOLLOW) == 0);
    struct timespec times[2] = {{1, 2}, {3, 4}};
    CHECK(utimensat(dir, "file", times, 0) == 0 && fstat(fd, &status) == 0 && status.st_mtim.tv_sec == 3 && status.st_mtim.tv_nsec == 4);
    FAILS(ENOTDIR, openat(fd, "x", O_RDONLY));
    FAILS(EBADF, openat(9999, "x", O_RDONLY));
    FAILS(ENOTDIR, unlinkat(dir, "file", AT_REMOVEDIR));
    FAILS(EISDIR, unlinkat(dir, "sub", 0));
    CHECK(unlinkat(dir, "sub", AT_REMOVEDIR) == 0 && unlinkat(dir, "inside", 0) == 0 && !exists("dir/inside"));
    static char absolute[PATH_MAX];
    MUST(getcwd(absolute, sizeof absolute - 20));
    strcat(absolute, "/dir/file");
    CHECK(fstatat(9999, absolute, &status, 0) == 0 && status.st_ino == other.st_ino);
    // The directory was moved, and its descriptor follows it.
    CHECK(rename("dir", "moved") == 0 && openat(dir, "file", O_RDONLY) >= 0);
    close(fd), close(dir);
}

static void current(void) {
    static char before[PATH_MAX], here[PATH_MAX], expected[PATH_MAX + 16];
    MUST(getcwd(before, sizeof before) && mkdir("x", 0755) == 0 && mkdir("x/y", 0755) == 0);
    int back = open(".", O_RDONLY), x = open("x", O_PATH | O_DIRECTORY);
    CHECK(chdir("x/y") == 0 && getcwd(here, sizeof here));
    snprintf(expected, sizeof expected, "%s/x/y", before);
    CHECK(!strcmp(here, expected));
    close(make("here", "h"));
    CHECK(exists("../../x/y/here") && chdir("..") == 0 && exists("y/here"));
    CHECK(getcwd(here, 3) == NULL && errno == ERANGE);
    CHECK(fchdir(back) == 0 && getcwd(here, sizeof here) && !strcmp(here, before));
    CHECK(fchdir(x) == 0 && exists("y"));
    FAILS(ENOENT, chdir("absent"));
    FAILS(ENOTDIR, chdir("y/here"));
    CHILD({ CHECK(exists("y/here") && chdir("y") == 0); execlp("test", "test", "-e", "here", NULL); });
    CHECK(exists("y/here"));
    CHECK(rename("../x", "../z") == 0 && getcwd(here, sizeof here));
    snprintf(expected, sizeof expected, "%s/z", before);
    CHECK(!strcmp(here, expected) && "getcwd follows a rename");
    char *allocated = getcwd(NULL, 0);
    CHECK(allocated && !strcmp(allocated, expected));
    free(allocated);
    CHECK(chdir("/") == 0 && exists(expected) && chdir(before) == 0);
    FAILS(ENOENT, (mkdir("gone", 0700), chdir("gone"), rmdir("../gone"), open("file", O_CREAT | O_WRONLY, 0600)));
    CHECK(getcwd(here, sizeof here) == NULL && errno == ENOENT);
    CHECK(fchdir(back) == 0);
    close(back), close(x);
}

static void paths_only(void) {
    close(make("file", "text"));
    CHECK(symlink("file", "link") == 0);
    int fd = open("file", O_PATH), link = open("link", O_PATH | O_NOFOLLOW);
    char text[PATH_MAX] = {0}, name[64];
    struct stat status;
    CHECK(fd >= 0 && fstat(fd, &status) == 0 && status.st_size == 4);
    FAILS(EBADF, read(fd, text, 1));
    FAILS(EBADF, fchmod(fd, 0600));
    CHECK(fstat(link, &status) == 0 && S_ISLNK(status.st_mode) && readlinkat(link, "", text, sizeof text) == 4);
    CHECK(fstatat(fd, "", &status, AT_EMPTY_PATH) == 0 && status.st_size == 4);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = open(name, O_RDWR);
    CHECK(again >= 0 && read(again, text, 4) == 4 && !memcmp(text, "text", 4) && write(again, "!", 1) == 1 && holds("file", "text!"));
    static char expected[PATH_MAX + 16];
    MUST(getcwd(expected, PATH_MAX));
    strcat(expected, "/file");
    memset(text, 0, sizeof text);
    CHECK(readlink(name, text, sizeof text - 1) > 0 && !strcmp(text, expected));
    char *real = realpath("link", NULL);
    CHECK(real && !strcmp(real, expected));
    free(real);
    CHECK(stat(name, &status) == 0 && status.st_size == 5);
    snprintf(name, sizeof name, "/dev/fd/%d", again);
    CHECK(stat(name, &status) == 0 && status.st_size == 5);
#ifdef SYS_openat2
    struct { uint64_t flags, mode, resolve; } how = {O_RDONLY, 0, 0x08 /* RESOLVE_BENEATH */};
    int beneath = syscall(SYS_openat2, AT_FDCWD, "file", &how, sizeof how);
    CHECK(beneath >= 0 || errno == ENOSYS);
    close(beneath);
#endif
    close(fd), close(link), close(again);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    below();
    current();
    paths_only();
    return finish();
}
