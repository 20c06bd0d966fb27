"""`run_tasks`: call a function once per input on Spark's executors, and get the answers back.

    answers = run_tasks(
        spark, "holdfast.spark._compact:execute", inputs, description="compact events"
    )

The function is named, not sent: it must be importable where the tasks run. It takes one
plain dict and returns one; what travels is JSON, never a live handle. Give secrets in it
as `env:NAME`. Spark runs a task again when it fails or its executor dies, and perhaps twice
at the same time: so a task writes only files with new names, and of all its tries exactly
one answer comes back.

A task is a partition of a data source made for this purpose; that needs no pandas, and works
on classic Spark and on Spark Connect alike (Spark 4.1 and newer). `holdfast` itself is that
source when it is given the option `secretInputs`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import holdfast.errors
from holdfast.errors import ErrorKind, HoldfastError, InvalidInputError
from holdfast.spark._progress import Progress, Session, describe_jobs, watch_jobs

SOURCE = "holdfast"
_SCHEMA = "number int, answer string"
# Spark hides the values of options whose names speak of secrets: inputs may hold some.
_TASK, _INPUTS = "task", "secretInputs"

# Errors that trying again will not mend: they are answers, and end the job immediately.
_FINAL = {
    ErrorKind.ALREADY_EXISTS,
    ErrorKind.COLLECTED,
    ErrorKind.COMMIT_STORE_REGRESSED,
    ErrorKind.CONFLICT,
    ErrorKind.CORRUPT,
    ErrorKind.FOREIGN_VERSION,
    ErrorKind.INVALID_INPUT,
    ErrorKind.MISSING_EXTRA,
    ErrorKind.NOT_FOUND,
    ErrorKind.PIN_MISMATCH,
    ErrorKind.UNSAFE_STORE,
    ErrorKind.UNSUPPORTED,
}

Answer = dict[str, Any]  # Any: JSON
Task = Callable[[Answer], Mapping[str, Any]]


def run_tasks(
    spark: Session,
    task: str,
    inputs: Sequence[Mapping[str, Any]],
    *,
    description: str,
    progress: Progress | None = None,
) -> list[Answer]:
    """Call `task` once per input on the executors and return the answers, in the inputs' order.

    Call it from any thread. When it raises, tasks may have run and left files behind, but
    nothing that anybody sees.

    Args:
        spark: the session.
        task: the function, as `package.module:function`.
        inputs: one plain dict per task.
        description: what Spark's UI shows.
        progress: hears how many tasks are done, and how many there are.

    Raises:
        InvalidInputError: the function cannot be found, or an input is no plain dict.
        HoldfastError: a task raised it, and trying again would not have helped; of any
            other error, once Spark has tried often enough: the job's failure, in words.
    """
    find_task(task)
    if not inputs:
        return []
    bodies = [_encode_dict(one, "an input") for one in inputs]
    with describe_jobs(spark, description), watch_jobs(spark, len(bodies), progress):
        reader = spark.read.format(SOURCE).schema(_SCHEMA)  # a schema, so that Spark asks for none
        frame = reader.option(_TASK, task).option(_INPUTS, json.dumps(bodies))
        try:
            rows = frame.load().collect()
        except Exception as error:
            raise failure_of(error, description) from error
    answers = {int(row.number): json.loads(row.answer) for row in rows}
    if set(answers) != set(range(len(bodies))):
        raise HoldfastError("Spark lost answers of tasks", got=len(answers), want=len(bodies))
    for number in sorted(answers):
        raise_if_error(answers[number])
    return [answers[number] for number in range(len(bodies))]


def find_task(task: str) -> Task:
    """Return the function behind `package.module:function`.

    Raises:
        InvalidInputError: there is none.
    """
    module, colon, function = task.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError):
        loaded = None
    if not callable(loaded):
        raise InvalidInputError(
            "a task is named as 'package.module:function', and importable on every executor",
            task=task,
        )
    return loaded  # type: ignore[no-any-return]


def error_answer(error: HoldfastError) -> Answer | None:
    """Return an error as the answer of a task; None if trying again may help."""
    if error.kind not in _FINAL:
        return None
    details = {key: str(value) for key, value in error.details.items() if value is not None}
    return {"error": type(error).__name__, "message": error.message, "details": details}


def raise_if_error(answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer is, if it is one.

    Raises:
        HoldfastError: as the task raised it.
    """
    if "error" not in answer:
        return
    kind = getattr(holdfast.errors, str(answer["error"]), HoldfastError)
    raise kind(str(answer["message"]), **dict(answer["details"]))


def failure_of(error: Exception, description: str) -> HoldfastError:
    """Return a failed Spark job as our error, with the reason in a few words."""
    if isinstance(error, HoldfastError):
        return error
    # The last line of the last Python traceback says what went wrong; the rest is Spark's.
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if _is_reason(line)]
    reason = told[-1] if told else (lines or [type(error).__name__])[0]
    return HoldfastError(
        "a Spark job failed; its tasks' errors are in Spark's UI",
        job=description,
        reason=reason[:300],
    )


def _is_reason(line: str) -> bool:
    head = line.partition(":")[0]
    return head.endswith(("Error", "Exception")) and not head.startswith(("at ", "Caused", "org."))


def _encode_dict(value: object, what: str) -> str:
    try:
        if not isinstance(value, Mapping):
            raise TypeError(f"{type(value).__name__} is no dict")
        return json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{what} of a task is a plain dict of JSON's types", reason=str(error)[:200]
        ) from None


class TaskSource(DataSource):
    """The data source whose partitions are tasks and whose rows are their answers."""

    def reader(self, schema: object) -> DataSourceReader:
        """Return the reader."""
        del schema
        return _TaskReader(self.options[_TASK], json.loads(self.options[_INPUTS]))


class _Call(InputPartition):
    """One task."""

    def __init__(self, number: int, task: str, body: str) -> None:
        self.number = number
        self.task = task
        self.body = body

    def __repr__(self) -> str:
        return f"_Call({self.number}, {self.task})"  # its body may hold secrets


class _TaskReader(DataSourceReader):
    def __init__(self, task: str, bodies: Sequence[str]) -> None:
        self._calls = [_Call(number, task, body) for number, body in enumerate(bodies)]

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return self._calls

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        """Do one task."""
        assert isinstance(partition, _Call)  # noqa: S101 - made above
        yield partition.number, json.dumps(_answer(partition))


def _answer(call: _Call) -> Mapping[str, Any]:
    try:
        answer = find_task(call.task)(json.loads(call.body))
        _encode_dict(answer, "the answer")
    except HoldfastError as error:
        told = error_answer(error)
        if told is None:
            raise
        return told
    return answer


__all__ = ["Answer", "TaskSource", "find_task", "run_tasks"]
