"""What is shipped: a wheel and an sdist that install into an empty environment and work there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

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


def test_the_sdist_holds_what_builds_and_tests_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    assert {"pyproject.toml", "src/holdfast/__init__.py", "tests/conftest.py", "LICENSE"} <= names


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
