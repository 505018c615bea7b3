// Files that are truncated while others write to them, append to them and query them, by processes that are
// stopped and continued at random moments: `truncations DIR SEED`. The test soak/stops.rs stops them and the
// daemons; this program makes the calls and checks each result against a local file system's.
//
// Two workers write files of their own, truncate them and query their size; two others query the same files
// all the time, and may see no size but 0 and that of a whole write. Two workers append records to one file,
// one of them also rewrites another file, and the last worker truncates both. Now and then it pauses them and
// reads: records are whole, each exists once, none is missing that was appended after the last truncation,
// none exists that was appended before it; and a write is there with all its bytes, or not at all.
//
// It prints the process ids, works until its input ends, then removes all files and prints statistics. The
// first failure ends it with a line on stderr and code 1.
#define _GNU_SOURCE
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
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "checker.h"

enum { OWNERS = 2, READERS = 2, WRITERS = 2, TRUNCATOR = OWNERS + READERS + WRITERS, WORKERS };
enum { WHOLE = 5000, RECORDS = 100, RECORD_MOST = 4000 };

struct worker { pid_t pid; _Atomic uint64_t calls; char what[96]; };

// When something began and when it ended, by the shared logical clock; 0: not yet.
struct span { _Atomic uint64_t begun, done; };

struct record { struct span when; uint64_t length; };
struct header { uint64_t seed, length; uint32_t writer, number; };

struct note {
    _Atomic int failed, stop;
    _Atomic uint64_t clock;
    struct worker workers[WORKERS];
    // A round: its appended records, and its last write and truncations.
    _Atomic uint64_t round, parked[WRITERS];
    _Atomic int pauses;
    struct record records[WRITERS][RECORDS];
    _Atomic uint32_t count[WRITERS];
    struct span write, truncate_log, truncate_one;
    _Atomic uint64_t version, appended, truncations;
};

#include "workers.h"

static unsigned char scratch[WRITERS * RECORDS * RECORD_MOST + 1], right[WHOLE];

static uint64_t now(void) { return atomic_fetch_add(&note->clock, 1) + 1; }

static void begin(struct span *span) { span->done = 0; span->begun = now(); }
static void end(struct span *span) { span->done = now(); }

static int is_before(const struct span *first, const struct span *then) {
    return first->done && first->done < then->begun;
}

// ---- a file that its owner writes and truncates, and that others query ----

static void must_be(int fd, const char *path, off_t size, const char *when) {
    struct stat status;
    DO("fstat %s %s", path, when);
    MUST(fstat(fd, &status) == 0, "fstat %s", path);
    MUST(status.st_size == size, "%s has %lld bytes %s", path, (long long)status.st_size, when);
}

static void write_whole(int fd, const char *path, uint64_t seed) {
    fill(right, seed, WHOLE);
    DO("write %s", path);
    MUST(pwrite(fd, right, WHOLE, 0) == WHOLE, "write %s", path);
}

static void own(void) {
    char path[16];
    sprintf(path, "s%d", me);
    DO("open %s", path);
    int fd = open(path, O_RDWR);
    MUST(fd >= 0, "open %s", path);
    write_whole(fd, path, next());
    must_be(fd, path, WHOLE, "after a write");
    int kind = uniform(3), other = -1;
    DO("truncate %s, kind %d", path, kind);
    if (kind == 0) MUST(ftruncate(fd, 0) == 0, "ftruncate %s", path);
    else if (kind == 1) MUST(truncate(path, 0) == 0, "truncate %s", path);
    else MUST((other = open(path, O_WRONLY | O_TRUNC)) >= 0, "open %s with O_TRUNC", path);
    must_be(fd, path, 0, "after a truncation");
    MUST(pread(fd, scratch, WHOLE, 0) == 0, "%s can be read after a truncation", path);
    write_whole(fd, path, next());
    must_be(fd, path, WHOLE, "after a second write");
    MUST(pread(fd, scratch, WHOLE + 1, 0) == WHOLE, "%s cannot be read after a write", path);
    MUST(memcmp(scratch, right, WHOLE) == 0, "%s has other bytes than were written", path);
    MUST(close(fd) == 0 && (other < 0 || close(other) == 0), "close %s", path);
    struct stat status;
    MUST(stat(path, &status) == 0 && status.st_size == WHOLE, "%s has %lld bytes once closed", path,
         (long long)status.st_size);
}

static void query(void) {
    char path[16];
    struct stat status;
    int kind = uniform(4), fd = -1;
    sprintf(path, "s%d", (int)uniform(OWNERS));
    DO("query %s, kind %d", path, kind);
    if (kind == 0) {
        MUST(stat(path, &status) == 0, "stat %s", path);
    } else {
        MUST((fd = open(path, O_RDONLY)) >= 0, "open %s", path);
        // A read during a truncation may return either state.
        if (kind == 3) MUST(read(fd, scratch, WHOLE) >= 0, "read %s", path);
        if (kind == 2) status.st_size = lseek(fd, 0, SEEK_END);
        else MUST(fstat(fd, &status) == 0, "fstat %s", path);
        MUST(close(fd) == 0, "close %s", path);
    }
    MUST(status.st_size == 0 || status.st_size == WHOLE, "%s has %lld bytes, seen by kind %d", path,
         (long long)status.st_size, kind);
}

// ---- files that one worker truncates while others write ----

static void append(int writer, int *fd) {
    uint32_t number = note->count[writer];
    if (number == RECORDS) {
        usleep(50);
        return;
    }
    struct record *record = &note->records[writer][number];
    struct header header = {next(), sizeof header + uniform(RECORD_MOST - sizeof header), writer, number};
    static unsigned char bytes[RECORD_MOST];
    fill(bytes, header.seed, header.length);
    memcpy(bytes, &header, sizeof header);
    record->length = header.length;
    begin(&record->when);
    note->count[writer] = number + 1;
    DO("append record %u of %llu bytes", number, (unsigned long long)header.length);
    if (*fd < 0) MUST((*fd = open("log", O_WRONLY | O_APPEND)) >= 0, "open log");
    struct iovec parts[2] = {{bytes, sizeof header}, {bytes + sizeof header, header.length - sizeof header}};
    ssize_t put = uniform(3) ? write(*fd, bytes, header.length) : writev(*fd, parts, 2);
    MUST(put == (ssize_t)header.length, "append of %llu bytes gives %zd", (unsigned long long)header.length, put);
    if (uniform(8) == 0) {
        MUST(close(*fd) == 0, "close log");
        *fd = -1;
    }
    end(&record->when);
    note->appended++;
}

static void write_one(void) {
    static int fd = -1;
    if (fd < 0) MUST((fd = open("one", O_WRONLY)) >= 0, "open one");
    begin(&note->write);
    note->version++;
    write_whole(fd, "one", note->version);
    if (uniform(8) == 0) {
        MUST(close(fd) == 0, "close one");
        fd = -1;
    }
    end(&note->write);
}

static void put(int writer) {
    static int fd = -1;
    if (note->pauses) {
        note->parked[writer] = note->round;
        usleep(50);
        atomic_fetch_add(&mine->calls, 1);
    } else if (writer == 0 && uniform(3) == 0) write_one();
    else append(writer, &fd);
}

static void truncate_file(const char *path, struct span *when) {
    static int fd = -1;
    int kind = uniform(3);
    begin(when);
    DO("truncate %s, kind %d", path, kind);
    if (kind == 0) MUST(truncate(path, 0) == 0, "truncate %s", path);
    else {
        MUST((fd = open(path, kind == 1 ? O_WRONLY | O_TRUNC : O_WRONLY)) >= 0, "open %s", path);
        if (kind == 2) MUST(ftruncate(fd, 0) == 0, "ftruncate %s", path);
        MUST(close(fd) == 0, "close %s", path);
    }
    end(when);
    note->truncations++;
}

static int read_whole(const char *path) {
    struct stat status;
    int fd = open(path, O_RDONLY), got = 0;
    MUST(fd >= 0, "open %s", path);
    for (ssize_t part; (part = read(fd, scratch + got, sizeof scratch - got)); got += part)
        MUST(part > 0, "read %s", path);
    MUST(fstat(fd, &status) == 0 && status.st_size == got, "%s: %lld bytes, of which %d can be read", path,
         (long long)status.st_size, got);
    MUST(close(fd) == 0, "close %s", path);
    return got;
}

static void check_log(void) {
    static char is_there[WRITERS][RECORDS];
    memset(is_there, 0, sizeof is_there);
    int got = read_whole("log"), at = 0;
    while (at < got) {
        struct header header;
        memcpy(&header, scratch + at, sizeof header);
        MUST(got - at >= (int)sizeof header && header.writer < WRITERS && header.number < note->count[header.writer] &&
             header.length == note->records[header.writer][header.number].length &&
             header.length <= (uint64_t)(got - at), "log: no record at %d of %d", at, got);
        MUST(!is_there[header.writer][header.number]++, "log: record %u of writer %u is there twice", header.number,
             header.writer);
        static unsigned char bytes[RECORD_MOST];
        fill(bytes, header.seed, header.length);
        MUST(memcmp(bytes + sizeof header, scratch + at + sizeof header, header.length - sizeof header) == 0,
             "log: record %u of writer %u is torn", header.number, header.writer);
        at += header.length;
    }
    for (int writer = 0; writer < WRITERS; writer++)
        for (uint32_t number = 0; number < note->count[writer]; number++) {
            const struct span *when = &note->records[writer][number].when;
            MUST(is_there[writer][number] || !is_before(&note->truncate_log, when), "log: record %u of writer %d is missing",
                 number, writer);
            MUST(!is_there[writer][number] || !is_before(when, &note->truncate_log), "log: record %u of writer %d survived a truncation",
                 number, writer);
        }
}

static void check_one(void) {
    int got = read_whole("one");
    MUST(got == 0 || got == WHOLE, "one has %d bytes", got);
    MUST(got == 0 || !is_before(&note->write, &note->truncate_one), "one survived a truncation");
    MUST(got > 0 || !is_before(&note->truncate_one, &note->write), "one: a later write was truncated");
    fill(right, note->version, WHOLE);
    MUST(got == 0 || memcmp(scratch, right, WHOLE) == 0, "one: not the last write, or not all of it");
}

static void truncate_for_a_round(void) {
    for (int times = uniform(12); times > 0; times--) {
        if (uniform(3)) truncate_file("log", &note->truncate_log);
        else truncate_file("one", &note->truncate_one);
        for (volatile uint64_t pause = uniform(40000); pause > 0;) pause--;
    }
    note->pauses = 1;
    for (int writer = 0; writer < WRITERS; writer++)
        while (note->parked[writer] != note->round && !note->stop && !note->failed) {
            atomic_fetch_add(&mine->calls, 1);
            usleep(50);
        }
    if (note->stop || note->failed) return;
    check_log();
    check_one();
    truncate_file("log", &note->truncate_log);
    for (int writer = 0; writer < WRITERS; writer++) note->count[writer] = 0;
    note->round++;
    note->pauses = 0;
}

// ---- all of it ----

static void step(void) {
    if (me < OWNERS) own();
    else if (me < OWNERS + READERS) query();
    else if (me < TRUNCATOR) put(me - OWNERS - READERS);
    else truncate_for_a_round();
}

static void work(int worker, uint64_t seed) {
    me = worker, mine = &note->workers[worker], seed_now = seed;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!note->stop && !note->failed) step();
    _exit(note->failed ? 1 : 0);
}

static void each_file(int (*act)(const char *)) {
    char path[16];
    for (int owner = 0; owner < OWNERS; owner++) {
        sprintf(path, "s%d", owner);
        MUST(act(path) == 0, "%s", path);
    }
    MUST(act("log") == 0 && act("one") == 0, "log or one");
}

static int make(const char *path) { return close(open(path, O_CREAT | O_EXCL | O_WRONLY, 0600)); }

int main(int count, char **words) {
    if (count != 3) return 2;
    note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED) return 2;
    first_seed = seed_now = strtoull(words[2], NULL, 0);
    note->round = 1;
    MUST(chdir(words[1]) == 0, "chdir %s", words[1]);
    each_file(make);
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
    each_file(unlink);
    uint64_t calls = 0;
    for (int each = 0; each < WORKERS; each++) calls += note->workers[each].calls;
    printf("calls %llu, records %llu, truncations %llu, rounds %llu\n", (unsigned long long)calls,
           (unsigned long long)note->appended, (unsigned long long)note->truncations, (unsigned long long)note->round);
    return 0;
}
