"""Worlds in which jobs, straggling tasks and finalizers work on one index build.

Task, finalizer and sweep are the production code; Lance's builder, the marker's file format
and the table commit are small models. A staged file says which attempt wrote it, by which
builder, of which fragment, so mixed or exchanged files are seen. What must hold in every
state:

- a marker means: every final file is there, each part from one attempt, in fragment order;
- a commit means the same, by exactly the attempts that were committed, for ever;
- an acknowledged build is committed;
- everybody may die now: whoever comes next brings the build to its end.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.arbiter import Arbiter, Lost, Name
from holdfast.core import TableCore
from holdfast.errors import (
    CommitUnknownError,
    CorruptError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import (
    PART_FILES,
    BuildRecord,
    Details,
    Part,
    PartFile,
    Plan,
    index_folder,
    index_id,
    marker_name,
    part_path,
    staging_folder,
)
from holdfast.index import _finalize, _publish, _task
from holdfast.index._builds import start
from holdfast.index._files import BuildFiles
from holdfast.index._finalize import Complete
from holdfast.index._marker import Marker
from holdfast.index._task import Built
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.testing import CountedIds, Scenario, SimulatedStore, State, StillClock, World
from holdfast.testing._simulated import SimulatedCommitStore
from model.decide_scenarios import PINNED, RETRY, Maker, conditional

BUILD = index_id("hf-" + "b" * 32)
COMMITTED = Name.single("table/index")
HONEST_ANSWERS = (CommitUnknownError, UnavailableError, PermissionDeniedError)
DETAILS = Details(fields=(1,), index_version=2, type_url="/text", value_hex="")
PROPERTIES = {"params": "{}"}


class JsonMarkers:
    """The marker in a format that is quick to read."""

    def encode(self, marker: Marker, token: str) -> bytes:
        said = {"parts": marker.parts, "properties": marker.properties, "token": token}
        return json.dumps(said).encode()

    def decode(self, body: bytes) -> Marker:
        try:
            said = json.loads(body)
            return Marker(parts=tuple(said["parts"]), properties=said["properties"])
        except (ValueError, KeyError) as error:
            raise CorruptError("no marker") from error


class ModelBuilder:
    """Stages one part per task; each builder's bytes differ, also in length."""

    def __init__(self, store: ObjectStore, mark: str) -> None:
        self._store = store
        self._mark = mark

    def build(self, record: BuildRecord, fragments: tuple[int, ...], attempt: str) -> Built:
        files = []
        for file in PART_FILES:
            body = f"{attempt}|{self._mark}|{fragments[0]}|{file}".encode()
            path = part_path(staging_folder(attempt), fragments[0] << 32, file)
            for left in (1, 0):
                try:
                    self._store.put(path, body)
                    break
                except UnavailableError:
                    if not left:
                        raise
            files.append(PartFile(file=file, size=len(body)))
        part = Part(folder=staging_folder(attempt), id=fragments[0] << 32, files=tuple(files))
        return Built(parts=(part,), properties=PROPERTIES, details=DETAILS, documents=1)


class ModelCommits:
    """The table: its one decision says which attempts the index is made of."""

    def __init__(self, files: BuildFiles) -> None:
        self._files = files

    def superseding_version(self, _plan: Plan) -> int | None:
        return None

    def commit(self, complete: Complete) -> tuple[int, bool]:
        token = self._files.core.ids.token()
        said = {"attempts": complete.plan.attempts, "files": complete.files, "token": token}
        decision = self._files.core.arbiter.decide(COMMITTED, json.dumps(said).encode(), token)
        return 1, not isinstance(decision, Lost)


class Lagging(SimulatedStore):
    """A store whose listings lack what was written last."""

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        return list(super().list(prefix, after=after))[:-2]


@dataclass(frozen=True, slots=True)
class Code:
    """The production modules, or mutants of them."""

    finalize: Any = _finalize
    publish: Any = _publish
    task: Any = _task


def files_of(store: ObjectStore, arbiter: Arbiter, ids: CountedIds) -> BuildFiles:
    core = TableCore(store, arbiter, clock=StillClock(), ids=ids, retry_policy=RETRY)
    return BuildFiles(core)


def publish_by(code: Code, files: BuildFiles) -> None:
    finalizer = code.finalize.Finalizer(files, JsonMarkers(), at_once=1)
    code.publish.publish(files, finalizer, ModelCommits(files), BUILD)


def finalizer(world: World, code: Code, files: BuildFiles, _mark: str) -> None:
    publish_by(code, files)
    world.acknowledge("published")


def straggler(world: World, code: Code, files: BuildFiles, mark: str) -> None:
    """Run task 1, as a speculative or repeated attempt does."""
    code.task.run_task(files, ModelBuilder(files.core.store, mark), BUILD, 1)


def late_attempt(world: World, code: Code, files: BuildFiles, mark: str) -> None:
    """Go on with an attempt of task 1 that began when nothing was decided yet."""
    code.task._attempt(files, ModelBuilder(files.core.store, mark), record(), 1)


def job(world: World, code: Code, files: BuildFiles, mark: str) -> None:
    """A whole job: run every task, then finalize."""
    for task in range(2):
        code.task.run_task(files, ModelBuilder(files.core.store, mark), BUILD, task)
    publish_by(code, files)
    world.acknowledge("published")


Program = Callable[[World, Code, BuildFiles, str], None]
Prepare = Callable[[BuildFiles], None]


def record() -> BuildRecord:
    return BuildRecord(
        token="hf-" + "b" * 32,
        build_id=BUILD,
        name="i",
        column="text",
        version=1,
        parameters={},
        memory_mb=None,
        tasks=((0,), (1,)),
        properties=PROPERTIES,
    )


def begun(files: BuildFiles) -> None:
    start(files, record())


def first_task_done(files: BuildFiles) -> None:
    begun(files)
    _task.run_task(files, ModelBuilder(files.core.store, "p"), BUILD, 0)


def tasks_done(files: BuildFiles) -> None:
    first_task_done(files)
    _task.run_task(files, ModelBuilder(files.core.store, "p"), BUILD, 1)


def garbage_marker(files: BuildFiles) -> None:
    tasks_done(files)
    files.core.store.put(marker_name(BUILD).path, b"garbage")


def marked(files: BuildFiles) -> None:
    tasks_done(files)
    made = _finalize.Finalizer(files, JsonMarkers(), at_once=1)
    made.complete(made.freeze(BUILD))


def final_part_missing(files: BuildFiles) -> None:
    marked(files)
    files.core.store.delete([part_path(index_folder(BUILD), 1, "docs.lance")])


def staged_part_missing(files: BuildFiles) -> None:
    tasks_done(files)
    found = [i.path for i in files.core.store.list("_indices") if i.path.endswith("docs.lance")]
    files.core.store.delete(found[-1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Builds:
    """One row of the table of scenarios."""

    name: str
    programs: Sequence[Program]
    prepare: Prepare = tasks_done
    make: Maker = conditional
    honest: bool = True
    faults: int = 0
    crashes: int = 0
    preemptions: int | None = None
    lagging: int = 0
    broken: bool = False
    half_made: bool = False
    code: Code = Code()

    def scenario(self) -> Scenario:
        return Scenario(name=self.name, build=self.build, check=self.check)

    def but(self, **changes: object) -> Builds:
        return replace(self, **changes)  # type: ignore[arg-type]

    def build(self) -> World:
        world = World(
            honest=self.honest,
            faults=self.faults,
            crashes=self.crashes,
            preemptions=self.preemptions,
            objects=PINNED,
        )
        self.prepare(self._files(*_direct(world.state), CountedIds(50)))
        for number, program in enumerate(self.programs):
            lags = number < self.lagging
            store = Lagging(world._park) if lags else world.store()
            files = self._files(store, world.commit_store(), CountedIds(number + 1))
            name, mark = f"{program.__name__}{number}", "a" * (number + 1)
            world.add(name, functools.partial(program, world, self.code, files, mark))
        return world

    def _files(
        self, store: SimulatedStore, commit_store: SimulatedCommitStore, ids: CountedIds
    ) -> BuildFiles:
        return files_of(store, self.make(store, commit_store, ids), ids)

    def check(self, world: World, state: State) -> str | None:
        for actor in world.actors:
            if isinstance(actor.error, HoldfastError) and not self._is_honest(actor.error):
                return f"FAILED {actor.name}: {actor.error}"
        store, commit_store = _direct(state)
        files = self._files(store, commit_store, CountedIds(90))
        committed = files.read(COMMITTED)
        if world.acknowledged and committed is None:
            return "LOST: acknowledged, but not committed"
        attempts = None if committed is None else json.loads(committed)["attempts"]
        marked_only = self.half_made and attempts is None
        problem = None if marked_only else _final_problem(state, attempts)
        if problem or self.broken:
            return problem
        return self._recovery_problem(state)

    def _is_honest(self, error: HoldfastError) -> bool:
        if self.broken and isinstance(error, CorruptError):
            return True
        unfinished = isinstance(error, NotFoundError) and self.prepare is not tasks_done
        return unfinished or isinstance(error, HONEST_ANSWERS)

    def _recovery_problem(self, state: State) -> str | None:
        """Let everybody die now, and one more job run to its end."""
        store, commit_store = _direct(state)
        files = self._files(store, commit_store, CountedIds(91))
        world = World()
        try:
            if _is_open(state):
                job(world, Code(), files, "r")
            else:
                publish_by(Code(), files)
        except HoldfastError as error:
            return f"STUCK: {type(error).__name__} {error}"
        committed = files.read(COMMITTED)
        if committed is None:
            return "STUCK: not committed"
        return _final_problem(state, json.loads(committed)["attempts"])


def _is_open(state: State) -> bool:
    return any(path.endswith("/build.json") for path in state.objects)


def _direct(state: State) -> tuple[SimulatedStore, SimulatedCommitStore]:
    return SimulatedStore(state.apply), SimulatedCommitStore(state.apply)


def _final_problem(state: State, attempts: Sequence[str] | None) -> str | None:
    """Say what is wrong with the final files of a marked or committed index."""
    body = state.objects.get(marker_name(BUILD).path)
    try:
        parts = None if body is None else JsonMarkers().decode(body).parts
    except CorruptError:
        parts = None
    if parts is None:
        return None if attempts is None else "INCOMPLETE: committed without a marker"
    if parts != (0, 1):
        return f"INCOMPLETE: parts {parts} of 2"
    problems = (_part_problem(state, number, attempts) for number in parts)
    return next((problem for problem in problems if problem), None)


def _part_problem(state: State, number: int, attempts: Sequence[str] | None) -> str | None:
    paths = [part_path(index_folder(BUILD), number, file) for file in PART_FILES]
    if any(path not in state.objects for path in paths):
        return f"INCOMPLETE: part {number} lacks a file"
    said = [state.objects[path].decode().split("|") for path in paths]
    if {fields[2] for fields in said} != {str(number)}:
        return f"WRONG: part {number} is of another fragment"
    if len({(fields[0], fields[1]) for fields in said}) != 1:
        return f"MIXED: part {number} is of several attempts"
    if [fields[3] for fields in said] != list(PART_FILES):
        return f"WRONG: part {number} has its files exchanged"
    if attempts is not None and said[0][0] != attempts[number]:
        return f"CHANGED: part {number} is not the committed one"
    return None


# Beyond the default test run: explored by `./run explore`.
DEEPER = [
    Builds(name="index: two finalizers", programs=[finalizer, finalizer], crashes=1),
    Builds(
        name="index: two finalizers, a fault",
        programs=[finalizer, finalizer],
        faults=1,
        preemptions=1,
    ),
    Builds(name="index: three finalizers", programs=[finalizer] * 3, preemptions=2),
    Builds(
        name="index: two finalizers and a straggler",
        programs=[finalizer, finalizer, late_attempt],
        preemptions=3,
    ),
    Builds(name="index: two jobs", programs=[job, job], prepare=begun, crashes=1, preemptions=2),
]
