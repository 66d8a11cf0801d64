// More threads than a region has lanes, of which most have nothing to do, and children that are forked meanwhile: crowd
// DIRECTORY. In two directories it must say the same.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 90, CHILDREN = 30, ROUNDS = 60 };

static pthread_barrier_t all, again;

static int put(const char *name, char letter) {
    char block[3000], back[3000];
    memset(block, letter, sizeof block);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    if (fd < 0) return errno;
    long done = pwrite(fd, block, sizeof block, 0);
    if (done != sizeof block) return errno ? errno : 999;
    done = pread(fd, back, sizeof back, 0);
    if (done != sizeof back || memcmp(block, back, sizeof back)) return 998;
    close(fd);
    return 0;
}

static void *thread(void *argument) {
    long number = (long)argument, failed = 0;
    char name[32];
    snprintf(name, sizeof name, "thread%ld", number);
    failed = put(name, 'a');
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&again);
    for (int i = 0; !failed && i < ROUNDS; i++) failed = put(name, (char)('a' + i % 26));
    return (void *)failed;
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) < 0) return 2;
    pthread_t threads[THREADS];
    pthread_barrier_init(&all, NULL, THREADS + 1);
    pthread_barrier_init(&again, NULL, THREADS + 1);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    pthread_barrier_wait(&all);
    int pid = fork(), status;
    if (pid == 0) _exit(put("while idle", 'i'));
    waitpid(pid, &status, 0);
    printf("while idle %d\n", status);
    pthread_barrier_wait(&again);
    int failed = 0;
    for (int i = 0; i < CHILDREN; i++) {
        pid = fork();
        if (pid == 0) {
            char name[32];
            snprintf(name, sizeof name, "child%d", i);
            _exit(put(name, 'c'));
        }
        waitpid(pid, &status, 0);
        failed += status != 0;
    }
    printf("children failed %d\n", failed);
    for (int i = 0; i < THREADS; i++) {
        void *answer;
        pthread_join(threads[i], &answer);
        if (answer) printf("thread %d: %ld\n", i, (long)answer);
    }
    return 0;
}
