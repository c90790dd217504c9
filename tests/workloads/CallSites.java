import java.io.IOException;
import java.net.Socket;

/** One query from three methods, each on a connection of its own: PORT PORT PORT SECONDS. Prints how often each sent it. */
public class CallSites {
    static final byte[] QUERY = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".getBytes();
    static final byte[] ANSWER = new byte[4096];
    static Socket firstSocket, secondSocket, thirdSocket;

    static int first() throws IOException {
        firstSocket.getOutputStream().write(QUERY);
        return firstSocket.getInputStream().read(ANSWER);
    }

    static int second() throws IOException {
        secondSocket.getOutputStream().write(QUERY);
        return secondSocket.getInputStream().read(ANSWER);
    }

    static class Third {
        int third() throws IOException {
            thirdSocket.getOutputStream().write(QUERY);
            return thirdSocket.getInputStream().read(ANSWER);
        }
    }

    public static void main(String[] args) throws Exception {
        firstSocket = new Socket("127.0.0.1", Integer.parseInt(args[0]));
        secondSocket = new Socket("127.0.0.1", Integer.parseInt(args[1]));
        thirdSocket = new Socket("127.0.0.1", Integer.parseInt(args[2]));
        long end = System.nanoTime() + (long) (Double.parseDouble(args[3]) * 1e9);
        long[] counts = new long[3];
        Third third = new Third();
        while (System.nanoTime() < end) {
            first();
            counts[0]++;
            for (int i = 0; i < 2; i++) {
                second();
                counts[1]++;
            }
            third.third();
            counts[2]++;
            Thread.sleep(10);
        }
        System.out.println("COUNTS " + counts[0] + " " + counts[1] + " " + counts[2]);
    }
}
