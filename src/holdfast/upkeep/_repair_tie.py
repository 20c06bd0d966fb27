"""What `repair` does about a table's pin, its address, and the commit store that it names."""

from __future__ import annotations

from holdfast.arbiter import (
    EMBEDDED,
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    check_identity,
    connect_pinned,
    connect_store,
    find_pin,
    make_pin_anew,
    open_arbiter,
    put_pin_back,
    read_pin,
    refuse_living,
    repin,
    replace_commit_store,
    verdict_of,
)
from holdfast.errors import CorruptError, InvalidInputError, NotFoundError, PinMismatchError
from holdfast.formats import EMBEDDED_PATH, PIN_PATH, ArbiterKind, Pin
from holdfast.storage import SupportsLocalFiles
from holdfast.upkeep._repair_steps import RepairKind, RepairRun, RepairState, RepairStep


def open_or_mend(given: RepairRun) -> Arbiter | None:
    """Return the table's arbiter if it has one, or gets one by what is put right here.

    Raises:
        HoldfastError: as for `repair`.
    """
    try:
        pin = read_pin(given.store)
    except CorruptError as error:
        return _pin_is_wrong(given, str(error))
    if pin is None:
        return _pin_is_gone(given)
    if given.new_commit_store is not None:
        return _replace_store(given, pin)
    return _repin(given, pin) if given.place is not None else _open(given, pin)


def _open(given: RepairRun, pin: Pin) -> Arbiter | None:
    try:
        return open_arbiter(given.uri, given.options, commit_store=given.commit_store)
    except PinMismatchError as error:
        return _mismatch(given, pin, error)
    except (NotFoundError, CorruptError):
        if pin.arbiter is not ArbiterKind.COMMIT_STORE:
            raise
        _say_store_is_lost(given, pin)
        return None


def _pin_is_gone(given: RepairRun) -> Arbiter | None:
    home = [info.path for info in given.store.list("_holdfast")]
    versions = given.store.list("_versions")
    if not versions and not home:
        raise NotFoundError("no table is there", location=given.store.location)
    if _known_store(given) is None and not given.conditional_put:
        raise NotFoundError(
            "no Holdfast table is here: tie it with `holdfast adopt`; or, if it was tied to a "
            "commit store, name that with --commit-store",
            location=given.store.location,
        )
    return _pin_is_wrong(given, "the table's pin is gone")


def _known_store(given: RepairRun) -> str | None:
    """Return where the commit store of a table without a pin may be."""
    if given.commit_store is not None:
        return given.commit_store
    inside = (
        isinstance(given.store, SupportsLocalFiles) and (given.store.root / EMBEDDED_PATH).exists()
    )
    return EMBEDDED if inside else None


def _pin_is_wrong(given: RepairRun, what: str) -> Arbiter | None:
    if given.conditional_put:
        return _new_pin(given, what)
    url = _known_store(given)
    if url is None:
        given.steps.append(
            RepairStep(
                kind=RepairKind.PIN,
                what=f"{what}: say who decides for the table",
                path=PIN_PATH,
                state=RepairState.CHOOSE,
                command=(
                    f"holdfast repair {given.uri} --commit-store URL --confirm",
                    f"holdfast repair {given.uri} --conditional-put --confirm",
                ),
            )
        )
        return None
    connected = connect_store(url, given.uri, given.store)
    pin = find_pin(given.store, connected)
    check_identity(pin, connected)
    step = RepairStep(
        kind=RepairKind.PIN,
        what=f"{what}: put back the one that {connected.url} knows",
        path=PIN_PATH,
    )
    given.do(step, lambda: put_pin_back(given.store, connected, pin))
    return RecordedDecisions(given.store, connected, pin) if given.confirm else None


def _new_pin(given: RepairRun, what: str) -> Arbiter | None:
    step = RepairStep(
        kind=RepairKind.PIN,
        what=f"{what}: put a new one, which says that the object store decides",
        path=PIN_PATH,
    )
    verdict = verdict_of(given.uri, given.options)
    arbiter = ConditionalPut(given.store, verdict)  # refuses a store that cannot decide
    given.do(step, lambda: setattr(arbiter, "pin", make_pin_anew(given.store)))
    return arbiter if given.confirm else None


def _mismatch(given: RepairRun, pin: Pin, error: PinMismatchError) -> Arbiter | None:
    """Tell a table under an unknown address from one that met another commit store."""
    if "actual" in error.details:
        _say_store_is_lost(given, pin)
        return None
    how = {
        "moved": "the files are here now, and nowhere else",
        "copied": "the original goes on, and so does this copy",
        "alias": "the same files, reached in another way",
    }
    given.steps.append(
        RepairStep(
            kind=RepairKind.ADDRESS,
            what=f"{error.message.split(':', maxsplit=1)[0]}: say what happened to its files",
            path=PIN_PATH,
            state=RepairState.CHOOSE,
            command=tuple(
                f"holdfast repair {given.uri} --{word} --confirm  # {meaning}"
                for word, meaning in how.items()
            ),
        )
    )
    return None


def _repin(given: RepairRun, pin: Pin) -> Arbiter | None:
    how = given.place
    assert how is not None  # noqa: S101 - looked at by the caller
    if pin.arbiter is not ArbiterKind.COMMIT_STORE:
        raise InvalidInputError("this table decides by its object store: it may be moved freely")
    connected = connect_pinned(pin, given.uri, given.store, given.commit_store)
    check_identity(pin, connected)
    connected.close()
    what = {
        "alias": "let the table be opened from here as well",
        "moved": "let the table be opened from here, and from nowhere else any more",
        "copied": "give this copy an id of its own, and count what it holds as decided",
    }[how]
    step = RepairStep(kind=RepairKind.ADDRESS, what=what, path=PIN_PATH)
    given.do(
        step,
        lambda: repin(given.uri, given.options, how=how, commit_store=given.commit_store).close(),
    )
    if not given.confirm:
        return None
    return open_arbiter(given.uri, given.options, commit_store=given.commit_store)


def _say_store_is_lost(given: RepairRun, pin: Pin) -> None:
    """Say what to do about a commit store that is gone, damaged, or another one."""
    refuse_living(pin, given.uri, given.store, is_lost=False)
    new = EMBEDDED if pin.store_url == EMBEDDED else "URL"
    given.steps.append(
        RepairStep(
            kind=RepairKind.COMMIT_STORE,
            what="the table's commit store is gone or damaged: bring it back from a backup, and "
            "repair again; or, if it is lost for good, let a new one decide from what the "
            "table's files show",
            path=EMBEDDED_PATH if pin.store_url == EMBEDDED else None,
            state=RepairState.CHOOSE,
            command=(f"holdfast repair {given.uri} --new-commit-store {new} --confirm",),
        )
    )


def _replace_store(given: RepairRun, pin: Pin) -> Arbiter | None:
    to = given.new_commit_store
    assert to is not None  # noqa: S101 - looked at by the caller
    if pin.arbiter is not ArbiterKind.COMMIT_STORE:
        raise InvalidInputError("this table decides by its object store, not by a commit store")
    if not given.confirm:  # refuse what a confirmed run would refuse
        refuse_living(pin, given.uri, given.store, is_lost=True)
        if to != EMBEDDED:
            connected = connect_store(to, given.uri, given.store)
            connected.identity()
            connected.close()
    step = RepairStep(
        kind=RepairKind.COMMIT_STORE,
        what="the commit store is lost: a new one decides, from what the table's files show",
        path=EMBEDDED_PATH if to == EMBEDDED else None,
        loses="decisions that were never acknowledged, and had no object yet",
    )
    given.do(step, lambda: replace_commit_store(given.uri, given.options, to=to))
    if not given.confirm:
        return None
    # The new address: the environment may still name the store that is lost.
    return open_arbiter(given.uri, given.options, commit_store=None if to == EMBEDDED else to)
