"""Chat messages to a prompt, by the template a GGUF brings along.

Two renderers: the real Jinja template, if jinja2 is installed (``pip install jinja2``), and libllama's
built-in ones, which recognise the common templates by their looks and write the same markers, but know
nothing of tools or of a template's own default system prompt.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspec._llama import apply_chat_template, chat_builtin_templates
from pyspec.errors import InvalidRequest, UnsupportedModel

if TYPE_CHECKING:
    from jinja2 import Template

    from pyspec._llama import Model, Vocab


def has_jinja() -> bool:
    """Whether jinja2 is installed."""
    try:
        import jinja2.sandbox  # noqa: F401
    except ImportError:
        return False
    return True


def render(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    *,
    template: str | None = None,
    use_jinja: bool | None = None,
    **variables: Any,
) -> str:
    """The prompt for a conversation.

    Tokenize it with ``add_special=True`` and ``parse_special=True``: a BOS token that the template writes and
    the tokenizer adds anyway is left out. Markers inside a message's text become special tokens then, so text
    from strangers should not contain them.

    Args:
        model: whose template is used, and whose BOS and EOS texts are.
        messages: mappings with ``role`` and ``content``, oldest first.
        add_generation_prompt: end with the start of the assistant's answer.
        template: another template than the model's: the name of a built-in one (``"chatml"``), or Jinja
            source.
        use_jinja: True: Jinja or an error. False: libllama's built-in templates. None: Jinja where it is
            installed and the template is not a built-in one's name.
        **variables: further variables of a Jinja template (``tools``, ``enable_thinking``, ...).

    Raises:
        InvalidRequest: for malformed messages, or ones that the template refuses.
        UnsupportedModel: if the model has no template, or one that can't be rendered here.
    """
    checked = _check_messages(messages)
    if template is None:
        template = model.chat_template()
    if template is None:
        raise UnsupportedModel(
            f"{model.path} has no chat template: it is probably a base model, made for plain text. "
            'Give a prompt as text, or choose a template, for example template="chatml".'
        )
    is_source = template not in chat_builtin_templates()
    if use_jinja is None:
        use_jinja = is_source and has_jinja()
    if not use_jinja:
        if variables:
            names = ", ".join(variables)
            raise InvalidRequest(
                f"a built-in chat template has no variables, but {names} was given; "
                "pip install jinja2 to render the model's own template",
                name=next(iter(variables)),
            )
        return _render_builtin(template, checked, add_generation_prompt)
    if not is_source:
        raise InvalidRequest(f"template {template!r} is a built-in one, not Jinja source", name="template")
    if not has_jinja():
        raise UnsupportedModel("rendering a Jinja template needs jinja2: pip install jinja2")
    return _render_jinja(template, checked, add_generation_prompt, model.vocab, variables)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(
            f"messages must be a sequence of mappings, not {type(messages).__name__}",
            name="messages",
            value=messages,
        )
    if not messages:
        raise InvalidRequest(
            "messages is empty; a conversation has at least one", name="messages", value=messages
        )
    checked = []
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f'messages[{n}] must be a mapping with a "role" string, not {message!r}',
                name="messages",
                value=message,
            )
        if "content" not in message and "tool_calls" not in message:
            raise InvalidRequest(f'messages[{n}] has no "content"', name="messages", value=message)
        checked.append(dict(message))
    return checked


def _render_builtin(template: str, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
    for n, message in enumerate(messages):
        if not isinstance(message.get("content"), str):
            raise InvalidRequest(
                f"messages[{n}]: content must be text for a built-in chat template, not "
                f"{message.get('content')!r}; pip install jinja2 to render the model's own template",
                name="messages",
                value=message,
            )
    try:
        return apply_chat_template(template, messages, add_generation_prompt)
    except InvalidRequest as e:
        if e.name != "template":
            raise
        raise UnsupportedModel(
            "libllama's built-in chat templates don't include this model's; pip install jinja2 to render it, "
            'or choose one of them, for example template="chatml"'
        ) from e


def _render_jinja(
    source: str,
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
    vocab: Vocab,
    variables: dict[str, Any],
) -> str:
    import jinja2

    bos = "" if vocab.bos is None else vocab.text(vocab.bos)
    names: dict[str, Any] = {
        "bos_token": bos,
        "eos_token": "" if vocab.eos is None else vocab.text(vocab.eos),
        "tools": None,
        "documents": None,
        **variables,
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        prompt = _compile(source).render(names)
    except jinja2.TemplateSyntaxError as e:
        raise UnsupportedModel(f"the chat template is not valid Jinja (line {e.lineno}): {e.message}") from e
    except InvalidRequest:
        raise
    except Exception as e:  # templates are programs, and fail in any way a program can
        raise InvalidRequest(
            f"the chat template fails with these messages: {type(e).__name__}: {e}",
            name="messages",
            value=messages,
        ) from e
    return prompt.removeprefix(bos) if vocab.add_bos else prompt


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    """A template in a sandbox with what chat templates expect to find (the names come from transformers)."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env.from_string(source)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise InvalidRequest(f"the chat template refuses these messages: {message}", name="messages")
