#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            printf("line %d: %s: %s\n", __LINE__, #x, strerror(errno));                                                \
            bad = 1;                                                                                                   \
        }                                                                                                              \
    } while (0)
static int bad;
static char d[300];
static char *at(const char *n) {
    static char b[8][400];
    static int i;
    i = (i + 1) % 8;
    snprintf(b[i], 400, "%s/%s", d, n);
    return b[i];
}
int main(int c, char **v) {
    strcpy(d, v[1]);
    int f = open(at("f"), O_RDWR | O_CREAT, 0644), n = -1;
    char b[20000];
    struct stat s;
    memset(b, 'x', sizeof b);
    write(f, b, 10000);
    lseek(f, 4000, 0);
    MUST(ioctl(f, FIONREAD, &n) == 0 && n == 6000);
    MUST(!isatty(f) && errno == ENOTTY);
    MUST(ioctl(f, FIOCLEX) == 0 && (fcntl(f, F_GETFD) & FD_CLOEXEC));
    MUST(ioctl(f, FIONCLEX) == 0 && !(fcntl(f, F_GETFD) & FD_CLOEXEC));
    int on = 1;
    MUST(ioctl(f, FIONBIO, &on) == 0);
    MUST(posix_fallocate(f, 0, 50000) == 0);
    fstat(f, &s);
    MUST(s.st_size == 50000);
    MUST(fallocate(f, FALLOC_FL_KEEP_SIZE, 0, 200000) == 0 || errno == EOPNOTSUPP);
    fstat(f, &s);
    MUST(s.st_size == 50000);
    if (fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 5000) == 0) {
        MUST(pread(f, b, 5200, 50) == 5200 && b[0] == 'x' && b[49] == 'x' && b[50] == 0 && b[5049] == 0 &&
             b[5050] == 'x');
    } else
        MUST(errno == EOPNOTSUPP);
    if (fallocate(f, FALLOC_FL_ZERO_RANGE, 9000, 500) == 0) {
        MUST(pread(f, b, 600, 8950) == 600 && b[49] == 'x' && b[50] == 0 && b[549] == 0 && b[550] == 'x');
    } else
        MUST(errno == EOPNOTSUPP);
    MUST(fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096) == 0 || errno == EOPNOTSUPP || errno == EINVAL);
    MUST(fallocate(f, FALLOC_FL_PUNCH_HOLE, 0, 10) != 0);
    MUST(fallocate(f, 0, 0, 0) != 0 && errno == EINVAL);
    MUST(fallocate(f, 0, -1, 10) != 0 && errno == EINVAL);
    struct iovec i = {b, 100};
    lseek(f, 0, 0);
    MUST(preadv2(f, &i, 1, -1, 0) == 100 && lseek(f, 0, 1) == 100);
    MUST(preadv2(f, &i, 1, 0, RWF_NOWAIT) == 100 || errno == EAGAIN || errno == EOPNOTSUPP);
    MUST(pwritev2(f, &i, 1, 0, RWF_DSYNC) == 100);
    MUST(preadv2(f, &i, 1, 0, 0x4000) < 0 && errno == EOPNOTSUPP);
    MUST(readv(f, &i, -1) < 0 && errno == EINVAL);
    struct iovec many[1025];
    MUST(writev(f, many, 1025) < 0 && errno == EINVAL);
    int g = open(at("g"), O_RDWR | O_CREAT, 0644);
    off_t o = 0, q = 0;
    MUST(copy_file_range(f, &o, g, &q, 10000, 0) > 0);
    int l = open("/etc/passwd", O_RDONLY);
    fstat(l, &s);
    ssize_t k = copy_file_range(l, 0, g, 0, 1 << 20, 0);
    MUST(k == s.st_size || (k < 0 && (errno == EXDEV || errno == EOPNOTSUPP || errno == EINVAL)));
    lseek(l, 0, 0);
    ftruncate(g, 0);
    lseek(g, 0, 0);
    MUST(sendfile(g, l, 0, 1 << 20) == s.st_size);
    fstat(g, &s);
    MUST(s.st_size > 0);
    int pr = open("/proc/self/status", O_RDONLY);
    MUST((k = copy_file_range(pr, 0, g, 0, 4096, 0)) >= 0 || errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP);
    int p[2];
    pipe(p);
    lseek(g, 0, 0);
    MUST(splice(g, 0, p[1], 0, 100, 0) == 100);
    MUST(splice(p[0], 0, f, 0, 100, 0) == 100);
    o = 0;
    MUST(sendfile(p[1], g, &o, 50) == 50 && o == 50);
    MUST(copy_file_range(f, &o, f, &o, 100, 0) < 0);
    MUST(ioctl(f, FICLONE, g) != 0 && (errno == EOPNOTSUPP || errno == ENOTTY || errno == EXDEV || errno == EINVAL));
    long fl;
    MUST(ioctl(f, FS_IOC_GETFLAGS, &fl) == 0 || errno == ENOTTY || errno == EOPNOTSUPP || errno == ENOSYS);
    struct statx x;
    MUST(statx(AT_FDCWD, at("f"), AT_STATX_SYNC_AS_STAT, STATX_ALL, &x) == 0);
    MUST(!(x.stx_mask & STATX_BTIME) || llabs(x.stx_btime.tv_sec - time(0)) < 1000);
    MUST(statx(f, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0 && x.stx_ino);
    MUST(statx(f, 0, AT_EMPTY_PATH, STATX_SIZE, &x) == 0 || errno == EFAULT);
    int e = open(at("f"), O_RDWR | O_DIRECT);
    if (e >= 0) {
        void *m;
        posix_memalign(&m, 4096, 8192);
        memset(m, 'D', 8192);
        MUST(pwrite(e, m, 4096, 4096) == 4096);
        MUST(pread(e, m, 8192, 0) == 8192);
        MUST(pread(e, m, 4096, 1 << 20) == 0);
    }
    struct timespec t[2] = {{0, UTIME_OMIT}, {-1000000000, 123456789}};
    MUST(utimensat(AT_FDCWD, at("f"), t, 0) == 0);
    stat(at("f"), &s);
    MUST(s.st_mtim.tv_sec == -1000000000 && s.st_mtim.tv_nsec == 123456789);
    t[1].tv_sec = 9000000000;
    MUST(utimensat(AT_FDCWD, at("f"), t, 0) == 0);
    stat(at("f"), &s);
    MUST(s.st_mtim.tv_sec == 9000000000);
    t[1].tv_nsec = UTIME_NOW;
    MUST(futimens(f, t) == 0);
    fstat(f, &s);
    MUST(labs(s.st_mtime - time(0)) < 5);
    t[1].tv_nsec = 1000000000;
    MUST(futimens(f, t) < 0 && errno == EINVAL);
    MUST(faccessat(AT_FDCWD, at("f"), R_OK, AT_EACCESS) == 0);
    MUST(access(at("f"), 077) < 0 && errno == EINVAL);
    MUST(lseek(f, -1, SEEK_SET) < 0 && errno == EINVAL);
    MUST(lseek(f, 0, 99) < 0 && errno == EINVAL);
    MUST(open(at("f/"), O_RDONLY) < 0 && errno == ENOTDIR);
    MUST(open(at("nope/"), O_CREAT | O_WRONLY, 0644) < 0 && errno == EISDIR);
    MUST(mkdir(at("dd/"), 0755) == 0);
    MUST(rmdir(at("dd/.")) < 0 && errno == EINVAL);
    MUST(unlink(at("dd")) < 0 && errno == EISDIR);
    MUST(rename(at("dd"), at("dd/../ee/")) == 0);
    MUST(open(d, O_WRONLY) < 0 && errno == EISDIR);
    MUST(open(at("f"), O_RDONLY | O_DIRECTORY) < 0 && errno == ENOTDIR);
    MUST(open(at("f"), O_CREAT | O_DIRECTORY, 0644) < 0 && errno == EINVAL);
    symlink("f", at("ln"));
    MUST(open(at("ln"), O_RDONLY | O_NOFOLLOW) < 0 && errno == ELOOP);
    symlink("loop", at("loop"));
    MUST(open(at("loop"), O_RDONLY) < 0 && errno == ELOOP);
    char nm[260];
    memset(nm, 'n', 256);
    nm[255] = 0;
    MUST((k = open(at(nm), O_CREAT | O_WRONLY, 0644)) >= 0);
    nm[255] = 'n';
    nm[256] = 0;
    MUST(open(at(nm), O_CREAT | O_WRONLY, 0644) < 0 && errno == ENAMETOOLONG);
    MUST(open(at("bad\xff\n name"), O_CREAT | O_WRONLY, 0644) >= 0);
    MUST(open("", O_RDONLY) < 0 && errno == ENOENT);
    struct statfs z;
    MUST(statfs(d, &z) == 0 && z.f_namelen == 255 && z.f_bsize > 0 && z.f_blocks > 0);
    MUST(fpathconf(f, _PC_NAME_MAX) == 255);
    MUST(fcntl(f, F_SETLEASE, F_RDLCK) == 0 || errno == EAGAIN || errno == EINVAL || errno == EOPNOTSUPP ||
         errno == ENOTTY || errno == ENOLCK);
    MUST(fcntl(f, F_DUPFD_CLOEXEC, 100) >= 100);
    MUST(fcntl(f, F_SETFL, O_APPEND) == 0 && (fcntl(f, F_GETFL) & O_APPEND));
    lseek(f, 0, 0);
    fstat(f, &s);
    write(f, "!", 1);
    off_t was = s.st_size;
    fstat(f, &s);
    MUST(s.st_size == was + 1);
    MUST(ftruncate(f, -1) < 0 && errno == EINVAL);
    MUST(truncate(at("ee"), 0) < 0 && errno == EISDIR);
    MUST(lseek(f, (off_t)1 << 40, SEEK_SET) == (off_t)1 << 40);
    MUST(write(f, "", 0) == 0);
    fcntl(f, F_SETFL, 0);
    lseek(f, (off_t)1 << 40, SEEK_SET);
    MUST(write(f, "far", 3) == 3);
    fstat(f, &s);
    MUST(s.st_size == ((off_t)1 << 40) + 3 && s.st_blocks < 100000);
    MUST(lseek(f, 1 << 20, SEEK_DATA) > 1 << 20);
    MUST(lseek(f, 1 << 20, SEEK_HOLE) == 1 << 20);
    MUST(lseek(f, (off_t)2 << 40, SEEK_DATA) < 0 && errno == ENXIO);
    return bad;
}
