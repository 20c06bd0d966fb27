"""Say in Spark's UI what a job is for, and tell a caller how far it is.

    with described(spark, "holdfast: compact s3://lake/events"), watched(spark, 8, print):
        frame.collect()

Works from any thread. On classic Spark the text is the job's description; on Spark Connect,
where there is none, it becomes a tag. What is changed here is put back afterwards.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from holdfast._ids import Ids, RandomIds
from holdfast.spark._session import activate

Session: TypeAlias = Any
"""A Spark session, classic or of Spark Connect: they share no class."""
Context: TypeAlias = Any
"""A classic session's SparkContext."""

Progress = Callable[[int, int], None]
"""Called with how many tasks are done, and how many there are."""

_DESCRIPTION = "spark.job.description"
_LOOK_SECONDS = 0.3
_NOT_IN_A_TAG = re.compile(r"[,\s]+")
_TAG_CHARS = 120


def is_connect(spark: Session) -> bool:
    """Tell whether a session is one of Spark Connect, without a JVM at hand."""
    return not hasattr(type(spark), "_jvm") and not hasattr(spark, "_jsparkSession")


@contextmanager
def describe_jobs(spark: Session, text: str) -> Iterator[None]:
    """Describe the jobs that this thread starts meanwhile."""
    if is_connect(spark):
        tag = _NOT_IN_A_TAG.sub("_", text)[:_TAG_CHARS]
        fresh = tag not in spark.getTags()
        spark.addTag(tag)
        try:
            yield
        finally:
            if fresh:
                spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    activate(spark)  # writing looks for the thread's session
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


@contextmanager
def watch_jobs(
    spark: Session, total: int, progress: Progress | None, ids: Ids | None = None
) -> Iterator[None]:
    """Report how many tasks of the jobs that this thread starts meanwhile are done.

    Never more than `total`, and `total` only when the block ended without an error.
    """
    if progress is None:
        yield
        return
    progress(0, total)
    report = _rising_reporter(progress, total - 1)
    watch = _watch_connect if is_connect(spark) else _watch_classic
    with watch(spark, report, ids or RandomIds()):
        yield
    progress(total, total)


def _rising_reporter(progress: Progress, limit: int) -> Callable[[int], None]:
    """Return a reporter that never goes back and leaves the last step to the caller."""
    seen = 0

    def report(done: int) -> None:
        nonlocal seen
        if seen < min(done, limit):
            seen = min(done, limit)
            progress(seen, limit + 1)

    return report


@contextmanager
def _watch_connect(spark: Session, report: Callable[[int], None], _ids: Ids) -> Iterator[None]:
    def handle(stages: Iterable[Any] | None, **_others: object) -> None:
        report(sum(stage.num_completed_tasks for stage in stages or ()))

    spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)


@contextmanager
def _watch_classic(spark: Session, report: Callable[[int], None], ids: Ids) -> Iterator[None]:
    """Look at Spark's own counters now and then, in a thread that ends with the block."""
    context = spark.sparkContext
    tag = ids.token()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            with suppress(Exception):  # watching never changes an outcome
                report(_count_completed(context, tag))

    context.addJobTag(tag)
    looker = threading.Thread(target=look, name="holdfast-progress", daemon=True)
    looker.start()
    try:
        yield
    finally:
        ended.set()
        looker.join()
        context.removeJobTag(tag)


def _count_completed(context: Context, tag: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker._jtracker.getJobIdsForTag(tag)]  # noqa: SLF001 - Python's side has no such call
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)


__all__ = ["Progress", "Session", "describe_jobs", "is_connect", "watch_jobs"]
