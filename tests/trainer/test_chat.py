"""Conversations through chat templates: where the assistant speaks, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.node.trainer.chat import BadConversation, BadTemplate, ChatTemplate
from distro_node.node.trainer.tokenizer_settings import TokenizerSettings

# As published models have it, written by hand.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MARKED = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- ' A:' }}{% generation %}{{ message.content + eos_token }}{% endgeneration %}
    {%- else %}
        {{- ' Q:' + message.content | trim }}
    {%- endif %}
{%- endfor %}"""
# What was thought is kept of the last answer alone, as several families of models do it.
FORGETFUL = (
    "{% for m in messages %}[{{ m.role }}]"
    "{{ '(thought)' if loop.last and m.role == 'assistant' }}{{ m.content }}{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Why? "},
    {"role": "assistant", "content": "Because."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "That is all."},
]


def template(text: str, **tokens: str) -> ChatTemplate:
    return ChatTemplate(TokenizerSettings(chat_template=text, **tokens))


def spoken(
    text: str, tokens: dict[str, str] | None = None, talk: list[dict[str, Any]] = TALK
) -> list[str]:
    said = template(text, **(tokens or {})).conversation(talk)
    return [said.text[start:stop] for start, stop in said.spans]


def test_chatml_is_taken_apart_by_its_prefixes() -> None:
    assert spoken(CHATML) == ["Because.<|im_end|>\n", "That is all.<|im_end|>\n"]
    asked = template(CHATML).text(TALK[:2], prompt=True)
    assert asked.endswith("<|im_start|>user\n Why? <|im_end|>\n<|im_start|>assistant\n")


def test_marks_of_the_template_itself_are_used() -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert spoken(MARKED, tokens) == ["Because.</s>", "That is all.</s>"]
    said = template(MARKED, **tokens)
    assert said.says_spans
    whole = "<s> Q:Be brief. Q:Why? A:Because.</s> Q:And? A:That is all.</s>"
    assert said.conversation(TALK).text == said.text(TALK) == whole


def test_the_marks_are_those_that_transformers_finds() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    said = template(MARKED, eos_token="</s>").conversation(TALK)
    theirs, spans = render_jinja_template(
        [TALK], chat_template=MARKED, return_assistant_tokens_mask=True, eos_token="</s>"
    )
    assert theirs == [said.text]
    assert [tuple(span) for span in spans[0]] == list(said.spans)


def test_a_template_whose_prefixes_are_none_is_refused_where_it_matters() -> None:
    with pytest.raises(BadTemplate, match=r"differently once more follows.*message 3 of 5"):
        spoken(FORGETFUL)
    assert spoken(FORGETFUL, talk=TALK[:3]) == ["[assistant](thought)Because."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ messages.append(1) }}", "refused"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "no words of the assistant's"),
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_one_line(text: str, words: str) -> None:
    with pytest.raises((BadConversation, BadTemplate), match=words) as refused:
        spoken(text, talk=[{"role": "user", "content": "x"}])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["{% for %}", "{{", "{% generation %}", "{% include 'x' %}{% if %}"]
)
def test_what_is_no_template_is_said(text: str) -> None:
    with pytest.raises(BadTemplate, match="cannot be read"):
        template(text)


def test_the_day_is_not_known() -> None:
    """The same conversation is the same text tomorrow, or a swarm could not be made again."""
    assert template("{{ 'today' if strftime_now is defined else 'ever' }}").text(TALK) == "ever"


def test_files_are_not_read() -> None:
    with pytest.raises(BadConversation, match="refused"):
        template("{% include '/etc/passwd' %}").text(TALK)


def test_json_is_written_as_templates_expect_it() -> None:
    assert (
        template("{{ messages[1] | tojson }}").text(TALK) == '{"role": "user", "content": " Why? "}'
    )
