"""The arguments of a neuron's constructor: the defaults that its class declares, and the signature that shows them.

Rules of this module:

- A class attribute with the name of an argument, ``reset = "soft"``, is the default of this argument for the class and
  those derived from it. So is a value in ``params`` in the place of that of a base class.
- An argument that is given wins. So does a default that the ``__init__`` of a derived class writes.
- Every constructor takes the defaults of arguments that it names from the class of the neuron that is made. So a
  derived class whose ``__init__`` passes nothing on has them, too.
- What can be no default is refused when the class is made.
- A docstring has a line ``name: what it is`` for each argument; those that a class leaves out are those of its bases.
"""

from __future__ import annotations

import functools
import inspect
import re
from types import MappingProxyType
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, TypeVar

from spikecore.core import parameters, vectors
from spikecore.words import shown

_Init = TypeVar("_Init", bound=Callable[..., None])

#: Attributes by which a class declares something else.
_DECLARATIONS = "states params sizes bounds positive follows inputs reset_states configuration".split()


def with_defaults(init: _Init) -> _Init:
    """The constructor, which takes what it names and is not given from the defaults of the neuron's class."""

    @functools.wraps(init)
    def constructor(neuron: Any, /, *args: Any, **options: Any) -> None:
        defaults: Mapping[str, Any] = type(neuron)._defaults
        if defaults:
            named = _named(init)
            by_position = [name for name, each in named.items() if each.kind is not each.KEYWORD_ONLY]
            missing = named.keys() & defaults.keys() - {*by_position[: len(args)], *options}
            options.update({name: defaults[name] for name in missing})
        init(neuron, *args, **options)

    return constructor  # type: ignore[return-value]  # functools.wraps says nothing of the signature


def declare_defaults(cls: Any, base: type) -> None:
    """Check the defaults that a class declares, and have it know them and those of its bases up to ``base``."""
    arguments = {name for each in cls.__mro__ for name in _named(vars(each).get("__init__"))}
    defaults: Dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        if each in base.__mro__:
            continue
        declared = {**_attributes(cls, each, arguments), **_values(cls, each)}
        written = _named(vars(each).get("__init__"))
        _check(cls, declared)
        defaults = {name: value for name, value in {**defaults, **declared}.items() if name not in written}
    cls._defaults = MappingProxyType(defaults)
    if "__init__" in vars(cls):
        cls.__init__ = with_defaults(cls.__init__)


def _attributes(cls: Any, each: type, arguments: Collection[str]) -> Dict[str, Any]:
    """The defaults that are attributes of ``each``, which is ``cls`` or one of its bases."""
    defaults = {}
    for name, value in vars(each).items():
        is_setting = name in (*cls.configuration, "learn")
        is_method = hasattr(value, "__get__")
        if name.startswith("_") or name in _DECLARATIONS or (is_method and not is_setting):
            continue
        said = f"{cls.__name__}.{name}={shown(value)}"
        kind = "sizes" if name in cls.sizes else "params"
        if name in (*cls.params, *cls.sizes):
            raise TypeError(f"{said} is no default of a parameter; write {kind} = {{..., {name!r}: {value!r}}}")
        behind = cls.__mro__[cls.__mro__.index(each) + 1 :]
        above = next((vars(other)[name] for other in behind if name in vars(other)), None)
        if isinstance(above, property):
            raise TypeError(
                f"{said} would hide a property of every {cls.__mro__[1].__name__}; to give it as an argument, write an "
                f"__init__ with super().__init__({name}={value!r})"
            )
        if is_setting or name in arguments:
            defaults[name] = value
    return defaults


def _values(cls: Any, each: type) -> Dict[str, Any]:
    """The values in ``params`` and ``sizes`` of ``each`` that differ from those of its bases."""
    above: Any = super(each, cls)
    before = {**getattr(above, "params", {}), **getattr(above, "sizes", {})}
    params: Mapping[str, Any] = {**vars(each).get("params", {}), **vars(each).get("sizes", {})}
    changed = {name: value for name, value in params.items() if name in before and not _is_same(value, before[name])}
    for name in changed.keys() & cls._computed:
        raise TypeError(
            f"{cls.__name__}.params has {name}={shown(changed[name])}, which the constructor computes from "
            "other arguments; write an __init__ that gives these to super().__init__()"
        )
    return changed


def _check(cls: Any, declared: Mapping[str, Any]) -> None:
    """Refuse a setting of another kind."""
    for name, value in declared.items():
        if name == "learn":
            parameters.names_to_learn(cls.__name__, value, tuple(cls.params))
        elif name in cls.configuration:
            cls.configuration[name](cls.__name__, name, value)


def _is_same(value: Any, other: Any) -> bool:
    are_arrays = hasattr(value, "__array__") or hasattr(other, "__array__")  # a tensor has it, too
    return value is other or (not are_arrays and bool(value == other))


@functools.lru_cache(maxsize=256)
def _named(init: Any) -> Mapping[str, inspect.Parameter]:
    """The arguments of a constructor that have a name, in their order."""
    taken = () if init is None else list(inspect.signature(init).parameters.values())[1:]
    return {each.name: each for each in taken if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


#: The description of some arguments in a docstring.
_LINE = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): .*(?:\n +.*)*", re.MULTILINE)


class Docstring:
    """The ``__doc__`` of neuron classes: that of the class, and the lines of its bases for arguments without one.

    It is made when ``help``, ``?`` or an editor asks. A class without a docstring has that of the next base below
    :class:`spikecore.Neuron`. Under ``python -OO`` nobody has one.
    """

    def __init__(self, own: Optional[str]) -> None:
        self.own = own

    def __get__(self, neuron: Any, cls: Any) -> Optional[str]:
        bases: List[Any] = []
        for base in cls.__mro__[1:]:
            bases.append(base)
            if "__signature__" in vars(base):  # the base of all neurons
                break
        docs = [inspect.cleandoc(each.__doc__) for each in bases if each.__doc__]
        if not bases[-1].__doc__:
            return self.own
        text = inspect.cleandoc(self.own or "\n".join(docs[:-1][:1]))
        described, further = _described(text), [*map(_described, docs)]
        missing = [name for name in inspect.signature(cls).parameters if name not in described]
        lines = [next((each[name] for each in further if name in each), "") for name in missing]
        if any(lines):
            more = "Shapes and errors are those of every neuron: :class:`spikecore.Neuron`."
            text = "\n\n".join(filter(None, [text, "\n".join(filter(None, dict.fromkeys(lines))), more]))
        return text


def _described(text: str) -> Dict[str, str]:
    """The arguments that a docstring without indentation describes, each with its lines."""
    return {name.strip("* "): line[0] for line in _LINE.finditer(text) for name in line[1].split(",")}


class Signature:
    """The ``__signature__`` of neuron classes: every argument of the constructor by name, in place of ``**options``.

    It is made when ``inspect``, ``help`` or an editor asks. A neuron, which is called with its inputs, has none.
    """

    def __get__(self, neuron: Any, cls: Any) -> inspect.Signature:
        if neuron is not None:
            raise AttributeError("__signature__")
        arguments: Dict[str, inspect.Parameter] = {}
        common: Collection[str] = ()
        for base in (base for base in cls.__mro__ if "__init__" in vars(base)):
            taken = list(inspect.signature(base.__init__).parameters.values())[1:]
            named = {each.name: each for each in taken if each.kind is not each.VAR_KEYWORD}
            if "__signature__" in vars(base):  # the base of all neurons, whose **params are what a class declares
                common = named
                every = {**cls.sizes, **cls.params}.items()
                declared = {name: value for name, value in every if name not in cls._computed}
                named = {**{name: _argument(name, value) for name, value in declared.items()}, **named}
            passed_on = bool(arguments)  # through **options, where nothing has a position
            for name, each in named.items():
                kind = each.KEYWORD_ONLY if passed_on else each.kind
                arguments.setdefault(name, _argument(name, cls._defaults.get(name, each.default), kind))
            if common or len(named) == len(taken):
                break
        return inspect.Signature(sorted(arguments.values(), key=lambda each: (each.kind, each.name in common)))


def _argument(name: str, default: Any, kind: Any = inspect.Parameter.KEYWORD_ONLY) -> inspect.Parameter:
    default = dict(default) if isinstance(default, MappingProxyType) else vectors.default(default)
    return inspect.Parameter(name, kind, default=default)
