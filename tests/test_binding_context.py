"""Creating contexts: what can be asked for, what libllama makes of it, what is refused and why."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pyspec._llama import Context, Model, Sampler, SamplerChain
from pyspec.errors import Closed, ContextError, InvalidRequest, UnsupportedModel
from pyspec.machine import default_threads, total_memory


@pytest.fixture(scope="module")
def llama(tiny):
    with Model(tiny("llama")) as model:
        yield model


def sizes(context: Context) -> tuple[int, ...]:
    return (context.n_ctx, context.n_ctx_seq, context.n_batch, context.n_ubatch, context.n_outputs_max)


def test_defaults(llama):
    with Context(llama) as context:
        assert sizes(context) == (512, 512, 512, 512, 512)
        assert (context.n_seq_max, context.n_rs_seq, context.n_outputs_max_per_seq) == (1, 0, 1)
        assert (context.n_vocab, context.kv_unified, context.ctx_type) == (256, False, "default")
        assert context.model is llama
        assert context.ctx_other is None
        assert "n_ctx=512" in repr(context)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"n_ctx": 1}, (256, 256, 1, 1, 1)),
        ({"n_ctx": 300}, (512, 512, 300, 300, 300)),
        ({"n_ctx": 512, "n_batch": 64, "n_ubatch": 128}, (512, 512, 64, 64, 64)),
        ({"n_ctx": 512, "n_batch": 64, "n_ubatch": 16, "n_outputs_max": 9}, (512, 512, 64, 16, 9)),
        ({"n_ctx": 512, "n_batch": 64, "n_outputs_max": 1000}, (512, 512, 64, 64, 64)),
        ({"n_ctx": 600, "n_seq_max": 3}, (768, 256, 600, 512, 600)),
        ({"n_ctx": 600, "n_seq_max": 3, "kv_unified": True}, (768, 768, 600, 512, 600)),
    ],
)
def test_sizes_are_read_back(llama, asked, given):
    with Context(llama, **asked) as context:
        assert sizes(context) == given


def test_outputs_per_sequence(llama):
    with Context(llama, n_outputs_max=8, n_outputs_max_per_seq=0) as context:
        assert context.n_outputs_max_per_seq == 8
    with Context(llama, n_outputs_max=8, n_outputs_max_per_seq=99) as context:
        assert context.n_outputs_max_per_seq == 8


def test_few_outputs_reserve_little(gemma3):
    """Logits of a large vocabulary are reserved for the outputs asked for, not for a whole batch."""
    with Model(gemma3) as model, Context(model, n_outputs_max=9) as small, Context(model) as large:
        saved = large.memory_breakdown()["compute"] - small.memory_breakdown()["compute"]
        assert saved > 400 * 4 * model.vocab.n_tokens


def test_threads(llama):
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
    with Context(llama) as context:
        assert (context.n_threads, context.n_threads_batch) == (default_threads(), default_threads())
        context.set_n_threads(1)
        assert (context.n_threads, context.n_threads_batch) == (1, 1)
        context.set_n_threads(1, 2)
        assert (context.n_threads, context.n_threads_batch) == (1, 2)
        for wrong in (0, -1, 513, 1.5):
            with pytest.raises(InvalidRequest):
                context.set_n_threads(wrong)
    with Context(llama, n_threads=3) as context:
        assert (context.n_threads, context.n_threads_batch) == (3, 3)


OUT_OF_RANGE = [
    ("n_ctx", 0), ("n_ctx", -1), ("n_ctx", 1 << 31), ("n_ctx", 1 << 32), ("n_ctx", "many"), ("n_ctx", 1.5),
    ("n_batch", 0), ("n_batch", -1), ("n_batch", 1 << 40), ("n_ubatch", 0), ("n_ubatch", -5),
    ("n_seq_max", 0), ("n_seq_max", 257), ("n_rs_seq", -1), ("n_outputs_max", -1), ("n_outputs_max_per_seq", -1),
    ("n_threads", -1), ("n_threads", 513), ("n_threads_batch", 1000), ("ctx_type", "other"), ("ctx_type", None),
    ("rope_scaling_type", "bent"), ("pooling_type", "all"), ("attention_type", "some"), ("flash_attn", True),
    ("type_k", "q3_K"), ("type_v", "i32"), ("type_k", None), ("rope_freq_base", -1.0),
    ("rope_freq_base", float("nan")), ("rope_freq_scale", float("inf")), ("rope_freq_scale", 1e39),
    ("yarn_ext_factor", float("nan")), ("yarn_orig_ctx", -1), ("samplers", [1]), ("samplers", {0: "greedy"}),
    ("ctx_other", "target"),
]  # fmt: skip


@pytest.mark.parametrize(("parameter", "value"), OUT_OF_RANGE, ids=lambda x: str(x)[:20])
def test_parameters_out_of_range(llama, parameter, value):
    with pytest.raises(InvalidRequest) as caught:
        Context(llama, **{parameter: value})
    assert caught.value.name == parameter
    Context(llama).close()


def test_what_is_no_model():
    with pytest.raises(TypeError):
        Context(None)
    with pytest.raises(TypeError):
        Context("model.gguf")


# -- what libllama asserts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"n_seq_max": 4, "n_outputs_max": 3},
        {"n_seq_max": 8, "n_batch": 4},
        {"n_seq_max": 8, "n_ctx": 4},
        {"n_seq_max": 256, "n_outputs_max": 9},
    ],
)
def test_fewer_outputs_than_sequences(llama, asked):
    with pytest.raises(InvalidRequest, match="each of the") as caught:
        Context(llama, **asked)
    assert caught.value.name == "n_outputs_max"


def test_as_many_outputs_as_sequences(llama):
    with Context(llama, n_seq_max=4, n_outputs_max=4) as context:
        context.decode([1, 2, 3, 4], pos=[0] * 4, seq_ids=range(4), outputs=True)
        assert context.logits(3).shape == (256,)


def test_roll_back_needs_a_micro_batch(tiny):
    with Model(tiny("qwen35")) as model:
        with pytest.raises(InvalidRequest, match="n_ubatch of at least 6"):
            Context(model, n_rs_seq=4, n_ubatch=5)
        with Context(model, n_rs_seq=4, n_ubatch=6, n_ctx=256) as context:
            assert context.n_rs_seq == 4
            context.decode(range(20))


def test_nextn_contexts(tiny, llama):
    with pytest.raises(InvalidRequest, match="needs a model with NextN layers"):
        Context(llama, ctx_type="mtp")
    for name in ("qwen35-mtp", "step35"):
        with Model(tiny(name)) as model, pytest.raises(InvalidRequest, match="load_mtp=True"):
            Context(model, ctx_type="mtp")
        with Model(tiny(name), load_mtp=True) as model, Context(model, ctx_type="mtp") as context:
            assert context.ctx_type == "mtp"


def test_nextn_contexts_without_embeddings(tiny):
    """Their graphs have no such results, and none of the trunk's layers."""
    with Model(tiny("qwen35-mtp"), load_mtp=True) as model:
        with pytest.raises(InvalidRequest, match="no embeddings"):
            Context(model, ctx_type="mtp", embeddings=True)
        with Context(model, ctx_type="mtp") as context:
            with pytest.raises(UnsupportedModel, match="no embeddings"):
                context.set_embeddings(True)
            with pytest.raises(UnsupportedModel, match="do not hand out"):
                context.set_embeddings_layer_inp(0, True)


@pytest.mark.parametrize("pooling", ["mean", "rank"])
def test_pooling_adds_up_whole_micro_batches(llama, pooling):
    for asked in ({"n_outputs_max": 9}, {"n_ubatch": 16, "n_outputs_max": 15}, {"n_seq_max": 3, "n_ubatch": 64}):
        with pytest.raises(InvalidRequest, match="mean pooling"):
            Context(llama, pooling_type=pooling, embeddings=True, **asked)
    with Context(llama, pooling_type=pooling, embeddings=True, n_ubatch=16, n_outputs_max=16, n_seq_max=2) as context:
        context.decode([1] * 16)
        context.decode([1] * 6, seq_ids=1)


def test_pooling_the_model_asks_for(tiny):
    with Model(tiny("bert")) as model:
        with pytest.raises(InvalidRequest, match="mean pooling"):
            Context(model, n_seq_max=3, n_ubatch=64, embeddings=True)
        with Context(model, n_seq_max=3, n_ubatch=64) as context, pytest.raises(InvalidRequest, match="mean pooling"):
            context.set_embeddings(True)
        with Context(model, n_seq_max=3, n_ubatch=63) as context:
            context.set_embeddings(True)
            context.decode([1] * 60)


def test_sequences_of_an_encoder_and_decoder(tiny):
    with Model(tiny("t5")) as model:
        with pytest.raises(InvalidRequest, match="kv_unified"):
            Context(model, n_seq_max=2)
        Context(model, n_seq_max=2, kv_unified=True).close()


def test_quantized_cache_needs_wide_heads(llama):
    """Heads of 16 do not divide into blocks of 32."""
    for parameter in ("type_k", "type_v"):
        for flash_attn in ("on", "off", "auto"):
            with pytest.raises(InvalidRequest, match="multiple of 32") as caught:
                Context(llama, flash_attn=flash_attn, **{parameter: "q8_0"})
            assert caught.value.name == parameter


@pytest.fixture(scope="module")
def head32(tiny):
    """A model with wide heads, and what it computes with plain caches."""
    with Model(tiny("llama-head32")) as model:
        with Context(model, n_ctx=256, n_threads=1, type_k="f32", type_v="f32") as context:
            context.decode([3, 1, 4, 1, 5, 9, 2, 6])
            expected = context.logits().copy()
        yield model, expected


CACHES = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("type_k", CACHES)
@pytest.mark.parametrize("type_v", CACHES)
def test_cache_types(head32, type_k, type_v, flash_attn):
    """Each combination computes about what plain caches do, or is refused."""
    model, expected = head32
    asked = {"n_ctx": 256, "n_threads": 1, "type_k": type_k, "type_v": type_v, "flash_attn": flash_attn}
    if flash_attn == "off" and type_v not in ("f32", "f16", "bf16"):
        with pytest.raises(ContextError, match="flash_attn"):
            Context(model, **asked)
        return
    with Context(model, **asked) as context:
        context.decode([3, 1, 4, 1, 5, 9, 2, 6])
        assert np.corrcoef(context.logits(), expected)[0, 1] > 0.97


@pytest.mark.parametrize("scaling", ["none", "linear", "yarn", "longrope"])
def test_rope_scaling(llama, scaling):
    with Context(
        llama, n_ctx=256, n_threads=1, rope_scaling_type=scaling, rope_freq_scale=0.5, yarn_ext_factor=1.0,
        yarn_attn_factor=1.0, yarn_beta_fast=32.0, yarn_beta_slow=1.0, yarn_orig_ctx=128, rope_freq_base=20000.0,
    ) as context:  # fmt: skip
        context.decode([3, 1, 4])
        assert np.isfinite(context.logits()).all()


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last", "rank"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_pooling(tiny, name, pooling):
    with (
        Model(tiny(name)) as model,
        Context(model, n_ctx=256, n_threads=1, pooling_type=pooling, embeddings=True) as context,
    ):
        context.decode([3, 1, 4])
        if pooling == "none":
            assert context.embeddings(1).shape == (64,)
            with pytest.raises(InvalidRequest):
                context.embeddings_seq(0)
        else:
            assert context.embeddings_seq(0).shape == (1 if pooling == "rank" else 64,)


@pytest.mark.parametrize("attention", ["causal", "non-causal"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "qwen35", "bert"])
def test_attention_types(tiny, name, attention):
    with (
        Model(tiny(name)) as model,
        Context(model, n_ctx=256, n_threads=1, n_ubatch=32, attention_type=attention) as context,
    ):
        context.decode(range(20))
        if attention == "non-causal":
            with pytest.raises(InvalidRequest, match="n_ubatch"):
                context.decode(range(33))


# -- contexts of other contexts ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle3", "dflash", "dspark"])
def test_draft_heads_borrow_from_the_target(tiny, llama, name):
    with Model(tiny(name)) as model:
        with pytest.raises(ContextError, match="requires ctx_other"):
            Context(model)
        target = Context(llama, n_ctx=256, n_threads=1)
        context = Context(model, n_ctx=256, n_threads=1, ctx_other=target)
        assert context.ctx_other is target
        target.close()
        assert target.closed
        if name != "eagle3":
            context.decode([1, 2, 3, 4], outputs=True)
            assert np.isfinite(context.logits()).all()
        context.close()


@pytest.mark.parametrize(
    ("draft", "target", "message"),
    [("eagle3", "draft-other-size", "n_vocab is 768, this model's is 256"), ("dflash", "successor", "n_embd is 128")],
)
def test_draft_heads_of_another_target(tiny, draft, target, message):
    other, model = Model(tiny(target)), Model(tiny(draft))
    with Context(other, n_ctx=256) as context, pytest.raises(InvalidRequest, match=message):
        Context(model, ctx_other=context)


def test_draft_heads_of_targets_that_are_none(tiny):
    with Model(tiny("eagle3")) as model, Model(tiny("llama")) as other, Context(other, n_ctx=256) as target:
        with Context(model, ctx_other=target) as own, pytest.raises(InvalidRequest, match="of the target model"):
            Context(model, ctx_other=own)
        target.close()
        with pytest.raises(Closed):
            Context(model, ctx_other=target)


# -- memory that is not there ------------------------------------------------------------------------------


def test_more_memory_than_there_is(llama):
    with pytest.raises(ContextError, match="GiB"):
        Context(llama, n_ctx=(1 << 31) - 512)
    assert 1 << 28 < total_memory() < 1 << 50
    with Context(llama, n_ctx=256) as context:
        context.decode([1])


def test_samplers_at_creation(llama):
    chain = SamplerChain(Sampler.greedy())
    with Context(llama, n_ctx=256, n_threads=1, samplers={0: chain}) as context:
        context.decode([1, 2, 3])
        assert context.sampled_token() == int(context.logits().argmax())
    with pytest.raises(InvalidRequest, match="clone"):
        Context(llama, samplers={0: chain})
    again = chain.clone()
    with pytest.raises(InvalidRequest, match="one sequence only"):
        Context(llama, n_seq_max=2, samplers={0: again, 1: again})
    with pytest.raises(InvalidRequest, match="between 0 and 0"):
        Context(llama, samplers={1: again})
