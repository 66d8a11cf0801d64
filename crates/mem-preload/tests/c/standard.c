// Standard streams whose descriptors become other files: standard DIRECTORY. In two directories it must say the same.
// With KEPT behind it: what becomes of what is written through an address of stdout that was kept.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const int write_flags = O_WRONLY | O_CREAT | O_APPEND;

static void show(const char *path) {
    char text[4096];
    int fd = open(path, O_RDONLY);
    long got = fd < 0 ? -1 : read(fd, text, sizeof text);
    printf("%s: %ld %.*s|\n", path, got, got < 0 ? 0 : (int)got, text);
    close(fd);
}

static void by_open(void) {
    close(1);
    open("a", write_flags, 0644);
    printf("printf\n");
    puts("puts");
    putchar('c');
    fflush(stdout);
    write(1, "write\n", 6);
}

static void pending(void) {
    printf("before ");
    close(1);
    printf("between ");
    open("a", write_flags, 0644);
    printf("after\n");
}

static void by_dup(void) {
    int fd = open("a", write_flags, 0644);
    close(1);
    printf("%d\n", dup(fd));
    fflush(stdout);
    close(1);
    printf("%d\n", fcntl(fd, F_DUPFD, 0));
    fflush(stdout);
    close(1);
    printf("%ld\n", syscall(SYS_dup, fd));
    close(fd);
}

static void by_others(void) {
    close(1);
    creat("a", 0644);
    printf("creat\n");
    fflush(stdout);
    close(1);
    FILE *f = fopen("a", "a");
    printf("beside ");
    fflush(stdout);
    fprintf(f, "fopen %d\n", fileno(f));
    fclose(f);
    char name[] = "tempXXXXXX";
    int fd = mkstemp(name);
    printf("mkstemp %d\n", fd);
    fflush(stdout);
    rename(name, "b");
    close(1);
    syscall(SYS_openat, AT_FDCWD, "b", write_flags, 0644);
    printf("by number\n");
}

static void by_message(void) {
    int pair[2], fd = open("a", write_flags, 0644);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    char byte = 'x', control[CMSG_SPACE(sizeof fd)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    sendmsg(pair[0], &message, 0);
    close(fd);
    close(1);
    recvmsg(pair[1], &message, 0);
    printf("received\n");
}

static void errors(void) {
    close(2);
    open("a", write_flags, 0644);
    fprintf(stderr, "at once ");
    show("a");
    errno = ENOENT;
    perror("named");
}

static void there_and_back(void) {
    int out = dup(1), pipes[2];
    char line[100];
    for (int i = 0; i < 3; i++) {
        close(1);
        open("a", write_flags, 0644);
        printf("round %d\n", i);
        fflush(stdout);
        close(1);
        if (pipe(pipes) < 0 || pipes[0] != 1) _exit(3);
        dup2(pipes[1], 1);
        printf("piped %d\n", i);
        fflush(stdout);
        close(1);
        close(pipes[1]);
        // The reading end was replaced: only whether all of this can be done counts.
    }
    dup2(out, 1);
    snprintf(line, sizeof line, "%d\n", fileno(stdout));
    fputs(line, stdout);
}

static void line_by_line(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    close(1);
    int fd = open("a", write_flags, 0644);
    printf("%d line\nrest", fd);
    struct stat st;
    fstat(1, &st);
    fprintf(stderr, "%ld\n", (long)st.st_size);
}

static void closed(void) {
    fclose(stdout);
    int fd = open("a", write_flags, 0644);
    if (fd != 1) _exit(4);
    // The stream is closed; what matters is that nothing breaks.
    dprintf(1, "descriptor\n");
    stdout = fdopen(1, "w");
    printf("new stream\n");
    fclose(stdout);
    fd = open("b", write_flags, 0644);
    write(fd, "b\n", 2);
}

static void make_input(void) {
    FILE *f = fopen("in", "w");
    for (int i = 0; i < 2000; i++) fprintf(f, "%d ", i);
    fclose(f);
    f = fopen("in2", "w");
    fprintf(f, "777 second\nline\n");
    fclose(f);
}

static void reading(void) {
    char text[100] = "";
    int number = 0;
    make_input();
    close(0);
    open("in2", O_RDONLY);
    int got = scanf("%d %99s", &number, text);
    printf("%d %d %s\n", got, number, text);
    printf("%s|\n", fgets(text, sizeof text, stdin));
    printf("%d %d\n", getchar(), feof(stdin) != 0);
    fflush(stdout);
    clearerr(stdin);
    close(0);
    printf("%d\n", open("in", O_RDONLY));
    printf("%d %d\n", scanf("%d", &number), number);
    printf("%d %d\n", scanf("%d", &number), number);
}

static void read_before(void) {
    int number = -1;
    long sum = 0, count = 0;
    make_input();
    if (!freopen("in", "r", stdin)) _exit(5);
    static char buffer[1000];
    setvbuf(stdin, buffer, _IOFBF, sizeof buffer);
    scanf("%d", &number);
    // The C library has read more than that, and goes on with it.
    close(0);
    open("in2", O_RDONLY);
    while (scanf("%d", &number) == 1) {
        sum += number;
        count++;
    }
    char text[100] = "";
    scanf("%99s", text);
    printf("%ld %ld %d %s\n", sum, count, number, text);
    if (!freopen("in2", "r", stdin)) _exit(6);
    printf("%d %d\n", scanf("%d", &number), number);
    ungetc('9', stdin);
    int pipes[2];
    close(0);
    if (pipe(pipes) < 0) _exit(7);
    write(pipes[1], "5 4 3", 5);
    close(pipes[1]);
    while (scanf(" %99s", text) == 1) printf("%s.", text);
    printf("\n");
}

static void run(const char *name, void (*part)(void)) {
    printf("== %s\n", name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        part();
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("ended %d %d\n", WIFSIGNALED(status), WEXITSTATUS(status));
    show("a");
    show("b");
    fflush(stdout);
    unlink("a");
    unlink("b");
}

static void kept(void) {
    FILE *out = stdout;
    close(1);
    open("a", write_flags, 0644);
    fprintf(out, "lost");
    int failed = fflush(out);
    fprintf(stderr, "%d %d\n", failed, failed ? errno : 0);
    close(1);
    open("b", write_flags, 0644);
    printf("followed\n");
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) < 0) return 2;
    if (argc > 2) {
        run("kept", kept);
        return 0;
    }
    run("open", by_open);
    run("pending", pending);
    run("dup", by_dup);
    run("others", by_others);
    run("message", by_message);
    run("errors", errors);
    run("back", there_and_back);
    run("lines", line_by_line);
    run("closed", closed);
    run("reading", reading);
    run("read before", read_before);
    return 0;
}
