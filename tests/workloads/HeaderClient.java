import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** Requests on one connection: five GETs, a POST of 3 MB, a GET. */
class HeaderClient {
    public static void main(String[] arguments) throws Exception {
        String base = "http://" + arguments[0] + ":" + arguments[1];
        HttpClient client = HttpClient.newHttpClient();
        byte[] body = new byte[3 << 20];
        for (int i = 0; i < body.length; i++) body[i] = (byte) (i % 251);
        for (int i = 0; i < 7; i++) {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(base + "/java-" + i));
            if (i == 5) request.POST(BodyPublishers.ofByteArray(body));
            int status = client.send(request.build(), BodyHandlers.ofString()).statusCode();
            if (status != 200) throw new IllegalStateException("status " + status);
        }
    }
}
