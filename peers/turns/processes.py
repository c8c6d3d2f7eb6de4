"""Processes that end with this program, their CPU time, and free ports."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Callable

START_SECONDS = 60
STOP_SECONDS = 20
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class PeerError(Exception):
    """A comparison cannot go on. The message tells the user why."""


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
