// Functions with values for tests/tests/declared_values.rs: the program counts them by user itself, and prints them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

enum { USERS = 7 };
static const char *const users[USERS] = {
    "ann", "bob", "b\xc3\xa9\x61", "with, comma \"and\" quotes", "",
    // Longer than what is kept: 63 bytes of it are.
    "0123456789012345678901234567890123456789012345678901234567890123456789", "zoe",
};

struct sums {
    uint64_t count, failed, wall, cpu;
    int64_t items, level;
};
static struct sums all, by_user[USERS];
static uint64_t calls[10000];

__attribute__((noipa)) static void spin(uint64_t length) {
    uint64_t end = nanos(CLOCK_THREAD_CPUTIME_ID) + length;
    while (nanos(CLOCK_THREAD_CPUTIME_ID) < end)
        ;
}

// Fails where its level is negative. `who` is not among what is declared.
__attribute__((noipa)) long handle(unsigned items, const char *user, long level, const char *tag, int who) {
    uint64_t wall = nanos(CLOCK_MONOTONIC), cpu = nanos(CLOCK_THREAD_CPUTIME_ID);
    spin(500000 + 500000 * (items % 4));
    cpu = nanos(CLOCK_THREAD_CPUTIME_ID) - cpu;
    wall = nanos(CLOCK_MONOTONIC) - wall;
    calls[all.count % 10000] = wall;
    struct sums *each[] = {&all, &by_user[who]};
    for (int i = 0; i < 2; i++) {
        each[i]->count++;
        each[i]->failed += level < 0;
        each[i]->wall += wall;
        each[i]->cpu += cpu;
        each[i]->items += items;
        each[i]->level += level;
    }
    return user && tag ? level : -1;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    char tag[32];
    for (int n = 0; n < rounds; n++) {
        int who = n % USERS;
        snprintf(tag, sizeof tag, "tag %d", n);
        // Beyond 32 bits, and negative now and then.
        long level = n % 5 == 4 ? -(long)n : (long)n << 33;
        handle(n * 7919u, users[who], level, tag, who);
    }
    printf("TRUTH handle %lu %lu %lu %lu\n", all.count, all.wall, all.cpu, all.failed);
    for (unsigned n = 0; n < all.count; n++) printf("CALL %lu\n", calls[n % 10000]);
    printf("SUMS %ld %ld\n", all.items, all.level);
    for (int i = 0; i < USERS; i++)
        printf("USER %lu %lu %lu %ld %ld %s\n", by_user[i].count, by_user[i].wall, by_user[i].failed, by_user[i].items,
               by_user[i].level, users[i]);
    printf("DONE\n");
    fflush(stdout);
    pause();
    return 0;
}
