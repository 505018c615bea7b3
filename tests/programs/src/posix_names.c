// link, unlink and rename in every combination that POSIX defines.
#include "check.h"

static ino_t inode_of(const char *name) {
    struct stat status;
    return lstat(name, &status) == 0 ? status.st_ino : 0;
}

static nlink_t links_of(const char *name) {
    struct stat status;
    return lstat(name, &status) == 0 ? status.st_nlink : 0;
}

static void renames(void) {
    close(make("a", "a"));
    close(make("b", "b"));
    ino_t inode = inode_of("a");
    CHECK(rename("a", "c") == 0 && !exists("a") && inode_of("c") == inode);
    CHECK(rename("c", "b") == 0 && holds("b", "a") && inode_of("b") == inode);
    CHECK(rename("b", "b") == 0 && holds("b", "a"));
    FAILS(ENOENT, rename("a", "x"));
    CHECK(link("b", "twin") == 0 && rename("b", "twin") == 0 && exists("b") && links_of("b") == 2 && unlink("twin") == 0);
    CHECK(mkdir("d", 0755) == 0 && mkdir("e", 0755) == 0 && mkdir("d/sub", 0755) == 0);
    FAILS(EISDIR, rename("b", "d"));
    FAILS(ENOTDIR, rename("d", "b"));
    CHECK(rename("d", "e") == 0 && exists("e/sub") && !exists("d"));
    FAILS(EINVAL, rename("e", "e/sub/inside"));
    CHECK(mkdir("f", 0755) == 0 && rename("b", "f/b") == 0 && holds("f/b", "a"));
    CHECK(rename("e", "f") == -1 && (errno == ENOTEMPTY || errno == EEXIST));
    CHECK(rename("f/b", "e/sub/b") == 0 && rename("e/sub", "sub") == 0 && holds("sub/b", "a"));
    CHECK(inode_of("sub/..") == inode_of(".") && "the parent follows");
    CHECK(symlink("absent", "s") == 0 && rename("s", "t") == 0 && exists("t") && rename("sub/b", "t") == 0 && holds("t", "a"));
    // The name exists at every moment while it is replaced.
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 500; i++) { close(make("fresh", "whole")); if (rename("fresh", "stable")) _exit(1); }
        _exit(0);
    }
    while (!exists("stable")) usleep(100);
    int status, missing = 0, torn = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        missing += !exists("stable");
        torn += !holds("stable", "whole");
    }
    CHECK(status == 0 && missing == 0 && torn == 0);
}

static void renameat2s(void) {
    close(make("one", "1"));
    close(make("two", "2"));
    FAILS(EEXIST, renameat2(AT_FDCWD, "one", AT_FDCWD, "two", RENAME_NOREPLACE));
    CHECK(renameat2(AT_FDCWD, "one", AT_FDCWD, "three", RENAME_NOREPLACE) == 0 && holds("three", "1") && !exists("one"));
    if (renameat2(AT_FDCWD, "two", AT_FDCWD, "three", RENAME_EXCHANGE) == 0) {
        CHECK(holds("two", "1") && holds("three", "2"));
        CHECK(mkdir("dir", 0700) == 0 && renameat2(AT_FDCWD, "dir", AT_FDCWD, "two", RENAME_EXCHANGE) == 0 && holds("dir", "1") && rmdir("two") == 0);
        FAILS(ENOENT, renameat2(AT_FDCWD, "dir", AT_FDCWD, "absent", RENAME_EXCHANGE));
    } else CHECK(errno == EINVAL);
    FAILS(EINVAL, renameat2(AT_FDCWD, "two", AT_FDCWD, "four", 0x80));
}

static void links(void) {
    int fd = make("first", "data");
    CHECK(link("first", "second") == 0 && links_of("first") == 2 && inode_of("first") == inode_of("second"));
    FAILS(EEXIST, link("first", "second"));
    FAILS(ENOENT, link("absent", "third"));
    CHECK(mkdir("directory", 0755) == 0);
    FAILS(EPERM, link("directory", "hard"));
    CHECK(unlink("first") == 0 && links_of("second") == 1);
    struct stat status;
    CHECK(unlink("second") == 0 && fstat(fd, &status) == 0 && status.st_nlink == 0 && status.st_size == 4);
    // "A deleted file that is open somewhere keeps its contents" (docs/semantics/durability.md).
    char text[8] = {0};
    CHECK(pwrite(fd, "more", 4, 4) == 4 && pread(fd, text, 8, 0) == 8 && !memcmp(text, "datamore", 8));
    close(make("second", "another"));
    CHECK(pread(fd, text, 8, 0) == 8 && !memcmp(text, "datamore", 8) && holds("second", "another"));
    CHILD({ CHECK(pread(fd, text, 8, 0) == 8 && !memcmp(text, "datamore", 8)); });
    CHECK(ftruncate(fd, 2) == 0 && fstat(fd, &status) == 0 && status.st_size == 2 && close(fd) == 0);
    FAILS(ENOENT, unlink("first"));
    // The same for a file that a rename replaced.
    fd = open("second", O_RDONLY);
    close(make("newer", "newer"));
    CHECK(rename("newer", "second") == 0 && read(fd, text, 7) == 7 && !memcmp(text, "another", 7) && holds("second", "newer"));
    close(fd);
    CHECK(symlink("second", "soft") == 0 && linkat(AT_FDCWD, "soft", AT_FDCWD, "of-link", 0) == 0 && inode_of("of-link") == inode_of("soft"));
    CHECK(linkat(AT_FDCWD, "soft", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW) == 0 && inode_of("followed") == inode_of("second"));
    // An open directory that is removed.
    fd = open("directory", O_RDONLY);
    CHECK(rmdir("directory") == 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode));
    FAILS(ENOENT, openat(fd, "file", O_CREAT | O_WRONLY, 0600));
    close(fd);
}

static void nameless(void) {
    int fd = open(".", O_TMPFILE | O_RDWR, 0640);
    if (fd < 0) {
        CHECK(errno == EOPNOTSUPP || errno == EISDIR);
        return;
    }
    char path[64];
    struct stat status;
    CHECK(write(fd, "nameless", 8) == 8 && fstat(fd, &status) == 0 && status.st_nlink == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0 && holds("named", "nameless") && links_of("named") == 1);
    close(fd);
    fd = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FAILS(ENOENT, linkat(AT_FDCWD, path, AT_FDCWD, "never", AT_SYMLINK_FOLLOW));
    close(fd);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    renames();
    renameat2s();
    links();
    nameless();
    return finish();
}
