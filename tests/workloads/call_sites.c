/* One query from three functions, each on a connection of its own: PORT PORT PORT SECONDS. Prints how often each sent it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char query[] = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
static int sockets[3];

static void read_answer(int socket) {
    char answer[4096];
    if (read(socket, answer, sizeof answer) <= 0) exit(1);
}

static __attribute__((noinline)) void first(void) {
    if (write(sockets[0], query, sizeof query - 1) < 0) exit(1); /* line: first */
    read_answer(sockets[0]);
}

static __attribute__((noinline)) void second(void) {
    if (write(sockets[1], query, sizeof query - 1) < 0) exit(1); /* line: second */
    read_answer(sockets[1]);
}

static inline __attribute__((always_inline)) void third(void) {
    if (send(sockets[2], query, sizeof query - 1, 0) < 0) exit(1); /* line: third */
    read_answer(sockets[2]);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    if (count < 5) return 1;
    for (int i = 0; i < 3; i++) {
        struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(arguments[1 + i])) };
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(sockets[i], (struct sockaddr *)&address, sizeof address) != 0) return 1;
    }
    double end = now() + atof(arguments[4]);
    long counts[3] = { 0 };
    while (now() < end) {
        first();
        counts[0]++;
        for (int i = 0; i < 2; i++) {
            second();
            counts[1]++;
        }
        third();
        counts[2]++;
        usleep(10000);
    }
    printf("COUNTS %ld %ld %ld\n", counts[0], counts[1], counts[2]);
    return 0;
}
