"""Names, dotted paths and entry points of installed packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servers.basics.errors import InvalidPlugin, UnknownName
from servers.basics.registry import Registry

COLOURS = Registry(
    kind="colour",
    group="turnstile.colours",
    built_in={"red": "colours_of_ours:RED", "blue": "colours_of_ours:BLUE"},
    remedy="give your own as my_module:MY_COLOUR",
    option="--colour",
)


@pytest.fixture
def our_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "colours_of_ours.py", "RED = 'the red one'")
    monkeypatch.syspath_prepend(str(tmp_path))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def install(
    folder: Path, package: str, entries: str, monkeypatch: pytest.MonkeyPatch, module: str = ""
) -> None:
    """Write the files that pip installs for a package with these entry points."""
    metadata = folder / f"{package}-1.2.dist-info"
    write(metadata / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2")
    write(metadata / "entry_points.txt", f"[turnstile.colours]\n{entries}")
    write(folder / f"{package}.py", module)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.usefixtures("our_colours")
def test_a_built_in_name_is_found() -> None:
    assert COLOURS.load("red") == "the red one"
    assert COLOURS.names() == ["red", "blue"]
    assert COLOURS.source("red") is None


def test_listing_names_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "raises", "pink = raises:PINK", monkeypatch, "raise RuntimeError")
    assert COLOURS.names() == ["red", "blue", "pink"]
    assert "raises" not in sys.modules


def test_importing_the_registry_imports_no_policy() -> None:
    program = "import sys, servers.basics.registry; sys.exit('servers.policies' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bleu", r"--colour bleu: no colour is called 'bleu'; did you mean blue\? "),
        ("x", "known: red, blue; or give your own as my_module:MY_COLOUR"),
        ("", "no colour is called ''"),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(text: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        COLOURS.load(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"syntax_a.py": "x = 1\ndef f(:"},
            "SyntaxError: invalid syntax at {}/syntax_a.py:2; correct that line",
        ),
        (
            {"syntax_b.py": "import syntax_c", "syntax_c.py": "\n\nx = ("},
            "SyntaxError: '(' was never closed at {}/syntax_c.py:3; correct that line",
        ),
        (
            {"raises_d.py": "x = 1\nx.y"},
            "AttributeError: 'int' object has no attribute 'y' at {}/raises_d.py:2; "
            "correct that line",
        ),
        (
            {"imports_e.py": "import help_colors", "help_colours.py": ""},
            "ModuleNotFoundError: No module named 'help_colors' at {}/imports_e.py:1; did you mean "
            "help_colours? Correct that line, or install help_colors into this environment",
        ),
        (
            {"imports_f.py": "import nowhere_at_all.deep"},
            "ModuleNotFoundError: No module named 'nowhere_at_all' at {}/imports_f.py:1; correct "
            "that line, or install nowhere_at_all into this environment",
        ),
    ],
)
def test_an_error_in_a_module_of_the_user_names_the_line_to_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = f"{next(iter(files)).removesuffix('.py')}:RED"
    with pytest.raises(InvalidPlugin) as raised:
        COLOURS.load(path)
    expected = f"--colour {path}: the import failed with {message.format(tmp_path)}"
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("my_colous:RED", "did you mean my_colours? Otherwise, run where"),
        ("my_colous.RED", "did you mean my_colours? Otherwise, run where"),
        ("colour_pack.warn:RED", "did you mean warm? Otherwise, run where"),
        ("zebra:RED", "No module named 'zebra'; run where it can be imported, or install it"),
    ],
)
def test_a_misspelt_module_is_answered_with_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, hint: str
) -> None:
    write(tmp_path / "my_colours.py", "RED = 1")
    write(tmp_path / "colour_pack/__init__.py", "")
    write(tmp_path / "colour_pack/warm.py", "RED = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "colour_pack", raising=False)
    with pytest.raises(InvalidPlugin) as raised:
        COLOURS.load(path)
    assert hint in str(raised.value)


@pytest.mark.parametrize("separator", [":", "."])
def test_a_dotted_path_is_also_searched_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str
) -> None:
    name = "colours_by_colon" if separator == ":" else "colours_by_dot"
    write(tmp_path / f"{name}.py", "GREEN = 'mine'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert COLOURS.load(f"{name}{separator}GREEN") == "mine"


def test_a_dotted_path_may_name_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "colour_package/__init__.py", "")
    write(tmp_path / "colour_package/warm.py", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert COLOURS.load("colour_package.warm").__name__ == "colour_package.warm"


def test_an_entry_point_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme_pink", "pink = acme_pink:PINK", monkeypatch, "PINK = 'pink!'")
    assert COLOURS.load("pink") == "pink!"
    assert COLOURS.source("pink") == "acme_pink 1.2"
    with pytest.raises(UnknownName, match="did you mean pink"):
        COLOURS.load("pinc")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", r"has no PINK"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_an_entry_point_that_cannot_be_imported_names_the_package_and_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    name = f"acme_broken_{abs(hash(module))}"
    install(tmp_path, name, f"pink = {name}:PINK", monkeypatch, module)
    with pytest.raises(InvalidPlugin) as raised:
        COLOURS.load("pink")
    line = str(raised.value)
    assert line.startswith(f"the colour 'pink' of {name} 1.2 cannot be loaded from {name}:PINK: ")
    assert message in line
    assert "\n" not in line


def test_a_name_registered_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "one", "acme_one", "pink = acme_one:PINK", monkeypatch)
    install(tmp_path / "two", "acme_two", "pink = acme_two:PINK", monkeypatch)
    with pytest.raises(InvalidPlugin, match=r"'pink' .* twice, by acme_one 1\.2 and by"):
        COLOURS.load("red")


def test_a_package_cannot_register_a_built_in_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme_red", "red = acme_red:RED", monkeypatch)
    with pytest.raises(InvalidPlugin, match=r"turnstile-bench and by acme_red 1\.2; uninstall"):
        COLOURS.names()


def test_the_name_of_an_entry_point_must_be_valid_as_a_folder_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme_slash", "a/b = acme_slash:X", monkeypatch)
    with pytest.raises(InvalidPlugin, match=r"acme_slash 1\.2 .* 'a/b'"):
        COLOURS.names()
