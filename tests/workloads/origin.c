/* An upstream: GET /.../d1500 waits 1500 microseconds before it answers with the path; anything that is not HTTP gets
 * a 400. */
#include "http.h"

static void *handle(void *argument)
{
    struct connection *c = argument;
    struct request q;
    int is;
    while ((is = read_request(c, &q)) > 0) {
        const char *last = strrchr(q.path, '/');
        if (last && last[1] == 'd')
            usleep(atoi(last + 2));
        if (reply(c, 200, q.path, strcmp(q.method, "HEAD") ? strlen(q.path) : 0, q.close) || q.close)
            break;
    }
    if (is < 0)
        reply(c, 400, "bad\n", 4, 1);
    close(c->fd);
    free(c);
    return 0;
}

int main(void)
{
    serve(handle);
}
