"""ThunderAgent's own router, where TURNSTILE_THUNDERAGENT_PYTHON or .venv-thunderagent has it."""

from __future__ import annotations

from pathlib import Path

from harness.replay.identity import RELEASE_PROGRAM
from tests.foreign_routers.replaying import replayed
from tests.foreign_routers.test_sglang_router import conversation


def test_it_keeps_each_program_on_a_server_until_it_is_released(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    done = replayed(
        "tr",
        [conversation(name, 3) for name in names],
        tmp_path,
        project="thunderagent-org",
        text=True,
        ends=(RELEASE_PROGRAM,),
    )
    assert [line["error"] for line in done.lines] == [None] * 9
    for name in names:
        (server,) = set(done.served(name))
        assert {line["replica"] for line in done.lines if line["program_id"] == name} == {server}
    log = (tmp_path / "router.log").read_text()
    assert all(f"Released and removed program: {name}" in log for name in names)
