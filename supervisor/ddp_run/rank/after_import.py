"""Looks at a module once the program has imported it, and imports nothing itself."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable


class AfterImport:
    """A finder that finds nothing itself: it lets the others find a module and looks at it once it is imported.

    It leaves sys.meta_path when all that it waits for has come.
    """

    def __init__(
        self, targets: "dict[str, Callable[[ModuleType], None]]", missed: "Callable[[str, BaseException], None]"
    ) -> None:
        self._targets = targets
        self.missed = missed

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """The spec that the other finders give, its loader prepared; None for all other modules."""
        if name not in self._targets:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._prepare(name, spec.loader)
                return spec
        return None

    def _prepare(self, name: str, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            look = self._targets.pop(name, None)
            if not self._targets:
                try:
                    sys.meta_path.remove(self)
                except ValueError:
                    pass
            if look is not None:
                try:
                    look(module)
                except Exception as error:
                    self.missed(name, error)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            self._targets.pop(name, None)
