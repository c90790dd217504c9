/* Very many connections. `hoard serve` serves on a port of 127.0.0.1 with one thread and prints PORT n; it answers with
 * the path. `hoard open COUNT NAME PORT` opens COUNT connections, prints OPENED n and holds them; at each SIGUSR1 it
 * asks for /NAME/cI on every one of them, in turn, and prints ASKED n FAILED m. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void raise_limit(void)
{
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

static void serve(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int on = 1, epoll = epoll_create1(EPOLL_CLOEXEC);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    must(epoll >= 0, "epoll");
    must(bind(listener, (void *)&address, length) == 0 && listen(listener, 4096) == 0, "listen");
    must(getsockname(listener, (void *)&address, &length) == 0, "getsockname");
    printf("PORT %d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event events[256], first = {.events = EPOLLIN, .data.fd = listener};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &first) == 0, "epoll_ctl");
    for (;;) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int c;
                while ((c = accept4(fd, 0, 0, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                    struct epoll_event event = {.events = EPOLLIN, .data.fd = c};
                    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c, &event) == 0, "epoll_ctl");
                }
                continue;
            }
            /* Requests here are small and come alone. */
            char request[4096], path[2048], reply[4096];
            ssize_t got = recv(fd, request, sizeof request - 1, 0);
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN)
                    close(fd);
                continue;
            }
            request[got] = 0;
            if (sscanf(request, "%*15s %2047s HTTP/1.", path) != 1) {
                close(fd);
                continue;
            }
            int size = snprintf(reply, sizeof reply, "HTTP/1.1 200 x\r\nContent-Length: %zu\r\n\r\n%s", strlen(path), path);
            if (send(fd, reply, size, MSG_NOSIGNAL) != size)
                close(fd);
        }
    }
}

static int ask(int fd, const char *name, long number)
{
    char text[8192];
    int length = snprintf(text, sizeof text, "GET /%s/c%ld HTTP/1.1\r\nHost: hoard\r\n\r\n", name, number);
    if (send(fd, text, length, MSG_NOSIGNAL) != length)
        return 0;
    ssize_t got = recv(fd, text, sizeof text - 1, 0);
    if (got <= 0)
        return 0;
    text[got] = 0;
    return strncmp(text, "HTTP/1.1 200", 12) == 0;
}

int main(int argc, char **argv)
{
    raise_limit();
    if (argc == 2 && !strcmp(argv[1], "serve"))
        serve();
    if (argc != 5)
        return 2;
    long count = atol(argv[2]);
    int on = 1, caught;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    sigprocmask(SIG_BLOCK, &wanted, 0);
    int *fds = calloc(count, sizeof *fds);
    must(fds != 0, "memory");
    for (long i = 0; i < count; i++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[4]))};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        must(fds[i] >= 0, "socket");
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        must(connect(fds[i], (void *)&to, sizeof to) == 0, "connect");
    }
    printf("OPENED %ld\n", count);
    fflush(stdout);
    for (int turn = 0; sigwait(&wanted, &caught) == 0; turn++) {
        long failed = 0;
        for (long i = 0; i < count; i++)
            failed += !ask(fds[i], argv[3], i);
        printf("ASKED%d %ld FAILED %ld\n", turn, count, failed);
        fflush(stdout);
    }
    return 1;
}
