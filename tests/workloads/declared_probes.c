// USDT probes for tests/tests/declared_probes.rs: the program measures what lies between them itself, and prints it.
// SIGUSR1 starts it; later ones have it print its semaphore.
#include <alloca.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// A probe as <sys/sdt.h> makes one: a nop, and a note with its address, that of its semaphore and where its arguments are.
#define PROBE(name, semaphore, arguments, ...)                                                                      \
    __asm__ volatile("990: nop\n"                                                                                   \
                     ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                   \
                     ".balign 4\n"                                                                                  \
                     ".4byte 992f-991f, 994f-993f, 3\n"                                                             \
                     "991: .asciz \"stapsdt\"\n"                                                                    \
                     "992: .balign 4\n"                                                                             \
                     "993: .8byte 990b, _.stapsdt.base, " semaphore "\n"                                            \
                     ".asciz \"kernels\"\n"                                                                         \
                     ".asciz \"" name "\"\n"                                                                        \
                     ".asciz \"" arguments "\"\n"                                                                   \
                     "994: .balign 4\n"                                                                             \
                     ".popsection\n"                                                                                \
                     ".ifndef _.stapsdt.base\n"                                                                     \
                     ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                        \
                     ".weak _.stapsdt.base\n"                                                                       \
                     ".hidden _.stapsdt.base\n"                                                                     \
                     "_.stapsdt.base: .space 1\n"                                                                   \
                     ".size _.stapsdt.base, 1\n"                                                                    \
                     ".popsection\n"                                                                                \
                     ".endif\n" ::__VA_ARGS__)

volatile unsigned short kernels_begin_semaphore __attribute__((section(".probes"), used));

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

enum { MOST = 4096, USERS = 3 };
struct truth {
    unsigned count;
    uint64_t calls[MOST];
};
static struct truth handle_truth, nested_truth;
// Written, so that it is in memory.
static char users[USERS][8] = {"ann", "bob", "zoe"};
static struct {
    uint64_t count;
    int64_t items, level;
} by_user[USERS];

// Read by the tracer.
volatile long rounds_done;
_Thread_local volatile int of_thread;

static void add(struct truth *truth, uint64_t wall) { truth->calls[truth->count++ % MOST] = wall; }

__attribute__((noipa)) static void spin(uint64_t length) {
    uint64_t end = nanos(CLOCK_THREAD_CPUTIME_ID) + length;
    while (nanos(CLOCK_THREAD_CPUTIME_ID) < end)
        ;
}

// Begins in this function: an argument in a register, one in memory, one of 16 bits with a sign, a constant, and one that
// cannot be read.
__attribute__((noipa)) void begin(unsigned items, const char *user, short level) {
    const char *volatile kept = user;
    if (kernels_begin_semaphore)
        PROBE("begin", "kernels_begin_semaphore", "4@%k0 8@%1 -2@%w2 -4@%3 8f@%%xmm0", "r"(items), "m"(kept), "r"(level),
              "i"(-7));
}

// Ends in another one, deeper in the stack.
__attribute__((noipa)) void end(int bytes) {
    volatile char *room = alloca(bytes);
    room[0] = 1;
    PROBE("end", "0", "-4@%0", "r"(bytes));
    room[bytes - 1] = 1;
}

__attribute__((noipa)) void tick(const int64_t *values, long at) {
    PROBE("tick", "0", "8@(%0,%1,8)", "r"(values), "r"(at));
    __asm__ volatile("" ::"r"(values), "r"(at) : "memory");
}

__attribute__((noipa)) void nested(int levels) {
    PROBE("nested__begin", "0", "");
    uint64_t wall = nanos(CLOCK_MONOTONIC);
    if (levels > 1) nested(levels - 1);
    spin(2000000);
    add(&nested_truth, nanos(CLOCK_MONOTONIC) - wall);
    PROBE("nested__end", "0", "");
}

// Its end does not come every fifth time.
__attribute__((noipa)) void abandoned(int n) {
    PROBE("abandoned__begin", "0", "");
    if (n % 5 == 4) return;
    spin(10000);
    PROBE("abandoned__end", "0", "");
}

static void woken(int number) { (void)number; }

static void say(const char *name, struct truth *truth) {
    printf("TRUTH %s %u 0", name, truth->count);
    for (unsigned n = 0; n < truth->count && n < MOST; n++) printf(" %lu", truth->calls[n]);
    printf("\n");
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    int64_t values[2] = {0, 0};
    struct sigaction action = {.sa_handler = woken};
    sigset_t blocked, none;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, &none);
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < USERS; i++) users[i][6] = 0;
    printf("BEFORE %u\n", kernels_begin_semaphore);
    fflush(stdout);
    sigsuspend(&none);
    printf("DURING %u\n", kernels_begin_semaphore);
    for (int n = 0; n < rounds; n++) {
        int who = n % USERS;
        unsigned items = n * 7919u;
        short level = n % 4 == 3 ? -n : n;
        begin(items, users[who], level);
        uint64_t wall = nanos(CLOCK_MONOTONIC);
        spin(5000000);
        add(&handle_truth, nanos(CLOCK_MONOTONIC) - wall);
        end(64 + n % 512);
        rounds_done++;
        by_user[who].count++;
        by_user[who].items += items;
        by_user[who].level += level;
        values[1] = n * 1000000007L;
        tick(values, 1);
        if (n < 20) nested(3);
        abandoned(n);
    }
    say("handle", &handle_truth);
    say("nested", &nested_truth);
    for (int i = 0; i < USERS; i++)
        printf("USER %lu %ld %ld %s\n", by_user[i].count, by_user[i].items, by_user[i].level, users[i]);
    printf("DONE\n");
    fflush(stdout);
    for (;;) {
        sigsuspend(&none);
        printf("AFTER %u\n", kernels_begin_semaphore);
        fflush(stdout);
    }
}
