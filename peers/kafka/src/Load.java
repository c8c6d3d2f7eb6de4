import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.CommonClientConfigs;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TopicExistsException;

/**
 * Appends to a topic in a closed loop, with Kafka's own producer. Each client is a thread with a producer of its own and
 * one request in flight. Every request is timed. Afterwards all records are read back and compared with the
 * acknowledged ones. Prints the figures as one line of JSON.
 */
public final class Load {
    static final String TOPIC = "bench";
    private static final Duration START = Duration.ofSeconds(60);

    /** Values of the command line. Times are in nanoseconds. */
    record Options(
            String address, long broker, int clients, int batch, int payload, int partitions, long flushMessages,
            long warmup, long measured) {
        static Options parse(String[] args) {
            if (args.length != 9) {
                throw new IllegalArgumentException(
                        "ADDRESS BROKER-PROCESS CLIENTS BATCH PAYLOAD-BYTES PARTITIONS FLUSH-MESSAGES WARMUP-S "
                                + "MEASURED-S");
            }
            return new Options(
                    args[0], Long.parseLong(args[1]), Integer.parseInt(args[2]), Integer.parseInt(args[3]),
                    Integer.parseInt(args[4]), Integer.parseInt(args[5]), Long.parseLong(args[6]), nanos(args[7]),
                    nanos(args[8]));
        }

        private static long nanos(String seconds) {
            return (long) (Double.parseDouble(seconds) * 1e9);
        }
    }

    /** CPU time of the broker and of this process, in nanoseconds. */
    private record Cpu(long broker, long own) {
        static Cpu now(long broker) throws Exception {
            String stat = Files.readString(Path.of("/proc/" + broker + "/stat"));
            // The name, in parentheses, may hold anything: fields are counted behind it. A tick is 10 ms on Linux.
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            long ticks = Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
            OperatingSystemMXBean self = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            return new Cpu(ticks * 10_000_000, self.getProcessCpuTime());
        }
    }

    private Load() {}

    public static void main(String[] args) throws Exception {
        Options options = Options.parse(args);
        createTopic(options);
        List<Publisher> publishers = new ArrayList<>();
        try {
            for (int number = 0; number < options.clients(); number++) {
                publishers.add(new Publisher(options, number));
            }
            run(options, publishers);
        } finally {
            publishers.forEach(Publisher::close);
        }
    }

    /** Creates the topic, as soon as the broker can. */
    private static void createTopic(Options options) throws Exception {
        Map<String, Object> config = Map.of(CommonClientConfigs.BOOTSTRAP_SERVERS_CONFIG, options.address());
        NewTopic topic = new NewTopic(TOPIC, options.partitions(), (short) 1);
        // Without flush.messages, Kafka leaves it to the kernel when pages are written: its default.
        if (options.flushMessages() > 0) {
            topic.configs(Map.of("flush.messages", Long.toString(options.flushMessages())));
        }
        long until = System.nanoTime() + START.toNanos();
        try (Admin admin = Admin.create(config)) {
            while (true) {
                try {
                    admin.createTopics(Set.of(topic)).all().get(START.toSeconds(), TimeUnit.SECONDS);
                    return;
                } catch (ExecutionException failed) {
                    Throwable why = failed.getCause();
                    if (why instanceof TopicExistsException) {
                        return;
                    }
                    // The broker has not registered yet.
                    boolean isEarly =
                            why instanceof InvalidReplicationFactorException || why instanceof RetriableException;
                    if (!isEarly || System.nanoTime() > until) {
                        throw failed;
                    }
                    Thread.sleep(100);
                }
            }
        }
    }

    private static void run(Options options, List<Publisher> publishers) throws Exception {
        for (Publisher publisher : publishers) {
            publisher.connect();
        }
        long from = System.nanoTime() + options.warmup();
        long end = from + options.measured();
        List<Thread> threads = new ArrayList<>();
        for (Publisher publisher : publishers) {
            Thread thread = new Thread(() -> publisher.run(from, end), "publisher-" + publisher.number());
            thread.start();
            threads.add(thread);
        }
        sleepUntil(from);
        Cpu before = Cpu.now(options.broker());
        sleepUntil(end);
        Cpu after = Cpu.now(options.broker());
        for (Thread thread : threads) {
            thread.join();
        }
        for (Publisher publisher : publishers) {
            publisher.failure();
        }
        new ReadBack(options).check(publishers);
        print(options, publishers, before, after);
    }

    private static void print(Options options, List<Publisher> publishers, Cpu before, Cpu after)
            throws IOException {
        long[] times = publishers.stream().flatMapToLong(publisher -> Arrays.stream(publisher.times())).sorted().toArray();
        long records = publishers.stream().mapToLong(Publisher::recordsInTime).sum();
        long requests = publishers.stream().mapToLong(Publisher::requests).sum();
        if (times.length == 0 || records == 0) {
            throw new IllegalStateException("no request ended in the measured time");
        }
        System.out.printf(
                Locale.ROOT,
                "{\"kafka\": \"%s\", \"java\": \"%s\", \"per_second\": %f, \"p50_us\": %f, \"p99_us\": %f, \"p999_us\": %f, "
                        + "\"max_us\": %f, \"server_cpu_us\": %f, \"generator_cpu_us\": %f, \"all_requests\": %d}%n",
                version(), System.getProperty("java.version"), records * 1e9 / options.measured(),
                percentile(times, 0.5), percentile(times, 0.99), percentile(times, 0.999), percentile(times, 1),
                (after.broker() - before.broker()) / 1e3 / records, (after.own() - before.own()) / 1e3 / records, requests);
    }

    /** Returns the version of Kafka, which its jar names. */
    private static String version() throws IOException {
        Properties properties = new Properties();
        try (InputStream file = Load.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }

    /** Returns a percentile of sorted times, in microseconds. */
    private static double percentile(long[] times, double part) {
        return times[Math.min(times.length - 1, (int) (part * times.length))] / 1e3;
    }

    private static void sleepUntil(long nanos) throws InterruptedException {
        for (long left = nanos - System.nanoTime(); left > 0; left = nanos - System.nanoTime()) {
            TimeUnit.NANOSECONDS.sleep(left);
        }
    }
}
