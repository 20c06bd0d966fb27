"""Tasks: each input is answered once, whatever happens to workers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConflictError, HoldfastError, InvalidInputError
from holdfast.spark._tasks import run_tasks
from spark.conftest import await_listeners


def run(spark: Any, task: str, *inputs: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    return run_tasks(spark, f"spark.task_functions:{task}", inputs, description="a test", **options)


def test_answers_come_in_the_order_of_the_inputs(spark: Any) -> None:
    answers = run(spark, "square", *({"n": n} for n in range(7)))
    assert [answer["square"] for answer in answers] == [0, 1, 4, 9, 16, 25, 36]
    assert run(spark, "square") == []


def test_progress_rises_to_the_end(spark: Any) -> None:
    heard: list[tuple[int, int]] = []
    run(spark, "square", *({"n": n} for n in range(5)), progress=lambda *a: heard.append(a))
    assert heard[0] == (0, 5)
    assert heard[-1] == (5, 5)
    assert heard == sorted(heard)


def test_jobs_are_described_and_the_description_is_put_back(spark: Any) -> None:
    context = spark.sparkContext
    context.setJobDescription("mine")
    tracker = context.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    run_tasks(spark, "spark.task_functions:square", [{"n": 1}], description="holdfast: squares")
    assert context.getLocalProperty("spark.job.description") == "mine"
    context.setJobDescription(None)
    await_listeners(spark)
    store = spark._jsparkSession.sparkContext().statusStore()
    fresh = set(tracker.getJobIdsForGroup(None)) - before
    assert {store.job(job).description().get() for job in fresh} == {"holdfast: squares"}


def test_a_task_that_fails_is_tried_again(spark: Any, tmp_path: Path) -> None:
    assert run(spark, "fails_once", {"marker": str(tmp_path / "m")}) == [{"fine": True}]


def test_a_task_whose_worker_dies_is_tried_again(spark: Any, tmp_path: Path) -> None:
    assert run(spark, "dies_once", {"marker": str(tmp_path / "m")}) == [{"alive": True}]


def test_an_error_that_retries_would_not_mend_comes_at_once(spark: Any, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    with pytest.raises(ConflictError, match="somebody was faster") as caught:
        run(spark, "conflict", {"tries": str(tries)})
    assert caught.value.version == "7"
    assert tries.read_text() == "x"


def test_a_task_that_always_fails(spark: Any) -> None:
    with pytest.raises(HoldfastError, match="RuntimeError: no way"):
        run(spark, "always_fails", {})


def test_only_plain_dicts_travel(spark: Any) -> None:
    with pytest.raises(InvalidInputError, match="plain dict"):
        run(spark, "square", {"n": {1}})
    with pytest.raises(InvalidInputError, match="plain dict"):
        run(spark, "odd_answer", {})
    with pytest.raises(InvalidInputError, match=r"package\.module:function"):
        run(spark, "nothing_of_that_name", {})


def test_tasks_run_from_any_thread(spark: Any) -> None:
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.extend(run(spark, "square", {"n": 3})))
    thread.start()
    thread.join()
    assert answers[0]["square"] == 9


def test_inputs_are_in_no_plan(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = (
        spark.read.format("holdfast")
        .schema("number int, answer string")
        .option("task", "spark.task_functions:square")
        .option("secretInputs", '["{\\"key\\": \\"hunter2\\"}"]')
        .load()
    )
    frame.explain(extended=True)
    assert "hunter2" not in capsys.readouterr().out
