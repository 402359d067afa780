"""Takes ddp-run's frames off tracebacks: they would show what runs the program.

Loaded before it: a program that fails may have no descriptor left.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set
    from types import TracebackType


class OwnFrames:
    """The frames of these files."""

    def __init__(self, files: "Set[str]") -> None:
        self._files = files

    def strip(self, trace: "TracebackType | None") -> "TracebackType | None":
        """The traceback without our own frames: those below which the program runs, and those of wrappers."""
        while trace is not None and self._is_own(trace):
            trace = trace.tb_next
        kept: "list[TracebackType]" = []
        each, within = trace, False
        while each is not None:
            within = within or self._is_own(each)
            if not self._is_own(each):
                kept.append(each)
            each = each.tb_next
        if not within:
            return trace
        shorter: "TracebackType | None" = None
        for each in reversed(kept):
            shorter = type(each)(shorter, each.tb_frame, each.tb_lasti, each.tb_lineno)
        return shorter

    def hide(self) -> None:
        """Give the current excepthook the traceback that plain Python would give it."""
        hook = getattr(sys, "excepthook", None)
        if hook is None:
            return

        def show(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
            stripped = self.strip(trace)
            error.__traceback__ = sys.last_traceback = stripped
            sys.excepthook = hook
            try:
                hook(kind, error, stripped)
            except SystemExit:
                raise
            except BaseException as broken:
                self._hook_failed(broken, error)

        sys.excepthook = show

    def _is_own(self, trace: "TracebackType") -> bool:
        return trace.tb_frame.f_code.co_filename in self._files

    def _hook_failed(self, broken: BaseException, error: BaseException) -> None:
        # As CPython's PyErr_PrintEx does, which would show our frame.
        sys.stderr.write("Error in sys.excepthook:\n")
        broken.__traceback__ = self.strip(broken.__traceback__)
        sys.__excepthook__(type(broken), broken, broken.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
