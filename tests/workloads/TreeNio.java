// A server of java.nio: one thread reads the requests of all connections, a pool's threads call and answer. GET /MODE/ID calls
// /b/ID/k0/dT of the upstream, and /b/ID/k1/dT with the mode "two".
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

public class TreeNio {
    static final String UPSTREAM = "http://127.0.0.1:" + System.getenv("UPSTREAM_PORT") + "/b/";
    static final ExecutorService POOL = Executors.newFixedThreadPool(16);
    static final byte[] REPLY = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n".getBytes(StandardCharsets.US_ASCII);

    static void ask(String id, int number) throws IOException {
        int delay = ThreadLocalRandom.current().nextInt(500, 6500);
        try (InputStream in = new URL(UPSTREAM + id + "/k" + number + "/d" + delay).openConnection().getInputStream()) {
            in.readAllBytes();
        }
    }

    static void serve(SocketChannel channel, String head) {
        try {
            String[] path = head.split(" ")[1].split("/");
            TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(2000));
            ask(path[2], 0);
            if (path[1].equals("two")) {
                ask(path[2], 1);
            }
            ByteBuffer reply = ByteBuffer.wrap(REPLY);
            while (reply.hasRemaining()) {
                channel.write(reply);
            }
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Whether the connection goes on: its client sends one request at a time, each in one piece. */
    static boolean read(SocketChannel channel) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(4096);
        if (channel.read(bytes) < 0) {
            return false;
        }
        String head = new String(bytes.array(), 0, bytes.position(), StandardCharsets.US_ASCII);
        if (head.endsWith("\r\n\r\n")) {
            POOL.execute(() -> serve(channel, head));
        }
        return true;
    }

    public static void main(String[] arguments) throws IOException {
        System.setProperty("http.maxConnections", "64");
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", 0), 1024).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println("PORT " + listener.socket().getLocalPort());
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false).register(selector, SelectionKey.OP_READ);
                } else if (!read((SocketChannel) key.channel())) {
                    key.channel().close();
                }
            }
        }
    }
}
