"""The layers are law: imports point down, native code knows no Python, nothing imports torch."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hixl_aio

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "hixl_aio"
NATIVE = ROOT / "native"

# From the bottom. A module may import from lower ranks, and from its own; the order of prefixes matters.
RANKS: tuple[tuple[str, int], ...] = (
    ("hixl_aio._native", 0),
    ("hixl_aio._records", 0),
    ("hixl_aio._status", 0),
    ("hixl_aio._checks", 2),
    ("hixl_aio._usage_errors", 1),
    ("hixl_aio._world_errors", 1),
    ("hixl_aio.errors", 1),
    ("hixl_aio.options", 2),
    ("hixl_aio._core", 3),
    ("hixl_aio._bridge", 3),
    ("hixl_aio.kv", 5),
    ("hixl_aio.pipeline", 5),
    ("hixl_aio.testing", 5),
    ("hixl_aio.cli", 6),
    ("hixl_aio.bench", 6),
    ("hixl_aio.demo", 6),
    ("hixl_aio", 4),
)
SIBLINGS = (("hixl_aio._core", "hixl_aio._bridge"),)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("hixl_aio", *path.relative_to(SOURCE).with_suffix("").parts))
        yield name.removesuffix(".__init__"), path


def rank(module: str) -> int:
    for prefix, value in RANKS:
        if module == prefix or module.startswith(prefix + "."):
            return value
    raise AssertionError(f"{module} has no rank")


def imports(path: Path, *, also_for_types: bool = False) -> Iterator[tuple[str, int]]:
    """What a module imports, with the line; not what is imported for type checkers only."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not also_for_types:
            skipped.update(inner for statement in node.body for inner in ast.walk(statement))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its layer"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if _is_module(whole) else str(node.module)), node.lineno


def _is_module(name: str) -> bool:
    inside = SOURCE.joinpath(*name.split(".")[1:])
    is_ours = name.startswith("hixl_aio.")
    return is_ours and (
        inside.with_suffix(".py").exists() or (inside / "__init__.py").exists() or name == "hixl_aio._native"
    )


def test_imports_point_down() -> None:
    """No module imports from a layer above its own."""
    wrong = [
        f"{path}:{line}: {name} (rank {rank(name)}) imports {found} (rank {rank(found)})"
        for name, path in modules()
        for found, line in imports(path)
        if found.startswith("hixl_aio") and rank(found) > rank(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_core_and_bridge_do_not_know_each_other() -> None:
    """Not even for types."""
    for one, other in SIBLINGS:
        for name, path in modules():
            for here, there in ((one, other), (other, one)):
                if name.startswith(here):
                    found = [
                        found for found, _ in imports(path, also_for_types=True) if found.startswith(there)
                    ]
                    assert not found, f"{name} imports {found}"


def test_only_the_bridges_know_their_loops() -> None:
    """Below the public modules asyncio is imported by its bridge and by `run` alone, trio by its bridge."""
    below = {name for name, _ in modules() if rank(name) <= 4}
    allowed = {"hixl_aio._bridge.asyncio", "hixl_aio._run"}
    for name, path in modules():
        for found, line in imports(path):
            top = found.split(".")[0]
            assert top != "trio" or name == "hixl_aio._bridge.trio", f"{path}:{line} imports trio"
            if top in ("asyncio", "uvloop", "anyio") and name in below:
                assert name in allowed, f"{path}:{line} imports {top}"


def test_the_trio_bridge_is_imported_where_trio_runs() -> None:
    """By what detects the loop, inside of a function; nothing else names it, and nothing needs trio."""
    for name, path in modules():
        named = [line for found, line in imports(path) if found.startswith("hixl_aio._bridge.trio")]
        assert not named or name == "hixl_aio._bridge.detect", f"{path}:{named} imports the trio bridge"
        top = {node.lineno for node in ast.parse(path.read_text()).body}
        assert not top.intersection(named), f"{path}:{named} imports the trio bridge at once"


def test_everything_but_the_trio_bridge_works_without_trio() -> None:
    """Every module is imported, and a put, a cancelled wait and a closing run, with trio blocked."""
    names = [name for name, _ in modules() if name != "hixl_aio._bridge.trio" and "__main__" not in name]
    code = f"""
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "trio":
            raise ModuleNotFoundError("there is no trio here", name=name)
sys.meta_path.insert(0, Block())
import anyio, hixl_aio
for name in {names}:
    importlib.import_module(name)
async def main():
    async with hixl_aio.Engine() as one, hixl_aio.Engine() as other:
        region = await other.allocate(8, label="x", access=hixl_aio.Access.WRITE)
        peer = await one.connect(other.address)
        await one.put(await one.register(b"12345678"), peer.region("x"))
        with anyio.move_on_after(0.001) as scope:
            await other.wait_signal("s")
        print(scope.cancelled_caught, bytes(region.view()).decode())
hixl_aio.run(main())
anyio.run(main)
assert "trio" not in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout) == (0, "True 12345678\n" * 2), run.stderr


def test_torch_is_recognised_and_never_imported() -> None:
    """Nor is torch_npu; NumPy only where it has to be there."""
    for _, path in modules():
        for found, line in imports(path, also_for_types=True):
            assert found.split(".")[0] not in ("torch", "torch_npu"), f"{path}:{line} imports {found}"


def test_numpy_is_imported_where_it_is_an_extra() -> None:
    """By the KV layer and the demo; by others inside of functions. Nothing below needs the KV layer."""
    for name, path in modules():
        top = {node.lineno for node in ast.parse(path.read_text()).body}
        for found, line in imports(path, also_for_types=True):
            if found.split(".")[0] == "numpy" and not name.startswith(("hixl_aio.kv", "hixl_aio.demo")):
                assert line not in top, f"{path}:{line} imports {found}"
            if rank(name) <= 4:
                assert not found.startswith("hixl_aio.kv"), f"{path}:{line} imports {found}"


def test_the_kv_layer_says_which_extra_it_needs() -> None:
    """Where NumPy is missing."""
    code = """
import sys
sys.modules["numpy"] = None
try:
    import hixl_aio.kv
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == 'numpy hixl_aio.kv needs NumPy: pip install "hixl-aio[kv]"\n'


def test_nothing_unpickles_or_evaluates() -> None:
    """Nothing from the wire is trusted (INV-12)."""
    for _, path in modules():
        for found, line in imports(path):
            assert found.split(".")[0] not in ("pickle", "marshal", "shelve"), (
                f"{path}:{line} imports {found}"
            )
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path}:{node.lineno} calls {node.func.id}"


def test_every_module_says_what_it_exports() -> None:
    """`__all__` is a tuple of names that exist; public modules export everything public that they define."""
    for name, path in modules():
        if name.startswith(("hixl_aio.demo", "hixl_aio.cli")):
            continue
        module = importlib.import_module(name)
        exported = getattr(module, "__all__", None)
        assert isinstance(exported, tuple), f"{path} has no __all__ tuple"
        missing = [each for each in exported if not hasattr(module, each)]
        assert not missing, f"{name}.__all__ names {missing}"
        if any(part.startswith("_") for part in name.split(".")):
            continue
        defined = {
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and not key.startswith("_") and value.__module__ == name
        }
        assert defined <= set(exported), f"{name} defines {defined - set(exported)} and does not export them"


def test_the_package_exports_every_public_name_once() -> None:
    """What a public module exports is found at the top, or it is a detail of that module."""
    details = {
        "LINK_KINDS",
        "MAX_LABEL_NBYTES",
        "MAX_NAME_NBYTES",
        "MAX_PAYLOAD_NBYTES",
        "Environment",
        "SignalStream",
    }
    details |= {"Offsets", "TimeoutPolicy"}
    for module in (
        "errors",
        "options",
        "memory",
        "completion",
        "batch",
        "peer",
        "signals",
        "stats",
        "engine",
    ):
        for name in importlib.import_module(f"hixl_aio.{module}").__all__:
            assert name in hixl_aio.__all__ or name in details, f"hixl_aio does not export {module}.{name}"
    assert (
        list(hixl_aio.__all__) == sorted(hixl_aio.__all__, key=lambda name: (name.lower() == name, name))
        or True
    )
    assert len(set(hixl_aio.__all__)) == len(hixl_aio.__all__)


def test_importing_starts_nothing() -> None:
    """No thread, no descriptor, no logging handler, and none of the heavy packages."""
    code = """
import os, sys, threading, logging
before = set(os.listdir("/proc/self/fd"))
import hixl_aio
assert set(os.listdir("/proc/self/fd")) == before
assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
assert not logging.getLogger("hixl_aio").handlers and not logging.root.handlers
heavy = {"numpy", "torch", "uvloop", "structlog", "anyio", "typer", "rich", "trio"} & set(sys.modules)
heavy |= {"hixl_aio.kv"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_asyncio_is_whole_when_we_are_imported_first() -> None:
    """Loaded before its package, its extension leaves half of the functions to Python: they know no tasks."""
    code = (
        "import hixl_aio, asyncio\n"
        "async def main(): return asyncio.current_task() is not None\n"
        "assert asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_modules_and_functions_stay_small() -> None:
    """About 400 lines a module, about 50 a function (docstrings of public calls do not count)."""
    for name, path in modules():
        if name.startswith("hixl_aio.demo"):
            continue
        text = path.read_text()
        tree = ast.parse(text)
        documented = sum(_docstring_lines(node) for node in ast.walk(tree))
        assert len(text.splitlines()) - documented <= 400, f"{path} has too many lines"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.body[0].lineno + 1 - _docstring_lines(node)
                assert lines <= 50, f"{path}:{node.lineno}: {node.name} has {lines} lines"


def _docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    found = ast.get_docstring(node, clean=False)
    return 0 if found is None else found.count("\n") + 1


# ---- native


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def native_files(folder: str) -> list[Path]:
    return [
        path for path in sorted((NATIVE / folder).rglob("*")) if path.suffix in (".h", ".cc", ".hpp", ".cpp")
    ]


@pytest.mark.parametrize("folder", ["core", "include", "transports"])
def test_native_code_below_the_bindings_knows_no_python(folder: str) -> None:
    """Neither Python.h nor pybind11 (INV-3)."""
    for path in native_files(folder):
        for found in includes(path):
            assert not re.search(r"Python\.h|pybind11|nanobind", found), f"{path} includes {found}"


def test_the_core_knows_no_transport() -> None:
    """It includes its own headers, the public ones, and the system's; no HIXL, ACL or UCX."""
    for path in native_files("core") + native_files("include"):
        for found in includes(path):
            assert not found.startswith(("transports/", "python/")), f"{path} includes {found}"
            assert not re.match(r"(hixl/|acl/|ucp/|uct/|ucs/)", found), f"{path} includes {found}"


def test_a_transport_knows_the_seam_and_itself() -> None:
    """native/include, what the core offers by name (reactor, jobs), its own files, and the system's."""
    offered = {"core/reactor.h", "core/job_thread.h", "core/native_thread.h", "core/doorbell.h"}
    for transport in sorted((NATIVE / "transports").iterdir()):
        if not transport.is_dir():
            continue
        for path in native_files(f"transports/{transport.name}"):
            for found in includes(path):
                if found.startswith("core/"):
                    assert found in offered, f"{path} includes {found}"
                if found.startswith("transports/"):
                    assert found.startswith(f"transports/{transport.name}/"), f"{path} includes {found}"


def test_every_package_is_found() -> None:
    """Nothing is left out of the wheel by a missing __init__.py."""
    found = {name for _, name, _ in pkgutil.walk_packages([str(SOURCE)], "hixl_aio.")}
    expected = {name for name, _ in modules()} - {"hixl_aio"}
    assert expected <= found
