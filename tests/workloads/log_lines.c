/* A server with a thread for each connection that logs requests in all the ways of C; every line has the request's path. With an
 * argument, lines go through one buffer that its threads share.
 *
 * log_lines FILE [shared] */
#include "http.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/uio.h>

static int log_file;
static FILE *shared;

/* Held for a whole line, as loggers do: the parts of two lines would be one line in the file, which belongs to no request. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

/* Without sleeping: after a reply, a thread that sleeps may have gone on to other work. */
static void lock_log(void)
{
    while (pthread_mutex_trylock(&log_lock))
        sched_yield();
}

static void part(const char *text)
{
    if (write(log_file, text, strlen(text)) < 0)
        perror("write");
}

static void line(const char *text)
{
    lock_log();
    part(text);
    pthread_mutex_unlock(&log_lock);
}

static void log_all(const char *path)
{
    char text[8192];
    if (shared) {
        fprintf(shared, "work for %s\n", path);
        return;
    }
    snprintf(text, sizeof text, "2026-11-30 INFO begins path=%s\n", path);
    line(text);
    /* A line in parts, by writev and by standard error. */
    struct iovec parts[] = {{"writev path=", 12}, {(char *)path, strlen(path)}, {"\n", 1}};
    lock_log();
    if (writev(log_file, parts, 3) < 0)
        perror("writev");
    part("in parts ");
    snprintf(text, sizeof text, "path=%s\n", path);
    part(text);
    pthread_mutex_unlock(&log_lock);
    fprintf(stderr, "stderr path=%s\n", path);
    /* A record of several lines. */
    snprintf(text, sizeof text, "2026-11-30 ERROR no stock path=%s\n  at take (shop.c:12) path=%s\nNoStock: path=%s\n", path, path, path);
    line(text);
    if (!strncmp(path, "/secret/", 8))
        line("Authorization: Bearer planted-token\npassword=planted-password\nGET /x?key=planted-query HTTP/1.1\n");
    if (!strncmp(path, "/long/", 6)) {
        size_t length = 1 << 20;
        char *bytes = malloc(length + 1);
        memset(bytes, 'x', length);
        memcpy(bytes, "long path=", 10);
        memcpy(bytes + 10, path, strlen(path));
        bytes[10 + strlen(path)] = ' ';
        bytes[length - 1] = '\n';
        bytes[length] = 0;
        line(bytes);
        free(bytes);
    }
}

static void *handle(void *argument)
{
    struct connection *c = argument;
    struct request q;
    while (read_request(c, &q) == 1) {
        log_all(q.path);
        usleep(500);
        int status = strncmp(q.path, "/fail/", 6) ? 200 : 500;
        if (reply(c, status, "ok\n", 3, q.close) || q.close)
            break;
        if (!shared) {
            char text[8192];
            snprintf(text, sizeof text, "access path=%s\n", q.path);
            line(text);
        }
    }
    close(c->fd);
    free(c);
    return 0;
}

/* A thread without a request. */
static void *background(void *unused)
{
    (void)unused;
    for (;;) {
        usleep(2000);
        if (!shared)
            line("background path=/none\n");
    }
    return 0;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    if (count < 2 || (log_file = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0) {
        perror("a log");
        return 1;
    }
    if (count > 2)
        shared = fdopen(log_file, "a");
    pthread_create(&thread, 0, background, 0);
    serve(handle);
}
