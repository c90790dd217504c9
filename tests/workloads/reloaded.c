// Says where three functions are, calls them in turn until SIGTERM, then says how often each was called.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t over;
static unsigned long calls[3];

static void end(int signal) {
    (void)signal;
    over = 1;
}

__attribute__((noinline)) int first(int n) {
    calls[0]++;
    usleep(500);
    return n + 1;
}

__attribute__((noinline)) int second(int n) {
    calls[1]++;
    usleep(500);
    return n + 2;
}

__attribute__((noinline)) int third(int n) {
    calls[2]++;
    usleep(500);
    return n + 3;
}

int main(void) {
    signal(SIGTERM, end);
    printf("AT %lu %lu %lu\n", (unsigned long)first, (unsigned long)second, (unsigned long)third);
    fflush(stdout);
    int n = 0;
    while (!over) {
        n = third(second(first(n))) & 0xff;
    }
    printf("TRUTH %lu %lu %lu\n", calls[0], calls[1], calls[2]);
    fflush(stdout);
    while (n >= 0) {
        pause();
    }
    return n;
}
