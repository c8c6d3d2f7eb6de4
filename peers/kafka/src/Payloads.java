import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Random;

/**
 * Payloads that follow from client and sequence number: those two, and a window into a pool of random bytes. So making
 * one is a copy, checking one is a comparison, and no two in a row have the same bytes.
 */
final class Payloads {
    static final int HEAD_BYTES = Integer.BYTES + Long.BYTES;
    private static final int WINDOWS = 1 << 20;
    private static final int MAX_BYTES = 1 << 20;
    private static final byte[] POOL = new byte[WINDOWS + MAX_BYTES];

    static {
        new Random(1).nextBytes(POOL);
    }

    private Payloads() {}

    private static int window(int client, long sequence) {
        return (int) ((client * 65_537L + sequence * 4_099L) & (WINDOWS - 1));
    }

    static void write(int client, long sequence, byte[] out) {
        System.arraycopy(POOL, window(client, sequence), out, 0, out.length);
        ByteBuffer.wrap(out).putInt(client).putLong(sequence);
    }

    static int client(byte[] payload) {
        return ByteBuffer.wrap(payload).getInt();
    }

    static boolean isRight(int client, long sequence, byte[] payload) {
        int at = window(client, sequence);
        return ByteBuffer.wrap(payload).getLong(Integer.BYTES) == sequence
                && Arrays.equals(payload, HEAD_BYTES, payload.length, POOL, at + HEAD_BYTES, at + payload.length);
    }
}
