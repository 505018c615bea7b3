// One rank of a workload that a file describes: `workload SCRIPT RANK`. Each line of the script is a rank, or
// `*` for all of them, a command, and its words; lines of other ranks are skipped. Sizes are in bytes. The
// workloads are in it/advice.
//
//   dir PATH                            makes a directory
//   hole PATH SIZE                      a file of this size without data
//   write PATH N SIZE START STEP        N writes, the first at START, each STEP behind the one before
//   anew PATH N SIZE                    truncates, then N writes behind each other
//   read PATH N SIZE START STEP         as write
//   scatter PATH N SIZE PLACES SEED     N writes of SIZE at random places, multiples of SIZE
//   gather PATH N SIZE PLACES SEED      as scatter: reads
//   append PATH N SIZE                  N writes with O_APPEND
//   synced PATH N SIZE EACH             N writes behind each other, and fsync after each EACH of them
//   reopen-write PATH N SIZE MOVES      N times: open, MOVES writes behind those before, close
//   reopen-read PATH N SIZE MOVES       as reopen-write: reads
//   files DIR FIRST N SIZE              creates N files, one write each
//   slurp DIR FIRST N SIZE              reads N files to their ends, SIZE at a time
//   stat PATH N                         N times
//   absent DIR N                        looks for N names that do not exist
//   replace PATH N SIZE                 N times: writes a file beside PATH and renames it to PATH
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 512, BUFFER_BYTES = 8 << 20 };
static char *buffer;

static void fail(const char *what, const char *path) {
    fprintf(stderr, "workload: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static int open_file(const char *path, int flags) {
    int file = open(path, flags, 0644);
    if (file < 0) fail("open", path);
    return file;
}

static void put(int file, long long size, long long at, const char *path) {
    if (pwrite(file, buffer, size, at) != size) fail("write", path);
}

static void get(int file, long long size, long long at, const char *path) {
    if (pread(file, buffer, size, at) != size) fail("read", path);
}

static long long place(uint64_t *state, long long places) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return (long long)((mixed ^ (mixed >> 31)) % (uint64_t)places);
}

static int is(const char *word, const char *name) { return strcmp(word, name) == 0; }

// Transfers of one open file.
static int transfers(const char *word, const char *path, const long long *a) {
    int writes = is(word, "write") || is(word, "scatter"), scattered = is(word, "scatter") || is(word, "gather");
    if (!writes && !is(word, "read") && !scattered) return 0;
    int file = open_file(path, writes ? O_WRONLY | O_CREAT : O_RDONLY);
    uint64_t state = (uint64_t)a[3];
    for (long long i = 0; i < a[0]; i++) {
        long long at = scattered ? place(&state, a[2]) * a[1] : a[2] + i * a[3];
        if (writes) put(file, a[1], at, path);
        else get(file, a[1], at, path);
    }
    close(file);
    return 1;
}

// Writes in the order of the file.
static int streams(const char *word, const char *path, const long long *a) {
    int appends = is(word, "append"), syncs = is(word, "synced");
    if (!appends && !syncs && !is(word, "anew")) return 0;
    int flags = O_WRONLY | O_CREAT | (appends ? O_APPEND : syncs ? 0 : O_TRUNC);
    int file = open_file(path, flags);
    for (long long i = 0; i < a[0]; i++) {
        if (write(file, buffer, a[1]) != a[1]) fail("write", path);
        if (syncs && (i + 1) % a[2] == 0 && fsync(file) != 0) fail("fsync", path);
    }
    close(file);
    return 1;
}

static int reopens(const char *word, const char *path, const long long *a) {
    int writes = is(word, "reopen-write");
    if (!writes && !is(word, "reopen-read")) return 0;
    for (long long i = 0; i < a[0]; i++) {
        int file = open_file(path, writes ? O_WRONLY | O_CREAT : O_RDONLY);
        for (long long j = 0; j < a[2]; j++) {
            long long at = (i * a[2] + j) * a[1];
            if (writes) put(file, a[1], at, path);
            else get(file, a[1], at, path);
        }
        close(file);
    }
    return 1;
}

static int many_files(const char *word, const char *dir, const long long *a) {
    int creates = is(word, "files");
    if (!creates && !is(word, "slurp")) return 0;
    char path[PATH_BYTES];
    for (long long i = a[0]; i < a[0] + a[1]; i++) {
        snprintf(path, sizeof path, "%s/f%lld", dir, i);
        int file = open_file(path, creates ? O_WRONLY | O_CREAT : O_RDONLY);
        ssize_t count = 1;
        if (creates) put(file, a[2], 0, path);
        while (!creates && count > 0) count = read(file, buffer, a[2]);
        if (count < 0) fail("read", path);
        close(file);
    }
    return 1;
}

static int names(const char *word, const char *path, const long long *a) {
    struct stat found;
    char other[PATH_BYTES];
    if (is(word, "dir")) {
        if (mkdir(path, 0755) != 0 && errno != EEXIST) fail("mkdir", path);
    } else if (is(word, "hole")) {
        int file = open_file(path, O_WRONLY | O_CREAT);
        if (ftruncate(file, a[0]) != 0) fail("truncate", path);
        close(file);
    } else if (is(word, "stat")) {
        for (long long i = 0; i < a[0]; i++)
            if (stat(path, &found) != 0) fail("stat", path);
    } else if (is(word, "absent")) {
        for (long long i = 0; i < a[0]; i++) {
            snprintf(other, sizeof other, "%s/absent%lld", path, i);
            if (stat(other, &found) == 0 || errno != ENOENT) fail("stat", other);
        }
    } else if (is(word, "replace")) {
        snprintf(other, sizeof other, "%s.new", path);
        for (long long i = 0; i < a[0]; i++) {
            int file = open_file(other, O_WRONLY | O_CREAT | O_TRUNC);
            put(file, a[1], 0, other);
            close(file);
            if (rename(other, path) != 0) fail("rename", path);
        }
    } else {
        return 0;
    }
    return 1;
}

/* Appends the processor time of this process, in nanoseconds, to a file. */
static void tell_time(const char *path) {
    struct timespec used;
    FILE *times = fopen(path, "a");
    if (!times || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used)) fail("cannot tell the time to", path);
    fprintf(times, "%lld\n", used.tv_sec * 1000000000LL + used.tv_nsec);
    if (fclose(times)) fail("cannot tell the time to", path);
}

int main(int count, char **words) {
    if (count != 3) return fputs("usage: workload SCRIPT RANK\n", stderr), 2;
    buffer = calloc(1, BUFFER_BYTES);
    FILE *script = fopen(words[1], "r");
    if (!buffer || !script) fail("cannot begin with", words[1]);
    char rank[16], word[16], path[PATH_BYTES / 2], line[PATH_BYTES];
    while (fgets(line, sizeof line, script)) {
        long long a[4] = {0, 0, 0, 0};
        int found = sscanf(line, "%15s %15s %255s %lld %lld %lld %lld", rank, word, path, &a[0], &a[1], &a[2], &a[3]);
        if (found < 3) return fprintf(stderr, "workload: %s", line), 2;
        if (!is(rank, "*") && !is(rank, words[2])) continue;
        if (!transfers(word, path, a) && !streams(word, path, a) && !reopens(word, path, a)
            && !many_files(word, path, a) && !names(word, path, a))
            return fprintf(stderr, "workload: %s", line), 2;
    }
    const char *times = getenv("WORKLOAD_TIMES");
    if (times) tell_time(times);
    return 0;
}
