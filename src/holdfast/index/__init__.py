"""Full-text indexes: built in tasks, finalized by anyone, any number of times.

Lance builds the parts and answers the queries; the protocol around them is here. Each step
can be repeated, raced and killed:

1. a build record pins a version and gives each task its fragments;
2. each *attempt* of a task declares itself and builds into a folder of its own;
3. the task's manifest is decided: the first attempt counts, a rerun reuses it;
4. when all tasks are in, the plan is frozen by a decision: parts in order, 0 to N-1;
5. the parts are copied to their final names and verified;
6. `metadata.lance` is decided: the index is complete;
7. it is committed to the table with exactly its own files;
8. what was staged is removed, best effort.

Nothing staged is removed before 7, and nothing final ever is.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.index._builds import BuildInfo, finished_tasks
    from holdfast.index._indexes import Indexes
    from holdfast.index._progress import Progress, Stage, Watch, report
    from holdfast.index._results import IndexInfo, IndexResult
    from holdfast.index._task import TaskDone

__all__ = [
    "BuildInfo",
    "IndexInfo",
    "IndexResult",
    "Indexes",
    "Progress",
    "Stage",
    "TaskDone",
    "Watch",
    "finished_tasks",
    "report",
]

__getattr__ = load_names(
    __name__,
    {
        "_builds": "BuildInfo finished_tasks",
        "_indexes": "Indexes",
        "_progress": "Progress Stage Watch report",
        "_results": "IndexInfo IndexResult",
        "_task": "TaskDone",
    },
)
