"""Compile java/ against the jars of the installed pyspark and write the jar that the wheel ships.

The same sources and the same major release of javac give the same bytes: classes are sorted, and
every date is fixed. Users and the demo never need a JDK; the jar is in the repository.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "java"
JAR = ROOT / "src" / "holdfast" / "spark" / "holdfast-spark.jar"
RELEASE = "17"
_DATE = (2026, 1, 1, 0, 0, 0)
_MANIFEST = "META-INF/MANIFEST.MF"


def find_javac() -> str | None:
    """Return the compiler of the release that the jar is built with, if it is here."""
    javac = shutil.which("javac")
    if javac is None:
        return None
    said = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)
    found = re.search(r"javac (\d+)", said.stdout + said.stderr)
    return javac if found and found[1] == RELEASE else None


def build(javac: str) -> bytes:
    """Return the jar's bytes."""
    import pyspark  # noqa: PLC0415 - only to build

    jars = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(str(path) for path in SOURCES.rglob("*.java"))
        how = ["--release", RELEASE, "-g:none", "-Xlint:none", "-nowarn"]
        where = ["-d", folder, "-cp", f"{jars}/*"]
        subprocess.run([javac, *how, *where, *sources], check=True)
        return _packed(Path(folder))


def _packed(folder: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as jar:
        _add(
            jar, _MANIFEST, f"Manifest-Version: 1.0\r\nBuilt-With: javac {RELEASE}\r\n\r\n".encode()
        )
        for path in sorted(folder.rglob("*.class")):
            _add(jar, path.relative_to(folder).as_posix(), path.read_bytes())
    return out.getvalue()


def _add(jar: zipfile.ZipFile, name: str, body: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    entry.create_system = 3
    jar.writestr(entry, body)


def main() -> int:
    """Write the jar, or say why not."""
    argparse.ArgumentParser(prog="./run jar", description=__doc__).parse_args()
    javac = find_javac()
    if javac is None:
        print(f"error: no javac {RELEASE}; on Debian: apt-get install openjdk-17-jdk-headless")
        return 1
    body = build(javac)
    JAR.write_bytes(body)
    print(f"{JAR.relative_to(ROOT)}: {len(body)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
