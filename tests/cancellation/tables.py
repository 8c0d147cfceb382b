"""The answers, read from the page that makes the promise: docs/concepts/cancellation.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ("CANNOT_STOP", "OPERATIONS", "Answer", "row_id")

_PAGE: Final = Path(__file__).parents[2] / "docs" / "concepts" / "cancellation.md"
_HEAD: Final = (
    "| it is | ended by | the await raises | bytes at the destination | buffer usable | bound signal |"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a table."""

    state: str
    end: str
    raises: str
    bytes: str
    usable: str
    signal: str


def _tables() -> list[list[Answer]]:
    tables: list[list[Answer]] = []
    rows: list[Answer] | None = None
    for line in _PAGE.read_text().splitlines():
        if line == _HEAD:
            rows = []
            tables.append(rows)
        elif rows is not None and line.startswith("| "):
            rows.append(Answer(*(cell.strip() for cell in line.strip("|").split("|"))))
        elif not line.startswith("|"):
            rows = None
    return tables


OPERATIONS, CANNOT_STOP = _tables()


def row_id(answer: Answer) -> str:
    """A short name for a test."""
    return f"{answer.state}-{answer.end}".replace(" ", "_").replace(",", "")
