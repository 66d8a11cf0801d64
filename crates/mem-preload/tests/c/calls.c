// Makes a sequence of calls on files, drawn from a seed, in a directory, and says what each answered: calls SEED COUNT
// DIRECTORY. In two directories the same sequence must say the same.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 8, BYTES_MAX = 40000 };

static uint64_t state;
static int slots[SLOTS];
static const char *root;
static char data[BYTES_MAX], back[BYTES_MAX];

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static const char *const names[] = {
    "a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/f", "./a", "d/../b", "d/./a", "a/", "d/", "missing/x",
    "l", "l/", "ring", "dl/a", "dl", "dl/", "nowhere", "a/x", "d/e/../a", ".", "..", "d/..", "d/.", "",
    "d//b", "x123456789012345678901234567890", "d/e/", "./", "d/e/../../c",
};

static const char *name(void) {
    const char *chosen = names[draw(sizeof names / sizeof *names)];
    // Half of the time names that are likely to be files.
    return draw(2) ? chosen : names[draw(8)];
}

static const char *path(void) {
    static char paths[4][PATH_MAX];
    static int next;
    char *into = paths[next++ % 4];
    const char *chosen = name();
    if (draw(4) == 0 && *chosen) {
        snprintf(into, PATH_MAX, "%s/%s", root, chosen);
    } else {
        snprintf(into, PATH_MAX, "%s", chosen);
    }
    return into;
}

static int slot(void) { return (int)draw(SLOTS); }

static void say(const char *call, long answer) {
    int error = errno;
    if (answer < 0) {
        printf("%s %ld errno %d\n", call, answer, error);
    } else {
        printf("%s %ld\n", call, answer);
    }
}

static unsigned sum(const char *bytes, long count) {
    unsigned total = 0;
    for (long i = 0; i < count; i++) total = total * 31 + (unsigned char)bytes[i];
    return total;
}

static void say_stat(const char *call, int answer, const struct stat *st) {
    int error = errno;
    if (answer < 0) {
        printf("%s %d errno %d\n", call, answer, error);
        return;
    }
    // Sizes and links of directories depend on the file system.
    int is_directory = S_ISDIR(st->st_mode);
    // Of a removed directory only that is known.
    mode_t mode = is_directory && st->st_nlink == 0 ? S_IFDIR : st->st_mode;
    printf("%s mode %o links %ld user %u group %u size %ld\n", call, mode, is_directory ? 0 : (long)st->st_nlink,
           st->st_uid, st->st_gid, is_directory ? 0 : (long)st->st_size);
}

static int compare_names(const void *one, const void *other) {
    return strcmp(*(char *const *)one, *(char *const *)other);
}

static void list(const char *where) {
    DIR *dir = opendir(where);
    if (!dir) {
        say("opendir", -1);
        return;
    }
    char *found[256];
    int count = 0;
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(dir)) && count < 256) {
        char line[512];
        snprintf(line, sizeof line, "%s %d", entry->d_name, entry->d_type);
        found[count++] = strdup(line);
    }
    printf("readdir %d errno %d\n", count, errno);
    if (draw(3) == 0) {
        rewinddir(dir);
        int again = 0;
        while (readdir(dir)) again++;
        printf("again %d\n", again);
    }
    say("closedir", closedir(dir));
    qsort(found, (size_t)count, sizeof *found, compare_names);
    for (int i = 0; i < count; i++) {
        printf("  %s\n", found[i]);
        free(found[i]);
    }
}

static void open_some(void) {
    static const int access[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR};
    int flags = access[draw(5)];
    if (draw(2)) flags |= O_CREAT;
    if (draw(5) == 0) flags |= O_EXCL;
    if (draw(5) == 0) flags |= O_TRUNC;
    if (draw(5) == 0) flags |= O_APPEND;
    if (draw(8) == 0) flags |= O_DIRECTORY;
    if (draw(8) == 0) flags |= O_NOFOLLOW;
    if (draw(8) == 0) flags |= O_CLOEXEC;
    // Both together mean different things on different systems.
    if ((flags & (O_CREAT | O_DIRECTORY)) == (O_CREAT | O_DIRECTORY)) flags &= ~O_DIRECTORY;
    if ((flags & O_EXCL) && !(flags & O_CREAT)) flags &= ~O_EXCL;
    int at = slot();
    if (slots[at] >= 0) close(slots[at]);
    const char *where = path();
    slots[at] = open(where, flags, 0666 & ~(draw(4) == 0 ? 0222 : 0));
    printf("%s %x ", where[0] == '/' ? "absolute" : where, flags);
    say("open", slots[at] >= 0 ? 0 : -1);
}

static void try_lock(int fd) {
    struct flock lock = {.l_type = (short)(draw(2) ? F_WRLCK : F_RDLCK), .l_whence = (short)draw(3)};
    lock.l_start = draw(2000);
    lock.l_len = draw(1000);
    if (draw(4) == 0) lock.l_start = -(long)draw(100);
    say("setlk", fcntl(fd, F_SETLK, &lock));
    fflush(stdout);
    struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    pid_t child = fork();
    if (child == 0) {
        int got = fcntl(fd, F_GETLK, &asked);
        printf("getlk %d type %d start %ld len %ld whence %d\n", got, got ? 0 : asked.l_type,
               got ? 0 : (long)asked.l_start, got ? 0 : (long)asked.l_len, got ? 0 : asked.l_whence);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    lock.l_type = F_UNLCK;
    say("unlock", fcntl(fd, F_SETLK, &lock));
}

static void map_some(int fd) {
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) return;
    int prot = draw(2) ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = draw(2) ? MAP_SHARED : MAP_PRIVATE;
    size_t size = (size_t)st.st_size;
    char *at = mmap(NULL, size, prot, flags, fd, 0);
    say("mmap", at == MAP_FAILED ? -1 : 0);
    if (at == MAP_FAILED) return;
    printf("mapped %u\n", sum(at, (long)size));
    if (prot & PROT_WRITE) {
        for (size_t i = 0; i < size; i += 997) at[i] = (char)draw(256);
        say("msync", msync(at, size, MS_SYNC));
        printf("mapped %u\n", sum(at, (long)size));
        long got = pread(fd, back, BYTES_MAX, 0);
        say("pread", got);
        printf("sum %u\n", sum(back, got > 0 ? got : 0));
    }
    say("munmap", munmap(at, size));
}

static void stream_some(void) {
    static const char *const modes[] = {"r", "w", "a", "r+", "w+", "a+", "wx"};
    const char *mode = modes[draw(7)];
    FILE *file = fopen(path(), mode);
    printf("%s ", mode);
    say("fopen", file ? 0 : -1);
    if (!file) return;
    int writes = mode[0] != 'r' || mode[1] == '+';
    if (writes) {
        for (uint32_t i = 0, lines = draw(400); i < lines; i++) fprintf(file, "line %u %u\n", i, draw(1000));
        say("fflush", fflush(file));
        say("ftell", ftell(file));
    }
    if (strchr(mode, '+') || mode[0] == 'r') {
        say("fseek", fseek(file, (long)draw(200), SEEK_SET));
        char line[256] = "";
        if (fgets(line, sizeof line, file)) printf("line %s\n", line);
        size_t got = fread(back, 1, 3000, file);
        printf("fread %zu %u eof %d error %d\n", got, sum(back, (long)got), feof(file) != 0, ferror(file) != 0);
        ungetc('x', file);
        say("getc", getc(file));
    }
    say("fileno", fileno(file) >= 0);
    say("fclose", fclose(file));
}

static void step(void) {
    struct stat st;
    int fd = slots[slot()];
    int is_directory = fd >= 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    uint32_t count = draw(8) ? draw(2000) : draw(BYTES_MAX);
    long offset = (long)draw(5000);
    switch (draw(48)) {
    case 0: case 1: case 2: case 3: case 4: open_some(); break;
    case 5: { int at = slot(); say("close", close(slots[at])); slots[at] = -1; break; }
    case 6: case 7: case 8:
        for (uint32_t i = 0; i < count; i++) data[i] = (char)draw(256);
        say("write", write(fd, data, count));
        break;
    case 9:
        for (uint32_t i = 0; i < count; i++) data[i] = (char)draw(256);
        say("pwrite", pwrite(fd, data, count, offset - 10));
        break;
    case 10: case 11: { long got = read(fd, back, count); say("read", got); printf("sum %u\n", sum(back, got)); break; }
    case 12: {
        long got = pread(fd, back, count, offset - 10);
        say("pread", got);
        printf("sum %u\n", sum(back, got));
        break;
    }
    case 13:
        if (!is_directory) {
            int whence = (int)draw(3);
            say("lseek", lseek(fd, (long)draw(3000) - 1000, whence));
        }
        break;
    case 14: say("ftruncate", ftruncate(fd, offset - 20)); break;
    case 15: say("truncate", truncate(path(), (long)draw(9000))); break;
    case 16: { int got = stat(path(), &st); say_stat("stat", got, &st); break; }
    case 17: { int got = lstat(path(), &st); say_stat("lstat", got, &st); break; }
    case 18: { int got = fstat(fd, &st); say_stat("fstat", got, &st); break; }
    case 19: {
        const char *from = path(), *to = path();
        printf("%s %s ", from[0] == '/' ? "/" : from, to[0] == '/' ? "/" : to);
        say("rename", rename(from, to));
        break;
    }
    case 20: {
        const char *what = path();
        printf("%s ", what[0] == '/' ? "/" : what);
        say("unlink", unlink(what));
        break;
    }
    case 21: {
        const char *what = path();
        printf("%s ", what[0] == '/' ? "/" : what);
        say("mkdir", mkdir(what, 0777 - draw(2) * 022));
        break;
    }
    case 22: {
        const char *what = path();
        printf("%s ", what[0] == '/' ? "/" : what);
        say("rmdir", rmdir(what));
        break;
    }
    case 23: {
        const char *from = path(), *to = path();
        printf("%s %s ", from[0] == '/' ? "/" : from, to[0] == '/' ? "/" : to);
        say("link", link(from, to));
        break;
    }
    case 24: {
        static const char *const targets[] = {"a", "nowhere", "ring", "d", "..", "d/b"};
        const char *to = path();
        printf("%s ", to[0] == '/' ? "/" : to);
        say("symlink", symlink(targets[draw(6)], to));
        break;
    }
    case 25: {
        const char *what = path();
        long got = readlink(what, back, 100);
        printf("%s ", what[0] == '/' ? "/" : what);
        say("readlink", got);
        if (got > 0) printf("%.*s\n", (int)got, back);
        break;
    }
    case 26: {
        static const int modes[] = {R_OK, W_OK, X_OK, F_OK, R_OK | W_OK, 99};
        say("access", access(path(), modes[draw(6)]));
        break;
    }
    case 27: say("chmod", chmod(path(), draw(2) ? 0640 : 0755)); break;
    case 28: say("fchmod", fchmod(fd, draw(2) ? 0600 : 0711)); break;
    case 29: list(draw(2) ? "." : path()); break;
    case 30: {
        struct iovec parts[3] = {{back, draw(100)}, {back + 1000, draw(3000)}, {back + 9000, 7}};
        memset(back, 0, 10000);
        say("readv", readv(fd, parts, 3));
        printf("sum %u\n", sum(back, 10000));
        break;
    }
    case 31: {
        struct iovec parts[3] = {{data, draw(100)}, {data + 1000, draw(3000)}, {data + 9000, 7}};
        say("writev", writev(fd, parts, 3));
        break;
    }
    case 32: if (fd >= 0 && !is_directory) try_lock(fd); break;
    case 33: if (fd >= 0) map_some(fd); break;
    case 34: {
        int to = slot(), from = slot();
        if (slots[to] >= 0 && to != from) close(slots[to]);
        if (to != from) { slots[to] = dup(slots[from]); say("dup", slots[to] >= 0 ? 0 : -1); } break;
    }
    case 35: {
        int got = fcntl(fd, F_GETFL);
        say("getfl", got < 0 ? got : got & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECTORY));
        break;
    }
    case 36: say("setfl", fcntl(fd, F_SETFL, draw(2) ? O_APPEND : 0)); break;
    case 37: {
        int to = slots[slot()];
        struct stat other;
        if (fd < 0 || to < 0 || is_directory || (fstat(to, &other) == 0 && S_ISDIR(other.st_mode))) break;
        off_t from = (off_t)draw(1000), at = (off_t)draw(1000);
        if (st.st_ino == other.st_ino) break;
        say("copy_file_range", copy_file_range(fd, &from, to, &at, draw(5000), 0));
        printf("at %ld %ld\n", (long)from, (long)at);
        break;
    }
    case 38: {
        struct timespec times[2] = {{(long)draw(100000), 5}, {(long)draw(100000), 7}};
        const char *what = path();
        int flags = draw(2) ? AT_SYMLINK_NOFOLLOW : 0;
        int got = utimensat(AT_FDCWD, what, times, flags);
        say("utimensat", got);
        if (got == 0 && fstatat(AT_FDCWD, what, &st, flags) == 0) {
            printf("%ld %ld\n", (long)st.st_mtim.tv_sec % 100000, st.st_mtim.tv_nsec % 10);
        }
        break;
    }
    case 39: {
        const char *what = path();
        if (strcmp(what, "") && chdir(what) == 0) {
            char *now = getcwd(back, BYTES_MAX);
            printf("chdir %s\n", now && !strncmp(now, root, strlen(root)) ? now + strlen(root) : "out");
            say("back", chdir(root));
        } else {
            say("chdir", -1);
        }
        break;
    }
    case 40: {
        char *got = realpath(path(), NULL);
        int error = errno;
        const char *rest = got && !strncmp(got, root, strlen(root)) ? got + strlen(root) : "out";
        if (got) printf("realpath %s\n", rest);
        else printf("realpath errno %d\n", error);
        free(got);
        break;
    }
    case 41: case 42: stream_some(); break;
    case 43: { int got; say("ioctl", is_directory ? 0 : ioctl(fd, FIONREAD, &got)); break; }
    case 44: say("posix_fallocate", posix_fallocate(fd, (off_t)draw(3000), (off_t)draw(6000))); break;
    case 45: {
        const char *what = path();
        int directory = slots[slot()];
        int got = fstatat(directory, what, &st, draw(2) ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH);
        say_stat("fstatat", got, &st);
        break;
    }
    case 46: {
        const char *from = path(), *to = path();
        printf("%s %s ", from[0] == '/' ? "/" : from, to[0] == '/' ? "/" : to);
        say("renameat2", renameat2(AT_FDCWD, from, AT_FDCWD, to, draw(2) ? RENAME_NOREPLACE : RENAME_EXCHANGE));
        break;
    }
    case 47: {
        // A child shares what is open, offset included.
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) _exit(write(fd, "child", 5) == 5 && lseek(fd, 3, SEEK_CUR) >= 0);
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", WEXITSTATUS(status));
        if (!is_directory) say("lseek", lseek(fd, 0, SEEK_CUR));
        break;
    }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 1;
    // Some levels down, so that `..` leads to a directory that is there in both.
    static char folder[PATH_MAX];
    root = folder;
    for (int depth = 0; depth < 3; depth++) {
        snprintf(folder, sizeof folder, "%s%.*s", argv[3], 2 * depth + 2, "/w/w/w");
        mkdir(root, 0755);
    }
    for (int i = 0; i < SLOTS; i++) slots[i] = -1;
    umask(022);
    if (chdir(root) < 0) { perror(root); return 1; }
    say("mkdir", mkdir("d", 0755));
    say("mkdir", mkdir("d/e", 0755));
    say("symlink", symlink("a", "l"));
    say("symlink", symlink("ring", "ring"));
    say("symlink", symlink("d", "dl"));
    say("symlink", symlink("nothing", "nowhere"));
    long count = strtol(argv[2], NULL, 10);
    for (long i = 0; i < count; i++) {
        printf("%ld: ", i);
        errno = 0;
        step();
    }
    list(".");
    return 0;
}
