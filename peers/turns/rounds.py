"""The command line, the turns of all rounds, and the description of the machine."""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Callable

from .processes import Children, PeerError, end_on_signals
from .report import Figures, Report, Subject, Work
from .thalweg import VoidTurn

# Limit of a whole turn beyond the times of its load.
TURN_SECONDS = 600
# Maximum number of repetitions of a turn with void figures; the report counts them.
MAX_REPEATS = 2


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns the parser of the options that all comparisons have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--thalweg", type=Path, required=True, help="release build of the command thalweg")
    parser.add_argument("--dir", type=Path, required=True, help="directory for all data; it decides which disk is measured")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system at each piece of work (default: 5)")
    parser.add_argument("--seconds", type=float, default=5, help="time of a measurement (default: 5)")
    parser.add_argument("--warmup", type=float, default=5, help="time of the load before it, not counted (default: 5)")
    parser.add_argument("--only", default="", help="only work with this text in its name")
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
        # The files of the previous turn are deleted; other pages that wait for the disk must not slow this one down.
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
