"""Chat templates: libllama's built-in ones, the real Jinja ones, and what goes wrong with either."""

from __future__ import annotations

import datetime
import sys

import pytest
from vocab_files import spm_tokens, write_vocab

from pyspec import chat
from pyspec._llama import Model, chat_builtin_templates
from pyspec.errors import InvalidRequest, UnsupportedModel

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye & <thanks>"},
]
TALK_IN_CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye & <thanks><|im_end|>\n"
)


@pytest.fixture
def model_with(tmp_path):
    """Makes models that have the given chat template (or none) and open vocabularies only."""
    models = []

    def make(chat_template: str | None, **kwargs) -> Model:
        path = tmp_path / f"{len(models)}.gguf"
        models.append(
            Model(
                str(write_vocab(path, spm_tokens(300), chat_template=chat_template, **kwargs)),
                vocab_only=True,
            )
        )
        return models[-1]

    yield make
    for model in models:
        model.close()


@pytest.fixture
def no_jinja(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    assert not chat.has_jinja()


@pytest.mark.parametrize("use_jinja", [True, False, None])
def test_both_renderers_agree_on_chatml(model_with, use_jinja):
    model = model_with(CHATML)
    assert chat.render(model, TALK, False, use_jinja=use_jinja) == TALK_IN_CHATML
    assert chat.render(model, TALK, use_jinja=use_jinja) == TALK_IN_CHATML + "<|im_start|>assistant\n"


def test_without_jinja2_the_built_in_templates_are_used(model_with, no_jinja):
    assert chat.render(model_with(CHATML), TALK) == TALK_IN_CHATML + "<|im_start|>assistant\n"
    with pytest.raises(UnsupportedModel, match="pip install jinja2"):
        chat.render(model_with(CHATML), TALK, use_jinja=True)


def test_a_built_in_template_by_name(model_with):
    model = model_with(None)
    assert "chatml" in chat_builtin_templates()
    assert chat.render(model, TALK, template="chatml") == TALK_IN_CHATML + "<|im_start|>assistant\n"
    with pytest.raises(InvalidRequest, match="built-in one, not Jinja"):
        chat.render(model, TALK, template="chatml", use_jinja=True)


def test_a_template_of_ones_own(model_with):
    source = "{{ messages | map(attribute='content') | join('|') }}{{ extra }}"
    assert (
        chat.render(model_with(CHATML), TALK, template=source, extra="!")
        == "Be brief.|Hi|Hello.|Bye & <thanks>!"
    )


def test_a_long_conversation_fits(model_with):
    messages = [
        {"role": "user", "content": "\u6b6a" * 5000},
        {"role": "assistant", "content": "x" * 5000},
    ] * 3
    model = model_with(CHATML)
    assert chat.render(model, messages, use_jinja=False) == chat.render(model, messages, use_jinja=True)


def test_a_model_without_a_template(model_with):
    with pytest.raises(UnsupportedModel, match='template="chatml"'):
        chat.render(model_with(None), TALK)


def test_a_template_libllama_does_not_know(model_with):
    with pytest.raises((UnsupportedModel, InvalidRequest), match="template"):
        chat.render(model_with("{{ messages[0]['content'] }}"), TALK, use_jinja=False)


def test_bos_is_left_to_the_tokenizer_that_adds_it(model_with):
    source = "{{ bos_token }}[{{ messages[0]['content'] }}]{{ eos_token }}"
    assert chat.render(model_with(source), [TALK[1]]) == "[Hi]</s>"
    assert chat.render(model_with(source, add_bos=False), [TALK[1]]) == "<s>[Hi]</s>"
    assert (
        chat.render(model_with(source, add_bos=False, bos=None, eos=None), [TALK[1]]).startswith("[Hi]")
        is False
    )


def test_what_templates_expect_to_find(model_with):
    model = model_with(
        "{%- for m in messages -%}\n  {%- if loop.index0 == 1 -%}{%- break -%}{%- endif -%}\n"
        "  {{ m | tojson }}\n{%- endfor -%}\n{{ {'b': [1, '<\u6b6a>']} | tojson(indent=1) }}"
        "|{{ strftime_now('%Y') }}|{{ tools is none }}"
    )
    year = datetime.datetime.now().year
    assert chat.render(model, TALK) == (
        '{"role": "system", "content": "Be brief."}{\n "b": [\n  1,\n  "<\u6b6a>"\n ]\n}' + f"|{year}|True"
    )


def test_variables_reach_the_template(model_with):
    model = model_with("{{ tools[0]['name'] }}{{ enable_thinking }}")
    assert chat.render(model, TALK, tools=[{"name": "f"}], enable_thinking=False) == "fFalse"
    with pytest.raises(InvalidRequest, match="enable_thinking"):
        chat.render(model, TALK, template="chatml", enable_thinking=False)


def test_a_template_may_refuse_messages(model_with):
    model = model_with("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="refuses these messages: roles must alternate"):
        chat.render(model, TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ undefined_thing.attribute }}",
        "{{ 1 / 0 }}",
        "{{ range(1000000000) | list }}",
        "{{ messages[0]['content'] + 1 }}",
    ],
)
def test_a_template_can_not_do_harm(model_with, source):
    with pytest.raises(InvalidRequest, match="template fails"):
        chat.render(model_with(source), TALK)


def test_a_template_that_is_not_jinja(model_with):
    with pytest.raises(UnsupportedModel, match="not valid Jinja"):
        chat.render(model_with("{% for %}"), TALK)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hi",
        b"Hi",
        {"role": "user", "content": "Hi"},
        None,
        ["Hi"],
        [{"content": "Hi"}],
        [{"role": "user"}],
        [{"role": 1, "content": "Hi"}],
    ],
)
@pytest.mark.parametrize("use_jinja", [True, False])
def test_malformed_messages(model_with, messages, use_jinja):
    with pytest.raises(InvalidRequest, match="messages") as caught:
        chat.render(model_with(CHATML), messages, use_jinja=use_jinja)
    assert caught.value.name == "messages"


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "Hi"}], 3])
def test_built_in_templates_take_text_only(model_with, content):
    with pytest.raises(InvalidRequest, match="content must be text"):
        chat.render(model_with(CHATML), [{"role": "user", "content": content}], use_jinja=False)


def test_messages_are_not_changed(model_with):
    messages = [dict(m) for m in TALK]
    for use_jinja in (True, False):
        chat.render(model_with(CHATML), messages, use_jinja=use_jinja)
        assert messages == TALK


def test_smollm2(smollm2):
    with Model(str(smollm2), vocab_only=True) as model:
        prompt = chat.render(model, TALK[:2])
        assert prompt == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        tokens = model.vocab.tokenize(prompt, add_special=True, parse_special=True)
        assert [model.vocab.text(t) for t in tokens].count("<|im_start|>") == 3
        assert model.vocab.detokenize(tokens, unparse_special=True).decode() == prompt


def test_a_base_model(gemma3):
    with Model(str(gemma3), vocab_only=True) as model, pytest.raises(UnsupportedModel, match="base model"):
        chat.render(model, TALK)
