"""``file.py:factory`` and ``package.module:factory``: how the command line names a PyTorch model. Needs no torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mlirstitch.driver.imported import ImportedModel
from mlirstitch.errors import ImportFailure

_FORM = "write file.py:factory or package.module:factory"


def load_spec(spec: str) -> tuple[Any, tuple[Any, ...]]:
    """Call the factory that a spec names; it returns ``(module, example inputs)``, or a program imported already.

    The factory takes no arguments. The inputs are a tuple or list of tensors, or a single tensor. An imported program
    (:func:`mlirstitch.import_step`) is given back with no inputs.

    Raises:
        ImportFailure: the text has another form, the file or module or attribute is missing, the attribute is not
            callable, the factory raises, or it returns something else.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise ImportFailure(f"{spec!r} names no model", hint=_FORM)
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    factory = _attribute(module, place, name)
    try:
        made = factory()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a factory that calls sys.exit() is at fault as well
        raise ImportFailure(f"{spec}: the factory raised {_said(error)}", source=_line_of(error, place)) from error
    return _model_and_inputs(spec, made)


def _load_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise ImportFailure(f"there is no file {place}", hint=f"{_FORM}; the path is relative to the working folder")
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None:
        raise ImportFailure(f"{place} cannot be loaded as Python")
    module = importlib.util.module_from_spec(module_spec)
    # Files beside it can be imported, as when Python runs it as a script.
    added = str(path.parent)
    sys.path.insert(0, added)
    try:
        module_spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ImportFailure(f"{place} cannot be imported: {_said(error)}", source=_line_of(error, str(path))) from error
    finally:
        sys.path.remove(added)
    return module


def _load_module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(error.name + ".")):
            raise ImportFailure(f"there is no module {place}", hint=f"{_FORM}; is the package installed?") from error
        raise ImportFailure(f"{place} cannot be imported: {error}", hint="install what it needs") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ImportFailure(f"{place} cannot be imported: {_said(error)}") from error


def _attribute(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    if not hasattr(module, name):
        offered = sorted(k for k, v in vars(module).items() if callable(v) and not k.startswith("_"))
        raise ImportFailure(f"{place} has no {name}", hint=f"it defines {', '.join(offered) or 'no function'}")
    factory = getattr(module, name)
    if not callable(factory):
        raise ImportFailure(
            f"{place}:{name} is a {type(factory).__name__}, not a function",
            hint="name a function without arguments that returns (module, example inputs)",
        )
    return factory


def _model_and_inputs(spec: str, made: Any) -> tuple[Any, tuple[Any, ...]]:
    wanted = (
        "return (module, example inputs), for example: return MyModel().eval(), (torch.randn(8, 16),); "
        "a training step is what mlirstitch.import_step returns"
    )
    if isinstance(made, ImportedModel):
        return made, ()
    if not isinstance(made, tuple) or len(made) != 2:
        given = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise ImportFailure(f"{spec} returned {given}, not (module, example inputs)", hint=wanted)
    model, inputs = made
    if not callable(model):
        raise ImportFailure(f"{spec}: the first value is a {type(model).__name__}, no module or function", hint=wanted)
    if not isinstance(inputs, (tuple, list)):
        inputs = (inputs,)
    return model, tuple(inputs)


def _said(error: BaseException) -> str:
    """Class and message of an error of the user's, whose ``__str__`` may raise as well."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _line_of(error: BaseException, place: str) -> str:
    """The innermost line of ``place`` in the error's traceback, or ""."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    found = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if Path(name).name == Path(place).name:
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
