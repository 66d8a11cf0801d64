// Programs that are started with descriptors closed, and scripts by the descriptor of their directory: children
// DIRECTORY. In two directories it must say the same.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char folder[4000];

static const char *in_folder(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void show(const char *name) {
    char text[4096];
    int fd = open(in_folder(name), O_RDONLY);
    long got = fd < 0 ? -1 : read(fd, text, sizeof text);
    printf("%s: %.*s|\n", name, got < 0 ? 0 : (int)got, text);
    close(fd);
}

static void spawn(const char *what, const char *program, char **arguments, posix_spawn_file_actions_t *actions) {
    pid_t child;
    int status = -1, error = posix_spawnp(&child, program, actions, NULL, arguments, environ);
    if (!error) waitpid(child, &status, 0);
    printf("%s %d %d\n", what, error, status);
    show("out");
    fflush(stdout);
    unlink(in_folder("out"));
}

static void execute(const char *what, int directory, const char *path, int flags) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execveat(directory, path, (char *[]){"name", "argument", NULL}, environ, flags);
        printf("%s errno %d\n", what, errno);
        fflush(stdout);
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%s %d\n", what, WEXITSTATUS(status));
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    snprintf(folder, sizeof folder, "%s", argv[1]);
    char *echo[] = {"echo", "hello", NULL};
    char *list[] = {"sh", "-c", "for fd in 0 3 4 5 6 7 8; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; pwd; cat",
                    NULL};
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    int leak = open(in_folder("leak"), O_RDWR | O_CREAT, 0644);
    write(leak, "leaked\n", 7);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    posix_spawn_file_actions_addopen(&actions, 1, in_folder("out"), flags, 0644);
    spawn("closed, then opened", "echo", echo, &actions);
    posix_spawn_file_actions_addopen(&actions, 0, in_folder("leak"), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 7, in_folder("leak"), O_RDONLY, 0);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    posix_spawn_file_actions_addclosefrom_np(&actions, 5);
    spawn("closed twice", "sh", list, &actions);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, in_folder("out"), flags, 0644);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    int from = open("/bin/echo", O_RDONLY), to = open(in_folder("program"), flags, 0755);
    char bytes[8192];
    long got;
    while ((got = read(from, bytes, sizeof bytes)) > 0) write(to, bytes, (size_t)got);
    close(from);
    close(to);
    spawn("a program of the folder", in_folder("program"), echo, &actions);
    int script = open(in_folder("script"), flags, 0755);
    dprintf(script, "#!/bin/sh\necho \"$0\" \"$1\" | sed 's/[0-9][0-9]*/N/'\n");
    close(script);
    int directory = open(folder, O_RDONLY | O_DIRECTORY), closing = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    execute("by directory", directory, "script", 0);
    execute("by directory that is closed", closing, "script", 0);
    execute("a program", directory, "program", 0);
    execute("a program, closed", closing, "program", 0);
    script = openat(directory, "script", O_RDONLY);
    execute("itself", script, "", AT_EMPTY_PATH);
    script = openat(directory, "script", O_RDONLY | O_CLOEXEC);
    execute("itself, closed", script, "", AT_EMPTY_PATH);
    execute("missing", directory, "nothing", 0);
    execute("absolute", directory, in_folder("program"), 0);
    return 0;
}
