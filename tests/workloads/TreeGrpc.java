// com.sun.net.httpserver with a pool of threads that call by gRPC (Netty): GET /MODE/ID calls /b/ID.kN.dT of the upstream.
import com.sun.net.httpserver.HttpServer;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.stub.ClientCalls;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

public class TreeGrpc {
    static final byte[] OK = "ok\n".getBytes(StandardCharsets.US_ASCII);
    static final ExecutorService POOL = Executors.newFixedThreadPool(16);
    static final ManagedChannel CHANNEL = ManagedChannelBuilder
            .forAddress("127.0.0.1", Integer.parseInt(System.getenv("UPSTREAM_PORT"))).usePlaintext().build();

    // Messages are plain bytes: no generated code is needed.
    static final MethodDescriptor.Marshaller<byte[]> PLAIN = new MethodDescriptor.Marshaller<>() {
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    };

    static Void ask(String id, int number) {
        int delay = ThreadLocalRandom.current().nextInt(500, 6500);
        MethodDescriptor<byte[], byte[]> method = MethodDescriptor.<byte[], byte[]>newBuilder()
                .setType(MethodDescriptor.MethodType.UNARY).setRequestMarshaller(PLAIN).setResponseMarshaller(PLAIN)
                .setFullMethodName("b/" + id + ".k" + number + ".d" + delay).build();
        ClientCalls.blockingUnaryCall(CHANNEL, method, CallOptions.DEFAULT, OK);
        return null;
    }

    static void handle(String mode, String id) throws Exception {
        TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(4000));
        switch (mode) {
            case "same" -> {
                ask(id, 0);
                ask(id, 1);
            }
            case "pool" -> POOL.submit(() -> ask(id, 0)).get();
            default -> throw new IllegalArgumentException(mode);
        }
    }

    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 1024);
        server.setExecutor(Executors.newFixedThreadPool(32));
        server.createContext("/", exchange -> {
            String[] parts = exchange.getRequestURI().getPath().split("/");
            try {
                handle(parts[1], parts[2]);
            } catch (Exception e) {
                e.printStackTrace();
            }
            exchange.sendResponseHeaders(200, OK.length);
            exchange.getResponseBody().write(OK);
            exchange.close();
        });
        server.start();
        System.out.println("PORT " + server.getAddress().getPort());
    }
}
