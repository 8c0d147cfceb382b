"""Making and closing regions of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hixl_aio import _native
from hixl_aio._bridge.base import weightier
from hixl_aio._checks import check_text
from hixl_aio._core.gate import Gate
from hixl_aio._core.regions import RegionRecord, pin_buffer, refuse_readonly
from hixl_aio._failures import About, from_status
from hixl_aio._log import log
from hixl_aio._requests import Request
from hixl_aio._status import Status
from hixl_aio.errors import InvalidArgumentError, RegionBusyError
from hixl_aio.memory import MAX_LABEL_NBYTES, MemoryRegion
from hixl_aio.options import Access

if TYPE_CHECKING:
    from hixl_aio._records import EventTuple, RegionTuple
    from hixl_aio._runtime import Runtime

__all__ = ("RegionBook",)

_kept_for_good: Final[list[object]] = []  # memory that a stopped process may still write to
_FOREVER: Final = -1.0
_ARRIVAL: Final = 1.0  # seconds for an answer that native code has given to arrive
_MAX_NBYTES: Final = 1 << 62


class RegionBook:
    """All regions of one engine: they live here until native code has closed them."""

    __slots__ = ("_asked", "_runtime", "records")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asked: dict[RegionRecord, Request] = {}  # closings that native code has not answered in time
        # By number and generation: native code gives a number out again once no peer reaches the region, and
        # operations of ours may still hold it then.
        self.records: dict[tuple[int, int], RegionRecord] = {}

    # ---- making

    async def allocate(self, nbytes: int, label: str | None, access: Access) -> MemoryRegion:
        """Memory of the transport's own kind."""
        runtime = self._runtime
        runtime.check()
        if hasattr(nbytes, "__index__") and not isinstance(nbytes, bool):
            nbytes = nbytes.__index__()  # NumPy's integers too
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 1 <= nbytes <= _MAX_NBYTES:
            raise InvalidArgumentError(
                argument="nbytes", value=nbytes, expected=f"an integer from 1 to {_MAX_NBYTES}"
            )
        text = _check_label(label)
        wanted = _check_access(access)
        about = About(label=text, argument="nbytes", value=nbytes, expected="what this machine has")
        event = await runtime.requests.ask(
            lambda token: runtime.native.allocate(token, nbytes, int(wanted), text), self._give_back, about
        )
        info = self._made(event, about)
        return self._enter(info, readonly=False, keep=runtime.native.hold_region(info[0]))

    async def register(self, buffer: Any, label: str | None, access: Access) -> MemoryRegion:
        """Memory of the caller's."""
        runtime = self._runtime
        runtime.check()
        text = _check_label(label)
        wanted = _check_access(access)
        pinned = pin_buffer(buffer)
        if pinned.readonly and wanted & Access.WRITE:
            raise refuse_readonly(text, f"access {wanted.name}")
        about = About(label=text)

        def orphan(event: EventTuple) -> None:
            self._give_back(event, pinned)

        event = await runtime.requests.ask(
            lambda token: runtime.native.register(
                token, pinned.address, pinned.nbytes, _native.KIND_HOST, int(wanted), text
            ),
            orphan,
            about,
        )
        info = self._made(event, about)
        keep = (pinned, runtime.native.hold_region(info[0]))
        return self._enter(info, readonly=pinned.readonly, keep=keep)

    @staticmethod
    def _made(event: EventTuple, about: About) -> RegionTuple:
        _, _, _, code, text, info = event
        if code == Status.INVALID_ARGUMENT and about.label:
            about = replace(about, argument="label", value=about.label, expected="one that is free")
        if code or info is None:
            raise from_status(code, text, about)
        return info

    def _enter(self, info: RegionTuple, *, readonly: bool, keep: object) -> MemoryRegion:
        record = RegionRecord(info, owner=self._runtime, readonly=readonly, keep=keep)
        self.records[record.id, record.generation] = record
        log("info", "region made", label=record.label, nbytes=record.nbytes, generation=record.generation)
        return MemoryRegion(self._runtime, record)

    def _give_back(self, event: EventTuple, keep: object = None) -> None:
        """The call that made it was cancelled. `keep` stays referenced until nobody can touch the memory."""
        _, _, _, code, _, info = event
        runtime = self._runtime
        if code or info is None or not runtime.is_open:
            return
        request = runtime.requests.begin(lambda token: runtime.native.close_region(token, info[0], _FOREVER))
        request.orphan = lambda _: _drop(keep)

    # ---- closing

    async def close(self, record: RegionRecord) -> None:
        """Take a region out of use."""
        runtime = self._runtime
        if record.closed:
            await runtime.checkpoint_where_due()
            return
        if runtime.closing:
            await runtime.close(None)  # which closes it
            return
        runtime.check()
        if record.closing is not None:
            _, cancelled = await runtime.bridge.hold(record.closing, None)
            if cancelled is not None:
                raise cancelled
            if not record.closed:
                raise RegionBusyError(label=record.label, pins=record.pins)
            return
        record.closing = Gate(runtime.bridge.wake)
        try:
            cancelled = await self._close(record)
        finally:
            gate, record.closing = record.closing, None
            if gate is not None:
                gate.open()
        if cancelled is not None:
            raise cancelled

    async def _close(self, record: RegionRecord) -> BaseException | None:
        runtime = self._runtime
        limit = runtime.options.drain_timeout
        begun = monotonic()
        record.owner = None  # from here on every use is refused
        request: Request | None = None
        first: BaseException | None = None
        if not record.revoked:
            # Peers are shut out first; our own operations may end meanwhile.
            request = self._ask_to_close(record, _FOREVER if limit is None else limit)
        if record.pins:
            if record.busy_gate is None:
                record.busy_gate = Gate(runtime.bridge.wake)
            _, first = await runtime.bridge.hold(record.busy_gate, limit)
        if request is not None:
            # Native code answers by then; the rest is for the answer to arrive.
            left = None if limit is None else max(0.0, begun + limit - monotonic()) + _ARRIVAL
            _, cancelled = await runtime.bridge.hold(request.gate, left)
            first = weightier(first, cancelled)
            if request.failure is not None and runtime.closing_gate is not None:
                # The engine closes, and this region with it.
                _, cancelled = await runtime.bridge.hold(runtime.closing_gate, None)
                return weightier(first, cancelled)
            self._take_answer(record, request)
        if record.pins or not record.revoked:
            if record.closed:
                return first  # the engine was closed meanwhile
            raise RegionBusyError(label=record.label, pins=record.pins, waited=monotonic() - begun) from first
        self.forget(record)
        return first

    def _ask_to_close(self, record: RegionRecord, seconds: float) -> Request | None:
        """None: an earlier answer that came late says that it is closed.

        What has not been answered yet is not asked again: by then the number may name a newer region.
        """
        earlier = self._asked.get(record)
        if earlier is not None:
            self._take_answer(record, earlier)
        if record.revoked:
            return None
        if record not in self._asked:
            self._asked[record] = self._runtime.requests.begin(self._closer(record, seconds))
        return self._asked[record]

    def _take_answer(self, record: RegionRecord, request: Request) -> None:
        if request.event is None:
            return
        self._asked.pop(record, None)
        code, text = request.event[3], request.event[4]
        if code == Status.OK or code == Status.NOT_REGISTERED:
            record.revoked = True
        elif code != Status.REGION_BUSY:
            raise from_status(code, text, About(label=record.label, pins=record.pins))

    async def revoke_all(self, seconds: float) -> tuple[list[RegionRecord], BaseException | None]:
        """Shut all peers out of all regions.

        Returns:
            Those that a peer still held after so long, whose memory is kept for good; and the first
            cancellation.
        """
        runtime = self._runtime
        exported = [record for record in self.records.values() if record.access and not record.revoked]
        asked = [(record, runtime.requests.begin(self._closer(record, seconds))) for record in exported]
        stuck: list[RegionRecord] = []
        first: BaseException | None = None
        for record, request in asked:
            _, cancelled = await runtime.bridge.hold(request.gate, seconds + _ARRIVAL)
            first = weightier(first, cancelled)
            if request.event is None or request.event[3] == Status.REGION_BUSY:
                stuck.append(record)
                _kept_for_good.append(record.keep)
        return stuck, first

    def _closer(self, record: RegionRecord, seconds: float) -> Callable[[int], None]:
        return lambda token: self._runtime.native.close_region(token, record.id, seconds)

    def forget(self, record: RegionRecord) -> None:
        """Nobody can touch it any more."""
        record.owner = None
        record.closed = True
        record.keep = None
        self._asked.pop(record, None)
        self.records.pop((record.id, record.generation), None)
        log("info", "region closed", label=record.label, nbytes=record.nbytes, generation=record.generation)

    def forget_all(self) -> None:
        """The engine is closed."""
        for record in list(self.records.values()):
            self.forget(record)


def _drop(keep: object) -> None:
    """The last reference that we held."""


def _check_label(label: str | None) -> str:
    if label is None:
        return ""
    return check_text("label", label, f"a str of 1 to {MAX_LABEL_NBYTES} bytes, or None", MAX_LABEL_NBYTES)


def _check_access(access: Access) -> Access:
    if not isinstance(access, Access):
        raise InvalidArgumentError(argument="access", value=access, expected="an Access")
    return access
