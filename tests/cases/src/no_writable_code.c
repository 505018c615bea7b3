#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
int main(int c, char **v) {
    if (!strcmp(v[1], "mdwe") && prctl(PR_SET_MDWE, 1, 0, 0, 0)) {
        perror("mdwe");
        return 77;
    }
    if (!strcmp(v[1], "nnp") && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return 77;
    if (!strcmp(v[1], "dump") && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        return 77;
    execvp(v[2], v + 2);
    perror("exec");
    return 1;
}
