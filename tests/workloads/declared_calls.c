// Calls for tests/tests/declared_calls.rs, compiled with -O2: each times itself, and the program prints what it measured.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

enum { MOST = 4096 };
struct truth {
    unsigned count, failed;
    uint64_t calls[MOST];
};
static struct truth once_truth, imported_truth, some_truth, lines_truth, loop_truth;

static void add(struct truth *truth, uint64_t wall, int failed) {
    truth->calls[truth->count++ % MOST] = wall;
    truth->failed += failed;
}

// Written, so that it is in memory.
static char users[2][8] = {"even", "odd"};

// Fails every fifth time. Five milliseconds, beside which the traps of two probes, which its own clock sees, are little.
__attribute__((noipa)) int work(int n, const char *user) {
    uint64_t end = nanos(CLOCK_THREAD_CPUTIME_ID) + 5000000;
    while (nanos(CLOCK_THREAD_CPUTIME_ID) < end)
        ;
    return *user && n % 5 == 4 ? -1 : 0;
}

__attribute__((noipa)) int other(int n) { return work(n, "other") + 1; }

// One call of `work`.
__attribute__((noipa)) int once(int n) {
    uint64_t wall = nanos(CLOCK_MONOTONIC);
    int failed = work(n, users[n % 2]);
    add(&once_truth, nanos(CLOCK_MONOTONIC) - wall, failed != 0);
    return failed + n;
}

// A call that another file has the code of.
__attribute__((noipa)) void imported(void) {
    uint64_t wall = nanos(CLOCK_MONOTONIC);
    usleep(3000);
    add(&imported_truth, nanos(CLOCK_MONOTONIC) - wall, 0);
}

// The instruction behind the call is also reached without it.
__attribute__((noipa)) int sometimes(int n) {
    int sum = n;
    if (n % 3 == 0) {
        uint64_t wall = nanos(CLOCK_MONOTONIC);
        sum += work(n, "some");
        add(&some_truth, nanos(CLOCK_MONOTONIC) - wall, 0);
    }
    return sum * 3;
}

__attribute__((noipa)) int twice(int n) {
    int first = work(n, "a");
    return first + work(n + 1, "b") * 2;
}

__attribute__((noipa)) int tail(int n) { return work(n, "tail"); }

__attribute__((noipa)) int by_pointer(int n, int (*which)(int)) { return which(n) + 1; }

// Has code of its own, and is inlined where it is called.
int small(int n) { return n * 3 + 1; }
__attribute__((noipa)) int inlines(int n) { return small(n) ^ n; }

// The lines between the clocks are declared.
__attribute__((noipa)) int lines(int n) {
    int sum = n, before = other(0) & 1;
    uint64_t wall = nanos(CLOCK_MONOTONIC);
    sum += work(n, "lines");
    if (n % 4 == 0) sum += work(n + 1, "more");
    sum *= 3;
    add(&lines_truth, nanos(CLOCK_MONOTONIC) - wall, 0);
    return sum + before;
}

static volatile int lengths[3] = {1, 2, 3};

// The declared lines have a loop.
__attribute__((noipa)) int looping(int n) {
    int sum = other(n);
    uint64_t wall = nanos(CLOCK_MONOTONIC);
    int most = lengths[n % 3];
    for (int i = 0; i < most; i++) {
        sum += work(i, "loop");
    }
    add(&loop_truth, nanos(CLOCK_MONOTONIC) - wall, 0);
    return sum;
}

static void say(const char *name, struct truth *truth) {
    printf("TRUTH %s %u %u", name, truth->count, truth->failed);
    for (unsigned n = 0; n < truth->count && n < MOST; n++) printf(" %lu", truth->calls[n]);
    printf("\n");
}

int main(int argc, char **argv) {
    users[0][4] = users[1][3] = 0;
    int rounds = argc > 1 ? atoi(argv[1]) : 100, sum = 0;
    for (int n = 0; n < rounds; n++) {
        sum += once(n) + sometimes(n) + inlines(n) + lines(n) + looping(n);
        imported();
    }
    for (int n = 0; n < 2; n++) sum += twice(n) + tail(n) + by_pointer(n, other);
    say("once", &once_truth);
    say("imported", &imported_truth);
    say("sometimes", &some_truth);
    say("lines", &lines_truth);
    say("looping", &loop_truth);
    printf("DONE %d\n", sum);
    fflush(stdout);
    pause();
    return 0;
}
