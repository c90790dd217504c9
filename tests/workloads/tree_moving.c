/* A server whose threads share all its connections, as Asio's do: one reads a request, another makes its call, a third answers.
 * GET /MODE/ID calls /b/ID/k0/dT of the upstream after a nap of up to 5 ms, through which no thread sleeps. */
#include "http.h"
#include <sys/epoll.h>
#include <sys/timerfd.h>

static int poll_fd, upstream_port;

struct exchange;

/* What whichever thread is free does once `fd` can be read. */
struct step {
    int fd;
    void (*take)(struct exchange *);
    struct exchange *of;
};

struct exchange {
    struct connection *client;
    struct step asked, due, answered;
    char ident[64];
};

static void await(struct step *step)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = step};
    if (epoll_ctl(poll_fd, EPOLL_CTL_MOD, step->fd, &event) && epoll_ctl(poll_fd, EPOLL_CTL_ADD, step->fd, &event)) {
        perror("epoll_ctl");
        exit(1);
    }
}

static void end(struct exchange *e)
{
    close(e->asked.fd);
    close(e->due.fd);
    close(e->answered.fd);
    free(e->client);
    free(e);
}

static void asked(struct exchange *e)
{
    struct request q;
    struct itimerspec nap = {.it_value.tv_nsec = 1 + random() % 5000000};
    if (read_request(e->client, &q) <= 0)
        return end(e);
    snprintf(e->ident, sizeof e->ident, "%s", strrchr(q.path, '/') + 1);
    timerfd_settime(e->due.fd, 0, &nap, 0);
    await(&e->due);
}

static void due(struct exchange *e)
{
    char call[256];
    long long times;
    if (read(e->due.fd, &times, sizeof times) != sizeof times)
        return end(e);
    int n = snprintf(call, sizeof call, "GET /b/%s/k0/d%ld HTTP/1.1\r\nHost: b\r\n\r\n", e->ident, 500 + random() % 6000);
    if (send_all(e->answered.fd, call, n))
        return end(e);
    await(&e->answered);
}

static void answered(struct exchange *e)
{
    char sink[4096];
    if (recv(e->answered.fd, sink, sizeof sink, 0) <= 0 || reply(e->client, 200, "ok\n", 3, 0))
        return end(e);
    await(&e->asked);
}

/* A connection, with one of its own to the upstream, for all threads. */
static void *share(void *argument)
{
    struct sockaddr_in upstream = {.sin_family = AF_INET, .sin_port = htons(upstream_port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct exchange *e = calloc(1, sizeof *e);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!e || connect(fd, (void *)&upstream, sizeof upstream)) {
        perror("upstream");
        exit(1);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    e->client = argument;
    e->asked = (struct step){e->client->fd, asked, e};
    e->due = (struct step){timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), due, e};
    e->answered = (struct step){fd, answered, e};
    await(&e->asked);
    return 0;
}

static void *work(void *unused)
{
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(poll_fd, &event, 1, -1) == 1) {
            struct step *step = event.data.ptr;
            step->take(step->of);
        }
    }
    return unused;
}

int main(void)
{
    int threads = atoi(getenv("THREADS"));
    upstream_port = atoi(getenv("UPSTREAM_PORT"));
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    while (threads--) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, 0))
            exit(1);
    }
    serve(share);
}
