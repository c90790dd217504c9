/* An HTTP server that knows what its handlers cost. /light, /medium and /heavy use 1, 5 and 20 ms of CPU, /alpha and
 * /beta 7 and 3 ms in a function of their own. /mixed uses 3 ms; asked for as /mixed?slow it uses 300 ms in another function
 * and sleeps 100 ms. /set/medium/7500 makes /medium use 7.5 ms from then
 * on. /truth answers what RUSAGE_THREAD said inside the handlers and what
 * the thread used around them, from the call that read the request to the end of the one that sent the reply. */
#include "http.h"

static struct route {
    const char *path;
    long micros;
    long count;
    long long handler, whole;
} routes[] = {
    {.path = "/light", .micros = 1000}, {.path = "/medium", .micros = 5000}, {.path = "/heavy", .micros = 20000},
    {.path = "/alpha", .micros = 7000}, {.path = "/beta", .micros = 3000},
    {.path = "/mixed", .micros = 3000},
};
enum { SLOW_MICROS = 300000, SLEEP_MICROS = 100000 };
enum { ROUTES = sizeof routes / sizeof *routes };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long sink;

static long long rusage(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000LL +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000LL;
}

/* The clock is read rarely: what burns is this code and not the clock. The assembly keeps each call from becoming a
 * jump, so that each function keeps its frame. */
#define BURN(name)                                               \
    __attribute__((noinline)) static void name(long micros)      \
    {                                                            \
        long long until = thread_cpu() + micros * 1000LL;        \
        do {                                                     \
            for (unsigned long i = 0; i < 20000; i++)            \
                sink = sink * 6364136223846793005UL + i;         \
        } while (thread_cpu() < until);                          \
        __asm__ volatile("" ::: "memory");                       \
    }
BURN(burn_class)
BURN(burn_alpha)
BURN(burn_beta)
BURN(burn_mixed)
BURN(burn_slow)

__attribute__((noinline)) static void wait_slow(long micros)
{
    struct timespec time = {.tv_nsec = micros * 1000};
    nanosleep(&time, 0);
    __asm__ volatile("" ::: "memory");
}

static void truth(struct connection *c, int close)
{
    char body[4096];
    int n = snprintf(body, sizeof body, "{");
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ROUTES; i++)
        n += snprintf(body + n, sizeof body - n, "%s\"%s\":{\"count\":%ld,\"handler_ns\":%lld,\"whole_ns\":%lld}",
                      i ? "," : "", routes[i].path, routes[i].count, routes[i].handler, routes[i].whole);
    pthread_mutex_unlock(&lock);
    n += snprintf(body + n, sizeof body - n, "}");
    reply(c, 200, body, n, close);
}

static int set(const char *path)
{
    char name[64] = "/";
    long micros;
    if (sscanf(path, "/set/%62[a-z]/%ld", name + 1, &micros) != 2)
        return 0;
    for (int i = 0; i < ROUTES; i++)
        if (!strcmp(name, routes[i].path))
            __atomic_store_n(&routes[i].micros, micros, __ATOMIC_RELAXED);
    return 1;
}

static void *handle(void *argument)
{
    struct connection *c = argument;
    struct request q;
    while (read_request(c, &q) > 0) {
        struct route *route = 0;
        char *query = strchr(q.path, '?');
        int slow = query && !strcmp(query, "?slow");
        if (query)
            *query = 0;
        for (int i = 0; i < ROUTES; i++)
            if (!strcmp(q.path, routes[i].path))
                route = &routes[i];
        if (!route) {
            if (!strcmp(q.path, "/truth"))
                truth(c, q.close);
            else if (set(q.path))
                reply(c, 200, "set\n", 4, q.close);
            else
                reply(c, 404, "no\n", 3, q.close);
        } else {
            long long before = rusage();
            long micros = __atomic_load_n(&route->micros, __ATOMIC_RELAXED);
            if (route->path[1] == 'a')
                burn_alpha(micros);
            else if (route->path[1] == 'b')
                burn_beta(micros);
            else if (!strcmp(route->path, "/mixed") && slow) {
                burn_slow(SLOW_MICROS);
                wait_slow(SLEEP_MICROS);
            } else if (!strcmp(route->path, "/mixed"))
                burn_mixed(micros);
            else
                burn_class(micros);
            long long handler = rusage() - before;
            reply(c, 200, "done\n", 5, q.close);
            long long whole = thread_cpu() - q.cpu_before_read;
            pthread_mutex_lock(&lock);
            route->count++;
            route->handler += handler;
            route->whole += whole;
            pthread_mutex_unlock(&lock);
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
    serve(handle);
}
