/* An HTTP server whose handlers wait a known time, each in a function of its own: /sleep sleeps, /lock waits for a lock
 * that another thread holds, /read reads from a socket whose peer is slow, /mixed sleeps once for long and three times
 * shortly, /convoy waits for a lock that others like it hold, for long or shortly, /call asks this server for /sleep.
 * /truth answers how often, and how long by the clock, the waiting functions took; of /convoy, by which function the lock
 * was released before. */
#include "http.h"

enum { ROUTES = 6 };

static struct route {
    const char *path;
    void (*wait)(void);
    long count;
    long long nanos;
} routes[ROUTES];
static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* What /mixed took in either of its functions. */
static _Atomic long long long_nanos, short_nanos;
static int peers[2];
/* One at a time asks the slow peer. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static long long clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void nap(long micros)
{
    struct timespec time = {.tv_nsec = micros * 1000};
    nanosleep(&time, 0);
}

__attribute__((noinline)) static void wait_in_sleep(void)
{
    nap(8000);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void wait_for_lock(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void wait_for_peer(void)
{
    char byte = 1;
    if (write(peers[0], &byte, 1) != 1 || recv(peers[0], &byte, 1, 0) != 1)
        abort();
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void wait_long(void)
{
    long long before = clock_now();
    nap(2000);
    long_nanos += clock_now() - before;
}

__attribute__((noinline)) static void wait_short(void)
{
    long long before = clock_now();
    nap(500);
    short_nanos += clock_now() - before;
}

__attribute__((noinline)) static void wait_in_both(void)
{
    wait_long();
    for (int i = 0; i < 3; i++)
        wait_short();
}

/* This server's own port, once a request came. */
static in_port_t own_port;

__attribute__((noinline)) static void wait_for_call(void)
{
    static const char ask[] = "GET /sleep HTTP/1.1\r\nHost: own\r\n\r\n";
    static int fd = -1;
    static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;
    char answer[256];
    pthread_mutex_lock(&calling);
    if (fd < 0) {
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = own_port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (void *)&own, sizeof own))
            abort();
    }
    /* The answer is a single segment. */
    if (send_all(fd, ask, sizeof ask - 1) || recv(fd, answer, sizeof answer, 0) <= 0)
        abort();
    pthread_mutex_unlock(&calling);
}

static pthread_mutex_t convoy = PTHREAD_MUTEX_INITIALIZER;
/* Under that lock: whether it was held for long last; and waits that ended with either. */
static int was_long;
static long long after_long_nanos, after_short_nanos;

__attribute__((noinline)) static void hold_long(void)
{
    nap(4000);
    was_long = 1;
    pthread_mutex_unlock(&convoy);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void hold_shortly(void)
{
    nap(1000);
    was_long = 0;
    pthread_mutex_unlock(&convoy);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void wait_in_convoy(void)
{
    static int turn;
    long long before = clock_now();
    pthread_mutex_lock(&convoy);
    long long waited = clock_now() - before;
    /* Shorter ones are not reported. */
    if (waited > 200000)
        *(was_long ? &after_long_nanos : &after_short_nanos) += waited;
    if (turn++ % 3)
        hold_shortly();
    else
        hold_long();
    /* Long enough for the one that was woken: it must not find that this one has the lock again. */
    nap(500);
    __asm__ volatile("" ::: "memory");
}

/* Holds the lock nearly always. */
static void *hold(void *argument)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        nap(5000);
        pthread_mutex_unlock(&lock);
        /* Long enough for one that waits to take it. */
        nap(1000);
    }
    return argument;
}

/* Answers each byte late. */
static void *answer(void *argument)
{
    char byte;
    while (read(peers[1], &byte, 1) == 1) {
        nap(6000);
        if (write(peers[1], &byte, 1) != 1)
            break;
    }
    return argument;
}

static void truth(struct connection *c, int close)
{
    char body[4096];
    int n = snprintf(body, sizeof body, "{");
    pthread_mutex_lock(&books);
    for (int i = 0; i < ROUTES; i++)
        n += snprintf(body + n, sizeof body - n, "%s\"%s\":{\"count\":%ld,\"nanos\":%lld}", i ? "," : "", routes[i].path,
                      routes[i].count, routes[i].nanos);
    pthread_mutex_unlock(&books);
    n += snprintf(body + n, sizeof body - n, ",\"wait_long\":%lld,\"wait_short\":%lld", (long long)long_nanos,
                  (long long)short_nanos);
    pthread_mutex_lock(&convoy);
    n += snprintf(body + n, sizeof body - n, ",\"hold_long\":%lld,\"hold_shortly\":%lld}", after_long_nanos,
                  after_short_nanos);
    pthread_mutex_unlock(&convoy);
    reply(c, 200, body, n, close);
}

static void *handle(void *argument)
{
    struct connection *c = argument;
    struct request q;
    struct sockaddr_in own = {0};
    socklen_t length = sizeof own;
    getsockname(c->fd, (void *)&own, &length);
    own_port = own.sin_port;
    while (read_request(c, &q) > 0) {
        struct route *route = 0;
        for (int i = 0; i < ROUTES; i++)
            if (!strcmp(q.path, routes[i].path))
                route = &routes[i];
        if (!route) {
            if (!strcmp(q.path, "/truth"))
                truth(c, q.close);
            else
                reply(c, 404, "no\n", 3, q.close);
        } else {
            long long before = clock_now();
            if (route == &routes[2])
                pthread_mutex_lock(&asking);
            route->wait();
            long long took = clock_now() - before;
            if (route == &routes[2])
                pthread_mutex_unlock(&asking);
            reply(c, 200, "done\n", 5, q.close);
            pthread_mutex_lock(&books);
            route->count++;
            route->nanos += took;
            pthread_mutex_unlock(&books);
        }
        if (q.close)
            break;
    }
    close(c->fd);
    free(c);
    return 0;
}

int main(void)
{
    pthread_t thread;
    routes[0] = (struct route){.path = "/sleep", .wait = wait_in_sleep};
    routes[1] = (struct route){.path = "/lock", .wait = wait_for_lock};
    routes[2] = (struct route){.path = "/read", .wait = wait_for_peer};
    routes[5] = (struct route){.path = "/call", .wait = wait_for_call};
    routes[4] = (struct route){.path = "/convoy", .wait = wait_in_convoy};
    routes[3] = (struct route){.path = "/mixed", .wait = wait_in_both};
    /* A pair that is not traced as a call: datagrams. */
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, peers))
        return 1;
    pthread_create(&thread, 0, hold, 0);
    pthread_create(&thread, 0, answer, 0);
    serve(handle);
}
