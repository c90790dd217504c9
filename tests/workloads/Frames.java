import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.Comparator;
import java.util.concurrent.Executors;

/** Chains of methods that are known, each for about 50 ms of CPU: PORT is its argument. */
public class Frames {
    static volatile long sink;

    static long spin(long until) {
        long x = 1;
        do {
            for (int i = 0; i < 2000; i++) x += (long) i * i ^ x;
        } while (System.nanoTime() < until);
        return x;
    }

    static long inner(long until) { return spin(until) + 1; }
    static long middle(long until, int a, int b, int c, int d, int e, int f, int g) {
        return inner(until) + a + b + c + d + e + f + g;
    }
    static void outer(long until) { sink += middle(until, 1, 2, 3, 4, 5, 6, 7); }

    static long deep(int level, long until) { return level == 0 ? spin(until) : deep(level - 1, until) + level; }
    static void recursive(long until) { sink += deep(40, until); }

    static class ByKey implements Comparator<Integer> {
        public int compare(Integer a, Integer b) { return compared(a, b); }
        int compared(int a, int b) {
            sink += spin(System.nanoTime() + 100_000);
            return a - b;
        }
    }
    static void callback(long until) {
        while (System.nanoTime() < until) {
            Integer[] all = new Integer[60];
            for (int i = 0; i < all.length; i++) all[i] = (i * 7919) % 60;
            Arrays.sort(all, new ByKey());
        }
    }

    static void answer(HttpExchange exchange) throws IOException {
        long until = System.nanoTime() + 50_000_000;
        switch (exchange.getRequestURI().getPath()) {
            case "/chain": outer(until); break;
            case "/recursive": recursive(until); break;
            case "/callback": callback(until); break;
            default: break;
        }
        exchange.sendResponseHeaders(200, 3);
        exchange.getResponseBody().write("ok\n".getBytes());
        exchange.close();
    }

    public static void main(String[] arguments) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.createContext("/", Frames::answer);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }
}
