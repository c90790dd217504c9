import java.util.zip.*;

/** Uses CPU in the virtual machine's native code: compression, garbage collection, reflection. */
public class PerfAgreement {
    public static void main(String[] arguments) throws Exception {
        byte[] text = "text that is compressed again and again\n".repeat(2000).getBytes();
        byte[] out = new byte[200000];
        long kept = 0;
        for (int n = 0; ; n++) {
            Deflater deflater = new Deflater(6);
            deflater.setInput(text);
            deflater.finish();
            kept += deflater.deflate(out);
            deflater.end();
            Object[] all = new Object[20000];
            for (int i = 0; i < all.length; i++) all[i] = new byte[100];
            if (kept < 0) System.out.println(all[n % all.length]);
        }
    }
}
