import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** One client: a producer that sends a request, waits until all its records are acknowledged, and sends the next. */
final class Publisher implements AutoCloseable {
    private final int number;
    private final int batch;
    private final int partition;
    private final byte[] payload;
    private final KafkaProducer<byte[], byte[]> producer;
    private final Callback callback;
    private long sequence;
    private long requests;
    private long recordsInTime;
    private long[] times = new long[1 << 16];
    private int timed;
    /** The first error, which the producer's own thread reports. */
    private volatile Exception failure;

    Publisher(Load.Options options, int number) {
        this.number = number;
        this.batch = options.batch();
        this.partition = number % options.partitions();
        this.payload = new byte[options.payload()];
        this.producer = new KafkaProducer<>(config(options), new ByteArraySerializer(), new ByteArraySerializer());
        this.callback = (metadata, error) -> {
            if (error != null && failure == null) {
                failure = error;
            }
        };
    }

    private static Map<String, Object> config(Load.Options options) {
        int request = options.batch() * (options.payload() + 64) + 1024;
        Map<String, Object> config = new HashMap<>();
        config.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, options.address());
        config.put(ProducerConfig.ACKS_CONFIG, "all");
        // The default makes each record wait 5 ms for others. With batches, the time is too long to matter: flush() sends
        // the batch when its records are together, so each batch is one request.
        config.put(ProducerConfig.LINGER_MS_CONFIG, options.batch() == 1 ? 0 : 1000);
        config.put(ProducerConfig.BATCH_SIZE_CONFIG, Math.max(16_384, request));
        config.put(ProducerConfig.MAX_REQUEST_SIZE_CONFIG, Math.max(1 << 20, 2 * request));
        return config;
    }

    int number() {
        return number;
    }

    /** Returns the number of acknowledged records. */
    long acknowledged() {
        return sequence;
    }

    /** Returns the number of acknowledged requests, those of the warm-up included. */
    long requests() {
        return requests;
    }

    /** Returns the number of records that were acknowledged in the measured time. */
    long recordsInTime() {
        return recordsInTime;
    }

    /** Returns the times of the requests that began in the measured time, in nanoseconds. */
    long[] times() {
        return Arrays.copyOf(times, timed);
    }

    /** Learns where the partition is, so that the first request need not. */
    void connect() {
        producer.partitionsFor(Load.TOPIC);
    }

    /** Sends requests until {@code end}, and counts from {@code from} on. */
    void run(long from, long end) {
        try {
            for (long begun = System.nanoTime(); begun < end && failure == null; begun = System.nanoTime()) {
                request();
                long now = System.nanoTime();
                if (begun >= from) {
                    count(now - begun);
                }
                if (now >= from && now < end) {
                    recordsInTime += batch;
                }
            }
        } catch (Exception error) {
            failure = error;
        }
    }

    private void request() throws Exception {
        for (int index = 0; index < batch; index++) {
            Payloads.write(number, sequence++, payload);
            // The producer copies the payload before send returns.
            var ack = producer.send(new ProducerRecord<>(Load.TOPIC, partition, null, payload), callback);
            if (batch == 1) {
                ack.get();
            }
        }
        if (batch > 1) {
            producer.flush();
        }
        requests++;
    }

    private void count(long nanos) {
        if (timed == times.length) {
            times = Arrays.copyOf(times, 2 * timed);
        }
        times[timed++] = nanos;
    }

    /** Throws the error that ended the run, if there was one. */
    void failure() throws Exception {
        if (failure != null) {
            throw failure;
        }
    }

    @Override
    public void close() {
        producer.close();
    }
}
