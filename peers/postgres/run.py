"""Compares PostgreSQL with Thalweg: durable writes of single rows, and the same with a delayed fsync.

PostgreSQL is driven by its own pgbench, over TCP with prepared statements; Thalweg by `thalweg bench http`. Both use one
thread, and time every operation. ../README.md has each setting of PostgreSQL with the reason.
"""

import os
import pwd
import random
import re
import resource
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import turns
from turns import Children, Figures, PeerError, Subject, Thalweg, Work

LEVELS = {
    "disk": "durable: synced to the disk before the reply",
    "interval": "synced within 0.6 s after the reply, a power failure can lose that much",
}
CLIENTS = (1, 50)
UPDATED_KEYS = 100_000
# As many as the key of `thalweg bench` has. So nearly every key is new.
INSERTED_KEYS = 10_000_000_000
# Values that alternate at random, because PostgreSQL does not log those bytes of a row that an update leaves as they were.
VALUES = 8
# With synchronous_commit=off PostgreSQL syncs within three times wal_writer_delay, which is 0.2 s by default.
SYNC_INTERVAL = "600ms"
STATEMENTS = {
    "insert": "INSERT INTO kv (key, value) VALUES (:key, :{value}) ON CONFLICT (key) DO UPDATE SET value = excluded.value;",
    "update": "UPDATE kv SET value = :{value} WHERE key = :key;",
}


class Postgres:
    """A PostgreSQL server on a database of its own."""

    def __init__(self, options, children: Children, synchronous_commit: str):
        self.options, self.children = options, children
        [self.port] = turns.free_ports(1)
        data = children.directory / "postgres"
        data.mkdir(mode=0o700)
        as_user = self._user(data)
        init = [self._program("initdb"), "-D", data, "-U", "bench", "--auth=trust", "--no-locale", "--encoding=UTF8"]
        children.run(init, log="initdb.log", cwd=children.directory, **as_user)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "256MB",
            "synchronous_commit": synchronous_commit,
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.process = children.start(
            # The data is deleted after each turn, so SIGQUIT spares the checkpoint of an orderly stop.
            [self._program("postgres"), "-D", data, *given], stop=signal.SIGQUIT, log="postgres.log",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=children.directory, **as_user,
        )
        ready = [self._program("pg_isready"), "-q", *self._place()]
        children.wait_until(
            self.process, "postgres.log", lambda: children.run(ready, log="ready.log", may_fail=True)[0] == 0
        )

    def _program(self, name: str) -> Path:
        return self.options.postgres_bin / name

    def _user(self, data: Path) -> dict:
        """Returns the user for the server, which refuses to run as root. It owns the data."""
        if os.geteuid() != 0:
            return {}
        try:
            user = pwd.getpwnam(self.options.postgres_user)
        except KeyError:
            raise PeerError(f"there is no user {self.options.postgres_user}; name one with --postgres-user") from None
        os.chown(data, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def _place(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "bench"]

    def sql(self, *statements: str) -> str:
        """Runs statements, each in a transaction of its own. Returns the last line of their output."""
        commands = [part for statement in statements for part in ("-c", statement)]
        psql = [self._program("psql"), *self._place(), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", "postgres", *commands]
        lines = self.children.run(psql, log="psql.log")[1].splitlines()
        return lines[-1] if lines else ""

    def pgbench(self, work: Work, scripts: list[Path], values: list[str], seconds: float) -> str:
        """Runs the load. Every transaction is logged with its time, in files of the turn's directory."""
        files = [part for script in scripts for part in ("-f", script)]
        variables = [part for number, value in enumerate(values) for part in ("-D", f"v{number}={value}")]
        prefix = self.children.directory / "transactions"
        command = [self._program("pgbench"), *self._place(), "-n", "-M", "prepared", "-c", work.clients, "-j", 1,
                   "-T", max(1, round(seconds)), "-l", f"--log-prefix={prefix}", *files, *variables, "postgres"]
        return self.children.run(command, seconds=seconds + turns.SLACK_SECONDS, log="pgbench.log")[1]

    def taken_times(self) -> list[int]:
        """Returns the times of the logged transactions in microseconds, sorted, and deletes the files."""
        times = []
        for path in self.children.directory.glob("transactions.*"):
            times += [int(line.split(" ", 3)[2]) for line in path.read_text().splitlines()]
            path.unlink()
        return sorted(times)


def number_in(output: str, pattern: str) -> float:
    """Returns a number of pgbench's output."""
    match = re.search(pattern, output)
    if not match:
        raise PeerError(f"pgbench did not print {pattern!r}: {output}")
    return float(match[1])


class Comparison:
    """The turns of both systems."""

    def __init__(self, options):
        self.options = options
        self.versions: dict[str, str] = {}
        letters = random.Random(1)
        alphabet = string.ascii_letters + string.digits
        self.values = ["".join(letters.choices(alphabet, k=options.value_size)) for _ in range(VALUES)]

    def postgres(self, synchronous_commit: str):
        def measure(work: Work, children: Children) -> Figures:
            server = Postgres(self.options, children, synchronous_commit)
            self.versions["PostgreSQL"] = server.sql("SHOW server_version")
            self._fill(server, work)
            scripts = self._scripts(children.directory, work)
            processed = self._counted(server.pgbench(work, scripts, self.values, self.options.warmup))
            server.taken_times()
            syncs = self._syncs(server)
            cpu, own = turns.cpu_seconds(server.process.pid, True), own_children_cpu()
            output = server.pgbench(work, scripts, self.values, self.options.seconds)
            own = own_children_cpu() - own
            syncs = self._syncs(server) - syncs
            cpu = turns.cpu_seconds(server.process.pid, True) - cpu
            count = self._counted(output)
            times = server.taken_times()
            if len(times) != count:
                raise PeerError(f"{count} transactions, {len(times)} times in pgbench's log")
            self._check(server, work, processed + count)
            return Figures(
                per_second=number_in(output, r"tps = ([\d.]+) \(without initial connection time\)"),
                p50_us=turns.percentile(times, 0.5), p99_us=turns.percentile(times, 0.99),
                p999_us=turns.percentile(times, 0.999), max_us=turns.percentile(times, 1),
                server_cpu_us=1e6 * cpu / count, generator_cpu_us=1e6 * own / count, syncs_per_request=syncs / count,
            )

        return measure

    def _fill(self, server: Postgres, work: Work):
        # An update writes a new version of the row. Half of each page is left free for them, as PostgreSQL's manual advises
        # for tables with many updates.
        fill = "WITH (fillfactor = 50)" if work.kind == "update" else ""
        server.sql(f"CREATE TABLE kv (key bigint PRIMARY KEY, value text NOT NULL) {fill}")
        if work.kind == "update":
            rows = f"SELECT n, '{self.values[0]}' FROM generate_series(0, {UPDATED_KEYS - 1}) n"
            server.sql(f"INSERT INTO kv {rows}", "VACUUM ANALYZE kv", "CHECKPOINT")

    def _scripts(self, directory: Path, work: Work) -> list[Path]:
        """Writes one script for each value; pgbench chooses among them at random."""
        keys = UPDATED_KEYS if work.kind == "update" else INSERTED_KEYS
        scripts = [directory / f"{work.kind}-{number}.sql" for number in range(VALUES)]
        for number, script in enumerate(scripts):
            statement = STATEMENTS[work.kind].replace("{value}", f"v{number}")
            script.write_text(f"\\set key random(0, {keys - 1})\n{statement}\n")
        return scripts

    @staticmethod
    def _syncs(server: Postgres) -> int:
        # Servers of ended connections write their statistics when they end, a moment after pgbench.
        time.sleep(0.5)
        return int(server.sql("SELECT wal_sync FROM pg_stat_wal"))

    @staticmethod
    def _counted(output: str) -> int:
        """Returns the number of transactions, which must all have succeeded."""
        if number_in(output, r"number of failed transactions: (\d+)") != 0:
            raise PeerError(f"transactions failed: {output}")
        return int(number_in(output, r"number of transactions actually processed: (\d+)"))

    def _check(self, server: Postgres, work: Work, written: int):
        """Checks the number of rows and the lengths of their values. Few of the random keys of inserts may have come twice."""
        found = server.sql("SELECT count(*), min(length(value)), max(length(value)) FROM kv")
        rows, shortest, longest = map(int, found.split("|"))
        is_right = rows == UPDATED_KEYS if work.kind == "update" else written * 0.999 <= rows <= written
        if not is_right or (shortest, longest) != (self.options.value_size, self.options.value_size):
            raise PeerError(f"{work.name}: {written} writes, then {rows} rows of {shortest} to {longest} characters")

    def thalweg(self, level: str):
        def measure(work: Work, children: Children) -> Figures:
            options = self.options
            server = Thalweg(options.thalweg, children, ["--sync-interval", SYNC_INTERVAL])
            self.versions["Thalweg"] = server.build()
            keys = UPDATED_KEYS if work.kind == "update" else INSERTED_KEYS
            common = ["http", "--target", f"http://127.0.0.1:{server.http}", "--closed", "--connections", str(work.clients),
                      "--keys", str(keys), "--value-size", str(options.value_size), "--echo-path="]
            if work.kind == "update":
                # A run of gets stores the keys first.
                load = [*common, "--mix", "get", "--duration", "100ms", "--warmup", "0s"]
                turns.bench(options.thalweg, children, load, turns.START_SECONDS)
            load = [*common, "--mix", "put", "--durability", level, "--duration", f"{options.seconds}s",
                    "--warmup", f"{options.warmup}s"]
            row = turns.bench(options.thalweg, children, load, options.warmup + options.seconds)
            return Figures(
                per_second=row["requests/s"], server_cpu_us=row["server CPU µs/request"],
                generator_cpu_us=row["generator CPU µs/request"], syncs_per_request=row["fsyncs/put"],
                note=turns.note_of(row), **turns.times_of(row),
            )

        return measure

    def subjects(self) -> list[Subject]:
        return [
            Subject("PostgreSQL, synchronous_commit=on", "disk", self.postgres("on")),
            Subject("Thalweg, PUT at disk", "disk", self.thalweg("disk"), is_ours=True),
            Subject("PostgreSQL, synchronous_commit=off", "interval", self.postgres("off")),
            Subject("Thalweg, PUT at interval", "interval", self.thalweg("interval"), is_ours=True),
        ]


def own_children_cpu() -> float:
    """Returns the CPU time of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def newest_postgres() -> Path | None:
    """Returns where Debian's package has put the programs of the newest version."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


def run():
    parser = turns.arguments(__doc__.splitlines()[0])
    where = "directory of initdb, postgres, pgbench and psql, version 15 or later (default: Debian's newest)"
    parser.add_argument("--postgres-bin", type=Path, default=newest_postgres(), help=where)
    user = "user for the server if this program runs as root (default: postgres)"
    parser.add_argument("--postgres-user", default="postgres", help=user)
    parser.add_argument("--value-size", type=int, default=100, help="bytes of a value (default: 100)")
    options = turns.parse(parser)
    if options.postgres_bin is None or not (options.postgres_bin / "pgbench").exists():
        parser.error("PostgreSQL is not there: install the package postgresql, or give --postgres-bin")
    if not 1 <= options.value_size <= 2000:
        parser.error("--value-size must be 1 to 2000: longer values leave PostgreSQL's rows and are compressed")
    works = [
        Work(f"{kind}s of one row of {options.value_size} B, {clients} client{'s' if clients > 1 else ''}", clients, kind=kind)
        for kind in STATEMENTS
        for clients in CLIENTS
    ]
    comparison = Comparison(options)
    report = turns.Report("PostgreSQL and Thalweg in turns, writes of single rows", LEVELS, [turns.machine()])
    report.conditions.append(
        "one server and one generator process of one thread at a time on the same cores; each client has a connection and one "
        f"request in flight (closed loop); {options.seconds:g} s after {options.warmup:g} s of warm-up; CPU is for a write"
    )
    turns.compare(report, options, works, comparison.subjects(), comparison.versions)


turns.main(run)
