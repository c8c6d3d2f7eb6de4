"""Parts that the comparisons in Python share: processes, a Thalweg server and its load, turns, the report.

A turn is one measurement of one system, in fresh processes and a fresh directory below the caller's. In each round all
systems take their turns at a piece of work, and each round begins with another system, so that a change of the
machine's speed affects all of them alike. No process outlives this program, and each step has a time limit.

Needs Python 3.11 on Linux, and nothing else.
"""

from .processes import START_SECONDS, Children, PeerError, cpu_seconds, free_ports
from .report import Figures, Report, Subject, Work, percentile
from .rounds import arguments, compare, machine, main, parse
from .thalweg import SLACK_SECONDS, Thalweg, VoidTurn, bench, note_of, times_of

__all__ = [
    "SLACK_SECONDS", "START_SECONDS", "Children", "Figures", "PeerError", "Report", "Subject", "Thalweg", "VoidTurn",
    "Work", "arguments", "bench", "compare", "cpu_seconds", "free_ports", "machine", "main", "note_of", "parse", "percentile",
    "times_of",
]
