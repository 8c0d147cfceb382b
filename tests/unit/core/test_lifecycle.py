"""The life of an engine, and what a call at the wrong time hears."""

from __future__ import annotations

import os

import pytest

from hixl_aio._core.lifecycle import NOWHERE, Lifecycle, LifeState
from hixl_aio.errors import ClosedError, EngineForkedError, InternalError, WrongLoopError


def opened() -> Lifecycle:
    life = Lifecycle("e")
    life.advance(LifeState.OPENING)
    life.owner = "loop"
    life.advance(LifeState.OPEN)
    return life


def test_only_an_open_engine_has_a_home() -> None:
    """In every other state no loop equals its home."""
    life = opened()
    homes = [life.home]
    for state in (LifeState.CLOSING, LifeState.CLOSED):
        life.advance(state)
        homes.append(life.home)
    assert homes == ["loop", NOWHERE, NOWHERE]
    assert repr(NOWHERE) == "no loop"


def test_refusals_say_what_is_wrong() -> None:
    """Not open, wrong loop, no loop, closing, closed, forked."""
    assert "async with" in str(Lifecycle("e").refusal("loop"))
    life = opened()
    wrong = life.refusal("other")
    assert isinstance(wrong, WrongLoopError)
    assert (wrong.owner, wrong.current) == ("'loop'", "'other'")
    assert life.refusal(None).current == "none"  # type: ignore[attr-defined]
    life.advance(LifeState.CLOSING)
    closing = life.refusal("loop")
    assert isinstance(closing, ClosedError)
    assert closing.state == "closing"
    forked = opened()
    forked.advance(LifeState.FORKED)
    error = forked.refusal("loop")
    assert isinstance(error, EngineForkedError)
    assert error.pid == os.getpid()
    elsewhere = opened()
    elsewhere.pid = 1
    assert isinstance(elsewhere.refusal("loop"), EngineForkedError)


def test_states_follow_each_other_only_as_they_may() -> None:
    """A closed engine stays closed."""
    life = opened()
    with pytest.raises(InternalError):
        life.advance(LifeState.NEW)
    life.advance(LifeState.CLOSING)
    life.advance(LifeState.CLOSED)
    for state in LifeState:
        with pytest.raises(InternalError):
            life.advance(state)
