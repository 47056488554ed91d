"""Answers with tool calls in the formats of models, as their chat templates and guides write them.

For each format: vLLM's parser that reads it (None if that parser cannot be run on a text), an
answer that calls tools, and the names of the tools.
"""

from __future__ import annotations

from typing import NamedTuple


class Called(NamedTuple):
    parser: str | None
    answer: str
    names: tuple[str, ...]


BOTH = ("get_weather", "get_time")
FORMATS = {
    "Hermes": Called(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "<function=x>"}}\n</tool_call>',
        ("get_weather",),
    ),
    "Qwen3-Coder": Called(
        "qwen3_coder",
        "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n"
        '{"name": "x", "arguments": {}}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        BOTH,
    ),
    "Mistral v11 and later": Called(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        BOTH,
    ),
    "Mistral with call ids": Called(
        None,  # it takes [CALL_ID] for a part of the name
        '[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}',
        ("get_weather",),
    ),
    "GLM-4.5": Called(
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "</tool_call>\n<tool_call>get_time</tool_call>",
        BOTH,
    ),
    "DeepSeek V3": Called(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        "get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
    ),
    "DeepSeek V3.1": Called(
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        BOTH,
    ),
    "DeepSeek V3.2": Called(
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="get_time">\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        BOTH,
    ),
    "DeepSeek V4.1": Called(
        "deepseek_v41",
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n'
        '<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
        '</｜DSML｜ invoke>\n<｜DSML｜ invoke name="get_time">\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        BOTH,
    ),
    "MiniCPM5": Called(
        "minicpm5",
        '<function name="get_weather"><param name="city">Paris</param></function>'
        '<function name="get_time"></function>',
        BOTH,
    ),
    "Kimi K3": Called(
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument '
        'key="city" type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|open|>'
        'call tool="get_time" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        BOTH,
    ),
    "Kimi K2": Called(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>'
        "functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        BOTH,
    ),
    "gpt-oss, recipient in the channel": Called(
        None,  # its parser needs the vocabulary of gpt-oss
        "<|channel|>analysis<|message|>I need to=functions.x the weather.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city":"Paris"}<|call|>',
        ("get_weather",),
    ),
    "gpt-oss, recipient in the role": Called(
        None,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary json<|message|>{"city":"Paris"}<|call|>',
        ("get_weather",),
    ),
    "MiniMax M2": Called(
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>'
        '\n</invoke>\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
        BOTH,
    ),
    "pythonic": Called(
        "pythonic", "[get_weather(city='Paris', metric='celsius'), get_time()]", BOTH
    ),
    "Llama 4": Called(
        "llama4_pythonic",
        "<|python_start|>[get_weather(city='Paris')]<|python_end|>",
        ("get_weather",),
    ),
    "OLMo 3": Called(
        "olmo3", '<function_calls>get_weather(city="Paris")\nget_time()</function_calls>', BOTH
    ),
    "Gemma": Called(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        ("get_weather",),
    ),
    "Command A": Called(
        None,  # its parser needs the vocabulary of Command A
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Paris"}}\n]<|END_ACTION|>',
        ("get_weather",),
    ),
}
