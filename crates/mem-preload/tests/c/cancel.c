// Threads that do nothing but use files, and are cancelled: cancel DIRECTORY. In two directories it must say the same.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fd, pipes[2];
static volatile int cleaned, begun;
static char block[70000];

static void clean(void *argument) { cleaned += (int)(long)argument; }

static void write_all(void) { begun = pwrite(fd, block, sizeof block, 0) > 0; }
static void write_small(void) { begun = pwrite(fd, block, 100, 5) > 0; }
static void read_all(void) { begun = pread(fd, block, 4096, 0) >= 0; }
static void read_on(void) { begun = read(fd, block, 100) >= 0; }
static void parts(void) {
    struct iovec list[2] = {{block, 10}, {block, 20}};
    begun = pwritev(fd, list, 2, 0) > 0;
}
static void open_and_close(void) {
    int own = open("opened", O_RDWR | O_CREAT, 0644);
    begun = own >= 0;
    close(own);
}
static void synchronise(void) { begun = fsync(fd) == 0; }
static void print(void) {
    static FILE *stream;
    if (!stream) stream = fopen("stream", "w");
    fputs("some text that fills the buffer sooner or later\n", stream);
    begun = 1;
}
static void wait_for_pipe(void) {
    begun = 1;
    read(pipes[0], block, 1);
}

static void *loop(void *run) {
    pthread_cleanup_push(clean, (void *)1L);
    for (;;) ((void (*)(void))run)();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *loop_disabled(void *run) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    for (int i = 0; i < 2000; i++) ((void (*)(void))run)();
    return (void *)7L;
}

static void cancel(const char *name, void (*run)(void), int count) {
    pthread_t threads[8];
    cleaned = begun = 0;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, loop, (void *)run);
    while (!begun) usleep(100);
    usleep(2000);
    int ended = 0;
    for (int i = 0; i < count; i++) {
        void *answer = NULL;
        pthread_cancel(threads[i]);
        pthread_join(threads[i], &answer);
        ended += answer == PTHREAD_CANCELED;
    }
    // Nothing of the file stays held.
    printf("%s %d %d, then %zd\n", name, ended, cleaned, pwrite(fd, block, sizeof block, 0));
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) < 0 || pipe(pipes) < 0) return 2;
    // A thread that does not end would be waited for without end.
    alarm(60);
    fd = open("file", O_RDWR | O_CREAT, 0644);
    write_all();
    for (int i = 0; i < 20; i++) {
        cancel("write", write_all, 4);
        cancel("small", write_small, 4);
        cancel("parts", parts, 3);
    }
    cancel("read", read_all, 4);
    cancel("read on", read_on, 2);
    cancel("open", open_and_close, 1);
    cancel("fsync", synchronise, 2);
    cancel("print", print, 1);
    cancel("pipe", wait_for_pipe, 2);
    pthread_t thread;
    void *answer;
    pthread_create(&thread, NULL, loop_disabled, (void *)read_all);
    pthread_cancel(thread);
    pthread_join(thread, &answer);
    printf("disabled %ld\n", (long)answer);
    return 0;
}
