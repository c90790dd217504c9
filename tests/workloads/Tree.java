// com.sun.net.httpserver with a pool of threads, and other pools behind it: GET /MODE/ID calls /b/ID/kN/dT of the upstream.
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URL;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

public class Tree {
    static final String UPSTREAM = "http://127.0.0.1:" + System.getenv("UPSTREAM_PORT") + "/b/";
    static final ExecutorService WIDE = Executors.newFixedThreadPool(16);
    static final ThreadPoolExecutor BOUNDED = new ThreadPoolExecutor(8, 8, 1, TimeUnit.MINUTES,
            new ArrayBlockingQueue<>(4), Tree::waitForRoom);
    static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    static final byte[] OK = "ok\n".getBytes(StandardCharsets.US_ASCII);

    static void waitForRoom(Runnable job, ThreadPoolExecutor pool) {
        try {
            pool.getQueue().put(job);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static String path(String id, int number) {
        return UPSTREAM + id + "/k" + number + "/d" + ThreadLocalRandom.current().nextInt(500, 6500);
    }

    static Void ask(String id, int number) throws IOException {
        try (InputStream in = new URL(path(id, number)).openConnection().getInputStream()) {
            in.readAllBytes();
        }
        return null;
    }

    static void nap(int micros) throws InterruptedException {
        TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(micros));
    }

    static Callable<Void> later(String id, int number) {
        return () -> {
            nap(2000);
            return ask(id, number);
        };
    }

    static void handle(String mode, String id, HttpExchange exchange) throws Exception {
        switch (mode) {
            case "same" -> {
                nap(8000);
                ask(id, 0);
                nap(4000);
                ask(id, 1);
            }
            case "pool" -> WIDE.submit(later(id, 0)).get();
            case "once" -> WIDE.submit(() -> ask(id, 0)).get();
            case "turn" -> WIDE.submit(() -> {
                later(id, 0).call();
                return later(id, 1).call();
            }).get();
            case "bounded" -> BOUNDED.submit(later(id, 0)).get();
            case "two" -> {
                Future<Void> first = WIDE.submit(later(id, 0));
                Future<Void> second = WIDE.submit(later(id, 1));
                first.get();
                second.get();
            }
            case "join" -> CompletableFuture.supplyAsync(() -> asked(id)).join();
            case "client" -> CLIENT.send(HttpRequest.newBuilder(URI.create(path(id, 0))).build(),
                    HttpResponse.BodyHandlers.ofString());
            case "forgotten" -> {
                WIDE.submit(later(id, 0));
                if (ThreadLocalRandom.current().nextBoolean()) {
                    WIDE.submit(() -> ask(id, 1)).get();
                }
            }
            case "hole" -> {
                if (ThreadLocalRandom.current().nextBoolean()) {
                    WIDE.submit(() -> ask(id, 0));
                } else {
                    WIDE.submit(() -> {
                        nap(2000);
                        return null;
                    }).get();
                }
            }
            case "async" -> {
                CompletableFuture.supplyAsync(() -> asked(id), WIDE).thenAccept(done -> answer(exchange));
                return;
            }
            default -> throw new IllegalArgumentException(mode);
        }
        answer(exchange);
    }

    static Void asked(String id) {
        try {
            return later(id, 0).call();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    static void answer(HttpExchange exchange) {
        try {
            exchange.sendResponseHeaders(200, OK.length);
            exchange.getResponseBody().write(OK);
            exchange.close();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 1024);
        server.setExecutor(Executors.newFixedThreadPool(32));
        server.createContext("/", exchange -> {
            String[] parts = exchange.getRequestURI().getPath().split("/");
            try {
                handle(parts[1], parts[2], exchange);
            } catch (Exception e) {
                e.printStackTrace();
                exchange.close();
            }
        });
        server.start();
        System.out.println("PORT " + server.getAddress().getPort());
    }
}
