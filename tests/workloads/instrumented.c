// For tests/tests/instrumentation.rs: a function that is called a hundred times a second and one that is called a hundred
// thousand times, both hot. At SIGUSR1 it stops between calls, prints how often each was called and the first byte of their
// code, and goes on at the next one.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t asked;
static volatile uint64_t sink;

static void ask(int number) {
    (void)number;
    asked = 1;
}

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

__attribute__((noipa)) uint64_t seldom(uint64_t n, uint64_t steps) {
    for (uint64_t i = 0; i < steps; i++) n = n * 6364136223846793005u + 1442695040888963407u;
    return n;
}

__attribute__((noipa)) uint64_t often(uint64_t n, uint64_t steps) {
    for (uint64_t i = 0; i < steps; i++) n = n * 6364136223846793005u + 1442695040888963407u;
    return n;
}

static unsigned first_byte(uint64_t (*function)(uint64_t, uint64_t)) {
    unsigned char byte;
    memcpy(&byte, (void *)function, 1);
    return byte;
}

int main(void) {
    struct sigaction action = {.sa_handler = ask};
    sigset_t blocked, none;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, &none);
    sigaction(SIGUSR1, &action, NULL);
    // Steps of a microsecond.
    uint64_t begin = nanos(CLOCK_THREAD_CPUTIME_ID);
    sink = often(1, 1000000);
    uint64_t steps = 1000000000 / (nanos(CLOCK_THREAD_CPUTIME_ID) - begin + 1) + 1;
    printf("STEPS %lu\n", steps);
    fflush(stdout);
    uint64_t seldom_calls = 0, often_calls = 0, sum = 0, longest = 0, at = nanos(CLOCK_MONOTONIC);
    for (unsigned round = 1;; round++) {
        sigset_t pending;
        sigpending(&pending);
        if (sigismember(&pending, SIGUSR1)) {
            sigsuspend(&none);
            printf("STOPPED %u seldom %lu often %lu sum %lu longest %lu code %02x %02x\n", round, seldom_calls, often_calls, sum,
                   longest, first_byte(seldom), first_byte(often));
            fflush(stdout);
            sigsuspend(&none);
            at = nanos(CLOCK_MONOTONIC);
            longest = 0;
        }
        uint64_t wall = nanos(CLOCK_MONOTONIC);
        for (int i = 0; i < 1000; i++) sum += often(i, 2 * steps) & 1;
        often_calls += 1000;
        sum += seldom(round, 2000 * steps) & 1;
        seldom_calls++;
        wall = nanos(CLOCK_MONOTONIC) - wall;
        if (wall > longest) longest = wall;
        at += 10000000;
        struct timespec until = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}
