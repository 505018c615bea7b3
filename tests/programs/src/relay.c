// Linked statically: uses the descriptors that it inherited.
//   line        copies one line from 0 to 1
//   say TEXT    writes a line to 1
//   at TEXT     writes a line at the beginning of 1, where it stands
//   receive     receives a descriptor by the socket 0 and prints the device, inode and text of its file
#include "check.h"
#include <sys/socket.h>

static void say(const char *text) {
    MUST(write(1, text, strlen(text)) == (ssize_t)strlen(text) && write(1, "\n", 1) == 1);
}

int main(int count, char **arguments) {
    MUST(count > 1);
    const char *what = arguments[1];
    if (strcmp(what, "line") == 0) {
        char byte;
        while (read(0, &byte, 1) == 1) {
            MUST(write(1, &byte, 1) == 1);
            if (byte == '\n') return 0;
        }
        return 3;
    }
    if (strcmp(what, "say") == 0) {
        for (int i = 2; i < count; i++) say(arguments[i]);
        return 0;
    }
    if (strcmp(what, "at") == 0) {
        MUST(pwrite(1, arguments[2], strlen(arguments[2]), 0) == (ssize_t)strlen(arguments[2]));
        return 0;
    }
    MUST(strcmp(what, "receive") == 0);
    char byte, space[CMSG_SPACE(3 * sizeof(int))];
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    MUST(recvmsg(0, &message, 0) == 1);
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
        int *files = (int *)CMSG_DATA(head), number = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (int i = 0; i < number; i++) {
            struct stat status;
            char text[100];
            MUST(fstat(files[i], &status) == 0);
            ssize_t length = read(files[i], text, sizeof text);
            if (length < 0) printf("%ld %s\n", (long)status.st_ino, strerrorname_np(errno));
            else printf("%ld %.*s\n", (long)status.st_ino, (int)length, text);
        }
    }
    return 0;
}
