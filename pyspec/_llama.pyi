"""The binding: libllama as Python objects, one C call a method, under the C names; see _llama.pyx."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

_Path = str | bytes | PathLike[str] | PathLike[bytes]
_Tokens = Iterable[int] | npt.NDArray[np.integer[Any]]
_Floats = Sequence[float] | npt.NDArray[np.floating[Any]]
_FloatRow = npt.NDArray[np.float32]
_TokenRow = npt.NDArray[np.int32]
_Override = int | float | bool | str
_CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

def llama_version() -> str:
    """The version of libllama, e.g. ``"0.5.0"``."""

def system_info() -> str:
    """The CPU and GPU features this build of ggml uses, as libllama writes them."""

def backends() -> list[str]:
    """Names of the compute backends in this build, e.g. ``["CPU"]``."""

def devices() -> list[dict[str, Any]]:
    """The devices models can run on.

    Returns:
        One dict a device: ``name`` (what ``Model(devices=...)`` takes), ``description``, ``type`` (``"cpu"``,
        ``"gpu"``, ``"igpu"``, ``"accel"`` or ``"meta"``), ``backend``, ``memory_free`` and ``memory_total``
        in bytes.
    """

def max_devices() -> int:
    """How many devices libllama can spread a model over."""

def supports_gpu_offload() -> bool:
    """Whether a GPU backend is built in and has a device."""

def supports_mmap() -> bool:
    """Whether model files can be mapped into memory here."""

def supports_mlock() -> bool:
    """Whether mapped model files can be locked into memory here."""

def trim_memory() -> None:
    """Give memory that was freed, and that the C library kept, back to the system (glibc; nothing elsewhere)."""

def giving_memory_back() -> AbstractContextManager[None]:
    """A context in which freed memory goes back to the system as soon as it can (glibc; nothing elsewhere)."""

def release_threads() -> bool:
    """End the helpers the calling thread keeps from its last computation (OpenMP's, of GCC); others then wait faster.

    Where the helpers of all threads together are more than the processors, GCC's OpenMP lets them sleep instead of spin
    between two steps of a computation, which costs small decodes a third of their speed. The next computation starts
    them again, in a fraction of a millisecond. Returns False where there is no such runtime.
    """

def time_us() -> int:
    """The clock of libllama, in microseconds."""

def chat_builtin_templates() -> list[str]:
    """Names of the templates :func:`apply_chat_template` knows."""

def apply_chat_template(
    template: str | None,
    messages: Iterable[tuple[str, str] | Mapping[str, str]],
    add_generation_prompt: bool = True,
) -> str:
    """Write a conversation as the prompt a model was trained on.

    Args:
        template: a name from :func:`chat_builtin_templates`, or a model's Jinja template, which is recognised
        if
            it is one of those; None means ChatML.
        messages: pairs of role and content, or dicts with these keys.
        add_generation_prompt: end with what starts the assistant's turn.

    Raises:
        InvalidRequest: the template is not one of the built-in ones, or a message is malformed.
    """

def quantize(
    src: _Path,
    dst: _Path,
    ftype: str,
    *,
    n_threads: int = 0,
    allow_requantize: bool = False,
    pure: bool = False,
    quantize_output_tensor: bool = True,
    only_copy: bool = False,
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    keep_split: bool = False,
    prune_layers: Iterable[int] | None = None,
    dry_run: bool = False,
    tensor_types: Mapping[str, str] | None = None,
    kv_overrides: dict[str, _Override] | None = None,
) -> None:
    """Write a model file in another number format, or with layers left out.

    The file appears under its name only when it is complete.

    Args:
        src: the GGUF file to read.
        dst: the file to write; not the same one.
        ftype: the format: ``"f32"``, ``"f16"``, ``"bf16"``, ``"q8_0"``, ``"q4_0"``, ``"q4_k_m"``, ...
        n_threads: threads to use, 0 for all cores.
        allow_requantize: also convert tensors that are quantized already (loses more).
        pure: every tensor in the main type, instead of llama.cpp's mixture.
        quantize_output_tensor: whether the output head is converted.
        only_copy: copy the tensors as they are, whatever `ftype` says.
        output_tensor_type: ggml type for the output head, e.g. ``"q6_k"``; None leaves it to llama.cpp.
        token_embedding_type: the same for the token embeddings.
        keep_split: write as many parts as `src` has (`dst` is then the prefix of their names).
        prune_layers: indices of layers to leave out, in any order.
        dry_run: only log what would be done.
        tensor_types: ``{pattern: type}``, regular expressions for names of tensors and the type they get.
        kv_overrides: metadata to replace.

    Raises:
        ModelLoadError: `src` cannot be read.
        InvalidRequest: a parameter makes no sense, or the layers cannot be left out.
        PyspecError: libllama could not do it; the message says why.
    """

def n_mtp_heads(arch: str, n_layer_nextn: int) -> int:
    """How many of an architecture's NextN layers can draft one after the other; 0: libllama has no graph for them.

    Args:
        arch: the architecture, e.g. ``"qwen35"``.
        n_layer_nextn: NextN layers that a model of it has.
    """

class Model:
    """A model file in memory.

    Contexts, vocabularies and samplers made from it keep its memory alive; ``close()`` drops this object's
    share.

    Args:
        path: a GGUF file; of a split model, any of the parts when they are named ``*-00001-of-00003.gguf``.
        n_gpu_layers: layers to put on the GPU, -1 for all. Without a GPU it has no effect.
        split_mode: how several GPUs share the model: ``"none"``, ``"layer"``, ``"row"`` or ``"tensor"``.
        main_gpu: the GPU used when `split_mode` is ``"none"``.
        tensor_split: proportions of the model for each GPU; None divides by free memory.
        devices: names from :func:`devices` to offload to; None for all, an empty list for the CPU alone.
        load_mode: ``"auto"``, ``"none"`` (read), ``"mmap"``, ``"mlock"``, ``"mmap+mlock"`` or
        ``"direct_io"``.
        vocab_only: read only metadata and vocabulary. No context can be made from such a model.
        check_tensors: look for values that cannot be (slow).
        use_extra_bufts: let the CPU backend repack weights into faster layouts (more memory where `load_mode`
        maps).
        no_host: keep weights out of host buffers of the GPU backend.
        load_mtp: load the NextN (multi-token prediction) layers too; needed for ``Context(ctx_type="mtp")``.
        kv_overrides: metadata to replace, ``{"llama.context_length": 4096}``; values are int, float, bool or
        str.
        progress: called with the fraction loaded, 0.0 to 1.0, in this thread; returning False cancels.

    The attribute load_params has those of them that decide where and with which kernels it is computed.

    Raises:
        ModelLoadError: the file is missing, no GGUF, damaged, or of an architecture libllama does not know.
        Cancelled: `progress` returned False. What `progress` raises comes out as it is, and so does
            KeyboardInterrupt.
    """

    path: str
    load_params: dict[str, Any]
    def __init__(
        self,
        path: _Path,
        *,
        n_gpu_layers: int = -1,
        split_mode: Literal["none", "layer", "row", "tensor"] = "layer",
        main_gpu: int = 0,
        tensor_split: Iterable[float] | None = None,
        devices: Iterable[str] | None = None,
        load_mode: Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "direct_io"] = "auto",
        vocab_only: bool = False,
        check_tensors: bool = False,
        use_extra_bufts: bool = True,
        no_host: bool = False,
        load_mtp: bool = False,
        kv_overrides: dict[str, _Override] | None = None,
        progress: Callable[[float], bool | None] | None = None,
    ) -> None: ...
    def close(self) -> None:
        """Let go of the model. Its memory is freed once no context, vocabulary or sampler needs it."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def vocab(self) -> Vocab:
        """The vocabulary; stays usable after the model is closed."""
    @property
    def metadata(self) -> dict[str, str]:
        """The file's scalar metadata (arrays are left out), with overrides applied, as strings."""
    @property
    def arch(self) -> str:
        """The architecture, e.g. ``"llama"``."""
    @property
    def desc(self) -> str:
        """Architecture, size and quantization in one line, as libllama writes it."""
    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained on."""
    @property
    def n_embd(self) -> int:
        """Width of the hidden state."""
    @property
    def n_embd_inp(self) -> int:
        """Width of an input embedding."""
    @property
    def n_embd_out(self) -> int:
        """Width of an output embedding."""
    @property
    def n_layer(self) -> int:
        """Layers of the trunk, NextN layers excluded."""
    @property
    def n_layer_nextn(self) -> int:
        """NextN layers the file has, loaded or not."""
    @property
    def n_head(self) -> int:
        """Attention heads of the first layer; 0 for a vocabulary-only model."""
    @property
    def n_head_kv(self) -> int:
        """Key/value heads of the first layer; 0 for a vocabulary-only model."""
    @property
    def n_swa(self) -> int:
        """Positions a sliding-window layer sees, 0 without such layers."""
    @property
    def n_expert(self) -> int:
        """Experts of a mixture-of-experts model, else 0."""
    @property
    def rope_type(self) -> str:
        """``"none"``, ``"norm"``, ``"neox"``, ``"mrope"``, ``"imrope"`` or ``"vision"``."""
    @property
    def rope_freq_scale_train(self) -> float:
        """RoPE frequency scale the model was trained with."""
    @property
    def size(self) -> int:
        """Bytes of all tensors."""
    @property
    def n_params(self) -> int:
        """Number of parameters."""
    @property
    def ftype(self) -> str:
        """The quantization, e.g. ``"Q8_0"`` or ``"Q4_K - Medium"``."""
    @property
    def is_recurrent(self) -> bool:
        """Whether the memory is a state without positions (Mamba, RWKV)."""
    @property
    def is_hybrid(self) -> bool:
        """Whether recurrent and attention layers alternate."""
    @property
    def is_diffusion(self) -> bool:
        """Whether the model generates by diffusion."""
    @property
    def has_encoder(self) -> bool:
        """Whether ``Context.encode`` works (T5, EAGLE-3, DFlash)."""
    @property
    def has_decoder(self) -> bool:
        """Whether ``Context.decode`` works."""
    @property
    def decoder_start_token(self) -> int | None:
        """What the decoder of an encoder-decoder model starts with."""
    @property
    def has_mtp(self) -> bool:
        """Whether NextN layers were loaded."""
    @property
    def vocab_only(self) -> bool:
        """Whether only metadata and vocabulary were loaded."""
    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Layers of the target whose inputs a draft head (EAGLE-3, DFlash) reads; empty for other models."""
    @property
    def n_embd_inp_enc(self) -> int:
        """Width of a row the encoder takes: of a draft head the hidden states of all layers it reads."""
    @property
    def n_mtp_heads(self) -> int:
        """NextN layers that can draft one after the other; 0 where libllama has no graph for them."""
    @property
    def mtp_crops_rows(self) -> bool:
        """Whether NextN layers compute hidden states of output rows only: they are then read masked."""
    @property
    def has_nextn_state(self) -> bool:
        """Whether ``Context.set_embeddings_nextn`` works: there is a hidden state for NextN layers."""
    def has_layer_input(self, layer: int) -> bool:
        """Whether ``Context.set_embeddings_layer_inp`` works for a layer."""
    def chat_template(self, name: str | None = None) -> str | None:
        """The Jinja chat template in the file, or None when there is none.

        Args:
            name: a named variant, e.g. ``"tool_use"``; None for the default.
        """
    def save(self, path: _Path) -> None:
        """Write the model as a GGUF file.

        Raises:
            UnsupportedModel: libllama cannot write this architecture, or the weights may have been repacked
                (load with ``use_extra_bufts=False``) or are not loaded.
            OSError: the file cannot be written.
        """

class Vocab:
    """A model's vocabulary, from ``Model.vocab``. Safe to use from several threads.

    Token ids are ints in ``range(vocab.n_tokens)``; others raise InvalidRequest.
    """

    n_tokens: int
    def __len__(self) -> int: ...
    @property
    def type(self) -> str:
        """``"spm"``, ``"bpe"``, ``"wpm"``, ``"ugm"``, ``"rwkv"``, ``"plamo2"``, ``"test"`` or ``"none"``."""
    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Split text into tokens.

        Args:
            text: str, or bytes meant to be UTF-8. Bytes that are not become replacement characters or byte
                tokens, as the vocabulary has it.
            add_special: put BOS and EOS around the text if the model wants that.
            parse_special: read texts of control tokens, like ``<|im_start|>``, as those tokens. With text from a
                user, leave it off.
        """
    def detokenize(self, tokens: _Tokens, *, remove_special: bool = False, unparse_special: bool = False) -> bytes:
        """Join tokens into text, as bytes; a list of tokens may end inside a character.

        Args:
            tokens: token ids.
            remove_special: leave out BOS and EOS if the model adds them.
            unparse_special: write control tokens as their texts instead of nothing.
        """
    def piece(self, token: int, *, special: bool = True, lstrip: int = 0) -> bytes:
        """The bytes one token stands for; often a part of a character.

        Args:
            token: the token id.
            special: write control tokens as their texts; False writes nothing for them.
            lstrip: leave out up to so many leading spaces.
        """
    def text(self, token: int) -> str:
        """The token as the vocabulary spells it (``"▁the"``), not as it appears in text."""
    def score(self, token: int) -> float:
        """The token's score, where the vocabulary has scores."""
    def attr(self, token: int) -> int:
        """The token's attributes, llama.cpp's ``LLAMA_TOKEN_ATTR_*`` bits: unknown 1, unused 2, normal 4,
        control 8, user-defined 16, byte 32, normalized 64, lstrip 128, rstrip 256, single word 512.
        """
    def is_eog(self, token: int) -> bool:
        """Whether generation ends with this token."""
    def is_control(self, token: int) -> bool:
        """Whether the token marks structure and has no text of its own."""
    @property
    def eog_tokens(self) -> tuple[int, ...]:
        """All tokens that end generation, ascending."""
    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens the model's authors say should never be generated."""
    @property
    def bos(self) -> int | None:
        """Beginning of sequence."""
    @property
    def eos(self) -> int | None:
        """End of sequence."""
    @property
    def eot(self) -> int | None:
        """End of turn."""
    @property
    def sep(self) -> int | None:
        """Sentence separator."""
    @property
    def nl(self) -> int | None:
        """Newline."""
    @property
    def pad(self) -> int | None:
        """Padding."""
    @property
    def mask(self) -> int | None:
        """Mask."""
    @property
    def fim_pre(self) -> int | None:
        """Fill-in-the-middle: what follows is the text before the gap."""
    @property
    def fim_suf(self) -> int | None:
        """Fill-in-the-middle: what follows is the text after the gap."""
    @property
    def fim_mid(self) -> int | None:
        """Fill-in-the-middle: what follows fills the gap."""
    @property
    def fim_pad(self) -> int | None:
        """Fill-in-the-middle: padding."""
    @property
    def fim_rep(self) -> int | None:
        """Fill-in-the-middle: repository name."""
    @property
    def fim_sep(self) -> int | None:
        """Fill-in-the-middle: file separator."""
    @property
    def add_bos(self) -> bool:
        """Whether the model wants BOS before a text."""
    @property
    def add_eos(self) -> bool:
        """Whether the model wants EOS after a text."""
    @property
    def add_sep(self) -> bool:
        """Whether the model wants SEP between texts."""

class Context:
    """A memory for sequences of tokens, and the computations on it.

    One thread at a time: a second one gets Busy. What a call returns as an array without copying is
    read-only, and while such an array is alive, calls that would overwrite it raise BufferInUse: copy() it or
    delete it.

    Args:
        model: a model loaded with its weights.
        n_ctx: positions the memory holds, all sequences together.
        n_batch: most tokens of one call.
        n_ubatch: most tokens computed at once.
        n_seq_max: sequences, ids 0 to n_seq_max - 1.
        n_rs_seq: steps a recurrent state can be rolled back (architectures that support it).
        n_outputs_max: most output rows of one call, which bounds the memory for logits; 0 for n_batch.
        n_outputs_max_per_seq: most output rows of one sequence with a backend sampler; 0 for n_outputs_max.
        n_threads: threads for single tokens; 0 for the physical cores this process may use.
        n_threads_batch: threads for more than one token; 0 for n_threads.
        ctx_type: ``"mtp"`` runs the model's NextN layers instead of its trunk.
        rope_scaling_type: ``"none"``, ``"linear"``, ``"yarn"`` or ``"longrope"``; None as the model says.
        rope_freq_base, rope_freq_scale: 0 as the model says.
        yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow: negative as the model says.
        yarn_orig_ctx: context length before YaRN, 0 as the model says.
        pooling_type: ``"none"``, ``"mean"``, ``"cls"``, ``"last"`` or ``"rank"``; None as the model says.
        attention_type: ``"causal"`` or ``"non-causal"``; None as the model says.
        flash_attn: ``"auto"``, ``"on"`` or ``"off"``.
        type_k, type_v: number formats of the attention memory: ``"f16"``, ``"f32"``, ``"bf16"``, ``"q8_0"``,
            ``"q5_1"``, ``"q5_0"``, ``"q4_1"``, ``"q4_0"`` or ``"iq4_nl"``.
        embeddings: compute embeddings; every token is then an output.
        offload_kqv: keep the attention memory on the GPU.
        no_perf: do not measure times (see :meth:`perf`).
        op_offload: let large host operations run on the GPU.
        swa_full: keep all positions of sliding-window layers, not only the window.
        kv_unified: one pool of cells for all sequences instead of one per sequence.
        samplers: ``{sequence: SamplerChain}``, chains that run in the compute graph.
        ctx_other: the target's context, for draft heads that borrow its embeddings or memory.

    The sizes libllama settled on are attributes: n_ctx, n_ctx_seq (positions of one sequence), n_batch,
    n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq; can_shift says whether positions can
    be shifted.

    Raises:
        InvalidRequest: a parameter cannot work; the message says which and why.
        ContextError: libllama refused, for instance because memory is short.
    """

    model: Model
    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_rs_seq: int
    n_outputs_max: int
    n_outputs_max_per_seq: int
    n_vocab: int
    kv_unified: bool
    swa_full: bool
    can_shift: bool
    ctx_type: str
    ctx_other: Context | None
    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 512,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_rs_seq: int = 0,
        n_outputs_max: int = 0,
        n_outputs_max_per_seq: int = 1,
        n_threads: int = 0,
        n_threads_batch: int = 0,
        ctx_type: Literal["default", "mtp"] = "default",
        rope_scaling_type: Literal["none", "linear", "yarn", "longrope"] | None = None,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = -1.0,
        yarn_beta_fast: float = -1.0,
        yarn_beta_slow: float = -1.0,
        yarn_orig_ctx: int = 0,
        pooling_type: Literal["none", "mean", "cls", "last", "rank"] | None = None,
        attention_type: Literal["causal", "non-causal"] | None = None,
        flash_attn: Literal["auto", "on", "off"] = "auto",
        type_k: _CacheType = "f16",
        type_v: _CacheType = "f16",
        embeddings: bool = False,
        offload_kqv: bool = True,
        no_perf: bool = True,
        op_offload: bool = True,
        swa_full: bool = False,
        kv_unified: bool = False,
        samplers: dict[int, SamplerChain] | None = None,
        ctx_other: Context | None = None,
    ) -> None: ...
    def close(self) -> None:
        """Free the context.

        While another thread is in a call, arrays of results are alive, or another context depends on this one
        (`ctx_other`), the memory is freed when they are done; the object is unusable at once.
        """
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def decode(
        self,
        tokens: _Tokens,
        *,
        pos: int | Iterable[int] | None = None,
        seq_ids: int | Iterable[int | Iterable[int]] = 0,
        outputs: bool | Iterable[bool] | None = None,
    ) -> None:
        """Compute a batch of tokens (llama_decode).

        Args:
            tokens: token ids, at most n_batch.
            pos: positions: None continues each sequence, an int is the first one's with the rest following, a
                sequence has one per token.
            seq_ids: the sequence of all tokens, or one entry per token: an int, or a sequence of ints for a
                token that several sequences share.
            outputs: which tokens' results are wanted: None the last one's, a bool for all or none, or one
                bool per token.

        Raises:
            InvalidRequest: a token, position, sequence or count is out of range.
            DecodeError: libllama could not; see its `code`.
        """
    def process(self, batch: Batch) -> None:
        """Compute a :class:`Batch` (llama_process). Results are indexed by the entries' numbers.

        Raises:
            InvalidRequest: the batch is empty, mixed, of another context, or has too many outputs.
            DecodeError: libllama could not; see its `code`.
        """
    def encode(self, batch: Batch) -> None:
        """Compute a :class:`Batch` with the model's encoder; all entries are outputs and are computed at
        once.

        Raises:
            UnsupportedModel: the model has no encoder.
            InvalidRequest, DecodeError: as for :meth:`process`.
        """
    def synchronize(self) -> None:
        """Wait until all computations are done. Getting results does so by itself."""
    def abort(self) -> None:
        """Make the running computation, and every later one until :meth:`clear_abort`, end with DecodeError
        code 2.

        Callable from any thread. Only the CPU backend looks.
        """
    def clear_abort(self) -> None:
        """Undo :meth:`abort`."""
    @property
    def n_threads(self) -> int:
        """Threads for single tokens."""
    @property
    def n_threads_batch(self) -> int:
        """Threads for more than one token."""
    def set_n_threads(self, n_threads: int, n_threads_batch: int | None = None) -> None:
        """Change the thread counts; `n_threads_batch` None means the same."""
    def set_embeddings(self, value: bool) -> None:
        """Whether computations produce embeddings. Every token of a batch is then an output."""
    def set_causal_attn(self, value: bool) -> None:
        """Whether tokens see only earlier positions. Without, a batch must fit into n_ubatch."""
    def set_embeddings_nextn(self, value: bool, masked: bool = False) -> None:
        """Whether computations keep the hidden states NextN layers draft from.

        Args:
            value: on or off.
            masked: keep those of output tokens only, instead of all tokens.
        """
    def set_embeddings_layer_inp(self, layer: int, value: bool) -> None:
        """Whether computations keep the input of a layer for every token; draft heads read them.

        Args:
            layer: 0 to n_layer - 1, and n_layer (what leaves the last layer) where the architecture has it.
            value: on or off.
        """
    def set_nextn_layer_offset(self, offset: int) -> None:
        """Which NextN layer an ``"mtp"`` context runs, 0 for the first."""
    def set_sampler(self, seq: int, chain: SamplerChain | None) -> bool:
        """Run a sampler chain for a sequence in the compute graph, or None to stop.

        The longest prefix of the chain that the backend supports runs there. A chain can be attached once;
        attach its clone() next time. While attached, the chain stays this context's.

        Returns:
            False if nothing of the chain can run in the graph: then it is not attached.
        """
    def logits(self, i: int = -1) -> _FloatRow:
        """Logits of a row: float32, read-only, not copied. Where the sequence has a backend sampler: what
        that left of them, in the order of :meth:`sampled_candidates`.

        Args:
            i: the token's index in the batch, or a negative number counting output rows from the end.
        """
    def embeddings(self, i: int = -1) -> _FloatRow:
        """Embedding of a row (float32, read-only, not copied); needs embeddings on and no pooling."""
    def embeddings_seq(self, seq: int) -> _FloatRow:
        """Pooled embedding of a sequence of the last batch, or its rank scores (float32, read-only, not
        copied).
        """
    def embeddings_nextn(self, i: int) -> _FloatRow:
        """Hidden state of a token of the last batch (float32, read-only, not copied); see
        :meth:`set_embeddings_nextn`.
        """
    def embeddings_layer_inp(self, layer: int) -> _FloatRow:
        """Inputs of a layer, n_batch rows of which the first ones are the last batch's tokens (float32,
        read-only, not copied); see :meth:`set_embeddings_layer_inp`.
        """
    def sampled_token(self, i: int = -1) -> int | None:
        """The token a backend sampler picked for a row, or None."""
    def sampled_probs(self, i: int = -1) -> _FloatRow | None:
        """Probabilities a backend sampler computed for a row, or None (float32, read-only, not copied)."""
    def sampled_logits(self, i: int = -1) -> _FloatRow | None:
        """Logits a backend sampler left of a row, or None (float32, read-only, not copied)."""
    def sampled_candidates(self, i: int = -1) -> _TokenRow | None:
        """Token ids that belong to :meth:`sampled_logits` and :meth:`sampled_probs` (int32, read-only, not
        copied); None when they are all tokens in order.
        """
    @property
    def memory(self) -> Memory:
        """The memory of the sequences."""
    def state_seq_size(self, seq: int, *, partial_only: bool = False, on_device: bool = False) -> int:
        """Bytes :meth:`state_seq_get` would return."""
    def state_seq_get(self, seq: int, *, partial_only: bool = False, on_device: bool = False) -> bytes:
        """Save a sequence.

        Args:
            seq: the sequence.
            partial_only: leave out what can be restored by removing positions: of a sliding-window model only
                the window, of a hybrid model only the recurrent state. Other models save everything.
            on_device: leave the tensors in buffers of this context; the bytes are then small, belong to this
                context, and are outdated by the next such save of the same sequence.
        """
    def state_seq_set(
        self,
        data: bytes | bytearray | memoryview,
        seq: int,
        *,
        partial_only: bool = False,
        on_device: bool = False,
    ) -> None:
        """Restore a sequence, replacing what it held; the flags must be those of the save.

        Raises:
            StateError: the bytes are damaged, or from another model, layout, or (on_device) time. The
            sequence is
                untouched when the bytes themselves are at fault, and empty when they do not fit the memory.
        """
    def state_seq_save(self, path: _Path, seq: int, tokens: _Tokens = ()) -> int:
        """Save a sequence and its tokens to a file, which appears when it is complete; returns its size."""
    def state_seq_load(self, path: _Path, seq: int) -> list[int]:
        """Restore a sequence from a file of :meth:`state_seq_save`; returns its tokens."""
    def state_size(self) -> int:
        """Bytes :meth:`state_get` would return."""
    def state_get(self) -> bytes:
        """Save all sequences."""
    def state_set(self, data: bytes | bytearray | memoryview) -> None:
        """Restore all sequences, replacing everything; raises StateError as :meth:`state_seq_set` does."""
    def perf(self) -> dict[str, float]:
        """Counters since creation or :meth:`reset_perf`: ``t_load_ms``, ``t_p_eval_ms`` and ``n_p_eval``
        (batches), ``t_eval_ms`` and ``n_eval`` (single tokens), ``n_reused`` (graphs). Times need
        ``no_perf=False``.
        """
    def reset_perf(self) -> None:
        """Set the counters of :meth:`perf` to zero."""
    def memory_breakdown(self) -> dict[str, int]:
        """Bytes on all devices: ``"model"``, the weights; ``"context"``, the memory of the sequences; ``"compute"``,
        intermediate results. The results themselves (n_outputs_max rows of logits) are not in it.
        """

class Batch:
    """Entries for one computation, up to the context's n_batch; ``clear()`` and refill it for the next.

    All entries must be of one kind: tokens (:meth:`add`), embeddings (:meth:`add_embd`), or tokens with a
    hidden state (:meth:`add`, then :meth:`set_embd_token`). Every entry has a position; llama.cpp does not
    count for you. An entry's number is its index in the results.

    Args:
        context: the context it will be computed with.
    """

    def __init__(self, context: Context) -> None: ...
    def __len__(self) -> int: ...
    @property
    def n_outputs(self) -> int:
        """Entries whose results are wanted."""
    def clear(self) -> None:
        """Remove all entries; their memory is kept for the next ones."""
    def add(self, token: int, pos: int, seq: int | Iterable[int], output: bool = False) -> int:
        """Add a token.

        Args:
            token: its id.
            pos: its position.
            seq: its sequence, or several that share it.
            output: whether its results are wanted.

        Returns:
            The entry's number.
        """
    def add_embd(self, embd: _Floats, pos: int | Iterable[int], seq: int | Iterable[int], output: bool = False) -> int:
        """Add an embedding in the place of a token.

        Args:
            embd: numbers, as many as the model's input is wide.
            pos: its position; four of them for a model with multi-dimensional RoPE.
            seq: its sequence, or several that share it.
            output: whether its results are wanted.

        Returns:
            The entry's number.
        """
    def set_embd_token(self, index: int, embd: _Floats) -> None:
        """Give a token a hidden state as well, for NextN layers and draft heads.

        Args:
            index: the entry's number; each takes one.
            embd: numbers, as many as the model's input is wide.
        """
    def set_output(self, index: int, value: bool) -> None:
        """Change whether an entry's results are wanted."""

class Memory:
    """The tokens a context remembers, by sequence; from ``Context.memory``.

    Ranges of positions are half-open, ``[p0, p1)``; a negative `p0` means 0 and a negative `p1` no end. For
    an architecture without a memory everything is empty.
    """

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Forget a range of a sequence.

        Recurrent states can forget a whole sequence, and of the end at most n_rs_seq tokens, once per decode
        and only as many as that decode added; libllama does not check the last part.

        Args:
            seq: the sequence, or -1 for all.

        Returns:
            False if the memory cannot forget this range; nothing has changed then.
        """
    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let `dst` remember what `src` does in a range, in place of what it had.

        Raises:
            InvalidRequest: only a part is asked for where the memory copies whole sequences only: without
                kv_unified, and for recurrent states.
        """
    def seq_keep(self, seq: int) -> None:
        """Forget all other sequences."""
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Shift the positions of a range by `delta`; what falls below 0 is forgotten.

        Raises:
            UnsupportedModel: this memory cannot shift, see :attr:`can_shift`.
        """
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions of a range by an integer; raises as :meth:`seq_add`."""
    def pos_min(self, seq: int) -> int:
        """The first position of a sequence that is remembered, -1 if it is empty."""
    def pos_max(self, seq: int) -> int:
        """The last position of a sequence, -1 if it is empty."""
    @property
    def can_shift(self) -> bool:
        """Whether :meth:`seq_add` and :meth:`seq_div` work."""
    def clear(self, data: bool = True) -> None:
        """Forget everything; `data` also zeroes the buffers."""

class Sampler:
    """One step of sampling: it changes or removes candidates, or picks one.

    Made by the class methods: :meth:`greedy`, :meth:`dist`, :meth:`top_k`, ... A sampler added to a
    :class:`SamplerChain` belongs to the chain and cannot be used by itself any more.

    Attributes:
        name: libllama's name for it; a leading "?" means that its parameters switch it off.
    """

    name: str
    def close(self) -> None:
        """Free the sampler."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def seed(self) -> int | None:
        """The seed in use, or None for a sampler without random numbers."""
    def accept(self, token: int) -> None:
        """Tell the sampler which token was chosen.

        Raises:
            GrammarError: the token does not fit the grammar. The sampler is as before; of a lazy grammar that
            was
                just triggered, :meth:`reset` or a clone from before is needed.
        """
    def apply(self, ids: _Tokens, logits: _Floats) -> tuple[_TokenRow, _FloatRow, _FloatRow, int | None]:
        """Apply the sampler to candidates.

        Args:
            ids: token ids, each once.
            logits: their logits; -inf removes a candidate, NaN and +inf are refused.

        Returns:
            The remaining ids, their logits, their probabilities (0 where the sampler computes none), and the
            index in these arrays of the candidate that was picked, None when the sampler does not pick.
        """
    def reset(self) -> None:
        """Forget accepted tokens and restart random numbers."""
    def clone(self) -> Self:
        """An independent copy with the same state."""
    def copy_from(self, source: Sampler) -> None:
        """Take over the state of a sampler of the same kind, e.g. one this was cloned from."""
    @staticmethod
    def greedy() -> Sampler:
        """Pick the largest logit."""
    @staticmethod
    def dist(seed: int) -> Sampler:
        """Pick at random, by probability."""
    @staticmethod
    def top_k(k: int) -> Sampler:
        """Keep the `k` largest logits; 0 or less keeps all."""
    @staticmethod
    def top_p(p: float, min_keep: int = 1) -> Sampler:
        """Keep the most probable candidates that make up `p` of the probability, and at least `min_keep`."""
    @staticmethod
    def min_p(p: float, min_keep: int = 1) -> Sampler:
        """Keep candidates at least `p` times as probable as the best one, and at least `min_keep`."""
    @staticmethod
    def typical(p: float, min_keep: int = 1) -> Sampler:
        """Keep the candidates closest to the expected surprise that make up `p`; at least `min_keep`."""
    @staticmethod
    def temp(t: float) -> Sampler:
        """Divide logits by `t`; at 0 or less keep only the largest."""
    @staticmethod
    def temp_ext(t: float, delta: float, exponent: float) -> Sampler:
        """Divide logits by a temperature between ``t - delta`` and ``t + delta`` that grows with the
        entropy.
        """
    @staticmethod
    def xtc(p: float, t: float, min_keep: int, seed: int) -> Sampler:
        """With probability `p`, remove all candidates more probable than `t` but the last of them."""
    @staticmethod
    def top_n_sigma(n: float) -> Sampler:
        """Keep logits within `n` standard deviations of the largest; 0 or less keeps all."""
    @staticmethod
    def mirostat(vocab: Vocab, seed: int, tau: float, eta: float, m: int = 100) -> Sampler:
        """Pick so that the surprise stays at `tau` (Mirostat 1); `eta` is the rate it learns at."""
    @staticmethod
    def mirostat_v2(seed: int, tau: float, eta: float) -> Sampler:
        """Pick so that the surprise stays at `tau` (Mirostat 2); `eta` is the rate it learns at."""
    @staticmethod
    def grammar(vocab: Vocab, text: str, root: str = "root") -> Sampler:
        """Keep what continues the text to a sentence of a GBNF grammar. GrammarError says what is wrong with
        one.
        """
    @staticmethod
    def grammar_lazy(
        vocab: Vocab,
        text: str,
        root: str = "root",
        *,
        trigger_patterns: Iterable[str] = (),
        trigger_tokens: Iterable[int] = (),
    ) -> Sampler:
        """A grammar that applies from a trigger on.

        Args:
            vocab, text, root: as for :meth:`grammar`.
            trigger_patterns: regular expressions (ECMAScript), matched from the start of the text; the
                grammar applies from the first group on.
            trigger_tokens: token ids from which on it applies.
        """
    @staticmethod
    def penalties(vocab: Vocab, last_n: int, repeat: float = 1.0, freq: float = 0.0, present: float = 0.0) -> Sampler:
        """Lower the logits of the last `last_n` tokens: divide by `repeat`, subtract `freq` per occurrence
        and `present` once.
        """
    @staticmethod
    def dry(
        vocab: Vocab,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Iterable[str] = (),
    ) -> Sampler:
        """Lower the logits of tokens that would continue a repetition.

        Args:
            vocab: the vocabulary.
            multiplier: strength, 0 for off.
            base: the penalty grows with ``base ** (length - allowed_length)``.
            allowed_length: repetitions up to so many tokens are free.
            last_n: how many of the last tokens to search, 0 for off.
            breakers: strings a repetition ends at.
        """
    @staticmethod
    def adaptive_p(target: float, decay: float, seed: int) -> Sampler:
        """Pick tokens whose probability is near `target` over time; a negative `target` only picks by
        probability. `decay` (0 to 0.99) is how slowly it forgets.
        """
    @staticmethod
    def logit_bias(vocab: Vocab, bias: Mapping[int, float] | Iterable[tuple[int, float]]) -> Sampler:
        """Add to logits: ``{token: bias}``; -inf forbids a token."""
    @staticmethod
    def infill(vocab: Vocab) -> Sampler:
        """For filling gaps: end early, and join candidates with a common beginning. Put top_k and top_p
        before it: it compares all candidates with each other.
        """

class SamplerChain(Sampler):
    """Samplers applied one after the other; the last one should pick a token.

    Args:
        *samplers: the first members; a chain owns its members.
    """

    has_selector: bool
    def __init__(self, *samplers: Sampler) -> None: ...
    def __len__(self) -> int: ...
    def add(self, sampler: Sampler) -> Self:
        """Append a sampler, which belongs to the chain from now on; returns the chain."""
    def get(self, i: int) -> str:
        """Name of member `i`."""
    def remove(self, i: int) -> Sampler:
        """Take member `i` out; it is usable by itself again."""
    def reset(self) -> None:
        """Forget accepted tokens and restart random numbers, of all members."""
    def clone(self) -> Self:
        """An independent copy with the same state; it can be attached to a context."""
    def copy_from(self, source: Sampler) -> None:
        """Take over the state of a chain with the same members, e.g. one this was cloned from."""
    def sample(self, context: Context, i: int = -1) -> int:
        """Pick a token from a row of the last computation, and accept it.

        Where a backend sampler picked already, that token is accepted and returned.

        Args:
            context: where the row is.
            i: the token's index in the batch, or a negative number counting output rows from the end.

        Raises:
            InvalidRequest: the chain has no member that picks, the row was no output, or the chain removes
            every
                candidate.
            DecodeError: the row holds NaN.
        """
