/* An HTTP server whose requests compete for a CPU: /gold and /bronze each use MILLIS milliseconds of it. With WORKERS
 * it has so many processes that serve one connection at a time, else a thread for each connection.
 * /spawn makes a thread that sleeps, in the middle of its work; /own sets the nice value of its thread to 7 there. /slow waits
 * for three seconds there, /bulk for one. */
#include "http.h"

#include <sys/syscall.h>

static long millis = 20;
static volatile unsigned long sink;

__attribute__((noinline)) static void burn(long micros)
{
    long long until = thread_cpu() + micros * 1000LL;
    do {
        for (unsigned long i = 0; i < 20000; i++)
            sink = sink * 6364136223846793005UL + i;
    } while (thread_cpu() < until);
}

static void *sleeper(void *argument)
{
    for (;;)
        pause();
    return argument;
}

static void *handle(void *argument)
{
    struct connection *c = argument;
    struct request q;
    while (read_request(c, &q) > 0) {
        burn(millis * 500);
        if (!strcmp(q.path, "/spawn")) {
            pthread_t thread;
            pthread_create(&thread, 0, sleeper, 0);
        } else if (!strcmp(q.path, "/own")) {
            setpriority(PRIO_PROCESS, syscall(SYS_gettid), 7);
        } else if (!strcmp(q.path, "/slow")) {
            sleep(3);
        } else if (!strcmp(q.path, "/bulk")) {
            sleep(1);
        }
        burn(millis * 500);
        if (reply(c, 200, "done", 4, q.close) || q.close)
            break;
    }
    close(c->fd);
    free(c);
    return 0;
}

static void work(int listener)
{
    for (;;) {
        int fd = accept(listener, 0, 0), on = 1;
        struct connection *c = calloc(1, sizeof *c);
        if (fd < 0 || !c)
            exit(1);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c->fd = fd;
        handle(c);
    }
}

int main(void)
{
    const char *workers = getenv("WORKERS"), *given = getenv("MILLIS");
    if (given)
        millis = atol(given);
    if (!workers)
        serve(handle);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    signal(SIGPIPE, SIG_IGN);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024) ||
        getsockname(listener, (void *)&address, &length)) {
        perror("listen");
        exit(1);
    }
    for (int i = atoi(workers); i > 0; i--)
        if (!fork())
            work(listener);
    printf("PORT %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;)
        pause();
}
