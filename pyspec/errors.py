"""Every exception pyspec raises on purpose.

One tree under :class:`PyspecError`. Where a built-in exception means the same thing the class also
derives from it, so that ``except ValueError`` keeps working for callers who do not know pyspec.
Messages name the value that is wrong and say what to change; the same values are attributes.
"""

from __future__ import annotations

from typing import Any


class PyspecError(Exception):
    """Base of all errors raised by pyspec."""


class InvalidRequest(PyspecError, ValueError):
    """A parameter has a value that cannot work.

    Attributes:
        name: the parameter's name, as the caller wrote it.
        value: what was given.
    """

    def __init__(self, message: str, *, name: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


class GrammarError(InvalidRequest):
    """A grammar or a JSON Schema can't be used, or leads a text to where no token of the vocabulary fits."""


class ModelLoadError(PyspecError, OSError):
    """A model file is missing, not a GGUF, damaged, or of a kind libllama cannot load.

    Attributes:
        path: the file that was asked for.
    """

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class ContextError(PyspecError, RuntimeError):
    """libllama refused to create a context with the given parameters."""


class UnsupportedModel(PyspecError, ValueError):
    """The model is readable but cannot do what was asked (generate text, be rolled back, ...)."""


class VocabMismatch(PyspecError, ValueError):
    """Target and draft do not share a vocabulary (the first property that differs is named).

    Attributes:
        property: what differs, e.g. ``"type"``, ``"bos token"``, ``"size"``, ``"token text"``.
        target: the target's value.
        draft: the draft's value.
        token_id: the id whose text differs, or None when the difference is not about one token.
    """

    def __init__(
        self, message: str, *, property: str, target: Any, draft: Any, token_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.property = property
        self.target = target
        self.draft = draft
        self.token_id = token_id


class ContextFull(PyspecError, ValueError):
    """The prompt does not fit into the context.

    Attributes:
        n_tokens: tokens the prompt has.
        n_ctx: tokens one sequence of the context can hold.
    """

    def __init__(self, message: str, *, n_tokens: int, n_ctx: int) -> None:
        super().__init__(message)
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx


class QueueFull(PyspecError, RuntimeError):
    """Too many requests wait for a slot already; nothing of this one was kept.

    Attributes:
        n_waiting: requests that wait.
    """

    def __init__(self, message: str, *, n_waiting: int) -> None:
        super().__init__(message)
        self.n_waiting = n_waiting


class ConsumerStalled(PyspecError, TimeoutError):
    """Nobody has read from a stream for so long that its request was ended."""


class DecodeError(PyspecError, RuntimeError):
    """llama_decode, llama_process or llama_encode failed.

    Attributes:
        code: libllama's return code: 1 no room in the cache, 2 aborted, -1 invalid batch,
            -2 allocation failed, -3 compute failed.
    """

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Cancelled(PyspecError):
    """The request was cancelled before it produced a result."""


class Closed(PyspecError, RuntimeError):
    """The object was used after ``close()``."""


class Busy(PyspecError, RuntimeError):
    """Another thread is using the object right now; a context serves one thread at a time."""


class BufferInUse(PyspecError, BufferError):
    """A zero-copy view of a context's results is still alive, and the call would change them."""


class StateError(PyspecError, ValueError):
    """Saved sequence state is damaged, or belongs to another model or layout."""


class FetchError(PyspecError, OSError):
    """A model could not be fetched, or what arrived is not what was expected."""


class BuildError(PyspecError, ImportError):
    """The compiled extension or libllama cannot be loaded (the paths tried are in the message)."""
