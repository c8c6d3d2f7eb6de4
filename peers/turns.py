"""Parts that the comparisons in Python share: processes, a Thalweg server and its load, turns, the report.

A turn is one measurement of one system, in fresh processes and a fresh directory below the caller's. In each round all
systems take their turns at a piece of work, and each round begins with another system, so that what changes on the
machine meanwhile changes all of them alike. No process outlives this program, and each step has a time limit.

Needs Python 3.11 on Linux, and nothing else.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable

START_SECONDS = 60
STOP_SECONDS = 20
# Limit of a step beyond the time that it is asked to measure: connecting, reading back what was acknowledged, ending.
SLACK_SECONDS = 180
# Limit of a whole turn beyond the times of its load.
TURN_SECONDS = 600
# Turns whose load generator judged its own figures void are repeated this many times; the report counts them.
MAX_REPEATS = 2
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class PeerError(Exception):
    """A comparison cannot go on. The message tells the user why."""


class VoidTurn(Exception):
    """The figures of a turn measure the machine or the generator instead of the server."""


@dataclass
class Figures:
    """Figures of one turn. A request carries one or more items, such as records; times are those of requests."""

    per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    server_cpu_us: float | None
    generator_cpu_us: float | None
    syncs_per_request: float | None
    note: str = ""


@dataclass(frozen=True)
class Work:
    """A piece of work that all systems do."""

    name: str
    clients: int
    batch: int = 1
    kind: str = ""


@dataclass
class Subject:
    """A system in one configuration. Subjects of the same level make the same promise when they acknowledge a write."""

    name: str
    level: str
    measure: Callable[[Work, "Children"], Figures]
    is_ours: bool = False
    takes_part: Callable[[Work], bool] = lambda work: True


class Children:
    """Processes of one turn. All of them have ended when the `with` block ends."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._running: list[tuple[subprocess.Popen, signal.Signals]] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A signal that comes now must not leave processes behind: it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            for process, stop in reversed(self._running):
                end(process, stop)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def start(self, arguments, *, stop=signal.SIGTERM, log: str, **more) -> subprocess.Popen:
        """Starts a process that gets the signal `stop` in the end, or when this program dies. Its standard error goes to
        the file `log` in the turn's directory."""
        command = [str(argument) for argument in arguments]
        with open(self.directory / log, "ab") as errors:
            try:
                process = subprocess.Popen(
                    command, stderr=errors, start_new_session=True, preexec_fn=lambda: die_with_parent(stop), **more
                )
            except OSError as error:
                raise PeerError(f"{command[0]} cannot be started: {error}") from error
        self._running.append((process, stop))
        return process

    def run(self, arguments, *, seconds: float = START_SECONDS, log: str, may_fail=False, **more) -> tuple[int, str]:
        """Runs a command to its end within `seconds`. Returns its status and its standard output."""
        process = self.start(arguments, log=log, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **more)
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{arguments[0]} did not end within {seconds:.0f} s: {self.tail(log)}") from None
        if process.returncode != 0 and not may_fail:
            raise PeerError(f"{arguments[0]} ended with status {process.returncode}: {self.tail(log)}")
        return process.returncode, output

    def tail(self, log: str) -> str:
        """Returns the last lines of a log file of the turn."""
        lines = (self.directory / log).read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def wait_until(self, process: subprocess.Popen, log: str, is_ready: Callable[[], bool]):
        """Waits until a server is ready."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if process.poll() is not None:
                raise PeerError(f"{process.args[0]} ended with status {process.returncode}: {self.tail(log)}")
            if is_ready():
                return
            time.sleep(0.05)
        raise PeerError(f"{process.args[0]} was not ready after {START_SECONDS} s: {self.tail(log)}")


def die_with_parent(number: signal.Signals):
    """Runs in a new process before its program: the kernel sends it this signal when this program dies."""
    for ending in ENDING:
        signal.signal(ending, signal.SIG_DFL)
    if LIBC.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def end(process: subprocess.Popen, stop: signal.Signals):
    """Ends a process: closes its input, sends `stop`, and kills it if that was not enough."""
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.send_signal(stop)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()


def end_on_signals():
    """Makes the signals that end this program run the ends of all `with` blocks first."""

    def stop(_number, _frame):
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in ENDING:
        signal.signal(number, stop)


def free_ports(count: int) -> list[int]:
    """Returns different TCP ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Thalweg:
    """A Thalweg server with default settings, but for `arguments`."""

    def __init__(self, binary: Path, children: Children, arguments=()):
        self.http, self.native = free_ports(2)
        log, data = "thalweg.log", children.directory / "thalweg"
        ports = ["--http", f"127.0.0.1:{self.http}", "--native", f"127.0.0.1:{self.native}"]
        command = [binary, "serve", "--data", data, *ports, *arguments]
        self.process = children.start(command, log=log, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        children.wait_until(self.process, log, lambda: self.get("/ready") is not None)

    def get(self, path: str) -> str | None:
        """Returns the body of a reply with status 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=5) as reply:
                return reply.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        lines = [line for line in (self.get("/metrics") or "").splitlines() if line.split("{")[0].split(" ")[0] == name]
        if not lines:
            raise PeerError(f"the server has no metric {name}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def build(self) -> str:
        """Returns version, profile and commit of the server."""
        status = json.loads(self.get("/v1/status") or "{}")
        build = status.get("build") or {}
        changes = " with changes" if build.get("dirty") else ""
        return f"{status.get('version')} ({build.get('profile')}, commit {build.get('commit')}{changes})"


def bench(binary: Path, children: Children, arguments: list[str], seconds: float) -> dict:
    """Runs one scenario of `thalweg bench` against a running server, and returns its row of figures."""
    log = "bench.log"
    command = [binary, "bench", *arguments, "--rounds", "1", "--workers", "1", "--json"]
    status, output = children.run(command, seconds=seconds + SLACK_SECONDS, log=log, may_fail=True)
    try:
        report = json.loads(output)
    except json.JSONDecodeError:
        raise PeerError(f"thalweg bench ended with status {status}: {children.tail(log)}") from None
    bad = [f"{check['what']}: {check['measured']}" for check in report["checks"] if check["verdict"] != "met"]
    if any(check["verdict"] == "void" for check in report["checks"]):
        raise VoidTurn("; ".join(bad))
    if status != 0:
        raise PeerError(f"thalweg bench ended with status {status}: {'; '.join(bad) or children.tail(log)}")
    tables = [table for table in report["tables"] if table["title"].startswith("figures")]
    if len(tables) != 1 or len(tables[0]["rows"]) != 1:
        raise PeerError("the report of thalweg bench has not one row of figures")
    return tables[0]["rows"][0]


def times_of(row: dict) -> dict:
    """Returns the response times of a row of `thalweg bench`, by the names of `Figures`."""
    names = {"p50_us": "p50 µs", "p99_us": "p99 µs", "p999_us": "p99.9 µs", "max_us": "max µs"}
    return {ours: row[name] for ours, name in names.items()}


def note_of(row: dict) -> str:
    """Returns the verdict on a row of `thalweg bench`, unless it is a plain good one."""
    return "" if row["verdict"] == "good" else row["verdict"]


def percentile(times: list, part: float) -> float:
    """Returns a percentile of sorted times."""
    return float(times[min(len(times) - 1, int(part * len(times)))])


def cpu_seconds(process: int, with_children: bool = False) -> float:
    """Returns the CPU time of a process; on request with that of its children, living or waited for."""
    fields = stat_fields(process)
    ticks = sum(map(int, fields[11:15] if with_children else fields[11:13]))
    total = ticks / os.sysconf("SC_CLK_TCK")
    if with_children:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if int(stat_fields(int(entry.name))[1]) == process:
                        total += cpu_seconds(int(entry.name))
    return total


def stat_fields(process: int) -> list[str]:
    """Returns the fields of a process's `stat` behind its name, which may hold anything: state, parent, and so on."""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()


def disk_probe(directory: Path, seconds: float = 0.3) -> float:
    """Returns the median time of a write of 1 KiB into a prewritten file with its fdatasync, in microseconds."""
    block, times = bytes(1024), []
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begun = time.perf_counter()
            os.pwrite(file.fileno(), block, len(times) % 1024 * 1024)
            os.fdatasync(file.fileno())
            times.append(1e6 * (time.perf_counter() - begun))
    return statistics.median(times)


@dataclass
class Report:
    """Figures of all turns, in the order in which they were measured."""

    title: str
    levels: dict[str, str]
    conditions: list[str]
    turns: list[dict] = field(default_factory=list)
    fdatasync_us: list[float] = field(default_factory=list)
    voids: int = 0

    def print(self, works: list[Work], subjects: list[Subject]):
        """Prints a table for each piece of work and each level."""
        print(self.title)
        for condition in self.conditions:
            print(f"  {condition}")
        probes = ", ".join(f"{time:.0f}" for time in self.fdatasync_us)
        print(f"  raw write of 1 KiB with fdatasync before each round, median: {probes} µs")
        print(f"  turns repeated because their figures were void: {self.voids}")
        for work in works:
            for level, meaning in self.levels.items():
                self._print_table(work, meaning, [subject for subject in subjects if subject.level == level])

    def _rounds(self, work: Work, subject: Subject) -> list[dict]:
        return [turn for turn in self.turns if (turn["work"], turn["subject"]) == (work.name, subject.name)]

    def _print_table(self, work: Work, meaning: str, subjects: list[Subject]):
        measured = [(subject, rounds) for subject in subjects if (rounds := self._rounds(work, subject))]
        if not measured:
            return
        print(f"\n{work.name}; {meaning}; medians of {len(measured[0][1])} rounds")
        heads = ["per second", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "server CPU µs", "generator CPU µs",
                 "syncs/request", "per second by round"]
        rows = [["", *heads]]
        for subject, rounds in measured:
            row = [shown(median(rounds, name)) for name in COLUMNS]
            by_round = " ".join(shown(turn["per_second"]) for turn in rounds)
            notes = sorted({turn["note"] for turn in rounds if turn["note"]})
            rows.append([subject.name, *row, by_round + "".join(f" ({note})" for note in notes)])
        widths = [max(map(len, column)) for column in zip(*rows)]
        for name, *cells, last in rows:
            aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:-1])]
            print("  " + "  ".join([name.ljust(widths[0]), *aligned, last]))
        self._print_ratios(measured)

    @staticmethod
    def _print_ratios(measured: list[tuple[Subject, list[dict]]]):
        for ours, our_rounds in measured:
            for theirs, their_rounds in measured:
                if ours.is_ours and not theirs.is_ours:
                    ratios = [a["per_second"] / b["per_second"] for a, b in zip(our_rounds, their_rounds)]
                    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
                    print(f"  {ours.name} / {theirs.name}: {middle:.2f} × ({low:.2f}–{high:.2f}), median of the ratios")


COLUMNS = ["per_second", "p50_us", "p99_us", "p999_us", "max_us", "server_cpu_us", "generator_cpu_us",
           "syncs_per_request"]


def median(rounds: list[dict], name: str) -> float | None:
    values = [turn[name] for turn in rounds if turn[name] is not None]
    return statistics.median(values) if values else None


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns the parser of the options that all comparisons have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--thalweg", type=Path, required=True, help="release build of the command thalweg")
    parser.add_argument("--dir", type=Path, required=True, help="directory for all data; it decides which disk is measured")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system at each piece of work (default: 5)")
    parser.add_argument("--seconds", type=float, default=5, help="time of a measurement (default: 5)")
    parser.add_argument("--warmup", type=float, default=5, help="time of the load before it, not counted (default: 5)")
    parser.add_argument("--only", default="", help="only work whose name has this in it")
    parser.add_argument("--json", type=Path, help="also write the figures of all turns to this file")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line, and makes its paths absolute."""
    options = parser.parse_args()
    if options.rounds < 1 or not 0 < options.seconds <= 600 or not 0 < options.warmup <= 600:
        parser.error("--rounds must be at least 1, --seconds and --warmup above 0 and at most 600")
    found = shutil.which(options.thalweg)
    if not found:
        parser.error(f"{options.thalweg} is not a program")
    options.thalweg = Path(found).resolve()
    options.dir = options.dir.resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    return options


@contextlib.contextmanager
def fresh_directory(parent: Path):
    """Makes a directory that other users may enter, and deletes it in the end."""
    directory = Path(tempfile.mkdtemp(prefix="turn-", dir=parent))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def machine() -> str:
    """Describes the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{cores} cores of {(models or ['unknown'])[0]}, Linux {platform.release()}, load before: {load:.2f}"


@contextlib.contextmanager
def time_limit(seconds: float):
    """Raises an error in the block when it takes longer."""

    def expire(_number, _frame):
        raise PeerError(f"a turn was not done after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def take_turn(report: Report, options, work: Work, subject: Subject) -> Figures:
    """Measures once. A void measurement is repeated."""
    for repeat in range(MAX_REPEATS + 1):
        # The files of the turn before are deleted; what else waits for the disk must not slow this one down.
        os.sync()
        try:
            with fresh_directory(options.dir) as directory, Children(directory) as children:
                with time_limit(options.warmup + options.seconds + TURN_SECONDS):
                    return subject.measure(work, children)
        except VoidTurn as why:
            report.voids += 1
            print(f"void, attempt {repeat + 1}: {why}", file=sys.stderr)
    raise PeerError(f"{work.name}, {subject.name}: all {MAX_REPEATS + 1} attempts were void")


def compare(report: Report, options, works: list[Work], subjects: list[Subject], versions: dict[str, str]):
    """Runs all rounds, and prints the report with the versions that the turns have found."""
    works = [work for work in works if options.only in work.name]
    if not works:
        raise PeerError(f"no work has {options.only!r} in its name")
    for number in range(options.rounds):
        report.fdatasync_us.append(disk_probe(options.dir))
        for work in works:
            parties = [subject for subject in subjects if subject.takes_part(work)]
            first = number % len(parties)
            for subject in parties[first:] + parties[:first]:
                figures = take_turn(report, options, work, subject)
                report.turns.append({"round": number + 1, "work": work.name, "subject": subject.name,
                                     "level": subject.level, **asdict(figures)})
                print(f"round {number + 1} of {options.rounds}: {work.name}, {subject.name}: "
                      f"{figures.per_second:.0f}/s, p99 {figures.p99_us:.0f} µs", file=sys.stderr, flush=True)
    report.conditions += [f"{name} {version}" for name, version in versions.items()]
    report.print(works, subjects)
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n")


def main(run: Callable[[], None]):
    """Runs a comparison. Ends with status 1 after an error, 130 after a signal."""
    end_on_signals()
    try:
        run()
    except PeerError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
