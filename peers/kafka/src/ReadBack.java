import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads all records of the topic: each client's must be there once, in order, with the bytes that were sent. */
final class ReadBack {
    private static final Duration PATIENCE = Duration.ofSeconds(120);
    private final Load.Options options;
    /** Sequence number of the next record of each client. */
    private final long[] next;

    ReadBack(Load.Options options) {
        this.options = options;
        this.next = new long[options.clients()];
    }

    void check(List<Publisher> publishers) {
        try (var consumer = new KafkaConsumer<>(config(), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = IntStream.range(0, options.partitions())
                    .mapToObj(number -> new TopicPartition(Load.TOPIC, number)).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long left = consumer.endOffsets(partitions).values().stream().mapToLong(Long::longValue).sum();
            long until = System.nanoTime() + PATIENCE.toNanos();
            while (left > 0) {
                if (System.nanoTime() > until) {
                    throw new IllegalStateException(left + " records were not read back within " + PATIENCE);
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    check(record.value());
                    left--;
                }
            }
        }
        for (Publisher publisher : publishers) {
            if (next[publisher.number()] != publisher.acknowledged()) {
                throw new IllegalStateException("client " + publisher.number() + ": " + publisher.acknowledged()
                        + " records were acknowledged, " + next[publisher.number()] + " read back");
            }
        }
    }

    private void check(byte[] payload) {
        if (payload.length != options.payload()) {
            throw new IllegalStateException("a record of " + payload.length + " bytes was read back");
        }
        int client = Payloads.client(payload);
        if (client < 0 || client >= next.length || !Payloads.isRight(client, next[client], payload)) {
            throw new IllegalStateException("a record is missing, out of order or has other bytes than were sent");
        }
        next[client]++;
    }

    private Map<String, Object> config() {
        Map<String, Object> config = new HashMap<>();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, options.address());
        config.put(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 16 << 20);
        config.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10_000);
        return config;
    }
}
