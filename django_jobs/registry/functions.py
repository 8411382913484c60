"""Which callables may be a task, and which arguments they take."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from django.utils.inspect import signature as django_signature

from django_jobs.exceptions import InvalidTask

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def check_function(func: object, *, is_named: bool) -> None:
    """Refuse what a worker could not find again by module and name, or could not run.

    Raises:
        InvalidTask: says why, and what to do instead.
    """
    if not callable(func):
        raise InvalidTask(f"{func!r} is not a function. Put @task on a function at the top of a module.")
    if isinstance(func, type):
        raise InvalidTask(f"Class {func.__qualname__!r} cannot be a task. Write a function that makes the instance.")
    module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise InvalidTask(
            f"{type(func).__name__} has no module and name by which a worker could find it. "
            "Write a function with def at the top of a module."
        )
    _check_place(module, qualname, is_method=inspect.ismethod(func), is_named=is_named)
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidTask(f"{qualname}() is a generator, which runs nothing when called. Use return instead of yield.")


def _check_place(module: str, qualname: str, *, is_method: bool, is_named: bool) -> None:
    *outer, name = qualname.split(".")
    if name == "<lambda>":
        raise InvalidTask(f"A lambda in {module} cannot be a task, because it has no name. Write it with def.")
    if "<locals>" in outer:
        raise InvalidTask(
            f"{name}() is declared inside {outer[0]}() of {module}, where no worker can find it. Move it to the top of "
            "the module; if it comes out of a decorator, let the decorator use functools.wraps."
        )
    if outer or is_method:
        raise InvalidTask(
            f"{qualname}() is a method, and a worker has no instance to call it on. "
            "Write a function at the top of the module that takes the primary key."
        )
    if module == "__main__" and not is_named:
        raise InvalidTask(
            f"{name}() is in __main__, which is another module in every process. "
            "Move it to an app's tasks.py, or give it a name: @task(name=...)."
        )


class Parameters:
    """The parameters of a task that its job fills: all but the context."""

    __slots__ = (
        "any_keyword",
        "by_name",
        "fewest",
        "most",
        "positional",
        "required_keywords",
        "required_positional",
        "signature",
        "var_keyword",
        "var_positional",
    )

    def __init__(self, signature: inspect.Signature) -> None:
        every = list(signature.parameters.values())
        required = [each.name for each in every if each.default is Parameter.empty]
        self.signature = signature
        self.positional = tuple(each.name for each in every if each.kind in POSITIONAL)
        self.required_positional = tuple(name for name in self.positional if name in required)
        self.by_name = frozenset(each.name for each in every if each.kind in BY_NAME)
        self.required_keywords = tuple(
            each.name for each in every if each.kind is Parameter.KEYWORD_ONLY and each.name in required
        )
        self.var_positional = next((each.name for each in every if each.kind is Parameter.VAR_POSITIONAL), None)
        self.var_keyword = next((each.name for each in every if each.kind is Parameter.VAR_KEYWORD), None)
        self.fewest = len(self.required_positional) if not self.required_keywords else math.inf  # by position alone
        self.most = len(self.positional) if self.var_positional is None else math.inf
        self.any_keyword = self.var_keyword is not None

    @classmethod
    def of(cls, func: Callable[..., Any], *, takes_context: bool) -> Parameters:
        """Read them from the function.

        Raises:
            InvalidTask: it has no readable signature, or no first parameter for the context.
        """
        try:
            signature = django_signature(func)
        except (TypeError, ValueError):
            raise InvalidTask("its parameters cannot be read. Wrap it in a function written with def.") from None
        if not takes_context:
            return cls(signature)
        every = list(signature.parameters.values())
        if not every or every[0].kind not in {*POSITIONAL, Parameter.VAR_POSITIONAL}:
            raise InvalidTask("takes_context=True needs a first parameter to take it, such as def f(context, ...).")
        if every[0].kind is Parameter.VAR_POSITIONAL:
            return cls(signature)
        return cls(signature.replace(parameters=every[1:]))

    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a call with these arguments would be accepted: `Signature.bind` at a tenth of its cost."""
        count = len(args)
        if not kwargs:
            return self.fewest <= count <= self.most
        if count > self.most:
            return False
        for name in kwargs:
            if name in self.by_name:
                if name in self.positional[:count]:
                    return False
            elif not self.any_keyword:
                return False
        missing = self.required_positional[count:] + self.required_keywords
        return not missing or all(name in kwargs and name in self.by_name for name in missing)

    def explain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Say why these arguments do not fit, without any of their values."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        # In some Pythons bind() lets a positional-only parameter pass by name beside **kwargs.
        return "a positional-only argument was passed by name"

    def names(self) -> set[str]:
        return set(self.signature.parameters)

    def pick(self, names: frozenset[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Give the values that these arguments have under the names; all of them if they do not fit."""
        if not self.fit(args, kwargs):
            yield from args
            yield from kwargs.values()
            return
        count = len(self.positional)
        yield from (value for name, value in zip(self.positional, args, strict=False) if name in names)
        if self.var_positional in names:
            yield from args[count:]
        for name, value in kwargs.items():
            if name in names or (self.var_keyword in names and name not in self.by_name):
                yield value

    def __str__(self) -> str:
        """Write them as in a def, without the values of defaults: they may be secret."""
        return str(inspect.Signature([_without_values(each) for each in self.signature.parameters.values()]))


class _Dots:
    def __repr__(self) -> str:
        return "..."


def _without_values(parameter: Parameter) -> Parameter:
    default = parameter.default if parameter.default is Parameter.empty else _Dots()
    return parameter.replace(default=default, annotation=Parameter.empty)
