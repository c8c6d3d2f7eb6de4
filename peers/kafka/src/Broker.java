import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import javax.management.InstanceNotFoundException;
import javax.management.JMException;
import javax.management.ObjectName;

/**
 * Runs Kafka's own server in this process until standard input ends, so that it never outlives its parent.
 *
 * <p>Argument: the file with the server's properties. Its data directories are formatted first. Each line of input is
 * answered with the number of flushes of logs since the start, as Kafka counts them; a flush syncs the segment and its
 * indexes.
 */
public final class Broker {
    /** An arbitrary cluster id, in the form that Kafka wants. */
    private static final String CLUSTER_ID = "dGhhbHdlZy1wZWVyLTAwMQ";

    private Broker() {}

    public static void main(String[] args) throws Exception {
        String[] format = {"format", "--cluster-id", CLUSTER_ID, "--config", args[0]};
        int status = kafka.tools.StorageTool.execute(format, System.err);
        if (status != 0) {
            System.exit(status);
        }
        Thread server = new Thread(() -> kafka.Kafka.main(args), "server");
        server.setDaemon(true);
        server.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            System.out.println("flushes " + flushes());
        }
        // The data is deleted after each turn, so an orderly stop would be a waste of time.
        Runtime.getRuntime().halt(0);
    }

    private static long flushes() throws JMException {
        ObjectName name = new ObjectName("kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs");
        try {
            return (Long) ManagementFactory.getPlatformMBeanServer().getAttribute(name, "Count");
        } catch (InstanceNotFoundException noneYet) {
            return 0;
        }
    }
}
