"""A TOML file describes a GPU: what it gives, and what is wrong with one in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import catalogue
from servers.basics.errors import InvalidInput, UnknownProfile
from servers.profiles import HARDWARE, Hardware, analytic_profile, hardware
from servers.profiles.cpu_time import StepTimes
from servers.profiles.machines.gpu_file import gpu_of_file, with_name
from servers.profiles.machines.gpus import LIST_PRICES
from servers.vllm.launch.command_line import ServerConfig, policy_costs
from servers.vllm.launch.find_vllm import VllmInstallation
from tests.sentences import mentions

H100 = """
name = "ours"
memory = "79.11 GiB"
memory-bandwidth = "3.35 TB/s"
bf16 = "989.5 TFLOP/s"
fp8 = "1.979 PFLOPS"
host-link = "63 GB/s"
gpu-link = "450 GB/s"
host-memory = "200 GB"
price = "2.5 USD/h"
source = "NVIDIA H100 datasheet"
"""
LEAST = 'memory="40 GB"\nmemory_bandwidth="1555 GB/s"\nbf16="312 TFLOPS"\nhost_link="31.5 GB/s"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def read(file: Path, text: str) -> Hardware:
    file.write_text(text)
    return hardware(str(file))


def refusal(file: Path, text: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(file, text)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{file}: ")
    return message.removeprefix(f"{file}: ")


def test_a_file_with_the_numbers_of_the_h100_gives_the_profile_of_the_h100(file: Path) -> None:
    read(file, H100)
    ours, listed = (analytic_profile(gpu, "llama-3.1-8b") for gpu in (str(file), "h100"))
    assert ours.hardware == "ours"
    for field in listed.__slots__:
        assert field == "hardware" or getattr(ours, field) == getattr(listed, field)
    gpu = read(file, H100)
    assert (gpu.offload_gb, gpu.price_usd_per_hour) == (200.0, 2.5)
    assert gpu.source == "NVIDIA H100 datasheet"


def test_without_the_optional_fields_it_is_a_gpu_without_fp8_and_nvlink(file: Path) -> None:
    gpu = read(file, LEAST)
    assert gpu.name == "mine"
    assert gpu.memory_bytes == 40_000_000_000
    assert (gpu.fp8_flops, gpu.link_bytes_per_s, gpu.price_usd_per_hour) == (None, None, None)
    assert gpu.offload_gb == 100.0


@pytest.mark.parametrize(
    ("written", "gib"), [("81559 MiB", 81559 / 1024), ("8.5e10 B", 8.5e10 / 2**30), ("80GiB", 80)]
)
def test_memory_can_be_in_bytes_and_in_binary_units(file: Path, written: str, gib: float) -> None:
    gpu = read(file, LEAST.replace("40 GB", written))
    assert gpu.memory_bytes / 2**30 == pytest.approx(gib)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # missing
        (
            "",
            "lacks memory, memory-bandwidth, bf16, host-link; add for example "
            'memory = "79.1 GiB", memory-bandwidth = "3.35 TB/s", bf16 = "989 TFLOP/s", '
            'host-link = "63 GB/s"',
        ),
        # wrong unit
        (
            'memory = "80 GB/s"',
            "memory is '80 GB/s': wrong unit 'GB/s'; use B, MB, GB, TB, MiB, GiB, TiB, such as "
            '"79.1 GiB"',
        ),
        ('bf16 = "989 GFLOP/s"', "bf16 is '989 GFLOP/s': wrong unit 'GFLOP/s'; use TFLOP/s, "),
        ('host_link = "63 Gb/s"', "host-link is '63 Gb/s': wrong unit 'Gb/s'; use B/s, MB/s, "),
        ('price = "2 EUR/h"', "price is '2 EUR/h': wrong unit 'EUR/h'; use USD/h, such as "),
        ('memory = "80"', "memory is '80': has no unit; use B, MB, "),
        ("memory = 80", 'memory is 80: has no unit; write it as text, such as "79.1 GiB"'),
        # the unit is one, but a thousand times off
        (
            'memory-bandwidth = "3.35 GB/s"',
            "memory-bandwidth is '3.35 GB/s': must be 20 GB/s to 200 TB/s; check the unit, such as "
            '"3.35 TB/s"',
        ),
        ('memory = "80 MB"', "memory is '80 MB': must be 1 GiB to 16 TiB; check the unit"),
        ('bf16 = "1e999 TFLOP/s"', "bf16 is '1e999 TFLOP/s': must be 1 TFLOP/s to 100 PFLOP/s"),
        (
            'fp8 = "1 TFLOP/s"',
            "fp8 is '1 TFLOP/s': is less than bf16, '312 TFLOPS'; exchange them, or remove fp8",
        ),
        ('fp8 = "0 TFLOP/s"', "fp8 is '0 TFLOP/s': must be 1 TFLOP/s to"),
        # wrong type
        ("memory = true", "memory is true: must be a number with its unit as text, such as"),
        ("memory = ['80 GiB']", "memory is ['80 GiB']: must be a number with its unit as text"),
        ('memory = "much"', "memory is 'much': must be a number and its unit, such as"),
        ('memory = "-80 GiB"', "memory is '-80 GiB': must be a number and its unit, such as"),
        ("note = 3", "note is 3: must be text in one line"),
        ('note = "a\\nb"', "note is 'a\\nb': must be text in one line"),
        # unknown
        ('memry = "80 GiB"', "memry is '80 GiB': unknown; did you mean memory?"),
        ('fp9 = "1 TFLOP/s"', "fp9 is '1 TFLOP/s': unknown; the fields are memory, memory-ban"),
        ("[gpu]\nmemory = '80 GiB'", "gpu is a table: unknown; did you mean gpu-link?"),
        ('host-link = "1 GB/s"\nhost_link = "2 GB/s"', "host_link is '2 GB/s': given twice; remo"),
        # names
        (
            'name = "h100"',
            "name is 'h100': is the name of a GPU in bench list hardware",
        ),
        ('name = "a/b"', "name is 'a/b': use up to 64 letters, digits, dots, dashes and undersc"),
        # no TOML
        ("memory = 80 GiB", "not TOML: "),
        ("jps = '0.3'", "jps is '0.3': unknown; the fields are"),
    ],
)
def test_whatever_is_wrong_is_one_line_with_file_field_value_and_remedy(
    file: Path, line: str, message: str
) -> None:
    field = line.partition(" ")[0].replace("_", "-")
    rest = "\n".join(each for each in LEAST.splitlines() if field not in each.replace("_", "-"))
    assert refusal(file, f"{rest}\n{line}" if line else "").startswith(message)


def test_a_file_named_like_a_listed_gpu_needs_another_name(tmp_path: Path) -> None:
    message = refusal(tmp_path / "h100.toml", LEAST)
    assert mentions(message, "bench list hardware", 'name = "my-h100"')


def test_a_path_without_a_usable_file_is_one_line(tmp_path: Path) -> None:
    for path, reason in (("no.toml", "no such file"), (".", "is a directory")):
        (tmp_path / "folder.toml").mkdir(exist_ok=True)
        name = str(tmp_path / ("folder.toml" if path == "." else path))
        with pytest.raises(InvalidInput, match=f"^{name}: {reason}.*; give a file that"):
            hardware(name)


def test_another_suffix_suggests_the_file_that_exists(file: Path, tmp_path: Path) -> None:
    file.write_text(LEAST)
    for path, remedy in (
        (file.with_suffix(".tml"), f"did you mean {file}?"),
        (tmp_path / "none.tml", "or give a name of bench list hardware"),
    ):
        with pytest.raises(UnknownProfile) as refused:
            hardware(str(path))
        assert mentions(str(refused.value), f"--hardware {path}", ".json", ".toml", remedy)
    with pytest.raises(UnknownProfile, match=r"h100\.x: unknown; did you mean h100"):
        hardware("h100.x")


def test_bytes_that_are_no_text_are_one_line(file: Path) -> None:
    file.write_bytes(b"memory = '\xe9'")
    with pytest.raises(InvalidInput, match=r"mine\.toml: not TOML: .*utf-8"):
        hardware(str(file))


def test_a_model_that_does_not_fit_names_the_gpu_and_how_many_would_do(file: Path) -> None:
    read(file, LEAST)
    with pytest.raises(ValueError, match=r"1 x mine: .*; use --gpus 8"):
        analytic_profile(str(file), "llama-3.1-70b", gpus=1)


def test_a_server_takes_its_policys_costs_from_the_file(file: Path) -> None:
    read(file, H100)
    vllm = VllmInstallation("python", "0.32.0", cpu=True, torch=None, has_request_metrics=True)
    configs = [
        ServerConfig(model="llama-3.1-8b", hardware=gpu, step_times=StepTimes.ANALYTIC)
        for gpu in (str(file), "h100")
    ]
    (ours, told), (listed, _) = (policy_costs(config, vllm) for config in configs)
    assert ours == listed
    assert mentions(told, "analytic", "llama-3.1-8b on ours")


def test_a_copy_under_another_name_describes_the_same_gpu(file: Path, tmp_path: Path) -> None:
    for text in (LEAST, H100):
        gpu = read(file, text)
        copy = tmp_path / "copy.toml"
        copy.write_bytes(with_name(file))
        assert gpu_of_file(str(copy)) == gpu
    assert gpu_of_file("h100") is gpu_of_file("profile.json") is gpu_of_file(None) is None


def test_list_prices_are_those_of_listed_gpus_with_their_source_and_date() -> None:
    assert LIST_PRICES.keys() <= HARDWARE.keys()
    for usd_per_h, source, date in LIST_PRICES.values():
        assert 0.1 < usd_per_h < 20
        assert source
        assert date.startswith("20")


def test_a_gpu_without_a_list_price_is_listed_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LIST_PRICES, "l4")
    (l4,) = (row for row in catalogue.hardware() if row[0] == "l4")
    assert l4[2:] == ("", HARDWARE["l4"].source)
