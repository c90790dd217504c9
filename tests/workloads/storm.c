/* A storm of processes that live for about a millisecond: storm SECONDS. Prints how many there were. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    double end = now(CLOCK_MONOTONIC) + (argc > 1 ? atof(argv[1]) : 1);
    long count = 0;
    while (now(CLOCK_MONOTONIC) < end && count < 100000) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            while (now(CLOCK_PROCESS_CPUTIME_ID) < 0.001)
                ;
            _exit(0);
        }
        waitpid(child, 0, 0);
        count++;
    }
    printf("STORM %ld\n", count);
    return 0;
}
