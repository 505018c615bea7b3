// Processes that are stopped and continued at random moments, and must see correct results all the same:
// `stops DIR SEED`. The test soak/stops.rs stops them and the daemons; this program makes the calls and
// checks each result against a local file system's.
//
// Every worker has names of its own, in the common directory and in its own one. Their contents are recorded
// in shared memory, so that others can check what they see of them: if a name did not change during a query,
// the answer must be exact. All workers take and release locks by O_EXCL, link and mkdir: one wins, and one
// without competition must win. The newest files are replaced by rename and never missing.
//
// It prints the process ids, works until its input ends, then removes all files and prints statistics. The
// first failure ends it with a line on stderr and code 1.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "checker.h"

enum { WORKERS = 4, NAMES = 12, BYTES = 24000, LOCKS = 6, NEWEST = 4, SWEEP = 48 };

// A name. `times` is odd while its worker changes it. `file`: index of the file that it names, or -1.
struct name { _Atomic uint64_t times; _Atomic int file; };
// A file, with as many links as there are names of it.
struct file { _Atomic uint64_t size; int links; unsigned char bytes[BYTES]; };

struct worker {
    pid_t pid;
    _Atomic uint64_t calls;
    char what[96];
    struct name names[NAMES];
    struct file files[NAMES];
    int has_directory;
};

// Attempts begun and ended, and the owner: worker + 1; 0: free.
struct lock { _Atomic uint64_t begun, ended; _Atomic int owner; };
// Written by one worker. Version n has `size_of(n)` bytes.
struct newest { _Atomic uint64_t begun, done; };

struct note {
    _Atomic int failed, stop;
    struct worker workers[WORKERS];
    struct lock locks[LOCKS];
    struct newest newest[NEWEST];
};

#include "workers.h"

static unsigned char scratch[BYTES + 1];

// ---- own names ----

static const char *path_of(int worker, int name) {
    static char paths[2][32];
    static int turn;
    char *path = paths[turn ^= 1];
    sprintf(path, name < NAMES * 2 / 3 ? "all/n%d-%d" : "own%d/n%d", worker, name);
    return path;
}

static int read_whole(int fd, const char *path) {
    int got = 0;
    for (;;) {
        ssize_t part = read(fd, scratch + got, sizeof scratch - got);
        MUST(part >= 0, "read %s", path);
        if (part == 0) return got;
        got += part;
        if (got == sizeof scratch) return got;
    }
}

// Increments `times`: odd before a change, even after it.
static void turn(int name) { atomic_fetch_add(&mine->names[name].times, 1); }

static struct file *file_of(int name) {
    int file = mine->names[name].file;
    return file < 0 ? NULL : &mine->files[file];
}

static void give(int name, int file) {
    int old = mine->names[name].file;
    if (old >= 0) mine->files[old].links--;
    if (file >= 0) mine->files[file].links++;
    atomic_store(&mine->names[name].file, file);
}

// All names of a file change with it.
static void turn_file(const struct file *file) {
    for (int name = 0; name < NAMES; name++)
        if (file_of(name) == file) turn(name);
}

static void make(int name) {
    const char *path = path_of(me, name);
    int is_there = mine->names[name].file >= 0, excludes = uniform(2);
    DO("create %s", path);
    turn(name);
    int fd = open(path, O_CREAT | O_RDWR | (excludes ? O_EXCL : 0), 0640);
    if (is_there && excludes) {
        MUST(fd < 0 && errno == EEXIST, "a second create of %s gives %d", path, fd);
    } else {
        MUST(fd >= 0, "create %s", path);
    }
    if (!is_there) {
        int file = 0;
        while (mine->files[file].links > 0) file++;
        mine->files[file].size = 0;
        give(name, file);
    }
    struct file *file = file_of(name);
    if (fd >= 0 && !is_there && uniform(4) > 0) {
        uint64_t length = uniform(2) ? 3901 : 1 + uniform(6000);
        fill(file->bytes, next(), length);
        DO("write %s", path);
        MUST(write(fd, file->bytes, length) == (ssize_t)length, "write %s", path);
        atomic_store(&file->size, length);
    }
    if (fd >= 0) MUST(close(fd) == 0, "close %s", path);
    turn(name);
}

static void change(int name) {
    const char *path = path_of(me, name);
    struct file *file = file_of(name);
    uint64_t length = 1 + uniform(5000), size = file->size, offset = uniform(size + 1);
    int kind = uniform(3);
    if (kind == 0) offset = size;
    if (offset + length > BYTES) kind = 2;
    turn_file(file);
    DO("open %s to change it", path);
    int fd = open(path, kind == 0 ? O_WRONLY | O_APPEND : O_RDWR);
    MUST(fd >= 0, "open %s to change it", path);
    if (kind == 2) {
        uint64_t end = uniform(BYTES) >> uniform(8);
        DO("truncate %s", path);
        MUST(ftruncate(fd, end) == 0, "truncate %s", path);
        if (end > size) memset(file->bytes + size, 0, end - size);
        atomic_store(&file->size, end);
    } else {
        fill(file->bytes + offset, next(), length);
        DO("write %s at %llu", path, (unsigned long long)offset);
        ssize_t put = kind == 0 ? write(fd, file->bytes + offset, length)
                                : pwrite(fd, file->bytes + offset, length, offset);
        MUST(put == (ssize_t)length, "write of %llu bytes to %s gives %zd", (unsigned long long)length, path, put);
        if (offset + length > size) atomic_store(&file->size, offset + length);
    }
    MUST(close(fd) == 0, "close %s", path);
    turn_file(file);
}

static void look(int name) {
    const char *path = path_of(me, name);
    struct file *file = file_of(name);
    struct stat status;
    DO("stat %s", path);
    int found = stat(path, &status);
    if (!file) {
        MUST(found < 0 && errno == ENOENT, "stat of %s, which does not exist, gives %d", path, found);
    } else {
        MUST(found == 0, "stat %s", path);
        MUST((uint64_t)status.st_size == file->size, "%s has %lld bytes, not %llu", path,
             (long long)status.st_size, (unsigned long long)file->size);
        MUST((int)status.st_nlink == file->links, "%s has %d links, not %d", path, (int)status.st_nlink, file->links);
    }
    DO("open %s", path);
    int fd = open(path, O_RDONLY);
    if (!file) {
        MUST(fd < 0 && errno == ENOENT, "open of %s, which does not exist, gives %d", path, fd);
        return;
    }
    MUST(fd >= 0, "open %s", path);
    DO("read %s", path);
    int got = read_whole(fd, path), at = 0;
    MUST((uint64_t)got == file->size, "%s: %d bytes read, not %llu", path, got, (unsigned long long)file->size);
    while (at < got && scratch[at] == file->bytes[at]) at++;
    MUST(at == got, "%s: byte %d of %d is %d, not %d", path, at, got, scratch[at], file->bytes[at]);
    MUST(close(fd) == 0, "close %s", path);
}

static void move(int name) {
    int other = uniform(NAMES);
    // There are two path buffers.
    const char *from = path_of(me, name), *to = path_of(me, other);
    DO("rename %s to %s", from, to);
    if (other == name) {
        MUST(rename(from, to) == 0, "rename %s to %s", from, to);
        return;
    }
    struct file *file = file_of(name), *old = file_of(other);
    // A change of the link count concerns all names of the file.
    if (old && old != file) turn_file(old);
    turn(name);
    if (!old || old == file) turn(other);
    MUST(rename(from, to) == 0, "rename %s to %s", from, to);
    if (old != file) {
        int moved = mine->names[name].file, replaced = mine->names[other].file;
        give(other, moved);
        give(name, -1);
        for (int each = 0; each < NAMES; each++)
            if (replaced >= 0 && mine->names[each].file == replaced) turn(each);
    }
    turn(name);
    turn(other);
}

static void add_link(int name, int other) {
    const char *from = path_of(me, name), *to = path_of(me, other);
    struct file *file = file_of(name);
    int is_there = mine->names[other].file >= 0;
    DO("link %s to %s", from, to);
    if (is_there) {
        MUST(link(from, to) < 0 && errno == EEXIST, "link of %s to %s, which exists", from, to);
        return;
    }
    turn_file(file);
    turn(other);
    MUST(link(from, to) == 0, "link %s to %s", from, to);
    give(other, mine->names[name].file);
    turn_file(file);
}

static void take_away(int name) {
    const char *path = path_of(me, name);
    struct file *file = file_of(name);
    int fd = uniform(6) ? -1 : open(path, O_RDONLY);
    DO("unlink %s", path);
    turn_file(file);
    MUST(unlink(path) == 0, "unlink %s", path);
    give(name, -1);
    turn_file(file);
    turn(name);
    if (fd < 0) return;
    int got = read_whole(fd, path);
    MUST((uint64_t)got == file->size && memcmp(scratch, file->bytes, got) == 0,
         "%s, removed while open, has %d bytes, not %llu, or others", path, got, (unsigned long long)file->size);
    MUST(close(fd) == 0, "close %s", path);
}

static void change_directory(void) {
    char path[32];
    struct stat status;
    sprintf(path, "all/d%d", me);
    DO("%s %s", mine->has_directory ? "rmdir" : "mkdir", path);
    if (mine->has_directory) MUST(rmdir(path) == 0, "rmdir %s", path);
    else MUST(mkdir(path, 0750) == 0, "mkdir %s", path);
    mine->has_directory ^= 1;
    DO("stat %s", path);
    int found = stat(path, &status);
    MUST(mine->has_directory ? found == 0 && S_ISDIR(status.st_mode) : found < 0 && errno == ENOENT,
         "stat of %s gives %d", path, found);
}

// Many small files that are created, queried and removed: neighbouring entries come and go all the time.
static void sweep(void) {
    char path[32];
    struct stat status;
    int half = uniform(4) == 0, length = 1 + uniform(200);
    for (int turn = 0; turn < 4; turn++) {
        for (int each = 0; each < SWEEP; each++) {
            sprintf(path, half ? "own%d/s%d" : "all/s%d-%d", me, each);
            int fd = -1;
            if (turn == 0) {
                DO("create %s of the sweep", path);
                fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
                MUST(fd >= 0, "create %s", path);
                fill(scratch, each, length);
                MUST(write(fd, scratch, length) == length, "write %s", path);
            } else if (turn == 1) {
                DO("stat %s of the sweep", path);
                MUST(stat(path, &status) == 0, "stat %s", path);
                MUST(status.st_size == length, "%s has %lld bytes, not %d", path, (long long)status.st_size, length);
            } else if (turn == 2) {
                DO("open %s of the sweep", path);
                fd = open(path, O_RDONLY);
                MUST(fd >= 0, "open %s", path);
                MUST(read_whole(fd, path) == length && scratch[0] == (each | 1), "read %s", path);
            } else {
                DO("unlink %s of the sweep", path);
                MUST(unlink(path) == 0, "unlink %s", path);
            }
            if (fd >= 0) MUST(close(fd) == 0, "close %s", path);
        }
    }
}

// A listing has all own names and no other own name, and each newest file.
static void list(void) {
    char path[32];
    int seen[NAMES] = {0}, newest[NEWEST] = {0}, directories = 0, which;
    for (int half = 0; half < 2; half++) {
        sprintf(path, half ? "own%d" : "all", me);
        DO("list %s", path);
        DIR *directory = opendir(path);
        MUST(directory, "opendir %s", path);
        errno = 0;
        for (struct dirent *entry; (entry = readdir(directory));) {
            int worker = me, name = -1;
            if (half ? sscanf(entry->d_name, "n%d", &name) == 1 : sscanf(entry->d_name, "n%d-%d", &worker, &name) == 2) {
                MUST(name >= 0 && name < NAMES, "%s lists %s", path, entry->d_name);
                if (worker == me) seen[name]++;
            } else if (sscanf(entry->d_name, "v%d", &which) == 1) newest[which % NEWEST]++;
            else if (sscanf(entry->d_name, "d%d", &which) == 1 && which == me) directories++;
        }
        MUST(errno == 0, "readdir %s", path);
        MUST(closedir(directory) == 0, "closedir %s", path);
    }
    for (int name = 0; name < NAMES; name++)
        MUST(seen[name] == (mine->names[name].file >= 0), "%s is listed %d times", path_of(me, name), seen[name]);
    for (which = 0; which < NEWEST; which++)
        MUST(newest[which] == 1, "v%d, which always exists, is listed %d times", which, newest[which]);
    MUST(directories == mine->has_directory, "d%d is listed %d times", me, directories);
}

// A query of another worker's name; nothing can be asserted if it changed meanwhile.
static void visit(int worker, int name) {
    struct name *of = &note->workers[worker].names[name];
    struct stat status;
    uint64_t times = of->times, size = 0;
    int file = of->file, opens = uniform(2), result, error;
    if (file >= 0) size = note->workers[worker].files[file].size;
    if (times & 1) return;
    const char *path = path_of(worker, name);
    DO("%s %s of another", opens ? "open" : "stat", path);
    if (opens) {
        result = open(path, O_RDONLY);
        error = errno;
        if (result >= 0) MUST(fstat(result, &status) == 0 && close(result) == 0, "fstat or close %s", path);
    } else {
        result = stat(path, &status);
        error = errno;
    }
    if (of->times != times) {
        MUST(result >= 0 || error == ENOENT, "%s gives %d", path, error);
        return;
    }
    errno = error;
    MUST(file >= 0 ? result >= 0 : result < 0 && error == ENOENT,
         "%s of %s, which %s and did not change, gives %d", opens ? "open" : "stat", path,
         file >= 0 ? "exists" : "does not exist", result);
    MUST(file < 0 || (uint64_t)status.st_size == size, "%s has %lld bytes, not %llu", path,
         (long long)status.st_size, (unsigned long long)size);
}

// ---- shared names ----

static void lock(int which) {
    struct lock *of = &note->locks[which];
    char path[32], own[32];
    struct stat status;
    sprintf(path, "all/k%d", which);
    sprintf(own, "own%d/key", me);
    uint64_t begun = atomic_fetch_add(&of->begun, 1), ended = of->ended;
    int owner = of->owner, fd = -1, taken, error;
    if (owner == me + 1) {
        DO("release %s", path);
        atomic_store(&of->owner, 0);
        MUST(which % 3 == 2 ? rmdir(path) == 0 : unlink(path) == 0, "release %s, which is mine", path);
        atomic_fetch_add(&of->ended, 1);
        return;
    }
    int only_looks = uniform(3) == 0;
    DO("%s %s", only_looks ? "look at lock" : "take", path);
    if (only_looks) taken = stat(path, &status) < 0;
    else if (which % 3 == 0) {
        fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
        taken = fd >= 0;
    } else if (which % 3 == 1) taken = link(own, path) == 0;
    else taken = mkdir(path, 0700) == 0;
    error = errno;
    int is_alone = begun == ended && of->begun == begun + 1;
    if (only_looks) {
        MUST(!taken || error == ENOENT, "stat %s", path);
        MUST(!is_alone || taken == (owner == 0), "%s, of worker %d and no competitor: is it free? %d", path,
             owner - 1, taken);
    } else {
        MUST(taken || error == EEXIST, "take %s", path);
        MUST(!is_alone || taken == (owner == 0), "%s, of worker %d and no competitor: taken? %d", path,
             owner - 1, taken);
        int nobody = 0;
        if (taken) {
            MUST(atomic_compare_exchange_strong(&of->owner, &nobody, me + 1), "%s belongs to workers %d and %d", path, me,
                 nobody - 1);
            if (which % 3 == 0) MUST(close(fd) == 0, "close %s", path);
        }
    }
    atomic_fetch_add(&of->ended, 1);
}

static uint64_t size_of(uint64_t version) { return 16 + version % 97 * 61; }

// Replaces a newest file by one that is newer.
static void replace(int which) {
    struct newest *of = &note->newest[which];
    char path[32], fresh[32];
    sprintf(path, "all/v%d", which);
    sprintf(fresh, uniform(2) ? "all/new%d" : "own%d/new", which % WORKERS);
    for (uint64_t times = 1 + uniform(12); times > 0; times--) {
        uint64_t version = of->done + 1, size = size_of(version);
        fill(scratch, version, size);
        memcpy(scratch, &version, sizeof version);
        DO("write %s", fresh);
        int fd = open(fresh, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        MUST(fd >= 0, "create %s", fresh);
        MUST(write(fd, scratch, size) == (ssize_t)size && close(fd) == 0, "write %s", fresh);
        atomic_store(&of->begun, version);
        DO("rename %s to %s", fresh, path);
        MUST(rename(fresh, path) == 0, "rename %s to %s", fresh, path);
        atomic_store(&of->done, version);
    }
}

// It always exists, is whole, and is not older than the version at the beginning of the query.
static void see_newest(int which) {
    struct newest *of = &note->newest[which];
    char path[32];
    struct stat status;
    uint64_t least = of->done, version, at;
    sprintf(path, "all/v%d", which);
    if (uniform(2)) {
        DO("stat %s", path);
        MUST(stat(path, &status) == 0, "stat of %s, which is replaced and never missing", path);
        uint64_t most = of->begun;
        for (version = least; version <= most && (uint64_t)status.st_size != size_of(version);) version++;
        MUST(version <= most, "%s has %lld bytes, as none of versions %llu to %llu", path, (long long)status.st_size,
             (unsigned long long)least, (unsigned long long)most);
        return;
    }
    DO("open %s", path);
    int fd = open(path, O_RDONLY);
    MUST(fd >= 0, "open of %s, which is replaced and never missing", path);
    uint64_t most = of->begun;
    DO("read %s", path);
    uint64_t got = read_whole(fd, path);
    MUST(got >= sizeof version, "%s: %llu bytes read", path, (unsigned long long)got);
    memcpy(&version, scratch, sizeof version);
    MUST(version >= least && version <= most, "%s is version %llu, not %llu to %llu", path,
         (unsigned long long)version, (unsigned long long)least, (unsigned long long)most);
    MUST(got == size_of(version), "%s: %llu bytes of version %llu", path, (unsigned long long)got,
         (unsigned long long)version);
    static unsigned char right[BYTES];
    fill(right, version, got);
    for (at = sizeof version; at < got && scratch[at] == right[at];) at++;
    MUST(at == got, "%s: byte %llu of version %llu", path, (unsigned long long)at, (unsigned long long)version);
    MUST(close(fd) == 0, "close %s", path);
}

// ---- the workers ----

static void step(void) {
    if (uniform(24) == 0) return sweep();
    int name = uniform(NAMES), choice = uniform(32);
    int is_there = mine->names[name].file >= 0;
    if (choice < 1) change_directory();
    else if (choice < 2) list();
    else if (choice < 4) lock(uniform(LOCKS));
    else if (choice < 5) replace(me % NEWEST);
    else if (choice < 8) see_newest(uniform(NEWEST));
    else if (choice < 12) visit((me + 1 + uniform(WORKERS - 1)) % WORKERS, name);
    else if (choice < 18) look(name);
    else if (!is_there || choice < 19) make(name);
    else if (choice < 22) change(name);
    else if (choice < 24) move(name);
    else if (choice < 26) add_link(name, uniform(NAMES));
    else take_away(name);
}

static void work(int worker, uint64_t seed) {
    me = worker, mine = &note->workers[worker], seed_now = seed;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!note->stop && !note->failed) step();
    for (int name = 0; name < NAMES; name++) look(name);
    list();
    _exit(note->failed ? 1 : 0);
}

static void remove_all(void) {
    char path[32];
    for (int worker = 0; worker < WORKERS; worker++) {
        for (int name = 0; name < NAMES; name++)
            if (note->workers[worker].names[name].file >= 0)
                MUST(unlink(path_of(worker, name)) == 0, "unlink %s", path_of(worker, name));
        sprintf(path, "all/d%d", worker);
        if (note->workers[worker].has_directory) MUST(rmdir(path) == 0, "rmdir %s", path);
        sprintf(path, "own%d/key", worker);
        MUST(unlink(path) == 0, "unlink %s", path);
        sprintf(path, "own%d", worker);
        MUST(rmdir(path) == 0, "rmdir %s", path);
    }
    for (int which = 0; which < LOCKS; which++) {
        sprintf(path, "all/k%d", which);
        if (note->locks[which].owner) MUST(which % 3 == 2 ? rmdir(path) == 0 : unlink(path) == 0, "remove %s", path);
    }
    for (int which = 0; which < NEWEST; which++) {
        sprintf(path, "all/v%d", which);
        MUST(unlink(path) == 0, "unlink %s", path);
    }
    MUST(rmdir("all") == 0, "rmdir all");
}

int main(int count, char **words) {
    if (count != 3) return 2;
    note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED) return 2;
    first_seed = seed_now = strtoull(words[2], NULL, 0);
    MUST(chdir(words[1]) == 0, "chdir %s", words[1]);
    MUST(mkdir("all", 0700) == 0, "mkdir all");
    char path[32];
    for (int each = 0; each < WORKERS; each++) {
        sprintf(path, "own%d", each);
        MUST(mkdir(path, 0700) == 0, "mkdir %s", path);
        sprintf(path, "own%d/key", each);
        MUST(close(creat(path, 0600)) == 0, "create %s", path);
        for (int name = 0; name < NAMES; name++) note->workers[each].names[name].file = -1;
    }
    for (int which = 0; which < NEWEST; which++) {
        me = which, mine = &note->workers[which];
        note->newest[which].done = 0;
        replace(which);
    }
    me = -1;
    for (int each = 0; each < WORKERS; each++) {
        uint64_t seed = next();
        pid_t child = fork();
        MUST(child >= 0, "fork");
        if (child == 0) work(each, seed);
        note->workers[each].pid = child;
    }
    printf("pids");
    for (int each = 0; each < WORKERS; each++) printf(" %d", note->workers[each].pid);
    printf("\n");
    fflush(stdout);
    supervise();
    remove_all();
    uint64_t calls = 0;
    for (int each = 0; each < WORKERS; each++) calls += note->workers[each].calls;
    printf("calls %llu\n", (unsigned long long)calls);
    return 0;
}
