// The work of a process that is killed at a random moment, and the state that is known afterwards.
//
// A life is one process of a slot. A slot has names of its own in two directories, and a record of their
// contents in memory that outlives the process: before a call it records the call (BEGUN), after it the
// acknowledgement (DONE), then its effect on the names. The next life of the slot first checks the call that
// was in progress: it must have happened or not, and a torn write may have changed its own bytes only. All
// slots also compete for common names, each of which only one may have created, and append records to a
// common file.
#pragma once
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

enum { SLOTS = 4, NAMES = 8, COMMON = 6, DIRECTORIES = 2, BYTES = 300000, ROUND_KILLS = 50 };
enum { RECORD = 512, RECORDS = 4096, PAST = 400 };
// No call takes this long, unless it hangs: the instance's own limit is 30 s.
enum { TIMEOUT_S = 40 };

enum phase { NOTHING, BEGUN, DONE };
enum kind { CREATE, WRITE, TRUNCATE, UNLINK, RENAME, MKDIR, RMDIR, CLAIM, GIVE_UP, APPEND };
static const char *const KINDS[] = {"create", "write", "truncate", "unlink", "rename",
                                    "mkdir", "rmdir", "claim", "give up", "append"};

// `interrupted`: bytes that the last two interrupted writes may have left beyond the end, which a file that
// grows later may show instead of zeros; 0: none.
struct content { uint64_t size; unsigned char bytes[BYTES], interrupted[2][BYTES]; };

struct slot {
    // The call in progress.
    _Atomic int phase;
    int kind, name, other, content;
    uint64_t offset, length, seed;
    // The state: the content of each name, or -1; empty directories.
    int of[NAMES];
    int has_directory[DIRECTORIES];
    _Atomic uint64_t calls;
    // Records of this round: their number, and which were interrupted.
    uint64_t records;
    char interrupted[RECORDS];
    // The last calls, for the report of a failure.
    struct { char what[24]; int kind, name, other, content; uint64_t offset, length; } past[PAST];
    uint64_t passed;
    struct content contents[NAMES];
};

struct note {
    _Atomic int failed, stop;
    // Owner of a common name: slot + 1, and the inode of the file.
    _Atomic int owner[COMMON];
    _Atomic uint64_t inode[COMMON];
    uint64_t torn[10], whole[10], undone[10];
    struct slot slots[SLOTS];
};

static struct note *note;
static struct slot *mine;
static int me = -1;
static pid_t pids[SLOTS];
static unsigned char scratch[BYTES], bytes_of_write[BYTES];

// Prints the last calls of a slot.
static void print_past(const struct slot *slot) {
    uint64_t first = slot->passed > PAST ? slot->passed - PAST : 0;
    for (uint64_t each = first; each < slot->passed; each++) {
        int at = each % PAST;
        dprintf(2, "  %s: %s, name %d, other %d, content %d, offset %llu, length %llu\n", slot->past[at].what,
                KINDS[slot->past[at].kind], slot->past[at].name, slot->past[at].other, slot->past[at].content,
                (unsigned long long)slot->past[at].offset, (unsigned long long)slot->past[at].length);
    }
}

static void remember(const char *what) {
    int at = mine->passed % PAST;
    snprintf(mine->past[at].what, sizeof mine->past[at].what, "%s", what);
    mine->past[at].kind = mine->kind;
    mine->past[at].name = mine->name, mine->past[at].other = mine->other;
    mine->past[at].content = mine->content;
    mine->past[at].offset = mine->offset, mine->past[at].length = mine->length;
    mine->passed++;
}

static const char *path_of(int slot, int name);
static const char *directory_of(int slot, int half);

// Prints the names that exist and their expected sizes, and the empty directories.
static void print_names(void) {
    for (int name = 0; name < NAMES; name++) {
        struct stat status;
        int found = lstat(path_of(me, name), &status);
        long long size = found == 0 ? (long long)status.st_size : -1;
        int content = mine->of[name];
        dprintf(2, "  name %d: %lld bytes (-1: none), should be %lld; content %d\n", name, size,
                content < 0 ? -1 : (long long)mine->contents[content].size, content);
    }
    for (int half = 0; half < DIRECTORIES; half++) {
        struct stat status;
        int found = lstat(directory_of(me, half), &status);
        dprintf(2, "  directory %d: %s, inode %llu, should be %s\n", half, found == 0 ? "there" : "not there",
                found == 0 ? (unsigned long long)status.st_ino : 0, mine->has_directory[half] ? "there" : "not there");
    }
}

static void kill_all(void) {
    for (int slot = 0; slot < SLOTS; slot++)
        if (pids[slot]) kill(-pids[slot], SIGKILL);
}

static void fail(const char *format, ...) {
    int error = errno;
    if (atomic_exchange(&note->failed, 1)) kill_all(), _exit(1);
    char text[1024];
    va_list words;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    dprintf(2, "failed: %s (errno %d, slot %d, pid %d, seed %llu)\n", text, error, me, getpid(),
            (unsigned long long)first_seed);
    if (mine)
        dprintf(2, "  the slot: phase %d, %s, name %d, other %d, content %d, offset %llu, length %llu\n",
                mine->phase, KINDS[mine->kind], mine->name, mine->other, mine->content,
                (unsigned long long)mine->offset, (unsigned long long)mine->length);
    if (mine) print_past(mine), print_names();
    kill_all();
    _exit(1);
}

static const char *path_of(int slot, int name) {
    static char paths[2][64];
    static int turn;
    char *path = paths[turn ^= 1];
    sprintf(path, "%c%d/f%d", name < NAMES / 2 ? 'a' : 'b', slot, name);
    return path;
}

static const char *directory_of(int slot, int half) {
    static char path[64];
    sprintf(path, "%c%d/d", "ab"[half], slot);
    return path;
}

static const char *common_path(int name) {
    static char path[64];
    sprintf(path, "common/c%d", name);
    return path;
}

// ---- the record of a slot ----

static void begin(enum kind kind, int name, int other, uint64_t offset, uint64_t length, uint64_t seed) {
    mine->kind = kind, mine->name = name, mine->other = other;
    mine->offset = offset, mine->length = length, mine->seed = seed;
    mine->content = kind == CREATE || name < 0 || kind >= MKDIR ? -1 : mine->of[name];
    if (kind == CREATE)
        for (int content = 0; content < NAMES; content++) {
            int used = 0;
            for (int each = 0; each < NAMES; each++) used |= mine->of[each] == content;
            if (!used) mine->content = content;
        }
    atomic_store(&mine->phase, BEGUN);
}

// Interrupted writes have left nothing in a range.
static void forget_interrupted(struct content *content, uint64_t from, uint64_t length) {
    for (int each = 0; each < 2; each++) memset(content->interrupted[each] + from, 0, length);
}

// Applies the effect of a call that happened. Idempotent.
static void apply(void) {
    struct content *content = mine->content >= 0 ? &mine->contents[mine->content] : NULL;
    switch (mine->kind) {
    case CREATE:
        content->size = 0;
        forget_interrupted(content, 0, BYTES);
        mine->of[mine->name] = mine->content;
        break;
    case WRITE:
        if (mine->offset > content->size)
            memset(content->bytes + content->size, 0, mine->offset - content->size);
        fill(content->bytes + mine->offset, mine->seed, mine->length);
        forget_interrupted(content, mine->offset, mine->length);
        if (mine->offset + mine->length > content->size) content->size = mine->offset + mine->length;
        break;
    case TRUNCATE:
        if (mine->length > content->size)
            memset(content->bytes + content->size, 0, mine->length - content->size);
        if (mine->length < content->size)
            forget_interrupted(content, mine->length, BYTES - mine->length);
        content->size = mine->length;
        break;
    case UNLINK: mine->of[mine->name] = -1; break;
    case RENAME:
        mine->of[mine->other] = mine->content;
        if (mine->name != mine->other) mine->of[mine->name] = -1;
        break;
    case MKDIR: mine->has_directory[mine->name] = 1; break;
    case RMDIR: mine->has_directory[mine->name] = 0; break;
    case APPEND: mine->records = mine->seed + 1; break;
    default: break;
    }
    atomic_store(&mine->phase, NOTHING);
}

static void done(void) {
    atomic_store(&mine->phase, DONE);
    remember("done");
    apply();
    atomic_fetch_add(&mine->calls, 1);
}

static void nothing_done(void) { atomic_store(&mine->phase, NOTHING); }

// ---- comparing ----

// Reads the whole file; returns its length, or -1 if it does not exist.
static int64_t read_file(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) {
        MUST(errno == ENOENT, "open %s", path);
        return -1;
    }
    int64_t length = 0;
    for (ssize_t got; (got = read(fd, scratch + length, BYTES - length)) != 0; length += got)
        MUST(got > 0, "read %s at %lld", path, (long long)length);
    struct stat status;
    MUST(fstat(fd, &status) == 0, "fstat %s", path);
    MUST(status.st_size == length, "%s: size %lld, but %lld bytes", path, (long long)status.st_size,
         (long long)length);
    MUST(close(fd) == 0, "close %s", path);
    return length;
}

static int may_be(const struct content *right, uint64_t at, unsigned char byte) {
    if (byte == right->bytes[at]) return 1;
    for (int each = 0; each < 2; each++)
        if (right->interrupted[each][at] != 0 && byte == right->interrupted[each][at]) return 1;
    return 0;
}

static void verify(int name) {
    const char *path = path_of(me, name);
    int64_t length = read_file(path);
    if (mine->of[name] < 0) {
        MUST(length < 0, "%s is there, %lld bytes, but was removed", path, (long long)length);
        return;
    }
    const struct content *right = &mine->contents[mine->of[name]];
    MUST(length >= 0, "%s is not there", path);
    MUST((uint64_t)length == right->size, "%s: %lld bytes, not %llu", path, (long long)length,
         (unsigned long long)right->size);
    uint64_t at = 0;
    while (at < right->size && may_be(right, at, scratch[at])) at++;
    MUST(at == right->size, "%s of %llu bytes: byte %llu is %d, not %d", path,
         (unsigned long long)right->size, (unsigned long long)at, scratch[at], right->bytes[at]);
}

// Every name of the slot, and no other.
static void verify_listing(void) {
    for (int half = 0; half < 2; half++) {
        char path[16];
        sprintf(path, "%c%d", "ab"[half], me);
        int seen[NAMES] = {0}, directories = 0;
        DIR *directory = opendir(path);
        MUST(directory, "opendir %s", path);
        for (struct dirent *entry; (entry = readdir(directory));) {
            int name;
            if (entry->d_name[0] == '.') continue;
            if (entry->d_name[0] == 'd') directories++;
            else if (sscanf(entry->d_name, "f%d", &name) == 1 && name >= 0 && name < NAMES) seen[name]++;
            else fail("%s lists %s", path, entry->d_name);
        }
        closedir(directory);
        MUST(directories == mine->has_directory[half], "%s lists its directory %d times", path, directories);
        for (int name = 0; name < NAMES; name++) {
            int is_here = name / (NAMES / 2) == half && mine->of[name] >= 0;
            MUST(seen[name] == is_here, "%s lists f%d %d times", path, name, seen[name]);
        }
    }
}

// A write that was in progress: each byte of it is old or new, all others are old. The contents found become
// the expected ones.
static void resolve_write(void) {
    const char *path = path_of(me, mine->name);
    struct content *old = &mine->contents[mine->content];
    uint64_t end = mine->offset + mine->length, longest = end > old->size ? end : old->size;
    int64_t length = read_file(path);
    MUST(length >= (int64_t)old->size && length <= (int64_t)longest,
         "%s: %lld bytes after a write that was interrupted, %llu before it, %llu with it", path,
         (long long)length, (unsigned long long)old->size, (unsigned long long)longest);
    fill(bytes_of_write, mine->seed, mine->length);
    uint64_t news = 0, olds = 0;
    for (uint64_t at = 0; at < (uint64_t)length; at++) {
        if (at >= old->size) old->bytes[at] = 0;
        int is_in = at >= mine->offset && at < end;
        int written = is_in ? bytes_of_write[at - mine->offset] : old->bytes[at];
        MUST(may_be(old, at, scratch[at]) || scratch[at] == written,
             "%s: byte %llu is %d after a write that was interrupted, neither %d nor %d", path,
             (unsigned long long)at, scratch[at], old->bytes[at], written);
        if (is_in) *(scratch[at] == written ? &news : &olds) += 1;
    }
    (news == mine->length ? note->whole : news ? note->torn : note->undone)[WRITE]++;
    remember(news == mine->length ? "killed, happened" : news ? "killed, in parts" : "killed, did not happen");
    memcpy(old->bytes, scratch, length);
    old->size = length;
    if (end > old->size) {
        uint64_t first = old->size > mine->offset ? old->size : mine->offset;
        for (uint64_t at = first; at < end; at++) {
            if (old->interrupted[0][at] != 0) old->interrupted[1][at] = old->interrupted[0][at];
            old->interrupted[0][at] = bytes_of_write[at - mine->offset];
        }
    }
    nothing_done();
}

static int is_there(const char *path) {
    struct stat status;
    int found = lstat(path, &status);
    MUST(found == 0 || errno == ENOENT, "stat %s", path);
    return found == 0;
}

static void settle(int happened) {
    (happened ? note->whole : note->undone)[mine->kind]++;
    remember(happened ? "killed, happened" : "killed, did not happen");
    if (happened) apply();
    else nothing_done();
}

// The last call of the previous life: happened wholly or not at all.
static void resolve(void) {
    if (mine->phase == DONE) apply();
    if (mine->phase == NOTHING) return;
    int name = mine->name, other = mine->other;
    struct stat status;
    switch (mine->kind) {
    case CREATE: {
        int64_t length = read_file(path_of(me, name));
        MUST(length <= 0, "%s: %lld bytes after a create that was interrupted", path_of(me, name), (long long)length);
        settle(length == 0);
        break;
    }
    case WRITE: resolve_write(); break;
    case TRUNCATE: {
        int64_t length = read_file(path_of(me, name));
        uint64_t before = mine->contents[mine->content].size;
        MUST(length == (int64_t)before || length == (int64_t)mine->length,
             "%s: %lld bytes, not %llu or %llu", path_of(me, name), (long long)length,
             (unsigned long long)before, (unsigned long long)mine->length);
        settle(length == (int64_t)mine->length);
        verify(name);
        break;
    }
    case UNLINK:
        settle(!is_there(path_of(me, name)));
        verify(name);
        break;
    case RENAME:
        if (name == other) nothing_done();
        else settle(!is_there(path_of(me, name)));
        verify(name);
        verify(other);
        break;
    case MKDIR: settle(is_there(directory_of(me, name))); break;
    case RMDIR: settle(!is_there(directory_of(me, name))); break;
    case CLAIM:
        // The permissions of a file identify its creator.
        if (atomic_load(&note->owner[name]) != me + 1) {
            int found = lstat(common_path(name), &status);
            MUST(found == 0 || errno == ENOENT, "stat %s", common_path(name));
            if (found == 0 && (status.st_mode & 7) == (mode_t)me) {
                int nobody = 0;
                MUST(atomic_compare_exchange_strong(&note->owner[name], &nobody, me + 1),
                     "%s belongs to slots %d and %d", common_path(name), me, nobody - 1);
                atomic_store(&note->inode[name], status.st_ino);
            }
        } else if (lstat(common_path(name), &status) == 0) {
            atomic_store(&note->inode[name], status.st_ino);
        } else {
            fail("%s is gone, and no slot removed it", common_path(name));
        }
        nothing_done();
        break;
    case GIVE_UP: {
        int owner = me + 1;
        atomic_compare_exchange_strong(&note->owner[name], &owner, 0);
        int found = lstat(common_path(name), &status);
        MUST(found == 0 || errno == ENOENT, "stat %s", common_path(name));
        if (found == 0 && status.st_ino == mine->seed) MUST(unlink(common_path(name)) == 0, "unlink %s", common_path(name));
        nothing_done();
        break;
    }
    case APPEND:
        // It may be there, or in part: its number is not used again.
        mine->interrupted[mine->seed] = 1;
        apply();
        break;
    }
}

// ---- the calls of a life ----

static uint64_t some_length(void) {
    switch (uniform(4)) {
    case 0: return 1 + uniform(100);
    case 1: return 1 + uniform(6000);
    case 2: return 1 + uniform(40000);
    default: return 1 + uniform(140000);
    }
}

static void write_at(int fd, const char *path, int appends) {
    fill(bytes_of_write, mine->seed, mine->length);
    for (uint64_t sent = 0; sent < mine->length;) {
        ssize_t put = appends ? write(fd, bytes_of_write + sent, mine->length - sent)
                              : pwrite(fd, bytes_of_write + sent, mine->length - sent, mine->offset + sent);
        MUST(put > 0, "write %llu bytes to %s at %llu", (unsigned long long)mine->length, path,
             (unsigned long long)mine->offset);
        sent += put;
    }
}

static void create(int name) {
    int flags = uniform(2) ? O_CREAT | O_EXCL | O_RDWR : O_CREAT | O_WRONLY;
    const char *path = path_of(me, name);
    int was_there = mine->of[name] >= 0;
    if (!was_there) begin(CREATE, name, -1, 0, 0, 0);
    int fd = open(path, flags, 0640);
    if (was_there && flags & O_EXCL) {
        MUST(fd < 0 && errno == EEXIST, "a second create of %s gives %d", path, fd);
        return;
    }
    MUST(fd >= 0, "create %s", path);
    if (!was_there) done();
    MUST(close(fd) == 0, "close %s", path);
}

static void write_name(int name) {
    const char *path = path_of(me, name);
    uint64_t length = some_length(), size = mine->contents[mine->of[name]].size;
    int appends = size + length <= BYTES && uniform(3) == 0;
    int fd = open(path, appends ? O_WRONLY | O_APPEND : O_RDWR);
    MUST(fd >= 0, "open %s", path);
    if (uniform(4) == 0) {
        int other = dup(fd);
        MUST(other >= 0 && close(fd) == 0, "dup and close of %s", path);
        fd = other;
    }
    for (uint64_t times = 1 + uniform(3); times > 0 && size + length <= BYTES; times--) {
        uint64_t offset = appends ? size : uniform(BYTES - length + 1) >> uniform(12);
        begin(WRITE, name, -1, offset, length, next());
        if (uniform(12) == 0) {
            pid_t child = fork();
            MUST(child >= 0, "fork");
            if (child == 0) {
                write_at(fd, path, appends);
                _exit(0);
            }
            int status = -1;
            MUST(waitpid(child, &status, 0) == child && status == 0, "a child that writes %s ends with %d", path, status);
        } else {
            write_at(fd, path, appends);
        }
        done();
        size = mine->contents[mine->of[name]].size;
    }
    if (uniform(8) == 0) MUST(fsync(fd) == 0, "fsync %s", path);
    MUST(close(fd) == 0, "close %s", path);
}

static void truncate_name(int name) {
    const char *path = path_of(me, name);
    uint64_t length = uniform(3) ? uniform(BYTES) >> uniform(16) : 0;
    int by_open = length == 0 && uniform(2), fd = -1;
    if (!by_open) {
        fd = open(path, O_RDWR);
        MUST(fd >= 0, "open %s", path);
    }
    begin(TRUNCATE, name, -1, 0, length, 0);
    if (by_open) MUST((fd = open(path, O_WRONLY | O_TRUNC)) >= 0, "open and truncate %s", path);
    else MUST(ftruncate(fd, length) == 0, "truncate %s to %llu", path, (unsigned long long)length);
    done();
    MUST(close(fd) == 0, "close %s", path);
}

static void unlink_name(int name) {
    const char *path = path_of(me, name);
    int fd = uniform(3) ? -1 : open(path, O_RDONLY);
    const struct content *content = &mine->contents[mine->of[name]];
    begin(UNLINK, name, -1, 0, 0, 0);
    MUST(unlink(path) == 0, "unlink %s", path);
    done();
    if (fd < 0) return;
    // Its contents stay while it is open.
    ssize_t got = pread(fd, scratch, BYTES, 0);
    ssize_t at = 0;
    while (at < got && may_be(content, at, scratch[at])) at++;
    MUST(got == (ssize_t)content->size && at == got, "%s was removed while open: %zd of %llu bytes, right up to %zd",
         path, got, (unsigned long long)content->size, at);
    MUST(close(fd) == 0, "close %s", path);
}

static void rename_name(int name) {
    int other = uniform(NAMES);
    begin(RENAME, name, other, 0, 0, 0);
    MUST(rename(path_of(me, name), path_of(me, other)) == 0, "rename f%d to f%d", name, other);
    done();
}

static void change_directory(int which) {
    const char *path = directory_of(me, which);
    int was_there = mine->has_directory[which];
    if (was_there) {
        begin(RMDIR, which, -1, 0, 0, 0);
        MUST(rmdir(path) == 0, "rmdir %s", path);
    } else {
        begin(MKDIR, which, -1, 0, 0, 0);
        MUST(mkdir(path, 0750) == 0, "mkdir %s", path);
    }
    done();
}

static void claim(int name) {
    const char *path = common_path(name);
    int is_mine = atomic_load(&note->owner[name]) == me + 1;
    begin(CLAIM, name, -1, 0, 0, 0);
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0600 | me);
    if (fd < 0) {
        MUST(errno == EEXIST, "create %s exclusively", path);
        nothing_done();
        return;
    }
    int nobody = 0;
    MUST(!is_mine && atomic_compare_exchange_strong(&note->owner[name], &nobody, me + 1),
         "%s was created by slots %d and %d", path, me, nobody - 1);
    struct stat status;
    MUST(fstat(fd, &status) == 0, "fstat %s", path);
    atomic_store(&note->inode[name], status.st_ino);
    done();
    MUST(close(fd) == 0, "close %s", path);
}

static void give_up(int name) {
    begin(GIVE_UP, name, -1, 0, 0, atomic_load(&note->inode[name]));
    atomic_store(&note->owner[name], 0);
    MUST(unlink(common_path(name)) == 0, "unlink %s, which slot %d made", common_path(name), me);
    done();
}

// Opens a file that another slot may remove at this moment.
static void visit(int name) {
    const char *path = common_path(name);
    int fd = open(path, O_RDWR);
    if (fd < 0) {
        MUST(errno == ENOENT, "open %s", path);
        return;
    }
    char bytes[200] = {0};
    uint64_t at = uniform(20000);
    MUST(pwrite(fd, bytes, sizeof bytes, at) == sizeof bytes, "write %s", path);
    MUST(pread(fd, bytes, sizeof bytes, at) == sizeof bytes, "read %s", path);
    MUST(close(fd) == 0, "close %s", path);
}

static void append(void) {
    if (mine->records == RECORDS) return;
    unsigned char record[RECORD];
    fill(record, mine->records, RECORD);
    record[0] = 'r', record[1] = me;
    memcpy(record + 8, &mine->records, 8);
    int fd = open("common/log", O_WRONLY | O_APPEND);
    MUST(fd >= 0, "open the common file");
    begin(APPEND, 0, -1, 0, 0, mine->records);
    MUST(write(fd, record, RECORD) == RECORD, "append to the common file");
    done();
    MUST(close(fd) == 0, "close the common file");
}

static void step(void) {
    int name = uniform(NAMES), choice = uniform(24);
    int exists = mine->of[name] >= 0;
    if (choice < 3) change_directory(uniform(DIRECTORIES));
    else if (choice < 5) verify(name);
    else if (choice < 7) {
        int common = uniform(COMMON);
        if (atomic_load(&note->owner[common]) == me + 1) give_up(common);
        else claim(common);
    } else if (choice < 9) visit(uniform(COMMON));
    else if (choice < 11) append();
    else if (!exists || choice < 13) create(name);
    else if (choice < 18) write_name(name);
    else if (choice < 20) truncate_name(name);
    else if (choice < 22) rename_name(name);
    else unlink_name(name);
}

static void live(int slot, uint64_t seed) {
    me = slot, mine = &note->slots[slot], seed_now = seed;
    umask(0);
    resolve();
    verify(uniform(NAMES));
    while (!atomic_load(&note->stop)) step();
    _exit(0);
}
