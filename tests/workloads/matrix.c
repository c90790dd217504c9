/* HTTP exchanges carried by every pair of socket operations: matrix tcp4|tcp6|unix [SOCKET-PATH].
 *
 * A server process and its client do one exchange on a connection of its own for each pair: both read with the first
 * operation and send with the second. Operations that send pages (sendfile, splice) carry bodies, heads go by write;
 * where a body is received by splice, its head is read byte by byte. The client checks every reply and prints
 *   EXCHANGE path request-body-bytes reply-body-bytes
 * for each that was right. io_uring is used by its system calls. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ, READV, RECVFROM, RECVMSG, RECVMMSG, SPLICE_OUT, URING_READ, URING_RECV, URING_RECVMSG, URING_RECV_ASYNC, RX };
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static const char *rx_names[] = {"read", "readv", "recvfrom", "recvmsg", "recvmmsg", "splice",
                                 "uring-read", "uring-recv", "uring-recvmsg", "uring-recv-async"};
enum { WRITE, WRITEV, SENDTO, SENDMSG, SENDMMSG, SENDFILE, SPLICE_IN, ZEROCOPY,
       URING_WRITE, URING_SEND, URING_SENDMSG, URING_SEND_ASYNC, URING_SEND_ZC, TX };
static const char *tx_names[] = {"write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice", "zerocopy",
                                 "uring-write", "uring-send", "uring-sendmsg", "uring-send-async", "uring-send-zc"};

static int is_unix, is_mptcp, pipes[2], file;
static struct {
    int fd;
    uint32_t *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring = {.fd = -1};

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static void ring_open(void)
{
    struct io_uring_params p = {0};
    ring.fd = syscall(SYS_io_uring_setup, 8, &p);
    if (ring.fd < 0) {
        printf("NO-URING %s\n", strerror(errno));
        return;
    }
    size_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
    size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *s = mmap(0, sq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    char *c = mmap(0, cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_CQ_RING);
    ring.sqes = mmap(0, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                     ring.fd, IORING_OFF_SQES);
    if (s == MAP_FAILED || c == MAP_FAILED || ring.sqes == MAP_FAILED)
        fail("mmap of the ring");
    ring.sq_tail = (void *)(s + p.sq_off.tail);
    ring.sq_mask = (void *)(s + p.sq_off.ring_mask);
    ring.sq_array = (void *)(s + p.sq_off.array);
    ring.cq_head = (void *)(c + p.cq_off.head);
    ring.cq_tail = (void *)(c + p.cq_off.tail);
    ring.cq_mask = (void *)(c + p.cq_off.ring_mask);
    ring.cqes = (void *)(c + p.cq_off.cqes);
}

/* Submits one operation and waits for its end. */
static ssize_t uring(int opcode, int fd, const void *address, unsigned length, int flags)
{
    uint32_t tail = *ring.sq_tail, at = tail & *ring.sq_mask;
    struct io_uring_sqe *sqe = &ring.sqes[at];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->addr = (uintptr_t)address;
    sqe->len = length;
    sqe->flags = flags;
    ring.sq_array[at] = at;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring.fd, 1, 0, 0, 0, 0) != 1)
        return -1;
    int result = 0;
    /* A zero-copy send completes twice: done, and buffer free. */
    for (int left = 1; left > 0; left--) {
        while (*ring.cq_head == __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE))
            if (syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0 && errno != EINTR)
                return -1;
        struct io_uring_cqe *cqe = &ring.cqes[*ring.cq_head & *ring.cq_mask];
        if (!(cqe->flags & IORING_CQE_F_NOTIF))
            result = cqe->res;
        if (cqe->flags & IORING_CQE_F_MORE)
            left++;
        __atomic_store_n(ring.cq_head, *ring.cq_head + 1, __ATOMIC_RELEASE);
    }
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
}

static ssize_t receive(int op, int fd, char *buffer, size_t n)
{
    /* Cut inside the request line, so that a head spans two buffers. */
    struct iovec v[2] = {{buffer, 7}, {buffer + 7, n - 7}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    struct mmsghdr mm = {.msg_hdr = m};
    switch (op) {
    case READ: return read(fd, buffer, n);
    case READV: return readv(fd, v, 2);
    case RECVFROM: return recvfrom(fd, buffer, n, 0, 0, 0);
    case RECVMSG: return recvmsg(fd, &m, 0);
    case RECVMMSG: return recvmmsg(fd, &mm, 1, 0, 0) == 1 ? (ssize_t)mm.msg_len : -1;
    case URING_READ: return uring(IORING_OP_READ, fd, buffer, n, 0);
    case URING_RECV: return uring(IORING_OP_RECV, fd, buffer, n, 0);
    case URING_RECVMSG: return uring(IORING_OP_RECVMSG, fd, &m, 1, 0);
    case URING_RECV_ASYNC: return uring(IORING_OP_RECV, fd, buffer, n, IOSQE_ASYNC);
    }
    errno = EINVAL;
    return -1;
}

static ssize_t transmit(int op, int fd, char *bytes, size_t n)
{
    size_t first = n > 7 ? 7 : n;
    struct iovec v[2] = {{bytes, first}, {bytes + first, n - first}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    struct mmsghdr mm = {.msg_hdr = m};
    int on = 1;
    switch (op) {
    case WRITE: return write(fd, bytes, n);
    case WRITEV: return writev(fd, v, 2);
    case SENDTO: return sendto(fd, bytes, n, MSG_NOSIGNAL, 0, 0);
    case SENDMSG: return sendmsg(fd, &m, 0);
    case SENDMMSG: return sendmmsg(fd, &mm, 1, 0) == 1 ? (ssize_t)mm.msg_len : -1;
    case ZEROCOPY: setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on); return send(fd, bytes, n, MSG_ZEROCOPY);
    case URING_WRITE: return uring(IORING_OP_WRITE, fd, bytes, n, 0);
    case URING_SEND: return uring(IORING_OP_SEND, fd, bytes, n, 0);
    case URING_SENDMSG: return uring(IORING_OP_SENDMSG, fd, &m, 1, 0);
    case URING_SEND_ASYNC: return uring(IORING_OP_SEND, fd, bytes, n, IOSQE_ASYNC);
    case URING_SEND_ZC: return uring(IORING_OP_SEND_ZC, fd, bytes, n, 0);
    case SENDFILE: {
        off_t at = 0;
        if (pwrite(file, bytes, n, 0) != (ssize_t)n)
            return -1;
        return sendfile(fd, file, &at, n);
    }
    case SPLICE_IN: {
        size_t part = n < 32768 ? n : 32768, sent = 0;
        if (write(pipes[1], bytes, part) != (ssize_t)part)
            return -1;
        while (sent < part) {
            ssize_t k = splice(pipes[0], 0, fd, 0, part - sent, 0);
            if (k <= 0)
                return -1;
            sent += k;
        }
        return part;
    }
    }
    errno = EINVAL;
    return -1;
}

static void transmit_all(int op, int fd, char *bytes, size_t n)
{
    while (n) {
        ssize_t k = transmit(op, fd, bytes, n);
        if (k <= 0)
            fail(tx_names[op]);
        bytes += k;
        n -= k;
    }
}

static void message(int op, int fd, char *bytes, size_t head, size_t body)
{
    if (op == SENDFILE || op == SPLICE_IN) {
        transmit_all(WRITE, fd, bytes, head);
        transmit_all(op, fd, bytes + head, body);
    } else {
        transmit_all(op, fd, bytes, head + body);
    }
}

/* Reads one message; returns the length of its body. */
static size_t take(int op, int fd, char *buffer, size_t size)
{
    size_t have = 0, head = 0, body = 0;
    for (;;) {
        ssize_t n = op == SPLICE_OUT ? recv(fd, buffer + have, 1, 0) : receive(op, fd, buffer + have, size - have - 1);
        if (n <= 0)
            fail(rx_names[op]);
        have += n;
        buffer[have] = 0;
        char *end = head ? 0 : strstr(buffer, "\r\n\r\n");
        if (end) {
            head = end + 4 - buffer;
            char *length = strcasestr(buffer, "content-length: ");
            body = length ? strtoul(length + 16, 0, 10) : 0;
        }
        if (op == SPLICE_OUT && head)
            break;
        if (head && have >= head + body)
            return have == head + body ? body : (size_t)-1;
    }
    for (size_t left = body; left;) {
        char sink[65536];
        ssize_t n = splice(fd, 0, pipes[1], 0, left < 32768 ? left : 32768, 0);
        if (n <= 0)
            fail("splice");
        left -= n;
        while (n > 0) {
            ssize_t k = read(pipes[0], sink, n < (ssize_t)sizeof sink ? n : (ssize_t)sizeof sink);
            if (k <= 0)
                fail("pipe");
            n -= k;
        }
    }
    return body;
}

static int wanted(int rx, int tx)
{
    int by_ring = rx >= URING_READ || tx >= URING_WRITE;
    /* UNIX sockets have no zero-copy; what is spliced out of them no tracepoint reports. */
    int not_unix = rx == SPLICE_OUT || tx == ZEROCOPY || tx == URING_SEND_ZC;
    /* Nor does MPTCP have zero-copy, or a hook for what is spliced out of it. */
    return !(by_ring && ring.fd < 0) && !((is_unix || is_mptcp) && not_unix);
}

static size_t request_size(int at) { return 100 + at; }
static size_t reply_size(int at) { return at % 5 ? 1000 + 3 * at : 150000 + at; }

int main(int argc, char **argv)
{
    static char buffer[400000], out[400000];
    const char *family = argc > 1 ? argv[1] : "tcp4";
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr *address = (void *)&a4;
    socklen_t length = sizeof a4;
    is_unix = !strcmp(family, "unix");
    /* "mptcp": both ends; "mptcp_client": the other end falls back to TCP. */
    is_mptcp = !strncmp(family, "mptcp", 5);
    int protocol = is_mptcp ? IPPROTO_MPTCP : 0, listens_by = strcmp(family, "mptcp") ? 0 : protocol;
    if (is_unix) {
        snprintf(un.sun_path, sizeof un.sun_path, "%s", argc > 2 ? argv[2] : "matrix.sock");
        address = (void *)&un;
        length = sizeof un;
    } else if (!strcmp(family, "tcp6")) {
        address = (void *)&a6;
        length = sizeof a6;
    }
    int listener = socket(address->sa_family, SOCK_STREAM, listens_by);
    if (bind(listener, address, length) || listen(listener, 8) || getsockname(listener, address, &length))
        fail("listen");
    file = memfd_create("body", 0);
    if (pipe(pipes))
        fail("pipe");
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, 0, _IOLBF, 0);
    pid_t parent = getpid(), server = fork();
    if (server == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    /* Each end has pipe, file and ring of its own. */
    if (server == 0) {
        file = memfd_create("body", 0);
        if (pipe(pipes))
            fail("pipe");
    }
    ring_open();
    int at = 0;
    for (int rx = 0; rx < RX; rx++) {
        for (int tx = 0; tx < TX; tx++) {
            if (!wanted(rx, tx))
                continue;
            at++;
            char path[128];
            snprintf(path, sizeof path, "/%s/%s/%s", family, rx_names[rx], tx_names[tx]);
            if (server == 0) {
                int fd = accept(listener, 0, 0);
                if (take(rx, fd, buffer, sizeof buffer) != request_size(at))
                    fail("request body");
                int head = sprintf(out, "HTTP/1.1 200 OK\r\nServer: matrix\r\nContent-Length: %zu\r\n\r\n", reply_size(at));
                memset(out + head, 'r', reply_size(at));
                message(tx, fd, out, head, reply_size(at));
                /* The client closes first. */
                if (read(fd, buffer, 1) != 0)
                    fail("end");
                close(fd);
            } else {
                int fd = socket(address->sa_family, SOCK_STREAM, protocol);
                if (connect(fd, address, length))
                    fail("connect");
                int head = sprintf(out, "POST %s HTTP/1.1\r\nHost: matrix\r\nContent-Length: %zu\r\n\r\n", path, request_size(at));
                memset(out + head, 'q', request_size(at));
                message(tx, fd, out, head, request_size(at));
                if (take(rx, fd, buffer, sizeof buffer) != reply_size(at))
                    fail("reply body");
                close(fd);
                printf("EXCHANGE %s %zu %zu\n", path, request_size(at), reply_size(at));
            }
        }
    }
    if (server == 0)
        _exit(0);
    int status = 0;
    waitpid(server, &status, 0);
    return status != 0;
}
