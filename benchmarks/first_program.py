"""`python -m benchmarks.first_program`: run the programs of `first-program.md` as they stand there, and count them.

Each gets a virtual environment of its own, into which its packages are installed from the configured index (effects:
from this checkout), an empty folder, and its server. It has run once its greeting was printed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import postgresql
from benchmarks.tables import markdown

DOCUMENT = Path(__file__).with_name("first-program.md")
CHECKOUT = Path(__file__).parents[1]
GREETING = "hello ann"
PATIENCE_SECONDS = 60.0
# Of this checkout.
_PLACES = {"effects-toolkit": str(CHECKOUT), "effects-toolkit-email": str(CHECKOUT / "email")}
_SECTION = re.compile(r"^## (?P<name>[^\n]+)$(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTALL = re.compile(r"Install: (?P<packages>.+?)\. Server: (?P<server>\w+)\.")


@dataclass(frozen=True)
class Program:
    """A section of the document."""

    name: str
    packages: list[str]
    server: str
    source: str
    commands: list[str]

    @property
    def lines(self) -> int:
        return sum(1 for line in self.source.splitlines() if line.strip())


def programs(document: Path = DOCUMENT) -> list[Program]:
    """Read the document."""
    return [_program(match["name"], match["body"]) for match in _SECTION.finditer(document.read_text())]


def _program(name: str, body: str) -> Program:
    blocks = {match["kind"]: match["text"] for match in _BLOCK.finditer(body)}
    needs = _INSTALL.search(body)
    assert needs is not None, f"section {name} does not say what it installs"
    commands = [line.removeprefix("$ ") for line in blocks["console"].splitlines()]
    return Program(name, re.findall(r"`([^`]+)`", needs["packages"]), needs["server"], blocks["py"], commands)


def run(program: Program, folder: Path) -> list[str]:
    """Install, write and run a program in `folder`; return its row of the table.

    Raises:
        RuntimeError: a command failed, or the greeting did not come within a minute.
    """
    binaries = environment(program, folder / "venv")
    work = folder / "work"
    work.mkdir()
    with SERVERS[program.server]() as url:
        (work / "hello.py").write_text(program.source.replace(f"{program.server.upper()}_URL", url))
        begun = time.monotonic()
        for command in program.commands[:-1]:
            _finish(command, work, binaries)
        _greet(program.commands[-1], work, binaries)
        seconds = time.monotonic() - begun
    return [program.name, str(program.lines), str(len(program.commands)), program.server, f"{seconds:.1f}"]


def environment(program: Program, folder: Path) -> Path:
    """Make a virtual environment with its packages; the folder of its programs."""
    venv.create(folder, with_pip=True)
    packages = [_PLACES.get(package, package) for package in program.packages]
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages], check=True)
    return folder / "bin"


def _started(command: str, work: Path, binaries: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(binaries), os.environ["PATH"]])
    environment = {"PATH": paths, "HOME": str(work), "PYTHONPATH": str(work), "PYTHONUNBUFFERED": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        ["/bin/sh", "-c", f"exec {command}"], cwd=work, env=environment, text=True, **streams
    )


def _finish(command: str, work: Path, binaries: Path) -> None:
    process = _started(command, work, binaries)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"`{command}` ended with {process.returncode}:\n{output}")


def _greet(command: str, work: Path, binaries: Path) -> None:
    """Run a worker until the greeting is in what it prints; then stop it."""
    process = _started(command, work, binaries)
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    printed = []
    for line in process.stdout:
        printed.append(line)
        if GREETING in line:
            break
        if time.monotonic() > deadline:
            break
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    if not any(GREETING in line for line in printed):
        raise RuntimeError(f"`{command}` did not greet:\n{''.join(printed)}")


@contextmanager
def _redis() -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([program, "--port", str(port), "--save", ""], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    next(line for line in server.stdout if "Ready to accept" in line)
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate()


@contextmanager
def _postgresql() -> Iterator[str]:
    with postgresql() as server, server.database() as url:
        yield url


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "none": lambda: nullcontext(""),
    "Redis": _redis,
    "PostgreSQL": _postgresql,
}


def main(arguments: list[str]) -> None:
    """Run all, or those named, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_program", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this system alone; repeatable")
    only = parser.parse_args(arguments).only
    rows = [["system", "lines", "commands", "server", "seconds to the greeting"]]
    for program in programs():
        if only is None or program.name in only:
            with tempfile.TemporaryDirectory(prefix="first-program-") as folder:
                rows.append(run(program, Path(folder)))
    print("\n".join(markdown(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
