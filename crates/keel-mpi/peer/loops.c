/* The eight loops of the suite in plain C, as somebody would write them who has MPI and nothing else: what keel-mpi is
 * measured beside. Steps and samples are those of `keel-mpi measure` with a fixed number of samples; nothing is checked.
 *
 *     mpicc -O2 -o loops loops.c
 *     mpiexec -n 2 ./loops 0 20 bandwidth:4:100 reduce:1024:50
 *
 * The first argument says whether rank r is bound to core r, the second how many samples are taken, each further one a
 * benchmark, its bytes and how often it is repeated in a sample. Rank 0 prints a line for each of these: benchmark, bytes,
 * times, and the microseconds of one operation in each sample, the greatest over the ranks. */

#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 1, TAG_DONE = 2, SAMPLES_MAX = 100000 };

static int rank, ranks;
static char *sent, *received;
static int *addends, *sums;

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "loops: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

/* Nanoseconds of this rank; 0 where its time does not count. */
static double repeat(const char *benchmark, int bytes, long times)
{
    MPI_Comm all = MPI_COMM_WORLD;
    int last = ranks - 1;
    int is_first = rank == 0, is_between_two = 0;
    char done[4] = {0};
    double begun;

    if (!strcmp(benchmark, "bandwidth") || !strcmp(benchmark, "bibandwidth") || !strcmp(benchmark, "roundtrip") ||
        !strcmp(benchmark, "latency"))
        is_between_two = 1;
    if (is_between_two && rank != 0 && rank != last)
        return 0;

    if (!strcmp(benchmark, "bandwidth")) {
        begun = now_ns();
        if (is_first) {
            for (long at = 0; at < times; at++)
                MPI_Send(sent, bytes, MPI_BYTE, last, TAG, all);
            MPI_Recv(done, 4, MPI_BYTE, last, TAG_DONE, all, MPI_STATUS_IGNORE);
        } else {
            for (long at = 0; at < times; at++)
                MPI_Recv(received, bytes, MPI_BYTE, 0, TAG, all, MPI_STATUS_IGNORE);
            MPI_Send(done, 4, MPI_BYTE, 0, TAG_DONE, all);
        }
        return now_ns() - begun;
    }
    if (!strcmp(benchmark, "bibandwidth")) {
        int other = is_first ? last : 0;
        begun = now_ns();
        for (long at = 0; at < times; at++) {
            MPI_Request requests[2];
            MPI_Irecv(received, bytes, MPI_BYTE, other, TAG, all, &requests[0]);
            MPI_Isend(sent, bytes, MPI_BYTE, other, TAG, all, &requests[1]);
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        }
        return now_ns() - begun;
    }
    if (!strcmp(benchmark, "roundtrip")) {
        begun = now_ns();
        if (is_first) {
            for (long at = 0; at < times; at++) {
                MPI_Send(sent, bytes, MPI_BYTE, last, TAG, all);
                MPI_Recv(received, bytes, MPI_BYTE, last, TAG, all, MPI_STATUS_IGNORE);
            }
        } else {
            for (long at = 0; at < times; at++) {
                MPI_Recv(received, bytes, MPI_BYTE, 0, TAG, all, MPI_STATUS_IGNORE);
                MPI_Send(received, bytes, MPI_BYTE, 0, TAG, all);
            }
        }
        return now_ns() - begun;
    }
    if (!strcmp(benchmark, "latency")) {
        begun = now_ns();
        if (is_first) {
            for (long at = 0; at < times; at++)
                MPI_Send(sent, bytes, MPI_BYTE, last, TAG, all);
            return now_ns() - begun;
        }
        for (long at = 0; at < times; at++)
            MPI_Recv(received, bytes, MPI_BYTE, 0, TAG, all, MPI_STATUS_IGNORE);
        return 0;
    }
    if (!strcmp(benchmark, "broadcast")) {
        char *message = is_first ? sent : received;
        begun = now_ns();
        for (long at = 0; at < times; at++)
            MPI_Bcast(message, bytes, MPI_BYTE, 0, all);
        return now_ns() - begun;
    }
    if (!strcmp(benchmark, "reduce")) {
        begun = now_ns();
        for (long at = 0; at < times; at++)
            MPI_Reduce(addends, sums, bytes / 4, MPI_INT, MPI_SUM, 0, all);
        return now_ns() - begun;
    }
    if (!strcmp(benchmark, "allreduce")) {
        begun = now_ns();
        for (long at = 0; at < times; at++)
            MPI_Allreduce(addends, sums, bytes / 4, MPI_INT, MPI_SUM, all);
        return now_ns() - begun;
    }
    if (!strcmp(benchmark, "alltoall")) {
        int share = bytes / ranks > 0 ? bytes / ranks : 1;
        begun = now_ns();
        for (long at = 0; at < times; at++)
            MPI_Alltoall(sent, share, MPI_BYTE, received, share, MPI_BYTE, all);
        return now_ns() - begun;
    }
    fail("no such benchmark");
    return 0;
}

static double sample(const char *benchmark, int bytes, long times)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return repeat(benchmark, bytes, times);
}

static void bind_to(int wanted)
{
    cpu_set_t allowed, set;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &allowed) && wanted-- == 0) {
            CPU_ZERO(&set);
            CPU_SET(core, &set);
            sched_setaffinity(0, sizeof set, &set);
            return;
        }
    }
}

static void end_at_once(int number)
{
    (void)number;
    _exit(0);
}

int main(int count, char **arguments)
{
    int provided;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 4 || ranks < 2)
        fail("expected BIND SAMPLES BENCHMARK:BYTES:TIMES... on two ranks or more");
    if (atoi(arguments[1]))
        bind_to(rank);
    int samples = atoi(arguments[2]);
    if (samples < 1 || samples > SAMPLES_MAX)
        fail("too few or too many samples");
    long bytes_max = ranks;
    for (int at = 3; at < count; at++) {
        char name[32];
        int bytes;
        long times;
        if (sscanf(arguments[at], "%31[a-z]:%d:%ld", name, &bytes, &times) != 3 || bytes < 4 || times < 1)
            fail("expected BENCHMARK:BYTES:TIMES");
        if (bytes > bytes_max)
            bytes_max = bytes;
    }
    sent = calloc((size_t)bytes_max, 1);
    received = calloc((size_t)bytes_max, 1);
    addends = calloc((size_t)bytes_max, 1);
    sums = calloc((size_t)bytes_max, 1);
    double *mine = malloc(sizeof *mine * (size_t)samples);
    double *greatest = malloc(sizeof *greatest * (size_t)samples);
    if (!sent || !received || !addends || !sums || !mine || !greatest)
        fail("not enough memory");
    /* As there, pages are there before anything is timed. */
    memset(sent, 1, (size_t)bytes_max);
    memset(received, 1, (size_t)bytes_max);
    memset(addends, 1, (size_t)bytes_max);
    memset(sums, 1, (size_t)bytes_max);
    for (int at = 3; at < count; at++) {
        char name[32];
        int bytes = 0;
        long times = 0;
        sscanf(arguments[at], "%31[a-z]:%d:%ld", name, &bytes, &times);
        /* There each case is checked by doing it twice, and done once more. */
        repeat(name, bytes, 2);
        sample(name, bytes, 1);
        for (int number = 0; number < samples; number++)
            mine[number] = sample(name, bytes, times);
        MPI_Reduce(mine, greatest, samples, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%s %d %ld", name, bytes, times);
            for (int number = 0; number < samples; number++)
                printf(" %.4f", greatest[number] / (double)times / 1e3);
            printf("\n");
            fflush(stdout);
        }
    }
    /* MPICH 4.0 over UCX may hang here: a rank waits in the process manager and answers no other rank's last flush. All
     * results are out, so the rank ends itself after 2 s, as keel-mpi does. */
    signal(SIGALRM, end_at_once);
    alarm(2);
    MPI_Finalize();
    return 0;
}
