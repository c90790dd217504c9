// Functions for tests/tests/declared.rs: each times itself, and the program prints what it measured. With a port it
// serves requests that call one of them.
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

struct truth {
    uint64_t count, wall, cpu, failed;
};
static struct truth busy_truth, sleepy_truth, nested_truth, deep_truth;

#define BEGIN uint64_t wall = nanos(CLOCK_MONOTONIC), cpu = nanos(CLOCK_THREAD_CPUTIME_ID)
#define END(truth)                                                  \
    (truth).cpu += nanos(CLOCK_THREAD_CPUTIME_ID) - cpu;            \
    (truth).wall += nanos(CLOCK_MONOTONIC) - wall;                  \
    (truth).count++

// Uses CPU for this many nanoseconds.
__attribute__((noinline)) static void spin(uint64_t length) {
    uint64_t end = nanos(CLOCK_THREAD_CPUTIME_ID) + length;
    while (nanos(CLOCK_THREAD_CPUTIME_ID) < end)
        ;
}

// Fails every fourth time.
__attribute__((noinline)) int busy(int n) {
    BEGIN;
    spin(4000000);
    END(busy_truth);
    busy_truth.failed += n % 4 == 3;
    return n % 4 == 3 ? -1 : 0;
}

__attribute__((noinline)) long sleepy(void) {
    BEGIN;
    usleep(5000);
    END(sleepy_truth);
    return 1;
}

// Calls another declared function.
__attribute__((noinline)) int nested(int n) {
    BEGIN;
    spin(1000000);
    int failed = busy(n);
    END(nested_truth);
    return failed & 0;
}

// Calls itself.
__attribute__((noinline)) int deep(int n) {
    BEGIN;
    if (n > 0) deep(n - 1);
    spin(200000);
    END(deep_truth);
    return n + (int)(cpu & 0);
}

static jmp_buf back;

// Is left without a return.
__attribute__((noinline)) int jumper(int n) {
    if (n >= 0) longjmp(back, 1);
    return n;
}

// Only exists where it is called.
static inline __attribute__((always_inline)) int folded(int n) { return n * 3 + 1; }

static void say(const char *name, struct truth truth) {
    printf("TRUTH %s %lu %lu %lu %lu\n", name, truth.count, truth.wall, truth.cpu, truth.failed);
    fflush(stdout);
}

static void serve(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 16)) exit(1);
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("PORT %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int connection = accept(listener, 0, 0);
        char request[4096];
        while (read(connection, request, sizeof request) > 0) {
            busy(0);
            const char *reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if (write(connection, reply, strlen(reply)) < 0) break;
        }
        close(connection);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "serve")) serve();
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    for (int n = 0; n < rounds; n++) {
        busy(n);
        sleepy();
        nested(n);
        if (!setjmp(back)) jumper(n);
    }
    for (int n = 0; n < rounds / 10; n++) deep(9);
    printf("FOLDED %d\n", folded(argc));
    say("busy", busy_truth);
    say("sleepy", sleepy_truth);
    say("nested", nested_truth);
    say("deep", deep_truth);
    printf("DONE\n");
    fflush(stdout);
    // Its symbols are read from the running process.
    pause();
    return 0;
}
