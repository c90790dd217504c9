// Calls a function that does nothing so many times a tick, so many ticks a second, for so many seconds, and prints the CPU
// that this took. For `cargo xtask bench --declared`.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile unsigned long calls;

__attribute__((noinline)) unsigned long nothing(unsigned long n) {
    calls += n;
    return calls;
}

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    long ticks = atol(argv[1]), many = atol(argv[2]), seconds = atol(argv[3]);
    uint64_t begin = nanos(CLOCK_PROCESS_CPUTIME_ID), at = nanos(CLOCK_MONOTONIC);
    for (long tick = 0; tick < ticks * seconds; tick++) {
        for (long i = 0; i < many; i++) nothing(1);
        at += 1000000000 / ticks;
        struct timespec until = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    }
    printf("%lu\n", nanos(CLOCK_PROCESS_CPUTIME_ID) - begin);
    return 0;
}
