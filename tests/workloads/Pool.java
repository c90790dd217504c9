import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A server whose requests each wait for a job of a pool of two threads: GET /w/ID calls /b/ID/k0/dT of the upstream there. Prints when
 * the request gave the job, when it had given it, and when the job began: CLOCK_MONOTONIC, nanoseconds.
 */
final class Pool {
    private static final int UPSTREAM = Integer.parseInt(System.getenv("UPSTREAM_PORT"));
    private static final ExecutorService JOBS = Executors.newFixedThreadPool(2);
    private static final ThreadLocal<Socket> OWN = new ThreadLocal<>();

    private Pool() {
    }

    /** One call, by a connection of this thread; the reply is one read. */
    private static void ask(String id) throws IOException {
        Socket socket = OWN.get();
        if (socket == null) {
            socket = new Socket("127.0.0.1", UPSTREAM);
            socket.setTcpNoDelay(true);
            OWN.set(socket);
        }
        int delay = ThreadLocalRandom.current().nextInt(2000, 8000);
        String request = "GET /b/" + id + "/k0/d" + delay + " HTTP/1.1\r\nHost: upstream\r\n\r\n";
        socket.getOutputStream().write(request.getBytes());
        if (socket.getInputStream().read(new byte[4096]) <= 0) {
            throw new IOException("the upstream closed");
        }
    }

    private static void handle(HttpExchange exchange) throws IOException {
        String id = exchange.getRequestURI().getPath().substring("/w/".length());
        try {
            long before = System.nanoTime();
            var job = JOBS.submit(() -> {
                long began = System.nanoTime();
                ask(id);
                return began;
            });
            long after = System.nanoTime();
            long began = job.get();
            System.out.println("JOB /w/" + id + " " + before + " " + after + " " + began);
        } catch (Exception error) {
            error.printStackTrace();
        }
        exchange.sendResponseHeaders(204, -1);
        exchange.close();
    }

    public static void main(String[] arguments) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 1024);
        server.createContext("/w/", Pool::handle);
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
        System.out.println("PORT " + server.getAddress().getPort());
    }
}
