"""Compares Kafka with Thalweg: appends to one log, one record at a time and in batches. Run it with `run.sh`.

Kafka runs as one broker in KRaft mode, which is its own controller, with one replica. ../README.md has each of its
settings with the reason.
"""

import json
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import turns
from turns import Children, Figures, Subject, Thalweg, Work

# The flags with which Kafka's own script starts its server.
JVM = ["-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
       "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
LEVELS = {
    "disk": "durable: synced to the disk before the ack",
    "os": "not durable: in the page cache at the ack, a power failure can lose it",
}
PAYLOAD_BYTES = 1024
CLIENTS = (1, 16)
SYNCS = "thalweg_log_syncs_total"
COMMANDS = "thalweg_commands_total"


class Kafka:
    """A broker in a process of its own."""

    def __init__(self, options, children: Children):
        port, controller = turns.free_ports(2)
        self.address, self.children = f"127.0.0.1:{port}", children
        config = children.directory / "server.properties"
        config.write_text(self._properties(port, controller, children.directory / "kafka"))
        command = ["java", *JVM, "-cp", options.classpath, "Broker", config]
        self.process = children.start(
            command, log="broker.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @staticmethod
    def _properties(port: int, controller: int, data: Path) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "message.max.bytes": 16 << 20,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def flushes(self) -> int:
        """Returns the number of flushes of logs since the start."""
        self.process.stdin.write("flushes\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("flushes "):
                return int(line.split()[1])
        raise turns.PeerError(f"the broker ended: {self.children.tail('broker.log')}")


class Comparison:
    """The turns of both systems."""

    def __init__(self, options):
        self.options = options
        self.versions: dict[str, str] = {}

    def kafka(self, flush_messages: int, is_divided: bool):
        def measure(work: Work, children: Children) -> Figures:
            broker = Kafka(self.options, children)
            before = broker.flushes()
            partitions = work.clients if is_divided else 1
            figures = self._load(broker, children, work, partitions, flush_messages)
            self.versions["Kafka"] = f"{figures.pop('kafka')}, Java {figures.pop('java')}"
            flushes = broker.flushes() - before
            return Figures(syncs_per_request=flushes / figures.pop("all_requests"), **figures)

        return measure

    def _load(self, broker: Kafka, children: Children, work: Work, partitions: int, flush_messages: int) -> dict:
        options = self.options
        load = ["java", *JVM, "-cp", options.classpath, "Load", broker.address, broker.process.pid, work.clients,
                work.batch, PAYLOAD_BYTES, partitions, flush_messages, options.warmup, options.seconds]
        limit = options.warmup + options.seconds + turns.START_SECONDS + turns.SLACK_SECONDS
        _, output = children.run(load, seconds=limit, log="load.log")
        return json.loads(output.splitlines()[-1])

    def thalweg(self, level: str):
        def measure(work: Work, children: Children) -> Figures:
            options = self.options
            server = Thalweg(options.thalweg, children)
            self.versions["Thalweg"] = server.build()
            syncs, commands = server.metric(SYNCS), server.metric(COMMANDS)
            load = ["streams", "--target", f"thalweg://127.0.0.1:{server.native}", "--server-process", str(server.process.pid),
                    "--payload", str(PAYLOAD_BYTES), "--batch", str(work.batch), "--publishers", str(work.clients),
                    "--in-flight", "1", "--durability", level, "--bare", "0s",
                    "--duration", f"{options.seconds}s", "--warmup", f"{options.warmup}s"]
            row = turns.bench(options.thalweg, children, load, options.warmup + options.seconds)
            syncs, commands = server.metric(SYNCS) - syncs, server.metric(COMMANDS) - commands
            return Figures(
                per_second=row["records/s"], server_cpu_us=row["server CPU s/M records"],
                generator_cpu_us=row["generator CPU s/M records"], syncs_per_request=syncs / commands,
                note=turns.note_of(row), **turns.times_of(row),
            )

        return measure

    def subjects(self) -> list[Subject]:
        several = lambda work: work.clients > 1
        return [
            Subject("Kafka, acks=all, flush.messages=1", "disk", self.kafka(1, False)),
            Subject("Kafka, the same, a partition for each client", "disk", self.kafka(1, True), takes_part=several),
            Subject("Thalweg, disk", "disk", self.thalweg("disk"), is_ours=True),
            Subject("Kafka, acks=all, its default of no fsync", "os", self.kafka(0, False)),
            Subject("Thalweg, os", "os", self.thalweg("os"), is_ours=True),
        ]


def run():
    parser = turns.arguments(__doc__.splitlines()[0])
    parser.add_argument("--classpath", required=True, help="classes of src and the jars of Kafka")
    parser.add_argument("--batch", type=int, default=100, help="records of a request in the rows with batches (default: 100)")
    options = turns.parse(parser)
    if not 2 <= options.batch <= 10_000:
        parser.error("--batch must be 2 to 10000")
    works = [
        Work(f"appends of {batch} × {PAYLOAD_BYTES} B, {clients} client{'s' if clients > 1 else ''}", clients, batch)
        for batch in (1, options.batch)
        for clients in CLIENTS
    ]
    comparison = Comparison(options)
    report = turns.Report("Kafka and Thalweg in turns, appends to one log", LEVELS, [turns.machine()])
    report.conditions.append(
        "one server and one generator process at a time on the same cores; each client has a connection and one request in "
        f"flight (closed loop); {options.seconds:g} s after {options.warmup:g} s of warm-up; times are those of requests, CPU "
        "is for a record"
    )
    turns.compare(report, options, works, comparison.subjects(), comparison.versions)


turns.main(run)
