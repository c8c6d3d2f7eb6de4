"""Figures of turns, and the report with the ratios."""

import statistics
from dataclasses import dataclass, field
from typing import Callable

from .processes import Children


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
    measure: Callable[[Work, Children], Figures]
    is_ours: bool = False
    takes_part: Callable[[Work], bool] = lambda work: True


def percentile(times: list, part: float) -> float:
    """Returns a percentile of sorted times."""
    return float(times[min(len(times) - 1, int(part * len(times)))])


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
