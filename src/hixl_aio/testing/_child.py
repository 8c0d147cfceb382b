"""The second process of a test, from the inside."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import ModuleType
from typing import Any

from hixl_aio._run import run as run_coroutine
from hixl_aio.testing._parent import Parent
from hixl_aio.testing._wire import Wire

__all__ = ("find_function", "run")


def run(connected: socket.socket, order: Mapping[str, Any]) -> None:
    """Do what the order says; end with status 1 if that fails, having told the parent why."""
    wire = Wire(connected)
    try:
        is_well = run_coroutine(_obey(Parent(wire), order))
    finally:
        wire.close()
    if not is_well:
        sys.exit(1)


async def _obey(parent: Parent, order: Mapping[str, Any]) -> bool:
    try:
        function = find_function(order["module"], order["file"], order["function"])
        result = await function(parent, **order["arguments"])
        await parent._return(result)
    except BaseException as error:
        await parent._fail(error)
        if not isinstance(error, Exception):
            raise
        return False
    return True


def find_function(module: str, file: str, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The function that the parent means: by the module's name if that leads to the same file, else by the
    file.
    """
    found: Any = _import(module, file)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Coroutine[Any, Any, Any]] = found
    return function


def _import(name: str, file: str) -> ModuleType:
    if name != "__main__":
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                raise  # it was found, and misses something itself
        else:
            if os.path.realpath(module.__file__ or "") == os.path.realpath(file):
                return module
    spec = importlib.util.spec_from_file_location(f"_hixl_aio_test_{os.path.basename(file)[:-3]}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"module {name} cannot be imported from {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
