"""Which optimizer steps are steps of the program: not those that another optimizer makes within its own."""

import sys

_LOOKS = 16
"""Steps of a class at which the stack is looked at: one that steps alone and within another does both among so many."""


class Outermost:
    """Which classes of optimizers step by themselves, not within another one's step as ZeroRedundancyOptimizer has it.

    To look takes the longer the deeper the stack is, 2 to 4 µs. So it is done for the first steps of a class only, for
    all of them anew when another class comes, and for good once a step was seen within another. What is left: where an
    optimizer of a known class is later put into another one, its steps within the first step of that are counted too.
    """

    def __init__(self) -> None:
        self.known: "list[type]" = []
        """Classes at which nobody needs to look; a list, since a class need not be hashable."""
        self._looks: "dict[int, int]" = {}
        self._nested = False

    def look(self, kind: type) -> bool:
        """Whether the step of a `kind` whose hook is calling is within no other one."""
        if _within_another_step():
            self._nested = True
            self.known.clear()
            return False
        if id(kind) not in self._looks:
            self.known.clear()
            self._looks = dict.fromkeys([*self._looks, id(kind)], 0)
        self._looks[id(kind)] += 1
        if self._looks[id(kind)] == _LOOKS and not self._nested:
            self.known.append(kind)
        return True


def _within_another_step() -> bool:
    """Whether torch's wrapper of a step, which called the hook, runs inside another such wrapper."""
    frame = sys._getframe(3)
    code = frame.f_code
    above = frame.f_back
    while above is not None and above.f_code is not code:
        above = above.f_back
    return above is not None
