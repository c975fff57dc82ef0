"""Names of a package that are loaded when they are asked for (PEP 562)."""

import sys
from importlib import import_module

TYPE_CHECKING = False  # checkers know the name; the module typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def loads(
    package: str, names: "Mapping[str, Sequence[str]]"
) -> "tuple[Callable[[str], object], Callable[[], list[str]]]":
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: Its full name.
        names: What is found in each of its modules. The modules themselves are found as well, as they would be if the package had
            imported them.
    """
    homes = {name: module for module, those in names.items() for name in those}
    modules = {module.partition(".")[0] for module in names}

    def load(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value: object = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next one finds it there
        return value

    def listed() -> list[str]:
        return sorted({*homes, *modules, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return load, listed
