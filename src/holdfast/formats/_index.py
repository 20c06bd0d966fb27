"""Names of full-text index builds: which name is decided, and where parts wait and end up.

Lance keeps an index in `_indices/UUID`. A build has such a UUID for its final files, and every
attempt of a task has one of its own for what it stages: two attempts never share a folder.
What a build knows of itself is kept apart, in `_holdfast/index/BUILD`, where no stray file
can slip into a committed index:

    build.json             what is to be built; there for as long as the build is open
    attempts/ATTEMPT.json  an attempt declares itself before it writes anything
    tasks/00003.json       decided: the attempt of task 3 that counts
    plan.json              decided: which staged part becomes which final part
"""

from __future__ import annotations

import re
import uuid

from holdfast.errors import InvalidInputError
from holdfast.formats._names import HOME, Name, check_path

BUILDS_FOLDER = f"{HOME}/index"
INDICES_FOLDER = "_indices"
PART_FILES = ("tokens.lance", "invert.lance", "docs.lance")
"""What a partition of an inverted index consists of."""

MARKER_FILE = "metadata.lance"

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RECORD = re.compile(rf"{BUILDS_FOLDER}/([0-9a-f-]{{36}})/build\.json")
_OF_BUILD = re.compile(rf"{BUILDS_FOLDER}/([0-9a-f-]{{36}})/.+")
_TASK = re.compile(rf"{BUILDS_FOLDER}/[0-9a-f-]{{36}}/tasks/\d{{5,}}\.json")
_PLAN = re.compile(rf"{BUILDS_FOLDER}/[0-9a-f-]{{36}}/plan\.json")
_ATTEMPT = re.compile(rf"{BUILDS_FOLDER}/[0-9a-f-]{{36}}/attempts/([0-9a-f-]{{36}})\.json")


def index_id(token: str) -> str:
    """Return the UUID made of a token's digits: nobody else has it."""
    return str(uuid.UUID(token.removeprefix("hf-")))


def check_index_id(text: str, what: str = "a build id") -> str:
    """Return `text` if it is a UUID in its one spelling.

    Raises:
        InvalidInputError: it is not.
    """
    if not _UUID.fullmatch(str(text)):
        raise InvalidInputError(f"{what} is a lower-case UUID with dashes", given=repr(text)[:80])
    return text


def build_folder(build_id: str) -> str:
    """Return where a build keeps what it knows of itself."""
    return f"{BUILDS_FOLDER}/{check_index_id(build_id)}"


def build_record_path(build_id: str) -> str:
    """Return where it says what is to be built."""
    return f"{build_folder(build_id)}/build.json"


def build_id_of_record(path: str) -> str | None:
    """Return the build whose record has this path; None for any other path."""
    match = _RECORD.fullmatch(path)
    return match[1] if match else None


def build_id_of(path: str) -> str | None:
    """Return the build that an object of the builds' folder belongs to."""
    match = _OF_BUILD.fullmatch(path)
    return match[1] if match else None


def attempts_folder(build_id: str) -> str:
    """Return where the attempts of a build declare themselves."""
    return f"{build_folder(build_id)}/attempts"


def attempt_path(build_id: str, attempt: str) -> str:
    """Return where one attempt declares itself."""
    return f"{attempts_folder(build_id)}/{check_index_id(attempt, 'an attempt id')}.json"


def attempt_of(path: str) -> str | None:
    """Return the attempt that declares itself at this path; None for any other path."""
    match = _ATTEMPT.fullmatch(path)
    return match[1] if match else None


def task_name(build_id: str, task: int) -> Name:
    """Return the name by which it is decided which attempt of a task counts."""
    return Name.single(f"{build_folder(build_id)}/tasks/{task:05d}.json")


def is_task_path(path: str) -> bool:
    """Tell whether this is the path of a task's decided name."""
    return _TASK.fullmatch(path) is not None


def is_plan_path(path: str) -> bool:
    """Tell whether this is the path of a build's frozen plan."""
    return _PLAN.fullmatch(path) is not None


def plan_name(build_id: str) -> Name:
    """Return the name of the frozen plan."""
    return Name.single(f"{build_folder(build_id)}/plan.json")


def marker_name(build_id: str) -> Name:
    """Return the name whose decision makes an index complete."""
    return Name.single(f"{index_folder(build_id)}/{MARKER_FILE}")


def index_folder(index: str) -> str:
    """Return the folder of a segment, a build's final files, or an attempt."""
    return f"{INDICES_FOLDER}/{check_index_id(index, 'an index id')}"


def staging_folder(attempt: str) -> str:
    """Return where Lance stages the parts of an attempt."""
    return f"{index_folder(attempt)}/staging"


def part_file(part: int, file: str) -> str:
    """Return how Lance calls one of the files of a part."""
    return f"part_{part}_{file}"


def part_path(folder: str, part: int, file: str) -> str:
    """Return the path of one of the files of a part."""
    return check_path(f"{folder}/{part_file(part, file)}")
