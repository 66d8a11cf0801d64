// Calls that are used together; each part says what it found. In two directories it must say the same:
// others DIRECTORY [PART].
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;
static const char *root;
static const char *self;

static void say(const char *what, long answer) {
    int error = errno;
    printf(answer < 0 ? "%s %ld errno %d\n" : "%s %ld\n", what, answer, error);
    fflush(stdout);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) say(path, -1);
    close(fd);
}

static void show(const char *path) {
    char text[4096];
    int fd = open(path, O_RDONLY);
    long got = fd < 0 ? -1 : read(fd, text, sizeof text);
    if (got < 0) say(path, got);
    else printf("%s: %.*s|\n", path, (int)got, text);
    fflush(stdout);
    close(fd);
}

static void descriptors(void) {
    mkdir("d", 0755);
    int d = open("d", O_RDONLY | O_DIRECTORY);
    int f = openat(d, "x", O_RDWR | O_CREAT, 0644);
    say("write", write(f, "0123456789", 10));
    char name[64], text[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", f);
    int again = open(name, O_RDONLY);
    say("again", read(again, text, 5));
    snprintf(name, sizeof name, "/dev/fd/%d", d);
    int dir = open(name, O_RDONLY | O_DIRECTORY);
    struct stat st;
    say("fstatat", fstatat(dir, "x", &st, 0));
    int pathfd = open("d/x", O_PATH);
    say("O_PATH read", read(pathfd, text, 1));
    say("O_PATH fstat", fstat(pathfd, &st));
    say("renameat", renameat(d, "x", AT_FDCWD, "y"));
    say("unlinkat", unlinkat(AT_FDCWD, "y", 0));
    say("deleted", pread(f, text, 10, 0));
    say("deleted write", pwrite(f, "more", 4, 20));
    fstat(f, &st);
    printf("links %ld size %ld\n", (long)st.st_nlink, (long)st.st_size);
    int high = fcntl(f, F_DUPFD_CLOEXEC, 100);
    say("dupfd", high);
    say("lseek", lseek(high, 3, SEEK_SET));
    say("shared", read(f, text, 4));
    printf("%.4s\n", text);
    say("close_range", close_range((unsigned)high, (unsigned)high, 0));
    say("closed", read(high, text, 1));
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    char room[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &f, sizeof f);
    say("sendmsg", sendmsg(pair[0], &message, 0));
    close(f);
    memset(room, 0, sizeof room);
    say("recvmsg", recvmsg(pair[1], &message, 0));
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    say("received", pread(received, text, 5, 0));
    closefrom(3);
    say("closefrom", open("d", O_RDONLY));
    struct statvfs vfs;
    say("statvfs", statvfs("d", &vfs));
    printf("%d\n", vfs.f_bavail > 0 && vfs.f_namemax == 255);
    closefrom(3);
}

// What others hold open must stay as it is, however many files are opened and closed meanwhile.
static void many(void) {
    put("held", "0123456789");
    put("other", "other bytes");
    int first = open("held", O_RDONLY), copy = dup(first);
    say("lseek", lseek(copy, 3, SEEK_SET));
    close(first);
    int pipes[2], inherited = open("held", O_RDONLY);
    say("lseek", lseek(inherited, 5, SEEK_SET));
    if (pipe(pipes) < 0) return;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char byte, text[8] = "";
        close(pipes[1]);
        if (read(pipes[0], &byte, 1) < 0) _exit(1);
        say("inherited", read(inherited, text, 4));
        printf("%s\n", text);
        fflush(stdout);
        _exit(0);
    }
    close(inherited);
    for (int i = 0; i < 20000; i++) close(open("other", O_RDONLY));
    close(pipes[1]);
    waitpid(child, NULL, 0);
    char text[8] = "";
    say("copy", read(copy, text, 4));
    printf("%s\n", text);
    closefrom(3);
}

static void streams(void) {
    FILE *f = fopen("s", "w+x");
    fprintf(f, "one\ntwo\nthree\n");
    rewind(f);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, f) > 0) printf("line %s", line);
    say("feof", feof(f) != 0);
    fseek(f, -3, SEEK_END);
    say("ftell", ftell(f));
    fputs("XX", f);
    fclose(f);
    show("s");
    f = fopen("s", "a");
    say("position", ftell(f));
    fputs("end", f);
    say("position", ftell(f));
    f = freopen("t", "w", f);
    fputs("reopened", f);
    fclose(f);
    show("s");
    show("t");
    f = fdopen(open("t", O_RDWR), "r+");
    fseek(f, 2, SEEK_SET);
    fputs("__", f);
    fflush(f);
    int c = fgetc(f);
    printf("%c\n", c);
    fclose(f);
    show("t");
    f = fopen("/dev/null", "r");
    f = freopen("t", "r", f);
    say("fgetc", fgetc(f));
    f = freopen("/etc/hostname", "r", f);
    say("other", f != NULL);
    fclose(f);
    int fd = open("u", O_RDWR | O_CREAT, 0644);
    dprintf(fd, "%s %d %.2f %s %s %s %s\n", "a", 1, 2.5, "b", "c", "d", "e");
    close(fd);
    show("u");
    fflush(stdout);
    int saved = dup(1), saved_error = dup(2);
    fd = open("v", O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    printf("through stdout\n");
    puts("puts");
    fflush(stdout);
    errno = ENOENT;
    perror("perror");
    fprintf(stderr, "stderr\n");
    printf("pending");
    dup2(saved, 1);
    dup2(saved_error, 2);
    fflush(stdout);
    printf("|\n");
    close(fd);
    show("v");
    FILE *out = freopen("w", "w", stdout);
    printf("redirected\n");
    if (system("echo from a child") < 0) return;
    fflush(out);
    dup2(saved, 1);
    show("w");
    close(saved);
    close(saved_error);
    FILE *pipe = popen("cat w", "r");
    char text[64] = "";
    if (fgets(text, sizeof text, pipe)) printf("popen %s", text);
    pclose(pipe);
    free(line);
}

static int visits;

static int visit(const char *path, const struct stat *st, int kind, struct FTW *place) {
    (void)path;
    (void)st;
    visits += kind * 100 + place->level;
    return 0;
}

static int by_name(const struct dirent **one, const struct dirent **other) {
    return strcmp((*one)->d_name, (*other)->d_name);
}

static void trees(void) {
    mkdir("tree", 0755);
    mkdir("tree/a", 0755);
    mkdir("tree/b", 0755);
    put("tree/f1", "1");
    put("tree/a/f2", "22");
    if (symlink("../f1", "tree/b/l") < 0) return;
    say("nftw", nftw("tree", visit, 10, FTW_PHYS));
    say("visits", visits);
    visits = 0;
    say("nftw", nftw("tree", visit, 10, FTW_DEPTH));
    say("visits", visits);
    glob_t found;
    say("glob", glob("tree/*/*", 0, NULL, &found));
    for (size_t i = 0; i < found.gl_pathc; i++) printf("  %s\n", found.gl_pathv[i]);
    globfree(&found);
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, "%s/tr*/f*", root);
    say("glob", glob(pattern, GLOB_MARK, NULL, &found));
    say("found", (long)found.gl_pathc);
    globfree(&found);
    struct dirent **list;
    int count = scandir("tree", &list, NULL, by_name);
    for (int i = 0; i < count; i++) {
        printf("  %s\n", list[i]->d_name);
        free(list[i]);
    }
    free(list);
    char name[32];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "tree/a/many%d", i);
        put(name, "");
    }
    DIR *dir = opendir("tree/a");
    long middle = 0;
    int before = 0, after = 0;
    while (readdir(dir)) {
        if (++before == 150) middle = telldir(dir);
    }
    seekdir(dir, middle);
    while (readdir(dir)) after++;
    say("before", before);
    say("after", after);
    rewinddir(dir);
    struct dirent *entry;
    int removed = 0;
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == 'm') removed += unlinkat(dirfd(dir), entry->d_name, 0) == 0;
    }
    say("removed", removed);
    closedir(dir);
    char made[] = "tree/tmpXXXXXX", folder[] = "tree/dirXXXXXX", suffixed[] = "tree/sXXXXXX.c";
    say("mkstemp", mkstemp(made) >= 0);
    say("mkstemps", mkstemps(suffixed, 2) >= 0);
    say("mkdtemp", mkdtemp(folder) != NULL);
    struct stat st;
    say("stat", stat(folder, &st));
    printf("%o\n", st.st_mode & 0777);
    say("chdir", chdir(folder));
    say("rmdir", rmdir(strrchr(folder, '/') ? "../" : "."));
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    say("rmdir", rmdir(path));
    say("getcwd", getcwd(path, sizeof path) ? 0 : -1);
    say("create", open("x", O_CREAT | O_WRONLY, 0644));
    say("chdir", chdir(root));
    say("getxattr", getxattr("tree/f1", "user.none", path, 10) < 0);
    closefrom(3);
}

static void mappings(void) {
    int fd = open("m", O_RDWR | O_CREAT, 0644);
    static char bytes[3 << 20];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7 + i / 4096);
    say("write", write(fd, bytes, sizeof bytes));
    char *shared = mmap(NULL, sizeof bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *part = mmap(NULL, 5000, PROT_READ, MAP_SHARED, fd, 4096 * 3);
    char *own = mmap(NULL, sizeof bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    say("same", memcmp(shared, bytes, sizeof bytes) == 0 && memcmp(part, bytes + 4096 * 3, 5000) == 0);
    say("private", memcmp(own, bytes, sizeof bytes) == 0);
    shared[4096 * 3 + 5] = 'Z';
    say("seen", part[5]);
    char text[4];
    say("pread", pread(fd, text, 1, 4096 * 3 + 5));
    say("seen", text[0]);
    say("mprotect", mprotect(own, sizeof bytes, PROT_READ | PROT_WRITE));
    own[10] = 'Q';
    say("not seen", shared[10] == bytes[10]);
    say("pwrite", pwrite(fd, "live", 4, 100));
    say("seen", memcmp(shared + 100, "live", 4) == 0);
    unlink("m");
    close(fd);
    shared[200] = 'D';
    say("after unlink", shared[200]);
    fflush(stdout);
    if (fork() == 0) {
        shared[201] = 'C';
        _exit(0);
    }
    wait(NULL);
    say("child", shared[201]);
    say("munmap", munmap(shared, 4096));
    say("rest", shared[1 << 20] == bytes[1 << 20]);
    say("munmap", munmap(shared, sizeof bytes));
    say("munmap", munmap(part, 5000));
    say("munmap", munmap(own, sizeof bytes));
    fd = open("m2", O_RDWR | O_CREAT, 0644);
    say("ftruncate", ftruncate(fd, 10000));
    char *small = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    strcpy(small, "grows");
    say("ftruncate", ftruncate(fd, 9 << 20));
    char *large = mremap(small, 8192, 9 << 20, MREMAP_MAYMOVE);
    say("mremap", large != MAP_FAILED);
    say("kept", strcmp(large, "grows") == 0);
    large[(9 << 20) - 1] = 'E';
    say("pread", pread(fd, text, 1, (9 << 20) - 1));
    say("end", text[0]);
    say("munmap", munmap(large, 9 << 20));
    say("read only", mmap(NULL, 10, PROT_WRITE, MAP_SHARED, open("m2", O_RDONLY), 0) == MAP_FAILED ? -1 : 0);
    closefrom(3);
}

static int watched;
static atomic_int is_over, appends;

static void *watch_flags(void *none) {
    while (!is_over) if (fcntl(watched, F_GETFL) & O_APPEND) appends = 1;
    return none;
}

/* RWF_APPEND is for one write: nobody else sees the flag. */
static void one_append(void) {
    pthread_t watcher;
    struct iovec part = {"x", 1};
    watched = open("appended", O_WRONLY | O_CREAT, 0644);
    if (pthread_create(&watcher, NULL, watch_flags, NULL) != 0) return;
    long written = 0;
    for (int i = 0; i < 50000; i++) written += pwritev2(watched, &part, 1, 0, RWF_APPEND);
    is_over = 1;
    pthread_join(watcher, NULL);
    say("appended", written);
    say("seen", appends);
    say("position", lseek(watched, 0, SEEK_CUR));
    close(watched);
}

static void transfers(void) {
    put("from", "0123456789abcdef");
    int from = open("from", O_RDONLY), to = open("to", O_RDWR | O_CREAT, 0644);
    off_t at = 3;
    say("sendfile", sendfile(to, from, &at, 5));
    say("at", at);
    say("sendfile", sendfile(to, from, NULL, 100));
    show("to");
    int kernel = open("/etc/passwd", O_RDONLY);
    char one[4096] = "", other[4096] = "";
    long got = read(kernel, one, 1000);
    say("copy", copy_file_range(kernel, &(off_t){0}, to, &(off_t){0}, (size_t)got, 0) > 0);
    say("pread", pread(to, other, (size_t)got, 0) == got && memcmp(one, other, (size_t)got) == 0);
    struct iovec parts[2] = {{"vec", 3}, {"tor", 3}};
    say("pwritev", pwritev(to, parts, 2, 0));
    say("pwritev2", pwritev2(to, parts, 2, -1, RWF_APPEND) == 6);
    struct iovec into[2] = {{one, 2}, {one + 2, 4}};
    say("preadv", preadv(to, into, 2, 0));
    printf("%.6s\n", one);
    int pipes[2];
    if (pipe(pipes) < 0) return;
    say("splice", splice(from, &(off_t){2}, pipes[1], NULL, 4, 0));
    say("splice", splice(pipes[0], NULL, to, &(off_t){1}, 100, 0));
    say("splice", splice(from, NULL, to, NULL, 4, 0));
    say("pread", pread(to, one, 6, 0));
    printf("%.6s\n", one);
    say("tee", tee(from, pipes[1], 4, 0));
    int bad = open("/keel-nothing", O_RDONLY);
    say("bad", copy_file_range(bad, NULL, to, NULL, 1, 0));
    say("syscall", syscall(SYS_lseek, to, 2L, SEEK_SET));
    say("syscall", syscall(SYS_read, to, one, 3L));
    printf("%.3s\n", one);
    say("syscall", syscall(SYS_close, to));
    say("closed", read(to, one, 1));
    closefrom(3);
}

static void locks(void) {
    int fd = open("lock", O_RDWR | O_CREAT, 0644);
    say("write", write(fd, "locked", 6));
    say("lockf", lockf(fd, F_LOCK, 0));
    fflush(stdout);
    if (fork() == 0) {
        int own = open("lock", O_RDWR);
        say("tlock", lockf(own, F_TLOCK, 0));
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        fcntl(own, F_GETLK, &lock);
        printf("held %d %d %ld %ld\n", lock.l_type, lock.l_pid == getppid(), (long)lock.l_start, (long)lock.l_len);
        say("flock", flock(own, LOCK_EX | LOCK_NB));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    // Whoever closes any descriptor of the file gives its record locks back.
    close(open("lock", O_RDONLY));
    if (fork() == 0) {
        lseek(fd, 0, SEEK_SET);
        say("given back", lockf(fd, F_TLOCK, 0));
        _exit(0);
    }
    wait(NULL);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 10};
    say("ofd", fcntl(fd, F_OFD_SETLK, &lock));
    int other = open("lock", O_RDWR);
    say("ofd other", fcntl(other, F_OFD_SETLK, &lock));
    say("flock", flock(fd, LOCK_EX));
    say("flock other", flock(other, LOCK_SH | LOCK_NB));
    int copy = dup(fd);
    close(fd);
    say("still", flock(other, LOCK_SH | LOCK_NB));
    close(copy);
    say("free", flock(other, LOCK_SH | LOCK_NB));
    closefrom(3);
}

static void refusals(void) {
    put("refused", "some bytes");
    char byte[16];
    int both = open("refused", O_RDWR), reading = open("refused", O_RDONLY), neither = open("refused", 3);
    int path = open("refused", O_PATH);
    const off_t last = LLONG_MAX;
    say("make a directory", open("made", O_CREAT | O_DIRECTORY | O_RDWR, 0755));
    say("made", access("made", F_OK));
    say("neither", neither >= 0);
    say("read", read(neither, byte, 1));
    say("write", write(neither, byte, 1));
    say("truncate", ftruncate(neither, 1));
    say("allocate", fallocate(neither, 0, 0, 1));
    say("pread at the end", pread(both, byte, 1, last));
    say("pread before it", pread(both, byte, 1, last - 1));
    say("pread of nothing", pread(both, byte, 0, last));
    say("pwrite at the end", pwrite(both, byte, 1, last));
    say("pread, negative", pread(both, byte, 1, -1));
    int all[] = {both, reading, path};
    for (int i = 0; i < 3; i++) {
        say("ftruncate", ftruncate(all[i], -1));
        say("ftruncate to 3", ftruncate(all[i], 3));
        say("fallocate", fallocate(all[i], 0, 0, 0));
        say("fallocate, negative", fallocate(all[i], 0, -1, 5));
        say("fallocate of 5", fallocate(all[i], 0, 0, 5));
    }
    show("refused");
    closefrom(3);
}

static void run(void (*start)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        start();
        printf("not run errno %d\n", errno);
        fflush(stdout);
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    printf("exit %d\n", WEXITSTATUS(status));
}

static void by_execl(void) { execl("bin/prog", "prog", "child", "1", "2", "3", "4", "5", "6", (char *)NULL); }
static void by_execlp(void) { setenv("PATH", "bin:/bin", 1); execlp("prog", "prog", "child", (char *)NULL); }
static void by_execle(void) {
    char *environment[64], **next = environment;
    for (char **old = environ; *old && next < environment + 60; old++) *next++ = *old;
    *next++ = "MARK=seen";
    *next = NULL;
    execle("bin/prog", "prog", "child", (char *)NULL, environment);
}
static void by_fexecve(void) { fexecve(open("bin/prog", O_RDONLY), (char *[]){"prog", "child", NULL}, environ); }
static void by_script(void) { execl("./bin/own", "own", "an argument", (char *)NULL); }
static void by_path(void) { setenv("PATH", "bin:/bin", 1); execlp("own", "own", (char *)NULL); }
static void not_executable(void) { execl("from", "from", (char *)NULL); }
static void not_there(void) { execl("nothere", "x", (char *)NULL); }
static void a_directory(void) { execl("bin", "x", (char *)NULL); }
static void by_vfork(void) {
    if (vfork() == 0) {
        int fd = open("vforked", O_CREAT | O_WRONLY, 0644);
        dup2(fd, 1);
        execl("/bin/echo", "echo", "vfork", (char *)NULL);
        _exit(1);
    }
    wait(NULL);
    show("vforked");
    _exit(0);
}

static void programs(void) {
    mkdir("bin", 0755);
    char command[2 * PATH_MAX];
    snprintf(command, sizeof command,
             "cp '%s' bin/prog && printf '#!/bin/sh\\necho script \"$@\"; cat from\\n' > bin/own && chmod +x bin/own",
             self);
    if (system(command)) return;
    put("from", "the file\n");
    run(by_execl);
    run(by_execlp);
    run(by_execle);
    run(by_fexecve);
    run(by_script);
    run(by_path);
    run(not_executable);
    run(not_there);
    run(a_directory);
    run(by_vfork);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY, 0644);
    posix_spawn_file_actions_addopen(&actions, 0, "from", O_RDONLY, 0);
    pid_t child;
    say("spawn", posix_spawn(&child, "/bin/cat", &actions, NULL, (char *[]){"cat", NULL}, environ));
    waitpid(child, NULL, 0);
    show("spawned");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, "bin");
    posix_spawn_file_actions_addopen(&actions, 1, "listed", O_CREAT | O_WRONLY, 0644);
    say("spawnp", posix_spawnp(&child, "ls", &actions, NULL, (char *[]){"ls", NULL}, environ));
    waitpid(child, NULL, 0);
    show("bin/listed");
    int spawned = posix_spawn(&child, "bin/prog", NULL, NULL, (char *[]){"prog", "child", NULL}, environ);
    waitpid(child, NULL, 0);
    say("spawn", spawned);
    say("spawn", posix_spawn(&child, "nothere", NULL, NULL, (char *[]){"prog", NULL}, environ));
    say("dlopen", dlopen("./from", RTLD_NOW) == NULL);
    say("dlopen", dlopen("libm.so.6", RTLD_NOW) != NULL);
}

static int shared_file;
static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    // A handler may write, also while its own thread does.
    if (write(shared_file, "S", 1) == 1) alarms++;
}

static void *append(void *argument) {
    int fd = open("threads", O_WRONLY | O_APPEND | O_CREAT, 0644);
    char line[100];
    memset(line, 'a' + *(int *)argument, sizeof line);
    line[99] = '\n';
    for (int i = 0; i < 500; i++) {
        if (write(fd, line, 100) != 100) say("append", -1);
    }
    close(fd);
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    int numbers[8];
    for (int i = 0; i < 8; i++) {
        numbers[i] = i;
        pthread_create(&all[i], NULL, append, &numbers[i]);
    }
    // Forks while others write.
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            char name[32];
            snprintf(name, sizeof name, "child%d", i);
            put(name, "forked");
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
    FILE *f = fopen("threads", "r");
    char line[200];
    int count = 0, whole = 0;
    while (fgets(line, sizeof line, f)) {
        count++;
        whole += strlen(line) == 100 && line[0] == line[98];
    }
    fclose(f);
    printf("lines %d whole %d\n", count, whole);
    show("child7");
    shared_file = open("signals", O_RDWR | O_CREAT | O_APPEND, 0644);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct sigaction old;
    sigaction(SIGALRM, NULL, &old);
    say("handler", old.sa_handler == on_alarm && old.sa_flags == SA_RESTART);
    struct itimerval often = {{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &often, NULL);
    static char block[2000];
    long written = 0;
    for (int i = 0; i < 15000 && (i < 2000 || alarms < 50); i++) written += write(shared_file, block, sizeof block);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    say("alarms", alarms > 0);
    struct stat st;
    fstat(shared_file, &st);
    say("lost", written + alarms - (long)st.st_size);
    signal(SIGALRM, SIG_IGN);
    say("ignored", signal(SIGALRM, SIG_DFL) == SIG_IGN);
    closefrom(3);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) {
        const char *mark = getenv("MARK");
        printf("child %d %s %s\n", argc, argv[argc - 1], mark ? mark : "none");
        return 7;
    }
    if (argc < 2) return 2;
    root = argv[1];
    self = argv[0];
    umask(022);
    if (chdir(root) < 0) {
        perror(root);
        return 1;
    }
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"descriptors", descriptors}, {"many", many},         {"streams", streams},
        {"trees", trees},             {"mappings", mappings}, {"transfers", transfers},
        {"one append", one_append},
        {"locks", locks}, {"refusals", refusals},             {"programs", programs}, {"threads", threads},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc > 2 && strcmp(argv[2], parts[i].name)) continue;
        printf("== %s\n", parts[i].name);
        parts[i].run();
    }
    return 0;
}
