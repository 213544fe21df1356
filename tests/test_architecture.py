"""The rooms of the package: imports point one way, and no file stands in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import trl_pods

PACKAGE = Path(trl_pods.__file__).parent
# From the bottom: what stands in a line imports from lines above it only, or from its own room.
ROOMS = [
    ["checks"],
    ["timing", "answers", "strategies"],
    ["downsampling", "runs"],
    ["resume", "data"],
    ["config"],
    ["trainers", "rewards", "testing", "wall_clock"],
    ["progress"],
    ["cli"],
    ["examples", "lab"],
]
SHIMS = {"__main__", "trainer", "quickstart", "start_models", "scripts"}
ENTRY = "cli.main"  # it names all commands, and imports each when it is run


def modules() -> dict[str, Path]:
    names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in names.items() if name != "__init__"}


def imports(name: str, path: Path) -> set[str]:
    """The modules of the package that a module imports, at its top or within functions."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            found |= {".".join([*base, alias.name]) for alias in node.names} | {".".join(base)}
    return found & modules().keys()


def room(name: str) -> str:
    return name.split(".")[0]


def test_every_module_has_a_place():
    assert {room(name) for name in modules()} - SHIMS == {name for line in ROOMS for name in line}


def test_no_room_imports_upward():
    height = {name: i for i, line in enumerate(ROOMS) for name in line}
    for name, path in modules().items():
        for imported in imports(name, path):
            if room(name) not in SHIMS and name != ENTRY and room(imported) != room(name):
                assert height[room(imported)] < height[room(name)], f"{name} imports {imported}"


def test_no_file_stands_in_a_circle():
    graph = {name: imports(name, path) - {name} for name, path in modules().items()}
    TopologicalSorter(graph).prepare()  # raises a `CycleError` that names the circle
