"""Names and paths: nothing that is accepted leaves its folder, and hostile names are refused."""

from __future__ import annotations

import itertools
import os
import random
import string
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.formats import (
    PIN_PATH,
    VERSIONS_SERIES,
    Name,
    check_name,
    check_path,
    check_shard_id,
    probe_path,
    staged_path,
    temporary_path,
    version_name,
    version_of,
)
from holdfast.storage import LocalStore

SAFE = string.ascii_letters + string.digits + "._=+-/"
ROOT = "/lake/table"
U64_MAX = 2**64 - 1

BAD_PARTS = [
    "",
    ".",
    "..",
    "...",
    "..hidden",
    "-dash",
    "+plus",
    "=equals",
    "~",
    "~root",
    "a b",
    " ",
    "a\tb",
    "a\nb",
    "a\r",
    "a\0b",
    "a\x7fb",
    "a\x1b[31m",
    "a%2e%2e",
    "%2e%2e",
    "..%2f",
    "%00",
    "a%20b",
    "a\\b",
    "..\\..",
    "C:",
    "C:\\x",
    "a:b",
    "a*",
    "a?b",
    "a#b",
    "a;b",
    "a|b",
    "a&b",
    "a$b",
    "$(x)",
    "`x`",
    "a'b",
    'a"b',
    "a<b",
    "a,b",
    "a@b",
    "a!b",
    "a{b}",
    "a[b]",
    "a^b",
    "\u2024\u2024",  # one dot leader, twice
    "\uff0e\uff0e",  # full-width full stops
    "a\u2044b",  # fraction slash
    "a\u2215b",  # division slash
    "a\uff0fb",  # full-width solidus
    "\u0430bc",  # Cyrillic a
    "caf\u00e9",
    "a\u202eb",  # right-to-left override
    "a\u200bb",  # zero-width space
    "\ufeffa",  # byte order mark
    "\u0661\u0662",  # Arabic-Indic digits
    "\ud800",  # half a surrogate pair
    "\U0001f600",
    "x" * 256,
    "x" * 5000,
]


def hostile_paths() -> list[str]:
    """Return 1,000 different paths, none of which may be accepted."""
    shapes = ["{}", "a/{}", "{}/a", "a/{}/b", "_versions/{}", "{}/", "/{}"]
    found = [shape.format(bad) for shape, bad in itertools.product(shapes, BAD_PARTS)]
    chance = random.Random(20260101)
    while len(set(found)) < 1000:
        parts = [
            "".join(chance.choices(SAFE.replace("/", ""), k=chance.randint(1, 12)))
            for _ in range(chance.randint(1, 4))
        ]
        parts.insert(chance.randint(0, len(parts)), chance.choice(BAD_PARTS))
        found.append("/".join(parts))
    return sorted(set(found))[:1000]


HOSTILE = hostile_paths()


def is_inside(path: str) -> bool:
    resolved = os.path.normpath(f"{ROOT}/{path}")
    return resolved.startswith(f"{ROOT}/") and "\0" not in resolved


# Paths


def test_a_thousand_hostile_paths_are_refused() -> None:
    assert len(HOSTILE) == 1000
    for path in HOSTILE:
        with pytest.raises(InvalidInputError) as caught:
            check_path(path)
        shown = str(caught.value)
        assert len(shown) < 600
        assert shown.isprintable()  # nothing in it steers a terminal


def test_hostile_paths_touch_nothing_in_a_store(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "outer" / "table", fsync=False)
    for path in HOSTILE:
        with pytest.raises(InvalidInputError):
            store.put(path, b"escaped")
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=60) | st.text(alphabet=SAFE, max_size=60))
@settings(max_examples=600, deadline=None)
def test_what_is_accepted_stays_inside(path: str) -> None:
    try:
        accepted = check_path(path)
    except InvalidInputError:
        return
    assert accepted == path
    assert is_inside(path)
    assert path.isascii()
    assert not set(path) - set(SAFE)
    assert all(part.removeprefix(".")[:1] not in {"", "."} for part in path.split("/"))


@given(
    st.lists(
        st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,20}", fullmatch=True),
        min_size=1,
        max_size=6,
    )
)
def test_plain_paths_are_accepted(parts: list[str]) -> None:
    path = "/".join(parts)
    assert check_path(path) == path
    assert is_inside(path)


@pytest.mark.parametrize(
    "path",
    [
        "_versions/18446744073709551614.manifest",
        "_transactions/0-ad4b5e3c-8d1b-4f3e-9d4e-1b2c3d4e5f60.txn",
        "data/0101f00d.lance",
        "_deletions/3-7-123.arrow",
        "_indices/0f8b/metadata.json",
        "_holdfast/pin.json",
        "year=2024/x+y",
    ],
)
def test_paths_of_lance_are_accepted(path: str) -> None:
    assert check_path(path) == path


def test_lengths() -> None:
    longest = "/".join(["x" * 100, "y" * 100, "z" * 148])
    assert len(longest) == 350
    check_path(longest)
    check_path("x" * 255)
    for path in (longest + "z", "x" * 256):
        with pytest.raises(InvalidInputError):
            check_path(path)


def test_the_bad_part_is_named() -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_path("good/%2e%2e/more")
    assert caught.value.details["part"] == "'%2e%2e'"


# Names


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "9", "x" * 128])
def test_names_that_are_fine(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("bad", [*BAD_PARTS, "a/b", "_x", "x" * 129, "a\n"])
def test_names_that_are_not(bad: str) -> None:
    with pytest.raises(InvalidInputError, match="a tag starts with"):
        check_name(bad, "a tag")


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_an_accepted_name_is_one_safe_part(name: str) -> None:
    try:
        check_name(name)
    except InvalidInputError:
        return
    assert check_path(name) == name
    assert "/" not in name


# Shard ids


@given(st.uuids())
def test_a_shard_id_has_one_spelling(shard: uuid.UUID) -> None:
    assert check_shard_id(str(shard)) == str(shard)
    assert check_shard_id(str(shard).upper()) == str(shard)
    assert check_path(check_shard_id(str(shard))) == str(shard)


@pytest.mark.parametrize(
    "bad",
    [
        "x",
        "../../etc",
        "0" * 32,
        "{00000000-0000-0000-0000-000000000000}",
        "urn:uuid:00000000-0000-0000-0000-000000000000",
        "00000000-0000-0000-0000-00000000000",
        "00000000-0000-0000-0000-0000000000000",
        "0000000-00000-0000-0000-000000000000",
        "00000000-0000-0000-0000-000000000000\n",
        " 00000000-0000-0000-0000-000000000000",
        "\u0660" * 8 + "-0000-0000-0000-000000000000",
        "0" * 32 + "-" * 100_000,
        None,
        7,
        b"11111111-0000-0000-0000-000000000000",
        *BAD_PARTS,
    ],
)
def test_what_is_no_shard_id(bad: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_shard_id(bad)
    assert len(str(caught.value)) < 300


# Versions


@given(st.integers(min_value=1, max_value=2**63 - 1))
def test_a_version_and_its_path_are_one(version: int) -> None:
    name = version_name(version)
    assert version_of(name.path) == version
    assert (name.series, name.number, str(name)) == (VERSIONS_SERIES, version, name.path)
    assert name.previous == (version_name(version - 1).path if version > 1 else None)
    assert not name.stands_alone


def test_newer_versions_are_listed_first() -> None:
    paths = [version_name(v).path for v in (1, 2, 10, 999, 2**40)]
    assert paths == sorted(paths, reverse=True)
    assert paths[0] == "_versions/18446744073709551614.manifest"


@pytest.mark.parametrize("version", [-1, 2**63, 2**64, 2**70])
def test_a_version_out_of_range_is_refused(version: int) -> None:
    with pytest.raises(InvalidInputError):
        version_name(version)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "_versions/1.manifest",
        "_versions/18446744073709551614.manifest.tmp",
        "_versions/18446744073709551614.manifest\n",
        "x_versions/18446744073709551614.manifest",
        "_versions/d18446744073709551614.manifest",
        "_versions/99999999999999999999.manifest",
        "_versions/" + "\u0661" * 20 + ".manifest",
        "_versions/18446744073709551616.manifest",
    ],
)
def test_what_is_no_version(path: str) -> None:
    assert version_of(path) is None


@given(st.integers(min_value=0, max_value=10**20 - 1))
def test_any_twenty_digits_are_a_version_or_none(digits: int) -> None:
    version = version_of(f"_versions/{digits:020d}.manifest")
    assert version == (U64_MAX - digits if digits <= U64_MAX else None)


# Names that are decided


def test_a_single_name_stands_alone() -> None:
    name = Name.single("plans/7.json")
    assert name.stands_alone
    assert (name.path, name.number, name.previous) == ("plans/7.json", 0, None)
    assert Name.single("plans/7.json") == name
    assert Name.single("plans/8.json").series != name.series


@pytest.mark.parametrize("path", HOSTILE[::50])
def test_a_name_checks_its_path(path: str) -> None:
    with pytest.raises(InvalidInputError):
        Name.single(path)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_name_checks_its_number(number: int) -> None:
    with pytest.raises(InvalidInputError, match="number"):
        Name("a", "s", number)


def test_our_own_objects_live_in_one_folder() -> None:
    token = "hf-" + "0" * 32
    for path in (PIN_PATH, staged_path(token), temporary_path(token), probe_path(token, "x")):
        assert path.startswith("_holdfast/")
        assert check_path(path) == path
    for bad in ("../x", "", "a b"):
        for build in (staged_path, temporary_path, lambda text: probe_path(text, "x")):
            with pytest.raises(InvalidInputError):
                build(bad)
