"""What to say about mistakes that many make: which name was meant, and what mends an error of torch or Python."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from potluck.errors import InputError

Made = TypeVar("Made")

# Words of an error, as torch and Python put them, and what mends it.
_MENDED = (
    (r"CUDA|cuda", "leave the device out of your code: potluck puts each piece of the model where it is trained"),
    (r"No module named", "correct its name, or install it for the Python that runs potluck"),
    (r"dtype to be Long|scalar type Long", "give whole numbers as labels, like labels.long()"),
    (r"same dtype|expected scalar type|should be the same", "give inputs of the weights' type, like inputs.float()"),
    (r"multi-target not supported", "give one label for each sample, like labels.squeeze(1)"),
    (r"Target -?\d+ is out of bounds", "give labels from 0 to the number of the model's outputs less 1"),
    (r"forward\(\) missing", "give samples an input for each of the model's: ((a, b), label)"),
    (r"shapes cannot be multiplied|to have \d+ channels", "make the first layer as wide as a sample, or reshape that"),
)

_ALSO_CALLED = {"criterion": "loss", "dataset": "data", "train_data": "data", "train_dataset": "data"}


def mending(text: str, otherwise: str) -> str:
    """What to do about an error with these words."""
    return next((mended for words, mended in _MENDED if re.search(words, text)), otherwise)


def said(error: BaseException) -> str:
    """What an error says, in one line and not too long: it may quote a file or a program, which may say anything."""
    return " ".join(str(error).split())[:300]


def one_line(error: BaseException) -> str:
    """An error of somebody else's code in one line, not too long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def did_you_mean(given: str, known: Iterable[str], *, prefix: str = "") -> str:
    """The known name that was probably meant; all of them where none is near. A common prefix makes no two alike."""
    choices = list(known)
    near = get_close_matches(given.removeprefix(prefix), [c.removeprefix(prefix) for c in choices], n=1)
    return f"did you mean {prefix}{near[0]}?" if near else f"give one of {', '.join(choices)}"


def described(value: object) -> str:
    """A value that is not what it should be, in words."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_fields(
    what: str, args: Sequence[object], given: Iterable[str], known: Sequence[str], needed: Iterable[str]
) -> None:
    """An InputError unless all is given by known names, and nothing that is needed is missing."""
    there = ", ".join(known)
    if args:
        raise InputError(f"{what}: {described(args[0])} is given without a name; give it as NAME=..., of {there}")
    if wrong := next((name for name in given if name not in known), None):
        meant = _ALSO_CALLED.get(wrong, wrong)
        hint = did_you_mean(meant, known)
        raise InputError(f"{what}: there is no {wrong!r}; {hint}{'' if there in hint else f' There are {there}'}")
    if missing := [name for name in needed if name not in given]:
        raise InputError(f"{what}: {', '.join(missing)} not given; add {', '.join(f'{n}=...' for n in missing)}")


def named_fields(what: str) -> Callable[[type[Made]], type[Made]]:
    """Makes a dataclass name fields that it does not have, or needs."""

    def decorate(cls: type[Made]) -> type[Made]:
        every = fields(cls)  # type: ignore[arg-type]
        needed = [f.name for f in every if f.default is MISSING and f.default_factory is MISSING]
        make = cls.__init__

        @functools.wraps(make)
        def checked(self: Made, *args: object, **given: object) -> None:
            check_fields(what, args, given, [f.name for f in every], needed)
            make(self, **given)

        cls.__init__ = checked  # type: ignore[method-assign, assignment]
        return cls

    return decorate


class NamedFields(msgspec.StructMeta):
    """The same for a struct."""

    def __call__(cls, *args: Any, **given: Any) -> Any:
        """Makes one, unless a field is unknown or missing."""
        every = msgspec.structs.fields(cls)  # type: ignore[arg-type]
        check_fields(
            f"potluck.{cls.__name__}", args, given, [f.name for f in every], [f.name for f in every if f.required]
        )
        return super().__call__(**given)
