"""Every safeguard of the primitive, taken out in turn: the explorer must see the harm.

Each row is a change to the production source. The test fails when the change is *not*
noticed, and when the text it replaces is no longer there.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest

from holdfast.arbiter import Key, Verdict
from holdfast.arbiter._parallel import Together
from holdfast.testing import StillClock, Violation, explore, mutate, replay
from model import create_scenarios
from model.decide_scenarios import (
    RETRY,
    Maker,
    RushingClock,
    Setup,
    append_again,
    chain,
    claim,
    conditional,
    in_order,
    in_turn,
    inline,
    line_up,
    log_append,
    log_holds,
    look_first,
    look_last,
    one_owner,
    race,
    racing_with,
    recorded_with,
    staged,
    upon_each_other,
)
from model.help_scenarios import (
    FirstLook,
    Forgotten,
    LookedAhead,
    Removed,
    RemovedWhenSeen,
    SilentOnce,
)

CONDITIONAL = "holdfast.arbiter._conditional"
RECORDED = "holdfast.arbiter._recorded"
Change = tuple[str, str]
BAD_COPY: Change = (
    """body = self._copy_to_name(name, record, ours)
        if not record.matches(body):""",
    """body = self._copy_to_name(name, record, ours)
        if False:""",
)


class Mutant(NamedTuple):
    """One safeguard off: how, in which world, and what the explorer says."""

    name: str
    setup: Setup | Forgotten | Removed | FirstLook
    says: str


def careless_condition(*changes: Change) -> Maker:
    module = mutate(CONDITIONAL, *changes)

    def make(store: Any, _commit_store: Any, ids: Any) -> Any:
        return module.ConditionalPut(
            store, Verdict.ENFORCED, clock=StillClock(), ids=ids, retry=RETRY
        )

    return make


def careless_race(together: Together, *changes: Change) -> Maker:
    return racing_with(together, mutate(CONDITIONAL, *changes).ConditionalPut)


def careless_record(inline_bytes: int, *changes: Change) -> Maker:
    return recorded_with(inline_bytes, mutate(RECORDED, *changes).RecordedDecisions)


INLINE, STAGED = 1 << 16, 0

SILENT_PUT = """\
                sent = sent or not isinstance(error, FullDiskError)
                attempt.reason = str(error)
                refusal = error
            except HoldfastError"""
SILENT_PUT_BELIEVED = """\
                if isinstance(error, UnavailableError):
                    return Lost(body)
            except HoldfastError"""
SILENT_RECORD = """\
                sent = True
                attempt.reason = why = str(error)
            except CollectedError"""
SILENT_RECORD_CLEANED_UP = """\
                sent = True
                self._remove_staged(record)
            except CollectedError"""
AFTER_DECIDING = """\
        except _NO_ANSWER as error:
            raise _unknown(name, decided=True)"""
AFTER_DECIDING_BELIEVED = """\
        except UnavailableError as error:
            raise _unknown(name, decided=True)"""
READ_BACK_REFUSED = """\
            except HoldfastError as error:
                raise _unknown(name, attempt.number, error) from error
            decision"""
LOOK = "(body,) = self._look([name])"
LOOK_AWAY = "body = None"
LOOK_AHEAD = "return answers[0] if isinstance(answers[0], bytes) else None"
LOOK_AGAIN = """\
        record = self._record(name)
        if record is not None:
            return self._finish(name, record)
        if name.number"""
NO_TOKEN = functools.partial(claim, tokens_in_bodies=False)

MUTANTS = [
    Mutant(
        "believes a 409",
        Setup(
            name="m",
            make=careless_condition(
                (
                    "continue  # a 409, or a request that was lost: the same bytes again",
                    "return Lost(body)",
                )
            ),
            faults=1,
        ),
        "CHANGED",
    ),
    Mutant(
        "believes already-exists",
        Setup(
            name="m",
            make=careless_condition(
                ("Won() if token.encode() in body_there else Lost(body_there)", "Lost(body_there)")
            ),
            faults=1,
        ),
        "DOUBLED",
    ),
    Mutant(
        "believes a timeout",
        Setup(
            name="m",
            make=careless_condition((SILENT_PUT, SILENT_PUT_BELIEVED)),
            faults=1,
        ),
        "CHANGED",
    ),
    Mutant(
        "believes the look beside a put",
        Setup(
            name="m",
            make=careless_race(
                look_last,
                ("Won() if token.encode() in body_there else Lost(body_there)", "Lost(body_there)"),
            ),
            program=race,
            faults=1,
        ),
        "DOUBLED",
    ),
    Mutant(
        "a name that is free beside a put without an answer is ours",
        Setup(
            name="m",
            make=careless_race(
                look_first,
                (
                    "body_there = beside[0] if beside else self._store.get(name.path)",
                    "body_there = beside[0] if beside else body",
                ),
            ),
            program=race,
            faults=1,
        ),
        "LOST",
    ),
    Mutant(
        "no token, conditional put",
        Setup(
            name="m",
            make=careless_condition(
                ("        check_token(body, token)\n", ""),
                ("token.encode() in body_there", "body_there == body"),
            ),
            program=NO_TOKEN,
            check=one_owner,
        ),
        "TWO OWNERS",
    ),
    Mutant(
        "plain put",
        Setup(
            name="m",
            make=careless_condition(("self._store.put_if_absent, path", "self._store.put, path")),
        ),
        "LOST",
    ),
    Mutant(
        "trusts a store that ignores conditions",
        Setup(name="m", make=conditional, honest=False),
        "LOST",
    ),
    Mutant(
        "deletes staged on error",
        Setup(
            name="m",
            make=careless_record(
                STAGED,
                (SILENT_RECORD, SILENT_RECORD_CLEANED_UP),
            ),
            observer=staged,
            faults=1,
            crashes=1,
            honest=False,
        ),
        "unreadable",
    ),
    Mutant(
        "builds on unfinished",
        Setup(
            name="m",
            make=careless_record(
                INLINE,
                ("after = self._finish_previous(name)", "after = None"),
                (
                    "winning = self._finish(name, winner)\n",
                    "winning = winner.body or b''\n",
                ),
            ),
            observer=inline,
            honest=False,
        ),
        "HOLE",
    ),
    Mutant(
        "own record taken for another's",
        Setup(
            name="m",
            make=careless_record(INLINE, ("if winner.token == token:", "if winner is record:")),
            observer=inline,
            faults=1,
            honest=False,
        ),
        "DOUBLED",
    ),
    Mutant(
        "no token, commit store",
        Setup(
            name="m",
            make=careless_record(
                INLINE,
                ("        check_token(body, token)\n", ""),
                ("if winner.token == token:", "if winner.sha256 == record.sha256:"),
                ("or there.token != record.token", ""),
            ),
            program=NO_TOKEN,
            check=one_owner,
            honest=False,
        ),
        "TWO OWNERS",
    ),
    Mutant(
        "commit store without put-if-absent",
        Setup(name="m", make=inline, decisive=False, honest=False),
        "",
    ),
    Mutant(
        "store forgets its newest entry, nobody looks at the name",
        Setup(
            name="m",
            make=careless_record(
                INLINE,
                (LOOK, LOOK_AWAY),
            ),
            observer=inline,
            forgets=1,
            honest=False,
        ),
        "CHANGED",
    ),
    Mutant(
        "store forgets its newest entry, nobody confirms",
        Setup(
            name="m",
            make=careless_record(
                INLINE,
                ("behind = self._confirm(name, record)\n", "behind = ()\n"),
            ),
            observer=inline,
            forgets=1,
            honest=False,
        ),
        "CHANGED",
    ),
    Mutant(
        "a bad copy is not compared",
        Setup(
            name="m",
            make=careless_record(INLINE, BAD_COPY),
            forgets=1,
        ),
        "",
    ),
    Mutant(
        "says nothing was decided, after deciding",
        Setup(
            name="m",
            make=careless_record(
                INLINE, ("raise _unknown(name, decided=True) from error", "raise")
            ),
            faults=3,
            preemptions=0,
            honest=False,
        ),
        "GUESSED",
    ),
    Mutant(
        "believes a refusal after deciding",
        Setup(
            name="m",
            make=careless_record(INLINE, (AFTER_DECIDING, AFTER_DECIDING_BELIEVED)),
            faults=1,
            honest=False,
        ),
        "GUESSED",
    ),
    Mutant(
        "believes a refused read-back",
        Setup(
            name="m",
            make=careless_condition((READ_BACK_REFUSED, "            decision")),
            faults=2,
        ),
        "GUESSED",
    ),
    Mutant(
        "believes that a collected name was another's",
        Setup(
            name="m",
            make=careless_record(INLINE, ("or record.token.encode() not in body:", "or True:")),
            observer=inline,
            twins=True,
            collector=True,
            honest=False,
            program=append_again,
        ),
        "DOUBLED",
    ),
    Mutant(
        "gives up on a record put since",
        Setup(
            name="m",
            make=careless_record(
                INLINE,
                (LOOK_AGAIN, "        if name.number"),
            ),
            observer=inline,
            reader=True,
            honest=False,
        ),
        "STOPPED",
    ),
]


THREE = Setup(
    name="m",
    make=inline,
    program=chain,
    actors=3,
    honest=False,
    preemptions=2,
    observer=inline,
)
ORDER = functools.partial(in_order, most_unfinished=8)
FORGETFUL = THREE.but(forgets=1)
UPON_EACH_OTHER = FORGETFUL.but(
    honest=True, program=functools.partial(chain, readable=True), check=upon_each_other
)


def careless_chain(*changes: Change, most_unfinished: int = 8) -> Maker:
    factory = mutate(RECORDED, *changes).RecordedDecisions
    return recorded_with(INLINE, factory, most_unfinished=most_unfinished)


CHAIN_MUTANTS = [
    Mutant(
        "copies out of order",
        THREE.but(
            make=careless_chain(("            self._finish_before(name, record)\n", "")),
            check=ORDER,
        ),
        "HOLE",
    ),
    Mutant(
        "takes the one before for finished, because the one before that is",
        THREE.but(
            make=careless_chain(
                (
                    "if self._seen_finished(name.series).number >= number:",
                    "if self._seen_finished(name.series).number >= number - 1:",
                )
            ),
            check=ORDER,
        ),
        "HOLE",
    ),
    Mutant(
        "acknowledges what is decided and not finished",
        THREE.but(
            make=careless_chain(
                (
                    "tail = self._complete(name, winner, ours, before)",
                    "tail = _NO_TAIL if chains else self._complete(name, winner, ours, before)",
                )
            )
        ),
        "LOST",
    ),
    Mutant(
        "acknowledges its own copy, whatever is below",
        THREE.but(
            make=careless_chain(
                ("            self._finish_before(name, record)\n", ""),
            )
        ),
        "HOLE",
    ),
    Mutant(
        "the tail is as long as it gets",
        THREE.but(
            make=careless_chain(("        self._keep_tail_short(name)\n", ""), most_unfinished=1),
            check=functools.partial(in_order, most_unfinished=1),
        ),
        "TAIL",
    ),
    Mutant(
        "the tail is one longer than it may be",
        THREE.but(
            make=careless_chain(
                (
                    "least = name.number - self._most_unfinished",
                    "least = name.number - self._most_unfinished - 1",
                ),
                most_unfinished=1,
            ),
            check=functools.partial(in_order, most_unfinished=1),
        ),
        "TAIL",
    ),
    Mutant(
        "store forgets its newest entry, nobody confirms a chain",
        FORGETFUL.but(
            make=careless_chain(("behind = self._confirm(name, record)\n", "behind = ()\n"))
        ),
        "",
    ),
    Mutant(
        "store forgets its newest entry, a chain goes on over the hole",
        FORGETFUL.but(
            make=careless_chain(
                (
                    "            if number > self._boundary(name):\n",
                    "            if False:\n",
                ),
                ("if before is None and record.after and name.number - 1 >", "if False and 1 >"),
            )
        ),
        "",
    ),
    Mutant(
        "store forgets its newest entry, a copy goes upon another decision of the name before",
        UPON_EACH_OTHER.but(
            make=careless_chain(
                (
                    """        self._check_lineage(name, record, before.token)
        self._finish(""",
                    "        self._finish(",
                )
            )
        ),
        "MISLED",
    ),
    Mutant(
        "store forgets its newest entry, what was seen of the name before does not count",
        UPON_EACH_OTHER.but(
            make=careless_chain(("self._check_lineage(name, record, seen.token)", "pass"))
        ),
        "MISLED",
    ),
    Mutant(
        "store forgets its newest entry, nobody compares the one before at the end",
        UPON_EACH_OTHER.but(
            actors=2,
            program=functools.partial(chain, times=2, readable=True),
            make=careless_chain(
                (
                    """            self._check_lineage(name, record, before.token)
        if there.state""",
                    """            pass
        if there.state""",
                )
            ),
        ),
        "UNREADABLE",
    ),
]
TURNS = "holdfast.arbiter._turns"
IN_LINE = THREE.but(program=line_up, crashes=1, preemptions=1, check=in_turn)
NO_LIMIT = ("if now - begun >= _LONGEST_WAIT_SECONDS:", "if False:")


def careless_line(*changes: Change, most_unfinished: int = 8) -> Maker:
    turns = mutate(TURNS, *changes).Turns
    maker = recorded_with(INLINE, most_unfinished=most_unfinished, patience=1, clock=RushingClock)

    def make(store: Any, commit_store: Any, ids: Any) -> Any:
        own: Any = maker(store, commit_store, ids)

        def take_turn(series: str) -> Any:
            key = Key(own._key_series(f"{series}/turns"), 0)
            told = functools.partial(own._finished_through, series)
            line = turns(commit_store, key, own._clock, ids, 50, finished=told)
            turn = line.take()
            own._note_told(series, line.finished)
            return turn

        own.take_turn = take_turn
        return own

    return make


def careless_tail(*changes: Change) -> Maker:
    factory = mutate(RECORDED, *changes).RecordedDecisions
    return recorded_with(INLINE, factory, most_unfinished=1, patience=1, clock=RushingClock)


def careless_wait(*changes: Change) -> Maker:
    return recorded_with(INLINE, mutate(RECORDED, *changes).RecordedDecisions, patience=1)


SHORT_TAIL = THREE.but(
    program=line_up,
    preemptions=1,
    check=functools.partial(in_order, most_unfinished=1),
)
TURN_MUTANTS = [
    Mutant(
        "nobody goes on without the first in line",
        IN_LINE.but(
            make=careless_line(
                NO_LIMIT, ("elif now - seen_since >= TAKEN_OVER_SECONDS:", "elif 0:")
            )
        ),
        "STARVED",
    ),
    Mutant(
        "the second begins anew with every look at the line",
        IN_LINE.but(make=careless_line(NO_LIMIT, ("if line[0] != first:", "if True:"))),
        "STARVED",
    ),
    Mutant(
        "whoever has the turn takes its decision for granted",
        IN_LINE.but(
            make=recorded_with(
                INLINE,
                mutate(
                    RECORDED,
                    ("if winner.token == token:", "if winner.token == token or decided:"),
                ).RecordedDecisions,
                patience=1,
                clock=RushingClock,
            )
        ),
        "",
    ),
    Mutant(
        "whoever has the turn decides without asking",
        IN_LINE.but(
            make=recorded_with(
                INLINE,
                mutate(
                    RECORDED,
                    (
                        "winner = self._claim(name, record, body)",
                        "winner = record if decided else self._claim(name, record, body)",
                    ),
                ).RecordedDecisions,
                patience=1,
                clock=RushingClock,
            )
        ),
        "",
    ),
]
TURN_MUTANTS += [
    Mutant(
        "the line says that more is finished than was seen",
        SHORT_TAIL.but(
            make=careless_line(
                (
                    "finished = max(self.finished, self._told())",
                    "finished = max(self.finished, self._told()) + 1",
                ),
                most_unfinished=1,
            )
        ),
        "TAIL",
    ),
    Mutant(
        "the line says that what is decided is finished",
        SHORT_TAIL.but(
            make=careless_tail(
                (
                    "finished=lambda: self._finished_through(series),",
                    "finished=lambda: self._decided.get(series, (-1, None))[0],",
                )
            )
        ),
        "TAIL",
    ),
    Mutant(
        "waits for the tail, and decides whatever came of it",
        SHORT_TAIL.but(
            make=careless_tail(
                (
                    "if not self._await_tail(name.series, tail):",
                    "if not self._await_tail(name.series, tail) and not self._patience:",
                )
            )
        ),
        "TAIL",
    ),
    Mutant(
        "store forgets its newest entry, a helper does not look",
        FORGETFUL.but(
            make=careless_chain(
                (
                    "looked = self._look([Name(waiting[0][1].path, series, waiting[0][0])])[0]",
                    "looked = None",
                ),
                (LOOK_AHEAD, "return None"),
            )
        ),
        "CHANGED",
    ),
]
COMPARED = "            looked = self._finish_and_look(name, record, ours, body, beyond)"
BELIEVED = COMPARED.replace("self._finish", "body or self._finish")
HELP_MUTANTS = [
    Mutant(
        "store forgets its newest entry, a helper does not look at later names",
        Forgotten(
            name="m",
            make=careless_chain((LOOK_AHEAD, "return None")),
        ),
        "CHANGED",
    ),
    Mutant(
        "a helper does not look at the pin",
        Removed(
            name="m",
            make=careless_tail(
                (
                    "return [*calls, partial(self._refuse_replaced, names[0])] if names else []",
                    "return [*calls, lambda: None]",
                )
            ),
        ),
        "HARM",
    ),
    Mutant(
        "store forgets its newest entry, a look made for another record counts",
        LookedAhead(
            name="m",
            make=careless_chain(("looked if behind[:1] == beyond[:1] else _NOT_YET", "looked")),
        ),
        "CHANGED",
    ),
    Mutant(
        "store forgets its newest entry, nobody looks ahead",
        LookedAhead(name="m", make=careless_chain((LOOK_AHEAD, "return None"))),
        "CHANGED",
    ),
    Mutant(
        "who waits does not look at the pin",
        FirstLook(
            name="m",
            store=RemovedWhenSeen,
            make=careless_wait(
                ("[] if number else [partial(self._refuse_replaced, name)]", "[lambda: None]")
            ),
        ),
        "HARM",
    ),
    Mutant(
        "who waits takes silence for a free name",
        FirstLook(
            name="m",
            store=SilentOnce,
            make=careless_wait(
                ("return None if there is None and pin else _NOT_YET", "return None")
            ),
        ),
        "HARM",
    ),
    Mutant(
        "who waited does not compare what somebody put at its name",
        FORGETFUL.but(
            honest=True,
            make=recorded_with(
                INLINE, mutate(RECORDED, (COMPARED, BELIEVED)).RecordedDecisions, patience=1
            ),
        ),
        "LOST",
    ),
]
MUTANTS += CHAIN_MUTANTS + TURN_MUTANTS + HELP_MUTANTS


@pytest.mark.mutant
@pytest.mark.requirement("C3", "C8")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    scenario = mutant.setup.scenario()
    with pytest.raises(Violation) as caught:
        explore(scenario, max_states=200_000)
    print(f"{mutant.name}\n{caught.value}\n")
    assert mutant.says in caught.value.message
    assert len(caught.value.schedule) <= 40
    with pytest.raises(Violation):  # the printed schedule is a regression test by itself
        replay(scenario, " ".join(map(str, caught.value.schedule)))


@pytest.mark.mutant
def test_mutant_a_409_lets_a_creator_replace_the_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    careless = mutate(
        "holdfast.arbiter._pinning",
        (
            "continue  # a 409, just when a rival may be creating: never a plain put here",
            "store.put(PIN_PATH, body)\n                return _report_pin(pin)",
        ),
    )
    monkeypatch.setattr(create_scenarios, "pin_to_commit_store", careless.pin_to_commit_store)
    with pytest.raises(Violation, match="PIN REPLACED"):
        explore(create_scenarios.creators(stores=2, faults=1, honest=True))


@pytest.mark.mutant
def test_mutant_one_token_stages_at_one_place_for_all_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careless = mutate("holdfast.formats._record", ("-{digest(path.encode())[:8]}", ""))
    monkeypatch.setattr(f"{RECORDED}.make_record", careless.make_record)
    setup = Setup(
        name="m",
        make=staged,
        faults=1,
        honest=False,
        preemptions=2,
        program=log_append,
        check=log_holds,
    )
    with pytest.raises(Violation, match="unreadable"):
        explore(setup.scenario())
