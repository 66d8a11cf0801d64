// One file read again and again, and what the descriptor, the file or the process becomes in between: again DIRECTORY.
// In two directories it must say the same.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[4000];

static const char *in_folder(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int made(const char *name, char byte, size_t bytes) {
    char *text = malloc(bytes);
    int fd = open(in_folder(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(text, byte, bytes);
    if (write(fd, text, bytes) != (ssize_t)bytes) exit(9);
    free(text);
    return fd;
}

// Reads often enough to be known, then says what the last read gave.
static void show(const char *what, int fd, size_t count, off_t offset) {
    static __thread char text[8192];
    long got = 0;
    for (int time = 0; time < 4; time++) {
        memset(text, '-', sizeof text);
        errno = 0;
        got = pread(fd, text, count, offset);
    }
    printf("%s: %ld %d %.10s %c\n", what, got, errno, text, got > 0 ? text[got - 1] : '?');
    fflush(stdout);
}

// Writes often enough to be known, then says what is there.
static void put(const char *what, int fd, int byte, size_t count, off_t offset) {
    char text[8192];
    long put = 0;
    for (int time = 0; time < 4; time++) {
        memset(text, byte + time, count);
        errno = 0;
        put = pwrite(fd, text, count, offset);
    }
    struct stat found;
    int error = errno;
    fstat(fd, &found);
    printf("%s: %ld %d, %ld bytes\n", what, put, error, (long)found.st_size);
    show("there", fd, count, offset);
}

static void *in_thread(void *fd) {
    show("a thread", *(int *)fd, 100, 30);
    return NULL;
}

int main(int count, char **arguments) {
    (void)count;
    snprintf(folder, sizeof folder, "%s", arguments[1]);
    int a = made("a", 'a', 5000), b = made("b", 'b', 300000), status;
    show("a", a, 100, 10);
    show("b", b, 5000, 4090);
    show("a", a, 100, 10);
    show("to its end", a, 4096, 4000);
    show("at its end", a, 10, 5000);
    show("behind it", a, 10, 5001);
    show("far behind it", a, 10, 0x7fffffffffffff00);
    show("before it", a, 10, -1);
    show("nothing", a, 0, 10);
    errno = 0;
    char *volatile nowhere = NULL;
    printf("nowhere: %zd", pread(a, nowhere, 10, 0));
    printf(" %d\n", errno);

    put("over", a, 'A', 100, 200);
    put("one page and more", b, 'B', 5000, 4090);
    put("across the end", a, 'C', 100, 4950);
    put("across the end no more", a, 'D', 100, 4950);
    put("nothing", a, 'E', 0, 10);
    put("before it", a, 'F', 10, -1);
    put("a byte", a, 'G', 1, 300);
    put("eight bytes", a, 'H', 8, 304);
    errno = 0;
    printf("from nowhere: %zd", pwrite(a, nowhere, 10, 0));
    printf(" %d\n", errno);
    fcntl(a, F_SETFL, O_APPEND);
    put("appending", a, 'I', 20, 0);
    fcntl(a, F_SETFL, 0);
    put("not appending", a, 'J', 20, 0);
    int reads = open(in_folder("a"), O_RDONLY), writes = open(in_folder("a"), O_WRONLY);
    show("for reading", reads, 20, 0);
    put("for reading", reads, 'K', 20, 0);
    put("for writing", writes, 'L', 20, 0);
    show("for reading", reads, 20, 0);
    close(reads);
    close(writes);
    put("a child's next", a, 'M', 20, 0);
    if (fork() == 0) {
        put("a child", a, 'N', 20, 0);
        _exit(0);
    }
    wait(&status);
    put("after the child", a, 'O', 20, 0);

    dup2(b, a);
    put("another file", a, 'P', 20, 0);
    show("another file", a, 100, 10);
    close(a);
    show("closed", a, 100, 10);
    a = open(in_folder("a"), O_WRONLY);
    show("for writing", a, 100, 10);
    close(a);
    a = open(folder, O_RDONLY | O_DIRECTORY);
    show("a directory", a, 100, 10);
    close(a);
    a = open("/dev/zero", O_RDONLY);
    show("the kernel's", a, 100, 10);
    close(a);
    a = open(in_folder("a"), O_RDWR);
    show("opened again", a, 100, 10);

    pwrite(a, "changed", 7, 20);
    show("changed", a, 100, 15);
    show("not changed", a, 100, 15);
    if (truncate(in_folder("a"), 50)) exit(9);
    show("cut", a, 100, 15);
    if (truncate(in_folder("a"), 5000000)) exit(9);
    show("longer", a, 100, 4000);
    pwrite(a, "far", 3, 4999000);
    show("with a hole", a, 100, 3000000);
    show("behind it", a, 100, 4998999);

    unlink(in_folder("a"));
    show("unlinked", a, 100, 15);
    int c = made("a", 'c', 100);
    show("in its place", c, 100, 15);
    show("unlinked", a, 100, 15);

    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, &c);
    pthread_join(thread, NULL);
    for (int children = 0; children < 3; children++) {
        show("the parent", c, 100, 50);
        if (fork() == 0) {
            show("a child", c, 100, 40);
            pwrite(c, "child", 5, 45);
            show("the child's", c, 100, 40);
            dup2(b, c);
            show("of another file", c, 100, 40);
            _exit(0);
        }
        wait(&status);
        printf("%d\n", status);
        show("the parent", c, 100, 40);
    }
    unlink(in_folder("a"));
    unlink(in_folder("b"));
    return 0;
}
