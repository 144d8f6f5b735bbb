"""Conversations through chat templates: the spans of the assistant, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.node.training.chat import BadConversation, BadTemplate, ChatTemplate
from distro_node.node.training.tokenizer_settings import TokenizerSettings
from transformers.utils.chat_template_utils import render_jinja_template

# As in published models, rewritten by hand.
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
# Only the last answer keeps its reasoning, as in several families of models.
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


def spans(
    text: str, tokens: dict[str, str] | None = None, talk: list[dict[str, Any]] = TALK
) -> list[str]:
    said = template(text, **(tokens or {})).conversation(talk)
    return [said.text[start:stop] for start, stop in said.spans]


def test_chatml_is_taken_apart_by_its_prefixes() -> None:
    assert spans(CHATML) == ["Because.<|im_end|>\n", "That is all.<|im_end|>\n"]
    asked = template(CHATML).text(TALK[:2], prompt=True)
    assert asked.endswith("<|im_start|>user\n Why? <|im_end|>\n<|im_start|>assistant\n")


def test_marks_of_the_template_itself_are_used() -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert spans(MARKED, tokens) == ["Because.</s>", "That is all.</s>"]
    said = template(MARKED, **tokens)
    assert said.marks_spans
    whole = "<s> Q:Be brief. Q:Why? A:Because.</s> Q:And? A:That is all.</s>"
    assert said.conversation(TALK).text == said.text(TALK) == whole
    theirs, marked = render_jinja_template(
        [TALK],
        chat_template=MARKED,
        return_assistant_tokens_mask=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert theirs == [whole]
    assert tuple(map(tuple, marked[0])) == tuple(said.conversation(TALK).spans)


def test_a_template_whose_prefixes_are_none_is_refused_where_it_matters() -> None:
    with pytest.raises(
        BadTemplate, match=r"changes the earlier text of a conversation.*message 3 of 5"
    ):
        spans(FORGETFUL)
    assert spans(FORGETFUL, talk=TALK[:3]) == ["[assistant](thought)Because."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ messages.append(1) }}", "append"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "has no text by the assistant"),
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_one_line(text: str, words: str) -> None:
    with pytest.raises((BadConversation, BadTemplate), match=words) as refused:
        spans(text, talk=[{"role": "user", "content": "x"}])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["{% for %}", "{{", "{% generation %}", "{% include 'x' %}{% if %}"]
)
def test_what_is_no_template_is_reported(text: str) -> None:
    with pytest.raises(BadTemplate, match="cannot be read"):
        template(text)


def test_the_day_is_the_one_that_the_settings_name() -> None:
    """The same conversation is the same text tomorrow; otherwise a swarm could not be recreated."""
    dated = "Today: {{ strftime_now('%d %b %Y') }}{{ strftime_now('%H:%M') }}"
    assert template(dated, chat_date="2024-02-29").text(TALK) == "Today: 29 Feb 202400:00"
    assert template("{{ strftime_now is defined }}").text(TALK) == "False"
    with pytest.raises(BadTemplate, match="needs a date, and '2023-02-29' is not one"):
        template(dated, chat_date="2023-02-29")
    facts = {template(dated, chat_date=day).facts for day in ("2024-02-29", "2024-03-01")}
    assert len(facts) == 2


def test_files_are_not_read() -> None:
    with pytest.raises(BadTemplate, match="fails on every conversation"):
        template("{% include '/etc/passwd' %}").text(TALK)


SAID = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a2"},
]


@pytest.mark.parametrize("text", [CHATML, MARKED])
def test_only_what_is_to_be_learned_is(text: str) -> None:
    said = template(text, bos_token="<s>", eos_token="</s>")
    for wanted in ([True, False], [False, True], [True, True]):
        learned = [True, wanted[0], True, wanted[1]]
        made = said.conversation(SAID, None, learned)
        spans = [made.text[start:stop] for start, stop in made.spans]
        assert [("a1" in "".join(spans)), ("a2" in "".join(spans))] == wanted
        assert made.text == said.conversation(SAID).text
    with pytest.raises(BadConversation, match="no assistant's text that is to be learned"):
        said.conversation(SAID, None, [True, False, True, False])


def test_blocks_that_are_not_one_a_message_do_not_show_which_are_learned() -> None:
    twice = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% generation %}!{% endgeneration %}{% endfor %}"
    )
    assert template(twice).conversation(SAID).text == "q1!a1!q2!a2!"
    with pytest.raises(BadConversation, match="block for each of the assistant"):
        template(twice).conversation(SAID, None, [True, False, True, True])


def test_templates_get_tools_or_that_there_are_none() -> None:
    asked = "{% if tools is not none %}{{ tools | tojson }}{% endif %}" + CHATML
    assert template(asked).conversation(SAID).text.startswith("<|im_start|>user")
    tools = [{"type": "function", "function": {"name": "add"}}]
    said = template(asked).conversation(SAID, tools)
    assert said.text.startswith('[{"type": "function", "function": {"name": "add"}}]<|im_start|>')
    assert [said.text[slice(*span)] for span in said.spans] == ["a1<|im_end|>\n", "a2<|im_end|>\n"]


def test_a_template_that_fails_on_every_row_is_at_fault_and_else_the_row() -> None:
    broken = template("{{ today() }}" + CHATML)
    with pytest.raises(
        BadTemplate, match="fails on every conversation, even the shortest: 'today'"
    ):
        broken.conversation(SAID)
    strict = template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + CHATML
    )
    for talk, fine in ((TALK, False), (SAID, True), (TALK, False)):
        if fine:
            assert strict.conversation(talk).spans
        else:
            with pytest.raises(BadConversation, match="is refused by the chat template: no system"):
                strict.conversation(talk)
