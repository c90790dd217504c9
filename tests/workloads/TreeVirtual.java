// A server with a virtual thread for each connection (Java 21 and later). GET /MODE/ID calls /b/ID/k0/dT and /b/ID/k1/dT of the upstream:
//   row: in turn, after sleeps; client: the same by java.net.http.HttpClient; scope: each by a virtual thread of its own;
//   pool: in turn, by a job of a pool of the system's threads.
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.net.URL;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;

public class TreeVirtual {
    static final String UPSTREAM = "http://127.0.0.1:" + System.getenv("UPSTREAM_PORT") + "/b/";
    static final byte[] REPLY = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n".getBytes(StandardCharsets.US_ASCII);
    static final ExecutorService POOL = Executors.newFixedThreadPool(16);
    static ExecutorService virtual;
    static HttpClient client;

    static String call(String id, int number) {
        return UPSTREAM + id + "/k" + number + "/d" + ThreadLocalRandom.current().nextInt(500, 6500);
    }

    static Void ask(String id, int number) throws Exception {
        Thread.sleep(ThreadLocalRandom.current().nextInt(4));
        try (InputStream in = new URL(call(id, number)).openConnection().getInputStream()) {
            in.readAllBytes();
        }
        return null;
    }

    static void serve(String mode, String id) throws Exception {
        List<Future<Void>> jobs = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            int one = number;
            Callable<Void> job = () -> ask(id, one);
            switch (mode) {
                case "scope" -> jobs.add(virtual.submit(job));
                case "pool" -> POOL.submit(job).get();
                case "client" -> client.send(HttpRequest.newBuilder(URI.create(call(id, one))).build(), HttpResponse.BodyHandlers.discarding());
                default -> job.call();
            }
        }
        for (Future<Void> job : jobs) {
            job.get();
        }
    }

    static Void serve(Socket connection) throws Exception {
        try (connection) {
            BufferedReader in = new BufferedReader(new InputStreamReader(connection.getInputStream(), StandardCharsets.US_ASCII));
            OutputStream out = connection.getOutputStream();
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] path = line.split(" ")[1].split("/");
                while (!in.readLine().isEmpty()) {
                }
                serve(path[1], path[2]);
                out.write(REPLY);
            }
        } catch (IOException e) {
            // Its client has gone.
        }
        return null;
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("http.maxConnections", "64");
        // By its name: it is compiled by an older one.
        virtual = (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        ServerSocket listener = new ServerSocket(0, 1024, InetAddress.getByName("127.0.0.1"));
        System.out.println("PORT " + listener.getLocalPort());
        while (true) {
            Socket connection = listener.accept();
            virtual.submit(() -> serve(connection));
        }
    }
}
