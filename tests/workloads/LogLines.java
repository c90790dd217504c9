import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.logging.FileHandler;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;

/** A server with a pool of threads that logs by java.util.logging and by standard output; every line has the request's path. */
public class LogLines {
    public static void main(String[] args) throws Exception {
        System.setProperty("java.util.logging.SimpleFormatter.format", "%1$tF %1$tT %4$s %5$s%6$s%n");
        Logger log = Logger.getLogger("shop");
        log.setUseParentHandlers(false);
        FileHandler file = new FileHandler(args[0], true);
        file.setFormatter(new SimpleFormatter());
        log.addHandler(file);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            String path = exchange.getRequestURI().getPath();
            log.info("begins path=" + path);
            System.out.println("stdout path=" + path);
            byte[] body = "ok\n".getBytes();
            exchange.sendResponseHeaders(path.startsWith("/fail/") ? 500 : 200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
        System.out.println("PORT " + server.getAddress().getPort());
    }
}
