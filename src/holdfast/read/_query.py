"""The small language of full-text queries.

    storm harbour            either word; rows with both come first
    storm AND harbour        both; AND binds tighter than OR
    storm OR "old town"      either; in quotes: these words in this order
    "old town"~2             with up to 2 words in between
    harbor~1                 up to one letter off; `harbor~`: the longer, the more
    storm^2 harbour          the first counts double
    storm -harbour           not this one; also `storm AND NOT harbour`
    (storm OR gale) AND sea  brackets

Anything else that Lance can do is given as one of `lance.query`'s objects.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lance.query import (
    BooleanQuery,
    FullTextOperator,
    FullTextQuery,
    MatchQuery,
    Occur,
    PhraseQuery,
)

from holdfast.errors import InvalidInputError

_TOKEN = re.compile(
    r'\s*(?:(?P<bracket>[()])|(?P<sign>[+-])(?=[^\s)])|"(?P<phrase>[^"]*)"(?:~(?P<slop>\d+))?'
    r'|(?P<word>[^\s()"]+))'
)
_WORD = re.compile(r"(?P<text>.+?)(?P<fuzzy>~\d?)?(?:\^(?P<boost>\d+(?:\.\d+)?))?")
_SIGNS = {"+": Occur.MUST, "-": Occur.MUST_NOT}
_MOST_EDITS = 2
_DEPTH = 20
_BY_LENGTH = ((2, 0), (5, 1), (sys.maxsize, 2))


@dataclass(frozen=True, slots=True)
class _Clause:
    """A query and whether it must, should or must not match; `plain` if it is a bare word."""

    occur: Occur
    query: FullTextQuery
    plain: str | None = None


def parse_query(text: str, column: str) -> FullTextQuery:
    """Return the query that a text means.

    Raises:
        InvalidInputError: it has no words, or its brackets, quotes or operators do not fit.
    """
    parser = _Parser(text, column)
    found = parser.alternatives(0)
    if parser.peek() is not None:
        raise parser.wrong("there is a closing bracket too many")
    return found


def is_plain(query: object) -> bool:
    """Tell whether a query asks for words, spelled as they are, of one column.

    A text without quotes and tildes does. What is inside of a query object nobody can see.
    """
    return isinstance(query, str) and not set(query) & {'"', "~"}


class _Parser:
    def __init__(self, text: str, column: str) -> None:
        self._text = text
        self._column = column
        self._tokens = list(self._split(text))
        self._at = 0

    def peek(self) -> re.Match[str] | None:
        """Return the next token, or None at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def alternatives(self, depth: int) -> FullTextQuery:
        """Read terms that stand side by side or with OR between them."""
        if depth > _DEPTH:
            raise self.wrong("too many brackets inside each other")
        clauses = [self._conjunction(depth)]
        while (token := self.peek()) is not None and token["bracket"] != ")":
            if token["word"] == "OR":
                self._at += 1
            clauses.append(self._conjunction(depth))
        return self._any(clauses)

    def wrong(self, what: str) -> InvalidInputError:
        """Return the error that explains the language."""
        return InvalidInputError(
            f"{what}: a query is words with AND, OR, NOT, quotes and brackets; give a "
            "lance.query object for anything else",
            query=repr(self._text[:200]),
        )

    def _conjunction(self, depth: int) -> _Clause:
        clauses = [self._term(depth)]
        while (token := self.peek()) is not None and token["word"] == "AND":
            self._at += 1
            clauses.append(self._term(depth))
        if len(clauses) == 1:
            return clauses[0]
        if all(clause.plain for clause in clauses):
            words = " ".join(str(clause.plain) for clause in clauses)
            both = MatchQuery(words, self._column, operator=FullTextOperator.AND)
            return _Clause(Occur.SHOULD, both)
        must = [
            (clause.occur if clause.occur is Occur.MUST_NOT else Occur.MUST, clause.query)
            for clause in clauses
        ]
        return _Clause(Occur.SHOULD, self._boolean(must))

    def _term(self, depth: int) -> _Clause:
        token = self.peek()
        if token is None:
            raise self.wrong("something is missing at the end")
        self._at += 1
        if token["sign"]:
            return _Clause(_SIGNS[token["sign"]], self._term(depth).query)
        if token["word"] == "NOT":
            return _Clause(Occur.MUST_NOT, self._term(depth).query)
        if token["bracket"] == "(":
            inner = self.alternatives(depth + 1)
            closing = self.peek()
            if closing is None or closing["bracket"] != ")":
                raise self.wrong("a bracket is not closed")
            self._at += 1
            return _Clause(Occur.SHOULD, inner)
        if token["phrase"] is not None:
            slop = int(token["slop"] or 0)
            return _Clause(Occur.SHOULD, PhraseQuery(token["phrase"], self._column, slop=slop))
        if token["bracket"] or token["word"] in {"AND", "OR"}:
            raise self.wrong(f"{token[0].strip()} stands at a wrong place")
        return self._word(token["word"])

    def _word(self, word: str) -> _Clause:
        match = _WORD.fullmatch(word)
        if match is None:
            return _Clause(Occur.SHOULD, MatchQuery(word, self._column), word)
        fuzzy, boost = match["fuzzy"], match["boost"]
        if fuzzy is None and boost is None:
            return _Clause(Occur.SHOULD, MatchQuery(word, self._column), word)
        edits = _edits(match["text"], fuzzy)
        if edits > _MOST_EDITS:
            raise self.wrong(f"at most {_MOST_EDITS} letters may differ")
        query = MatchQuery(match["text"], self._column, fuzziness=edits, boost=float(boost or 1))
        return _Clause(Occur.SHOULD, query)

    def _any(self, clauses: Sequence[_Clause]) -> FullTextQuery:
        """Join clauses; bare words side by side are one query, as Lance itself has it."""
        words = [str(clause.plain) for clause in clauses if clause.plain]
        others = [(clause.occur, clause.query) for clause in clauses if not clause.plain]
        if words:
            others.insert(0, (Occur.SHOULD, MatchQuery(" ".join(words), self._column)))
        if len(others) == 1 and others[0][0] is not Occur.MUST_NOT:
            return others[0][1]
        return self._boolean(others)

    def _boolean(self, clauses: Sequence[tuple[Occur, FullTextQuery]]) -> FullTextQuery:
        if all(occur is Occur.MUST_NOT for occur, _ in clauses):
            raise self.wrong("nothing says what to look for, only what not")
        return BooleanQuery(list(clauses))

    def _split(self, text: str) -> list[re.Match[str]]:
        found: list[re.Match[str]] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.wrong("a quote is not closed")
            found.append(match)
            at = match.end()
        if not found:
            raise self.wrong("the query is empty")
        return found


def _edits(word: str, fuzzy: str | None) -> int:
    """Return how many letters may differ: as said, or by the word's length."""
    if fuzzy is None:
        return 0
    if fuzzy != "~":
        return int(fuzzy[1:])
    return next(edits for longest, edits in _BY_LENGTH if len(word) <= longest)
