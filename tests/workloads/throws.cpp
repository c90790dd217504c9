// An HTTP server whose handlers throw, in a thread for each connection: the path says what, and what becomes of it.
// /abort throws where nothing catches; what is answered with 200 was handled.
#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace shop {
struct Timeout : std::exception {};
struct Dropped {};
template <class T, class U> struct Failed {
    T what;
};
// Longer than what the kernel side reads at once, and than what it reads at all.
struct AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesOfOnePart {};
struct AnExceptionWithANameThatIsLongerThanBothPartsThatTheKernelSideReadsWhichIsAHundredAndTwentySixBytesAndSoHasToBeReadOfTheProcessItself {};
} // namespace shop

namespace {
struct Local {};
} // namespace

// The status of the answer; 0: none, the connection is closed.
__attribute__((noinline)) static int handle(const std::string &path)
{
    auto is = [&](const char *route) { return path.rfind(route, 0) == 0; };
    if (is("/timeout/"))
        throw shop::Timeout();
    if (is("/runtime/"))
        throw std::runtime_error("a secret");
    if (is("/local/"))
        throw Local();
    if (is("/int/"))
        throw 42;
    if (is("/text/"))
        throw "a secret";
    if (is("/template/"))
        throw shop::Failed<std::vector<int>, unsigned long>();
    if (is("/long/"))
        throw shop::AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesOfOnePart();
    if (is("/longer/"))
        throw shop::AnExceptionWithANameThatIsLongerThanBothPartsThatTheKernelSideReadsWhichIsAHundredAndTwentySixBytesAndSoHasToBeReadOfTheProcessItself();
    if (is("/drop/"))
        throw shop::Dropped();
    if (is("/handled/")) {
        try {
            throw shop::Timeout();
        } catch (const std::exception &) {
            return 200;
        }
    }
    if (is("/two/")) {
        try {
            throw shop::Timeout();
        } catch (const std::exception &) {
        }
        throw std::out_of_range("a secret");
    }
    return is("/status/") ? 500 : 200;
}

static int answer(const std::string &path)
{
    if (path.rfind("/abort/", 0) == 0)
        handle("/runtime/");
    try {
        return handle(path);
    } catch (const shop::Dropped &) {
        return 0;
    } catch (...) {
        return 500;
    }
}

static void serve(int fd)
{
    std::string have;
    char buffer[4096];
    for (;;) {
        size_t end;
        while ((end = have.find("\r\n\r\n")) == std::string::npos) {
            ssize_t n = recv(fd, buffer, sizeof buffer, 0);
            if (n <= 0) {
                close(fd);
                return;
            }
            have.append(buffer, n);
        }
        size_t from = have.find(' ') + 1;
        std::string path = have.substr(from, have.find(' ', from) - from);
        have.erase(0, end + 4);
        int status = answer(path);
        if (!status) {
            close(fd);
            return;
        }
        int n = snprintf(buffer, sizeof buffer, "HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\nok", status);
        send(fd, buffer, n, MSG_NOSIGNAL);
    }
}

int main()
{
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) || listen(listener, 1024) ||
        getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length)) {
        perror("listen");
        return 1;
    }
    printf("PORT %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, nullptr, nullptr);
        if (fd >= 0)
            std::thread(serve, fd).detach();
    }
}
