/* Processes and threads that live as briefly as they can: spawn SECONDS [RATE]. One parent for each core; each makes,
 * in turn, a child that exits, a child of a copied address space that exits, and a thread that returns. RATE bounds
 * how many a second all parents make together. Prints SPAWNED n. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void *nothing(void *argument)
{
    return argument;
}

static long parent(double seconds, double rate)
{
    double begin = now(), end = begin + seconds;
    long count = 0;
    for (double at = begin; at < end; at = now()) {
        double early = count / rate - (at - begin);
        if (early > 0.001) {
            usleep(early * 1e6);
            continue;
        }
        if (count % 8 == 7) {
            pthread_t thread;
            if (pthread_create(&thread, 0, nothing, 0) || pthread_join(thread, 0))
                exit(1);
        } else {
            pid_t child = count % 8 == 3 ? fork() : vfork();
            if (child == 0)
                _exit(0);
            if (child < 0 || waitpid(child, 0, 0) != child)
                exit(1);
        }
        count++;
    }
    return count;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1, rate = argc > 2 ? atof(argv[2]) : 1e9;
    int parents = sysconf(_SC_NPROCESSORS_ONLN), status;
    long *counts = mmap(0, parents * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        return 1;
    for (int i = 0; i < parents; i++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            counts[i] = parent(seconds, rate / parents);
            _exit(0);
        }
    }
    long sum = 0;
    for (int i = 0; i < parents; i++)
        if (wait(&status) < 0 || status)
            return 1;
    for (int i = 0; i < parents; i++)
        sum += counts[i];
    printf("SPAWNED %ld\n", sum);
    return 0;
}
