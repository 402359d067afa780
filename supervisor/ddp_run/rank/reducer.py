"""Names the parameters that DistributedDataParallel's errors number. Runs no code of the model's class.

Numbers and their order come from DistributedDataParallel._build_params_for_reducer (torch 2.4 to 2.13). A parameter
frozen afterwards keeps its number. So names are given only if the parameters are as many and as large as the
reducer's logger recorded when the reducer was made.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FunctionType
    from typing import Any, Callable, Collection

_SAYS = "Expected to have finished reduction in the prior iteration"
_INDICES = "\nParameter indices which did not receive grad for rank "
_TORCHS = "/torch/nn/parallel/distributed.py"
_MOST_LINKS = 10
_MOST_NAMES, _MOST_NAME = 50, 200  # a datagram holds them all


def unused(error: "BaseException | None", is_users: "Callable[[str], bool]") -> "dict[str, Any] | None":
    """The fields of `ddp_run.record.events.UnusedParameters`; None if neither the exception nor its causes name any.

    `is_users` says whether a file is the user's. It may raise anything: treat that as None.
    """
    for _ in range(_MOST_LINKS):
        if error is None:
            return None
        said = error.args[0] if type(error) is RuntimeError and error.args else None
        if type(said) is str and _SAYS in said and _INDICES in said:
            return _named(error, said, is_users)
        error = error.__cause__ or error.__context__
    return None


def _named(error: BaseException, said: str, is_users: "Callable[[str], bool]") -> "dict[str, Any] | None":
    numbers = said.partition(_INDICES)[2].partition(":")[2].partition("\n")[0].split()
    wrapped = _raising(error)
    parameters = None if wrapped is None else numbered(wrapped)
    if not parameters:
        return None
    model = _attributes(wrapped)["_modules"]["module"]
    place = _forward(type(model))
    if place is not None and not is_users(place.co_filename):
        place = None
    return {
        "names": [parameters[int(number)][0][:_MOST_NAME] for number in numbers[:_MOST_NAMES]],
        "count": len(numbers),
        "model": type(model).__qualname__[:_MOST_NAME],
        "file": None if place is None else place.co_filename,
        "line": None if place is None else place.co_firstlineno,
    }


def _raising(error: BaseException) -> "Any":
    """The DistributedDataParallel whose method raised; None if the innermost frame isn't torch's."""
    trace, frame = error.__traceback__, None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    if frame is None or not frame.f_code.co_filename.endswith(_TORCHS):
        return None
    raising = frame.f_locals.get("self")
    kind = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    return raising if issubclass(type(raising), kind) else None


def numbered(wrapped: "Any") -> "list[tuple[str, Any]] | None":
    """A DistributedDataParallel's parameters with their names, in the order of their numbers; None if unsure."""
    torch = sys.modules["torch"]
    own = _attributes(wrapped)
    made = own["logger"]._get_ddp_logging_data().ints_map
    expected = (made["num_parameter_tensors"], made["total_parameter_size_bytes"])
    whole = _parameters(own["_modules"]["module"], own["parameters_to_ignore"])
    with torch._C.DisableTorchFunctionSubclass():
        requires_grad = torch.Tensor.requires_grad.__get__
        trained = [each for each in whole if requires_grad(each[1])]
        for found in (trained, whole):
            sizes = [torch.Tensor.numel(each) * torch.Tensor.element_size(each) for _name, each in found]
            if (len(sizes), sum(sizes)) == expected:
                return found
    return None


def _parameters(model: "Any", ignored: "Collection[str]") -> "list[tuple[str, Any]]":
    """Each once, under its first name: a module's own, then its submodules', in the order of registration."""
    found: "list[tuple[str, Any]]" = []
    met: "set[int]" = set()
    waiting = [("", model)]
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        own = _attributes(module)
        for name, parameter in dict.items(own["_parameters"]):
            # torch looks for a parameter of the model itself with a dot before its name
            if parameter is not None and id(parameter) not in met and prefix + "." + name not in ignored:
                met.add(id(parameter))
                found.append((prefix + "." + name if prefix else name, parameter))
        inner = [(prefix + "." + name if prefix else name, each) for name, each in dict.items(own["_modules"])]
        waiting += [each for each in reversed(inner) if each[1] is not None]
    return found


def _attributes(module: "Any") -> "dict[str, Any]":
    """The instance's own, without `__getattr__` and properties, which are the program's code."""
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]


def _forward(kind: type) -> "Any":
    """The code of the class's `forward`, below decorators; None if it has none in Python."""
    forward: "FunctionType | None" = next((vars(it)["forward"] for it in kind.__mro__ if "forward" in vars(it)), None)
    while "__wrapped__" in getattr(forward, "__dict__", {}):
        forward = forward.__dict__["__wrapped__"]
    return getattr(forward, "__code__", None)
