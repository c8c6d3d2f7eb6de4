"""A Thalweg server, and the load of `thalweg bench` on it."""

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from .processes import Children, PeerError, free_ports

# Limit of a load beyond its own time: connecting, reading back the acknowledged records, ending.
SLACK_SECONDS = 180


class VoidTurn(Exception):
    """The figures of a turn measure the machine or the generator instead of the server."""


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
