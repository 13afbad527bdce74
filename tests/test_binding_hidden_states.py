"""Encoders, draft heads and NextN layers, and the hidden states they take and give."""

from __future__ import annotations

import numpy as np
import pytest
from test_binding_decode import TOKENS, close, token_embeddings

from pyspec._llama import Batch, Context, Model
from pyspec.errors import InvalidRequest, UnsupportedModel


@pytest.fixture(scope="module")
def llama(tiny):
    with Model(tiny("llama")) as model:
        yield model


@pytest.fixture
def context(llama):
    with Context(llama, n_ctx=256, n_batch=32, n_ubatch=16, n_threads=1) as context:
        yield context


def test_encoder_only(tiny):
    with Model(tiny("bert")) as model, Context(model, n_ctx=256, n_ubatch=64, n_threads=1, embeddings=True) as context:
        context.decode(TOKENS)
        pooled = context.embeddings_seq(0).copy()
        batch = Batch(context)
        for i, token in enumerate(TOKENS):
            batch.add(token, i, 0)
        context.process(batch)
        assert close(context.embeddings_seq(0), pooled)
        context.encode(batch)
        assert close(context.embeddings_seq(0), pooled)
        with pytest.raises(InvalidRequest, match="n_ubatch"):
            context.decode([1] * 65)
        assert context.memory.pos_max(0) == -1
        with pytest.raises(InvalidRequest):
            context.logits(300)


def test_encoder_and_decoder(tiny):
    with Model(tiny("t5")) as model, Context(model, n_ctx=256, n_threads=1) as context:
        with pytest.raises(InvalidRequest, match=r"needs encode\(\) before"):
            context.decode([model.decoder_start_token])
        batch = Batch(context)
        for i, token in enumerate(TOKENS):
            batch.add(token, i, 0)
        context.encode(batch)
        context.decode([model.decoder_start_token])
        assert np.isfinite(context.logits()).all()


def test_models_without_one_half(tiny, context):
    batch = Batch(context)
    batch.add(1, 0, 0)
    with pytest.raises(UnsupportedModel, match="no encoder"):
        context.encode(batch)
    with Model(tiny("t5encoder")) as model, Context(model, n_ctx=256, n_threads=1) as encoder:
        batch = Batch(encoder)
        batch.add(1, 0, 0)
        encoder.encode(batch)
        with pytest.raises(UnsupportedModel, match="no decoder"):
            encoder.decode([1])


def test_eagle3(tiny, llama):
    """Hidden states go through the encoder, its rows go with tokens through the decoder."""
    with Context(llama, n_ctx=256, n_threads=1) as target, Model(tiny("eagle3")) as model:
        for layer in model.target_layer_ids:
            target.set_embeddings_layer_inp(layer, True)
        target.decode(TOKENS)
        features = np.concatenate(
            [target.embeddings_layer_inp(layer)[: len(TOKENS)] for layer in model.target_layer_ids], axis=1
        )
        with Context(model, n_ctx=256, n_threads=1, ctx_other=target) as context:
            with pytest.raises(InvalidRequest, match="hidden state"):
                context.decode(TOKENS)
            context.set_embeddings_nextn(True)
            batch = Batch(context)
            for i, row in enumerate(features):
                batch.add_embd(row, i, 0)
            with pytest.raises(InvalidRequest, match="takes rows of 64 numbers, not 192"):
                context.process(batch)
            context.encode(batch)
            rows = np.array([context.embeddings_nextn(i) for i in range(len(TOKENS))])
            batch.clear()
            for i, token in enumerate(TOKENS):
                batch.add(token, i, 0, True)
            with pytest.raises(InvalidRequest, match="hidden state"):
                context.process(batch)
            with pytest.raises(InvalidRequest, match=r"use add_embd\(\)"):
                context.encode(batch)
            for i, row in enumerate(rows):
                batch.set_embd_token(i, row)
            context.process(batch)
            assert np.isfinite(context.logits(3)).all()


def test_nextn_context(tiny):
    with Model(tiny("qwen35-mtp"), load_mtp=True) as model:
        target = Context(model, n_ctx=256, n_threads=1)
        draft = Context(model, n_ctx=256, n_threads=1, ctx_type="mtp", ctx_other=target)
        with target, draft:
            target.set_embeddings_nextn(True)
            target.decode(TOKENS)
            hidden = np.array([target.embeddings_nextn(i) for i in range(len(TOKENS))])
            assert hidden.std() > 0
            with pytest.raises(InvalidRequest, match="hidden state with every token"):
                draft.decode(TOKENS)
            batch = Batch(draft)
            for i, token in enumerate(TOKENS):
                batch.add(token, i, 0, True)
            with pytest.raises(InvalidRequest, match="hidden state with every token"):
                draft.process(batch)
            for i, row in enumerate(hidden):
                batch.set_embd_token(i, row)
            draft.process(batch)
            assert np.isfinite(draft.logits(5)).all()


def test_hidden_states_of_nextn_layers(tiny):
    """Unmasked, libllama reads rows of tokens that are no outputs, which some graphs do not compute."""
    with Model(tiny("step35"), load_mtp=True) as model, Context(model, n_ctx=256, n_threads=1, ctx_type="mtp") as draft:
        draft.set_embeddings_nextn(True)
        batch = Batch(draft)
        for i in range(3):
            batch.add(5, i, 0, i == 2)
            batch.set_embd_token(i, np.ones(64))
        with pytest.raises(InvalidRequest, match="every entry for NextN layers must be an output"):
            draft.process(batch)
        for i in range(3):
            batch.set_output(i, True)
        draft.process(batch)
        assert draft.embeddings_nextn(1).shape == (64,)


def test_nextn_layers_in_turn(tiny):
    with Model(tiny("step35"), load_mtp=True) as model, Context(model, n_ctx=256, n_threads=1, ctx_type="mtp") as draft:
        rows = []
        for layer in range(model.n_layer_nextn):
            draft.set_nextn_layer_offset(layer)
            draft.memory.clear()
            batch = Batch(draft)
            batch.add(5, 0, 0, True)
            batch.set_embd_token(0, np.linspace(-1, 1, 64))
            draft.process(batch)
            rows.append(draft.logits(0).copy())
        assert not close(rows[0], rows[1])
        with pytest.raises(InvalidRequest):
            draft.set_nextn_layer_offset(model.n_layer_nextn)


def test_block_diffusion(tiny, llama):
    model, target = Model(tiny("dspark")), Context(llama, n_ctx=256, n_threads=1)
    with Context(model, n_ctx=256, n_ubatch=32, n_seq_max=2, n_threads=1, ctx_other=target) as context:
        batch = Batch(context)
        for i in range(4):
            batch.add(255, i, 0, True)
        batch.add(255, 0, 1, True)
        with pytest.raises(InvalidRequest, match="as many tokens of each sequence"):
            context.process(batch)
        for i in range(1, 4):
            batch.add(255, i, 1, True)
        context.process(batch)
        assert np.isfinite(context.logits(7)).all()
        batch.clear()
        batch.add_embd(np.zeros(128), 4, 0)
        context.encode(batch)


def test_layer_inputs(context, llama, tiny):
    with pytest.raises(InvalidRequest, match="was not kept"):
        context.embeddings_layer_inp(1)
    context.set_embeddings_layer_inp(0, True)
    context.set_embeddings_layer_inp(1, True)
    with pytest.raises(InvalidRequest, match="was not kept"):
        context.embeddings_layer_inp(1)  # no computation since
    context.decode(TOKENS)
    rows = context.embeddings_layer_inp(0)
    assert rows.shape == (32, 64)
    assert close(rows[: len(TOKENS)], token_embeddings(llama.path)[TOKENS])
    assert not close(context.embeddings_layer_inp(1)[: len(TOKENS)], rows[: len(TOKENS)])
    del rows
    context.set_embeddings_layer_inp(1, False)
    with pytest.raises(InvalidRequest, match="was not kept"):
        context.embeddings_layer_inp(1)
    for layer in (-1, 5):
        with pytest.raises(InvalidRequest):
            context.set_embeddings_layer_inp(layer, True)
    with pytest.raises(UnsupportedModel, match="layer 4"):
        context.set_embeddings_layer_inp(4, True)
    with Model(tiny("gemma3")) as model, Context(model) as other, pytest.raises(UnsupportedModel, match="gemma3"):
        other.set_embeddings_layer_inp(0, True)


def test_hidden_states_of_models_without(context):
    with pytest.raises(UnsupportedModel, match="no hidden state"):
        context.set_embeddings_nextn(True)
    with pytest.raises(InvalidRequest, match="not kept"):
        context.embeddings_nextn(0)


def test_masked_hidden_states(tiny):
    with Model(tiny("step35"), load_mtp=True) as model, Context(model, n_ctx=256, n_threads=1) as context:
        context.set_embeddings_nextn(True)
        context.decode(TOKENS, outputs=True)
        expected = context.embeddings_nextn(5).copy()
        context.memory.clear()
        context.set_embeddings_nextn(True, masked=True)
        context.decode(TOKENS, outputs=[i == 5 for i in range(len(TOKENS))])
        assert close(context.embeddings_nextn(5), expected)
        with pytest.raises(InvalidRequest, match="hidden state"):
            context.embeddings_nextn(4)
