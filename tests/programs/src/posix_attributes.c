// Attributes that stat shows, and the calls that change them.
#include "check.h"
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <utime.h>

static struct stat status;

static struct stat *of(const char *name) {
    memset(&status, 0, sizeof status);
    CHECK(lstat(name, &status) == 0);
    return &status;
}

static long long nanos(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static void pause_a_little(void) { nanosleep(&(struct timespec){0, 20000000}, NULL); }

static void times(void) {
    int fd = make("f", "text");
    struct timespec fixed[2] = {{1000, 123456789}, {2000, 987654321}};
    CHECK(futimens(fd, fixed) == 0 && nanos(of("f")->st_mtim) == 2000987654321LL && nanos(status.st_atim) == 1000123456789LL);
    CHECK(utimensat(AT_FDCWD, "f", (struct timespec[]){{0, UTIME_OMIT}, {3000, 0}}, 0) == 0 && of("f")->st_mtim.tv_sec == 3000 && status.st_atim.tv_sec == 1000);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK(utimensat(AT_FDCWD, "f", NULL, 0) == 0 && labs(of("f")->st_mtim.tv_sec - now.tv_sec) <= 1);
    CHECK(utime("f", &(struct utimbuf){5, 6}) == 0 && of("f")->st_mtim.tv_sec == 6);
    FAILS(EINVAL, utimensat(AT_FDCWD, "f", (struct timespec[]){{0, 2000000000}, {0, 0}}, 0));
    long long before = nanos(of("f")->st_mtim);
    CHECK(write(fd, "x", 1) == 1 && nanos(of("f")->st_mtim) > before);
    before = nanos(of("f")->st_mtim), pause_a_little();
    CHECK(ftruncate(fd, 1) == 0 && nanos(of("f")->st_mtim) > before);
    long long changed = nanos(of("f")->st_ctim), modified = nanos(status.st_mtim);
    pause_a_little();
    CHECK(fchmod(fd, 0600) == 0 && nanos(of("f")->st_ctim) > changed && nanos(status.st_mtim) == modified);
    changed = nanos(of("f")->st_ctim), pause_a_little();
    CHECK(link("f", "g") == 0 && nanos(of("f")->st_ctim) > changed);
    MUST(mkdir("d", 0755) == 0);
    before = nanos(of("d")->st_mtim), pause_a_little();
    close(make("d/new", ""));
    CHECK(nanos(of("d")->st_mtim) > before);
    before = nanos(of("d")->st_mtim), pause_a_little();
    CHECK(unlink("d/new") == 0 && nanos(of("d")->st_mtim) > before);
    CHECK(symlink("f", "l") == 0 && utimensat(AT_FDCWD, "l", fixed, AT_SYMLINK_NOFOLLOW) == 0 && of("l")->st_mtim.tv_sec == 2000 && of("f")->st_mtim.tv_sec != 2000);
    close(fd);
}

static void modes(void) {
    int fd = make("m", "");
    for (mode_t mode = 0; mode <= 07777; mode += 0123) CHECK(chmod("m", mode) == 0 && (of("m")->st_mode & 07777) == mode);
    CHECK(chmod("m", 0644) == 0 && access("m", R_OK | W_OK) == 0 && chmod("m", 0755) == 0 && access("m", X_OK) == 0);
    FAILS(ENOENT, access("absent", F_OK));
    FAILS(ENOENT, chmod("absent", 0600));
    FAILS(EINVAL, access("m", 0x77));
    CHECK(chown("m", geteuid(), getegid()) == 0 && lchown("m", -1, -1) == 0 && fchown(fd, geteuid(), -1) == 0);
    umask(0);
    CHECK(mkdir("all", 0777) == 0 && (of("all")->st_mode & 07777) == 0777);
    umask(077);
    CHECK(mkdir("few", 0777) == 0 && (of("few")->st_mode & 07777) == 0700);
    CHECK(mknod("node", S_IFREG | 0644, 0) == 0 && S_ISREG(of("node")->st_mode) && (status.st_mode & 0777) == 0600);
    close(fd);
}

static void statx_and_fs(void) {
    int fd = make("x", "hello");
    struct statx more;
    memset(&more, 0, sizeof more);
    CHECK(statx(AT_FDCWD, "x", 0, STATX_BASIC_STATS | STATX_BTIME, &more) == 0);
    CHECK((more.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS && more.stx_size == 5 && more.stx_nlink == 1 && S_ISREG(more.stx_mode));
    CHECK(more.stx_ino == of("x")->st_ino && more.stx_mtime.tv_sec == status.st_mtim.tv_sec && makedev(more.stx_dev_major, more.stx_dev_minor) == status.st_dev);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &more) == 0 && more.stx_size == 5);
    FAILS(ENOENT, statx(AT_FDCWD, "absent", 0, STATX_SIZE, &more));
    struct statvfs vfs;
    struct statfs fs;
    CHECK(statvfs(".", &vfs) == 0 && vfs.f_blocks > 0 && vfs.f_bfree <= vfs.f_blocks && vfs.f_namemax == 255 && fstatvfs(fd, &vfs) == 0);
    CHECK(statfs("x", &fs) == 0 && fs.f_bsize > 0 && fstatfs(fd, &fs) == 0 && fs.f_namelen == 255);
    CHECK(pathconf("x", _PC_NAME_MAX) == 255 && fpathconf(fd, _PC_NAME_MAX) == 255);
    CHECK(of("x")->st_blksize >= 512 && status.st_blocks >= 0);
    char chunk[4096] = {1};
    for (int i = 0; i < 100; i++) CHECK(write(fd, chunk, sizeof chunk) == sizeof chunk);
    CHECK(of("x")->st_size == 409600 && status.st_blocks * 512 >= 405504);
    close(fd);
}

// Extended attributes work, or every call fails with EOPNOTSUPP.
static void extended(void) {
    int fd = make("e", "");
    char value[64];
    if (setxattr("e", "user.colour", "blue", 4, 0) != 0) {
        CHECK(errno == EOPNOTSUPP);
        FAILS(EOPNOTSUPP, getxattr("e", "user.colour", value, sizeof value));
        CHECK(listxattr("e", value, sizeof value) == 0 || errno == EOPNOTSUPP);
        return;
    }
    CHECK(getxattr("e", "user.colour", value, sizeof value) == 4 && !memcmp(value, "blue", 4) && fgetxattr(fd, "user.colour", NULL, 0) == 4);
    FAILS(EEXIST, setxattr("e", "user.colour", "red", 3, XATTR_CREATE));
    FAILS(ENODATA, setxattr("e", "user.absent", "red", 3, XATTR_REPLACE));
    FAILS(ENODATA, getxattr("e", "user.absent", value, sizeof value));
    FAILS(ERANGE, getxattr("e", "user.colour", value, 2));
    CHECK(fsetxattr(fd, "user.second", "", 0, 0) == 0 && listxattr("e", value, sizeof value) == 24);
    CHECK(removexattr("e", "user.colour") == 0 && flistxattr(fd, value, sizeof value) == 12);
    FAILS(ENODATA, removexattr("e", "user.colour"));
    close(fd);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    times();
    modes();
    statx_and_fs();
    extended();
    return finish();
}
