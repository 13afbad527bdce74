"""The type stub says what the compiled module is."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import pyspec._llama as module

STUB = ast.parse((Path(module.__file__).parent / "_llama.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
SPECIAL = {"__init__", "__len__", "__enter__", "__exit__"}


def public(names) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def members(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {child.name: child for child in node.body if isinstance(child, ast.FunctionDef)}


def decorators(node: ast.FunctionDef) -> set[str]:
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def parameters(node: ast.FunctionDef) -> list[tuple[str, str | None]]:
    """Names and defaults, in order."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + [ast.unparse(each) for each in arguments.defaults]
    named = [(each.arg, None if default is None else ast.unparse(default))
             for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]  # fmt: skip
    return [(each.arg, default) for each, default in zip(plain, defaults, strict=True)] + named


def actual_parameters(function) -> list[tuple[str, str | None]]:
    return [
        (each.name, None if each.default is each.empty else repr(each.default).replace('"', "'"))
        for each in inspect.signature(function).parameters.values()
        if each.kind is not each.VAR_POSITIONAL
    ]


CALLABLES = [(None, name) for name in sorted(FUNCTIONS)] + [
    (kind, name)
    for kind, node in CLASSES.items()
    for name, member in members(node).items()
    if name not in SPECIAL and "property" not in decorators(member)
]


def test_no_name_is_missing():
    defined = {
        name for name in public(dir(module)) if getattr(getattr(module, name), "__module__", None) == "pyspec._llama"
    }
    internal = {"LoadProgress", "ModelHandle", "ParserMessages", "ResultView"}
    assert defined - internal == set(CLASSES) | set(FUNCTIONS)


@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_members(kind):
    cls = getattr(module, kind)
    stated = members(CLASSES[kind])
    fields = {child.target.id for child in CLASSES[kind].body if isinstance(child, ast.AnnAssign)}
    inherited = public(dir(module.Sampler)) if kind == "SamplerChain" else set()
    assert public(dir(cls)) == public(stated) | fields | inherited
    for name, member in stated.items():
        assert ("property" in decorators(member)) == inspect.isdatadescriptor(inspect.getattr_static(cls, name)), name


@pytest.mark.parametrize(("kind", "name"), CALLABLES, ids=str)
def test_parameters(kind, name):
    if kind is None:
        assert parameters(FUNCTIONS[name]) == actual_parameters(getattr(module, name))
    else:
        stub = members(CLASSES[kind])[name]
        function = inspect.getattr_static(getattr(module, kind), name)
        function = function.__func__ if isinstance(function, staticmethod) else function
        assert parameters(stub) == actual_parameters(function)


@pytest.mark.parametrize(("kind", "name"), CALLABLES, ids=str)
def test_documentation(kind, name):
    owner = module if kind is None else getattr(module, kind)
    stub = FUNCTIONS[name] if kind is None else members(CLASSES[kind])[name]
    assert ast.get_docstring(stub) == inspect.cleandoc(getattr(owner, name).__doc__ or "")


@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_documentation_of_classes(kind):
    assert ast.get_docstring(CLASSES[kind]) == inspect.cleandoc(getattr(module, kind).__doc__)
