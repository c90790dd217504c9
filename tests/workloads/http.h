/* What the C workloads share: a thread for each connection, heads read whole, bodies skipped. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct connection {
    int fd;
    /* Bytes read and not yet used. */
    size_t have;
    char buffer[65536];
};

struct request {
    char method[16];
    char path[4096];
    long body;
    int close;
    /* CPU of this thread when the read that brought the first bytes of the request was called. */
    long long cpu_before_read;
};

static long long thread_cpu(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long header_number(const char *head, const char *name)
{
    const char *at = strcasestr(head, name);
    return at ? atol(at + strlen(name)) : 0;
}

/* 1: a request, its body skipped; 0: the client is gone; -1: not HTTP. */
static int read_request(struct connection *c, struct request *q)
{
    char *end;
    q->cpu_before_read = thread_cpu();
    for (;;) {
        c->buffer[c->have] = 0;
        if ((end = strstr(c->buffer, "\r\n\r\n")))
            break;
        if (strlen(c->buffer) < c->have || c->have + 1 >= sizeof c->buffer)
            return -1;
        ssize_t n = recv(c->fd, c->buffer + c->have, sizeof c->buffer - 1 - c->have, 0);
        if (n <= 0)
            return 0;
        c->have += n;
    }
    end[2] = 0;
    if (sscanf(c->buffer, "%15s %4095s HTTP/1.", q->method, q->path) != 2)
        return -1;
    q->body = header_number(c->buffer, "\r\ncontent-length:");
    q->close = strcasestr(c->buffer, "\r\nconnection: close") || strstr(c->buffer, " HTTP/1.0\r\n");
    if (q->body < 0)
        return -1;
    size_t head = end + 4 - c->buffer;
    long left = q->body;
    size_t rest = c->have - head;
    size_t taken = rest < (size_t)left ? rest : (size_t)left;
    memmove(c->buffer, c->buffer + head + taken, rest - taken);
    c->have = rest - taken;
    left -= taken;
    while (left > 0) {
        char sink[16384];
        ssize_t n = recv(c->fd, sink, left < (long)sizeof sink ? left : (long)sizeof sink, 0);
        if (n <= 0)
            return 0;
        left -= n;
    }
    return 1;
}

static int send_all(int fd, const char *bytes, size_t length)
{
    while (length) {
        ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        bytes += n;
        length -= n;
    }
    return 0;
}

static int reply(struct connection *c, int status, const char *body, size_t length, int close)
{
    char out[65536];
    int n = snprintf(out, sizeof out, "HTTP/1.1 %d x\r\nContent-Length: %zu\r\n%s\r\n", status, length,
                     close ? "Connection: close\r\n" : "");
    if (n + length > sizeof out)
        return -1;
    memcpy(out + n, body, length);
    return send_all(c->fd, out, n + length);
}

/* A listening socket at a path. */
static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) {
        perror(path);
        exit(1);
    }
    return listener;
}

/* Serves on a free port of 127.0.0.1, which is printed, or on the UNIX socket LISTEN_UNIX; never returns. */
static void serve(void *(*handler)(void *))
{
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const char *path = getenv("LISTEN_UNIX");
    int on = 1, listener = path ? listen_at(path) : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!path) {
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024) ||
            getsockname(listener, (void *)&address, &length)) {
            perror("listen");
            exit(1);
        }
    }
    printf("PORT %d\n", ntohs(address.sin_port));
    fflush(stdout);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 512 * 1024);
    for (;;) {
        int fd = accept(listener, 0, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        pthread_t thread;
        if (!c)
            exit(1);
        c->fd = fd;
        if (pthread_create(&thread, &attributes, handler, c)) {
            close(fd);
            free(c);
        }
    }
}
