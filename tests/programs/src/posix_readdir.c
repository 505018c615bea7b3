// "A listing never shows a name twice and never misses one" (docs/semantics/sharing.md), whatever else happens.
#include "check.h"
#include <fts.h>
#include <ftw.h>
#include <glob.h>

enum { COUNT = 10000 };
static unsigned char seen[COUNT];

static void name_of(char *name, int number) { sprintf(name, "entry-%05d", number); }

static int number_of(const char *name) { return strncmp(name, "entry-", 6) ? -1 : atoi(name + 6); }

static void all_once(void) {
    memset(seen, 0, sizeof seen);
    DIR *dir = opendir(".");
    MUST(dir);
    int dots = 0, strange = 0;
    for (struct dirent *e; (errno = 0, e = readdir(dir));) {
        int number = number_of(e->d_name);
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) dots++;
        else if (number < 0) strange++;
        else seen[number]++;
        CHECK(number < 0 || e->d_type == DT_REG || e->d_type == DT_UNKNOWN);
    }
    CHECK(errno == 0 && dots == 2 && strange == 0);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) wrong += seen[i] != 1;
    CHECK(wrong == 0);
    // telldir and seekdir return to the same entry.
    rewinddir(dir);
    long places[50];
    char names[50][32];
    for (int i = 0; i < 50 * 100; i++) {
        long place = telldir(dir);
        struct dirent *e = readdir(dir);
        MUST(e);
        if (i % 100 == 0) places[i / 100] = place, snprintf(names[i / 100], 32, "%.31s", e->d_name);
    }
    for (int i = 49; i >= 0; i -= 7) {
        seekdir(dir, places[i]);
        struct dirent *e = readdir(dir);
        CHECK(e && !strcmp(e->d_name, names[i]));
    }
    struct stat status, other;
    CHECK(fstat(dirfd(dir), &status) == 0 && stat(".", &other) == 0 && status.st_ino == other.st_ino);
    CHECK(closedir(dir) == 0);
}

// Deletes two of three entries that it reads; the third must still be listed, once.
static void while_deleting(void) {
    memset(seen, 0, sizeof seen);
    DIR *dir = opendir(".");
    char name[32];
    int shown = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        int number = number_of(e->d_name);
        if (number < 0) continue;
        CHECK(seen[number]++ == 0);
        shown++;
        if (number % 3 != 0) CHECK(unlink(e->d_name) == 0);
        if (number % 50 == 0) { snprintf(name, sizeof name, "x-%d", number); close(make(name, "")); }
    }
    closedir(dir);
    CHECK(shown == COUNT);
    int left = 0;
    for (int i = 0; i < COUNT; i++) { name_of(name, i); left += exists(name); }
    CHECK(left == (COUNT + 2) / 3);
}

static int visited;
static int visit(const char *path, const struct stat *status, int type, struct FTW *level) {
    (void)path, (void)status, (void)level;
    visited += type == FTW_F;
    return 0;
}

static int only_x(const struct dirent *e) { return e->d_name[0] == 'x'; }

static void library(void) {
    struct dirent **list;
    int count = scandir(".", &list, only_x, alphasort);
    CHECK(count == COUNT / 50);
    for (int i = 1; i < count; i++) CHECK(strcmp(list[i - 1]->d_name, list[i]->d_name) < 0);
    for (int i = 0; i < count; i++) free(list[i]);
    free(list);
    CHECK(nftw(".", visit, 20, FTW_PHYS) == 0 && visited == (COUNT + 2) / 3 + COUNT / 50);
    glob_t found;
    CHECK(glob("x-*00", 0, NULL, &found) == 0 && found.gl_pathc == COUNT / 100 - 1);
    globfree(&found);
    char *roots[] = {".", NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL, NULL);
    int files = 0;
    for (FTSENT *e; (e = fts_read(walk));) files += e->fts_info == FTS_F;
    CHECK(files == visited && fts_close(walk) == 0);
    DIR *dir = fdopendir(open(".", O_RDONLY | O_DIRECTORY));
    CHECK(dir && readdir(dir));
    CHILD({ while (readdir(dir)) visited++; CHECK(visited > COUNT / 3); });
    closedir(dir);
    CHECK(!opendir("absent") && errno == ENOENT);
    CHECK(!opendir("x-50") && errno == ENOTDIR);
    FAILS(ENOTDIR, getdents64(open("x-50", O_RDONLY), seen, sizeof seen));
    FAILS(EINVAL, getdents64(open(".", O_RDONLY), seen, 1));
}

int main(int count, char **arguments) {
    enter(count, arguments);
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        name_of(name, i);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0600);
        MUST(fd >= 0 && close(fd) == 0);
    }
    all_once();
    while_deleting();
    library();
    return finish();
}
