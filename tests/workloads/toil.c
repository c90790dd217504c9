/* Burns CPU: toil MILLISECONDS [CHILDREN]. Each child burns 3 ms in a process of its own. Prints what getrusage says it and its
   children used, in seconds, and stays until it is killed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void burn(double seconds)
{
    struct timespec t;
    do {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    } while (t.tv_sec + t.tv_nsec / 1e9 < seconds);
}

static double used(int who)
{
    struct rusage r;
    getrusage(who, &r);
    return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) / 1e3 : 1;
    int children = argc > 2 ? atoi(argv[2]) : 0;
    for (int n = 0; n < children; n++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            burn(0.003);
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    burn(seconds);
    printf("USED %.6f\n", used(RUSAGE_SELF) + used(RUSAGE_CHILDREN));
    fflush(stdout);
    /* Runs now and then: a thread that sleeps for ever does not report its last milliseconds. */
    for (;;)
        usleep(200000);
}
