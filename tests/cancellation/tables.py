"""The answers, read from the page that makes the promise: docs/concepts/cancellation.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ("CANNOT_STOP", "OPERATIONS", "SIGNALS", "Answer", "SignalAnswer", "row_id")

_PAGE: Final = Path(__file__).parents[2] / "docs" / "concepts" / "cancellation.md"
_OPERATION: Final = (
    "| it is | ended by | the await raises | bytes at the destination | buffer usable | bound signal |"
)
_SIGNAL: Final = "| it is | ended by | the await raises | bound signal |"


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a table."""

    state: str
    end: str
    raises: str
    bytes: str
    usable: str
    signal: str


@dataclass(frozen=True, slots=True)
class SignalAnswer:
    """One line of the table about signals of their own."""

    state: str
    end: str
    raises: str
    signal: str


def _tables(head: str) -> list[list[list[str]]]:
    tables: list[list[list[str]]] = []
    rows: list[list[str]] | None = None
    for line in _PAGE.read_text().splitlines():
        if line == head:
            rows = []
            tables.append(rows)
        elif rows is not None and line.startswith("| "):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif not line.startswith("|"):
            rows = None
    return tables


OPERATIONS, CANNOT_STOP = [[Answer(*row) for row in table] for table in _tables(_OPERATION)]
(SIGNALS,) = [[SignalAnswer(*row) for row in table] for table in _tables(_SIGNAL)]


def row_id(answer: Answer | SignalAnswer) -> str:
    """A short name for a test."""
    return f"{answer.state}-{answer.end}".replace(" ", "_").replace(",", "")
