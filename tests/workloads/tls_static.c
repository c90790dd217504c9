/* An HTTP/1.1 server over TLS with OpenSSL inside the program. A thread a connection; paths that begin with /e/ are
 * answered 500. Usage: tls_static CERTIFICATE KEY. Says its port.
 */
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static SSL_CTX *context;

/* Reads one request's head; whether there was one. */
static int request(SSL *ssl, char *head, int size) {
    int have = 0;
    while (have < size - 1) {
        int got = SSL_read(ssl, head + have, size - 1 - have);
        if (got <= 0)
            return 0;
        have += got;
        head[have] = 0;
        if (strstr(head, "\r\n\r\n"))
            return 1;
    }
    return 0;
}

static void *serve(void *argument) {
    int fd = (int)(long)argument;
    SSL *ssl = SSL_new(context);
    char head[8192];
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1) {
        while (request(ssl, head, sizeof head)) {
            const char *reply = strncmp(head, "GET /e/", 7) == 0
                                    ? "HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nno\n"
                                    : "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nyes\n";
            if (SSL_write(ssl, reply, (int)strlen(reply)) <= 0)
                break;
        }
        SSL_shutdown(ssl);
    }
    SSL_free(ssl);
    close(fd);
    return NULL;
}

int main(int count, char **arguments) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    signal(SIGPIPE, SIG_IGN);
    context = SSL_CTX_new(TLS_server_method());
    if (count != 3 || !context || SSL_CTX_use_certificate_chain_file(context, arguments[1]) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, arguments[2], SSL_FILETYPE_PEM) != 1)
        return 2;
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &size) != 0)
        return 3;
    printf("PORT %d\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;
        if (fd < 0 || pthread_create(&thread, NULL, serve, (void *)(long)fd) != 0)
            return 4;
        pthread_detach(thread);
    }
}
