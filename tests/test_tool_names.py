"""The names of the tools that an answer calls."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.tool_names import call_names, command_names, tool_names, tools_of_answer
from tests.growth import LINEAR, growth
from tests.tool_call_formats import FORMATS


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("ls -la", ("ls",)),
        ("cd /testbed && pytest -q 2>&1 | tail -5", ("cd", "pytest", "tail")),
        ("a; b || c\nd & e", ("a", "b", "c", "d", "e")),
        ("PYTHONPATH=. DEBUG='a b' python x.py", ("python",)),
        ("OUT=$(ls; pwd) make all", ("make",)),
        ("(cd src; make)", ("cd", "make")),
        ("echo 'a && b; c | d'", ("echo",)),
        ('git commit -m "fix; done" && git push', ("git", "git")),
        ("cat > f.py <<'EOF'\nimport os; os.x | y\nEOF\npython f.py", ("cat", "python")),
        ("cat <<-END | sort\n\tb; c\n\tEND\nwc f", ("cat", "sort", "wc")),
        ("wc <<< 'a; b'", ("wc",)),
        ("for f in *.py; do grep x $f; done", ("grep",)),
        ("if [ -f a ]; then cat a; else touch a; fi", ("[", "cat", "touch")),
        ("# look; around\npwd", ("pwd",)),
        ("make > out.txt 2>&1", ("make",)),
        ("> out.txt echo hi", ("echo",)),
        ("sed -e s/a/b/ \\\n  -e s/c/d/ f", ("sed",)),
        ("find . -name '*.py' -exec wc {} \\;", ("find",)),
        ("./tests/runtests.py admin", ("./tests/runtests.py",)),
        ("grep 'never closed; ls", ("grep",)),
        ("A=1; B=2", ()),
        ("", ()),
    ],
)
def test_a_script_gives_the_first_word_of_each_command(script: str, names: tuple[str, ...]) -> None:
    assert command_names(script) == names


def test_thinking_before_the_block_does_not_break_parsing() -> None:
    text = "<think>Maybe ```bash\nrm -rf x\n```?</think>\nTHOUGHT: run\n\n```bash\ncd x && ls\n```"
    assert tool_names(text) == ("cd", "ls")


def test_thinking_that_used_up_the_tokens_calls_nothing() -> None:
    assert tool_names("<think>\nThe user wants a command, so I need one ```bash block.\n") == ()


def test_a_block_that_is_still_open_calls_nothing() -> None:
    assert tool_names("```bash\nls") == ()


def test_blocks_in_other_languages_call_nothing() -> None:
    assert tool_names("```python\nimport os\n```\nand\n```\nls\n```") == ()


def test_openai_calls_give_their_function_names() -> None:
    calls = [
        {"type": "function", "function": {"name": "fetch_url", "arguments": "{}"}},
        {"type": "function_call", "name": "search"},
    ]
    assert tool_names(calls) == ("fetch_url", "search")


def test_a_call_written_in_the_text_counts() -> None:
    text = '<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call>'
    assert tool_names(text) == ("search",)


@pytest.mark.parametrize("name", FORMATS)
def test_the_formats_of_models_give_the_names_of_their_calls(name: str) -> None:
    _, answer, names = FORMATS[name]
    assert tool_names(answer) == names
    assert tools_of_answer(f"<think>{answer}</think>Done.") == ()


@pytest.mark.parametrize(
    ("answer", "tools"),
    [
        ("The answer is [1](x), a < b and <b>bold</b>.", ()),
        ("<|channel|>final<|message|>Call the function.<|return|>", ()),
        ('<|tools_prefix|>[{"search": {"q": "x"}}]<|tools_suffix|>', ("unknown",)),
        ('<tool_call>\n{"name": "search", "argum', ("unknown",)),
        ("[TOOL_CALLS]", ("unknown",)),
        ("[see(x=1), and [that]]", ()),
    ],
)
def test_only_an_answer_without_the_marker_of_a_call_plainly_has_no_tools(
    answer: str, tools: tuple[str, ...]
) -> None:
    assert tools_of_answer(answer) == tools


def test_the_tools_of_an_answer_that_was_cut_are_unknown_unless_it_calls_one() -> None:
    assert tools_of_answer("First I will", cut=True) == ("unknown",)
    assert tools_of_answer("[get_time()]", cut=True) == ("get_time",)


@pytest.mark.parametrize(
    "piece", ["<function=a>", "[TOOL_CALLS]a{", '<invoke name="', "[f(", "<a_"]
)
def test_the_time_to_parse_an_answer_is_linear_in_its_length(piece: str) -> None:
    assert growth(lambda length: tools_of_answer(piece * (length // len(piece))), 5_000) < LINEAR


def test_terminal_bench_gives_first_words_of_keystrokes() -> None:
    answer = {
        "analysis": "use {braces}",
        "plan": "look",
        "commands": [
            {"keystrokes": "ls -la\n", "duration": 0.1},
            {"keystrokes": "cd src && make\n", "duration": 5.0},
        ],
    }
    text = "I will {first} look.\n" + json.dumps(answer)
    assert tool_names(text) == ("ls", "cd", "make")


@pytest.mark.parametrize("answer", [None, "", [], "Done, nothing more to do."])
def test_an_answer_without_calls_has_no_tools(answer: str | None) -> None:
    assert tool_names(answer) == ()


@pytest.mark.parametrize(
    ("tool", "command", "names"),
    [
        ("terminal", "cd x && make", ("cd", "make")),
        ("bash", "", ("bash",)),
        ("file_editor", "view", ("file_editor",)),  # an editor's own command
        ("finish", "", ("finish",)),
    ],
)
def test_the_names_of_a_shell_call_are_those_of_its_commands(
    tool: str, command: str, names: tuple[str, ...]
) -> None:
    assert call_names(tool, command) == names


shellish = st.text(st.sampled_from(string.ascii_lowercase + " \n\t'\"`$(){};|&<>\\#=-!.E"))


@given(shellish | st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    assert all(isinstance(name, str) and name for name in tool_names(text))
    assert all(isinstance(name, str) and name for name in command_names(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["commands", "keystrokes", "name", "function", "arguments"]), inner
    ),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_any_json_can_be_parsed(value: object) -> None:
    tool_names(json.dumps(value))
    if isinstance(value, list):
        tool_names(value)
