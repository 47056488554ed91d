"""`bench serve --print`: what it prints starts the same server elsewhere."""

from __future__ import annotations

import asyncio
import json
import shlex
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from servers.basics.errors import InvalidInput
from servers.sglang.schedulers import SglangScheduler
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.recipes import DeploymentRecipe
from tests.harness import in_process
from tests.loopback import on_loopback

LLAMA = ("--model", "llama-3.1-8b")
TURNSTILE = (*LLAMA, "--policy", "turnstile")
ROOT = Path(__file__).parents[2]
VERSION = version("turnstile-bench")
FILES = ("answer.json", "sweep.json")
HARD = """/t/$HOME $(id) "a" 'b' `c`\n#: - ü😀"""
"""Characters that a shell, YAML, Compose or Kubernetes could take for their own."""


def printed(kind: str, *options: str) -> str:
    code, out, err = in_process.bench("serve", "--print", kind, *options)
    assert (code, err) == (0, ""), err
    return out


def refused(kind: str, *options: str) -> str:
    code, out, err = in_process.bench("serve", "--print", kind, *options)
    assert (code, out) == (2, "")
    return err


def test_a_command_has_the_settings_and_the_policy_of_the_server() -> None:
    limits = ("--gpus", "2", "--step-tokens", "4096", "--max-model-len", "32768")
    words = shlex.split(printed("command", *TURNSTILE, *limits, "--watermark", "0.05"))
    assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    for flag, value in {
        "--tensor-parallel-size": "2",
        "--max-num-batched-tokens": "4096",
        "--max-model-len": "32768",
        "--watermark": "0.05",
        "--scheduler-cls": "turnstile_vllm.Scheduler",
    }.items():
        assert words[words.index(flag) + 1] == value
    options = json.loads(words[words.index("--additional-config") + 1])
    assert options == {"turnstile": {"policy": "turnstile"}}


def test_stock_vllm_needs_no_plugin() -> None:
    for options in (LLAMA, (*LLAMA, "--policy", "fcfs(long_prefill=512)")):
        assert "turnstile" not in printed("compose", *options)
    assert "--long-prefill-token-threshold 512" in printed(
        "command", *LLAMA, "--policy", "fcfs(long_prefill=512)"
    )


def test_no_character_of_a_flag_changes_on_its_way() -> None:
    options = (*TURNSTILE, "--", "--chat-template", HARD)
    assert shlex.split(printed("command", *options))[-1] == HARD
    engine = yaml.safe_load(printed("compose", *options))["services"]["vllm-0"]
    assert HARD.replace("$", "$$") in engine["command"]
    _, pods = yaml.safe_load_all(printed("k8s", *options))
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert HARD.replace("$(", "$$(") in container["args"]


def test_several_engines_in_compose_have_gpus_of_their_own_behind_a_healthy_router() -> None:
    options = (*TURNSTILE, "--gpus", "2", "--replicas", "2", "--router", "sticky")
    compose = yaml.safe_load(printed("compose", *options))
    services = compose["services"]
    assert set(compose["volumes"]) == {"huggingface", "recordings"}
    devices = [
        services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name in ("vllm-0", "vllm-1")
    ]
    assert devices == [["0", "1"], ["2", "3"]]
    router = services["router"]
    assert f"pip install turnstile-bench=={VERSION} &&" in router["command"][-1]
    assert router["volumes"] == ["recordings:/recordings"]
    assert "http://vllm-0:8000 http://vllm-1:8000" in router["command"][-1]
    assert router["depends_on"]["vllm-1"] == {"condition": "service_healthy"}
    assert any("TURNSTILE_GATEWAY_TOKEN=${TURNSTILE_GATEWAY_TOKEN:?" in e for e in
               router["environment"])  # fmt: skip
    assert [name for name in services if "ports" in services[name]] == ["router"]
    assert router["ports"] == ["127.0.0.1:8000:8000"]


def test_one_engine_is_published_on_loopback_by_itself() -> None:
    services = yaml.safe_load(printed("compose", *TURNSTILE))["services"]
    assert list(services) == ["vllm-0"]
    assert services["vllm-0"]["ports"] == ["127.0.0.1:8000:8000"]
    assert (
        f"pip install --no-deps turnstile-vllm=={VERSION}\n"
        in services["vllm-0"]["build"]["dockerfile_inline"]
    )


def test_kubernetes_gets_a_set_of_engines_with_stable_names_for_the_router() -> None:
    options = (*TURNSTILE, "--replicas", "3", "--router", "vllm-router:consistent_hash")
    objects: list[Any] = list(yaml.safe_load_all(printed("k8s", *options)))
    kinds = ["Service", "StatefulSet", "Service", "Deployment"]
    assert [o["kind"] for o in objects] == kinds
    assert [o["metadata"]["name"] for o in objects] == ["vllm", "vllm", "router", "router"]
    service, engines, _, router = objects
    assert service["spec"]["clusterIP"] == "None"
    assert (engines["spec"]["replicas"], engines["spec"]["serviceName"]) == (3, "vllm")
    # By default the second would wait until the first has loaded its model.
    assert engines["spec"]["podManagementPolicy"] == "Parallel"
    pod = engines["spec"]["template"]["spec"]
    (engine,), (plugin,) = pod["containers"], pod["initContainers"]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert {"name": "PYTHONPATH", "value": plugin["command"][4]} in engine["env"]
    assert plugin["command"][-1] == f"turnstile-vllm=={VERSION}"
    (routing,) = router["spec"]["template"]["spec"]["containers"]
    assert "volumeMounts" not in routing, "vllm-router records nothing"
    assert (
        "http://vllm-0.vllm:8000 http://vllm-1.vllm:8000 http://vllm-2.vllm:8000"
        in (routing["command"][-1])
    )


def test_the_gateway_in_kubernetes_records_into_a_volume_of_its_pod() -> None:
    options = (*TURNSTILE, "--replicas", "2", "--router", "sticky")
    *_, router = yaml.safe_load_all(printed("k8s", *options))
    pod = router["spec"]["template"]["spec"]
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == ("recordings", "/recordings")
    assert pod["volumes"] == [{"name": "recordings", "emptyDir": {}}]


def test_the_router_in_kubernetes_starts_when_all_engines_are_ready() -> None:
    options = (*TURNSTILE, "--replicas", "2", "--router", "sticky")
    *_, router = yaml.safe_load_all(printed("k8s", *options))
    pod = router["spec"]["template"]["spec"]
    assert pod["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    *_, wait = pod["initContainers"][0]["command"]
    assert "http://vllm-0.vllm:8000 http://vllm-1.vllm:8000; do" in wait

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.path == "/health" else 404)

    async def are_ready(*urls: str) -> bool:
        once = wait.removeprefix("until ").removesuffix("; do sleep 5; done")
        for engine, url in zip(("vllm-0.vllm", "vllm-1.vllm"), urls, strict=True):
            once = once.replace(f"http://{engine}:8000", url)
        process = await asyncio.create_subprocess_exec("sh", "-c", once)
        return await process.wait() == 0

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", health)
        async with on_loopback(app) as ready:
            assert await are_ready(ready, ready)
            assert not await are_ready(ready, f"{ready}/loads-its-model")

    asyncio.run(run())


def test_weights_stay_in_the_pod_when_an_engine_starts_again() -> None:
    _, engines = yaml.safe_load_all(printed("k8s", *TURNSTILE))
    pod = engines["spec"]["template"]["spec"]
    mount = {"name": "huggingface", "mountPath": "/root/.cache/huggingface"}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert {"name": "huggingface", "emptyDir": {}} in pod["volumes"]


def test_the_production_stack_gets_values_of_its_chart() -> None:
    """The names of values are those of the chart's values.schema.json and templates, 0.1.12."""
    options = (*TURNSTILE, "--replicas", "3", "--router", "sticky", "--gpus", "2")
    values = yaml.safe_load(printed("production-stack", *options))
    (spec,) = values["servingEngineSpec"]["modelSpec"]
    assert (spec["repository"], spec["tag"]) == ("vllm/vllm-openai", "v0.32.0")
    assert (spec["modelURL"], spec["replicaCount"]) == ("meta-llama/Llama-3.1-8B-Instruct", 3)
    assert spec["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    arguments = shlex.split(printed("command", *TURNSTILE, "--gpus", "2"))
    assert (
        spec["vllmConfig"]
        == {
            "enablePrefixCaching": True,  # else the chart adds --no-enable-prefix-caching
            "tensorParallelSize": 2,
            "extraArgs": arguments[arguments.index("2") + 1 :],
        }
    )
    (mount,) = spec["extraVolumeMounts"]
    assert spec["initContainer"]["extraVolumeMounts"] == [mount]
    assert spec["initContainer"]["command"][4:] == ["/turnstile", f"turnstile-vllm=={VERSION}"]
    assert spec["extraVolumes"] == [{"name": mount["name"], "emptyDir": {}}]
    assert {"name": "PYTHONPATH", "value": mount["mountPath"]} in spec["env"]
    # Else a program's turns go to engines that do not have its KV.
    routing = values["routerSpec"]
    assert (routing["routingLogic"], routing["sessionKey"]) == ("session", "X-Session-ID")
    # The engines' key, without which they do not tell it which models they have.
    assert [key for key in spec["env"] if key["name"] == "VLLM_API_KEY"] == routing["env"]
    stock = yaml.safe_load(printed("production-stack", *LLAMA))["servingEngineSpec"]["modelSpec"]
    assert "initContainer" not in stock[0]


AB = (*TURNSTILE, "--router", "vllm-router:consistent_hash", "--ab")


def test_an_ab_test_has_one_more_engine_whose_policy_decides_as_stock_vllm() -> None:
    services = yaml.safe_load(printed("compose", *AB))["services"]
    assert list(services) == ["vllm-0", "vllm-stock", "router"]
    new, stock = ([*services[name]["command"]] for name in ("vllm-0", "vllm-stock"))
    assert new.pop(new.index("--additional-config") + 1) == '{"turnstile": {"policy": "turnstile"}}'
    assert stock.pop(stock.index("--additional-config") + 1) == '{"turnstile": {"policy": "fcfs"}}'
    assert new == stock
    assert "http://vllm-0:8000 http://vllm-stock:8000" in services["router"]["command"][-1]
    ports = [services[name]["ports"] for name in services]
    assert ports == [["127.0.0.1:8001:8000"], ["127.0.0.1:8002:8000"], ["127.0.0.1:8000:8000"]]
    objects: list[Any] = list(yaml.safe_load_all(printed("k8s", *AB)))
    names = ["vllm", "vllm", "vllm-stock", "vllm-stock", "router", "router"]
    assert [o["metadata"]["name"] for o in objects] == names
    command = objects[-1]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "http://vllm-0.vllm:8000 http://vllm-stock-0.vllm-stock:8000" in command


def test_engines_share_a_folder_in_memory_for_the_metrics_of_their_processes() -> None:
    engine = yaml.safe_load(printed("compose", *TURNSTILE))["services"]["vllm-0"]
    (folder,) = engine["tmpfs"]
    assert f"PROMETHEUS_MULTIPROC_DIR={folder}" in engine["environment"]
    _, engines = yaml.safe_load_all(printed("k8s", *TURNSTILE))
    pod = engines["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "PROMETHEUS_MULTIPROC_DIR", "value": folder} in container["env"]
    assert {"name": "metrics", "mountPath": folder} in container["volumeMounts"]
    assert {"name": "metrics", "emptyDir": {"medium": "Memory"}} in pod["volumes"]


def test_an_offload_tier_of_vllm_becomes_its_flags() -> None:
    tier = ("--policy", "continuum+native", "--offload-gb", "40")
    words = shlex.split(printed("command", *LLAMA, *tier))
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector"] == "OffloadingConnector"
    assert transfer["kv_connector_extra_config"]["cpu_bytes_to_use"] == 40_000_000_000
    assert '{"turnstile": {"policy": "continuum"}}' in words


def test_the_package_of_the_plug_in_has_the_version_that_recipes_install() -> None:
    plugin = tomllib.loads((ROOT / "plugins/turnstile-vllm/pyproject.toml").read_text())
    assert plugin["project"]["version"] == VERSION


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("compose", (*TURNSTILE, "--replicas", "2"), "add --router sticky"),
        ("command", ("--model", "tiny"), "generated for tests"),
        (
            "production-stack",
            (*TURNSTILE, "--replicas", "2", "--router", "prefix-aware"),
            "use --router sticky, which becomes its session routing",
        ),
        ("command", AB, "--ab: add --print compose or --print k8s"),
        ("compose", (*LLAMA, *AB[-3:]), "--ab: compares a policy with stock vLLM; add one"),
        ("compose", (*AB, "--replicas", "2"), "--ab: one engine has the policy and one has not"),
        (
            "k8s",
            (*TURNSTILE, "--router", "sticky", "--ab"),
            "--ab: add --router vllm-router:consistent_hash",
        ),
        ("compose", ("--model", "."), "give the model's Hugging Face name"),
        ("compose", (*TURNSTILE, "--router", "sticky"), "add --replicas with at least 2"),
        (
            "k8s",
            (*TURNSTILE, "--replicas", "2", "--router", "sglang-router:cache_aware"),
            "use a router of bench gateway, or vllm-router:consistent_hash",
        ),
        ("k8s", (*TURNSTILE, "--replicas", "2", "--router", "stiky"), "did you mean sticky?"),
        (
            "command",
            (*LLAMA, "--policy", "lmcache", "--offload-gb", "9"),
            "use --policy fcfs+native",
        ),
        (
            "command",
            (*LLAMA, "--policy", "continuum+native"),
            "give the DRAM of its tier with --offload-gb",
        ),
        (
            "command",
            (*LLAMA, "--kv-blocks", "400"),
            "--kv-blocks: --print does not write it; remove it",
        ),
        ("compose", (*LLAMA, "--port", "80"), "--port: --print does not write it; remove it"),
        (
            "command",
            (*LLAMA, "--policy", "clairvoyant"),
            "knows the trace's future, so it runs in virtual time only",
        ),
        ("k8s", (*LLAMA, "--policy", "unlimited-kv"), "has unlimited KV memory, so it runs in"),
        ("command", (*LLAMA, "--policy", "fcfs,continuum"), "a server runs one policy; give one"),
        ("command", (*LLAMA, "--", "--max-num-seqs", "4"), "use --max-num-seqs before the --"),
    ],
)
def test_what_a_recipe_cannot_say_is_refused_with_the_remedy(
    kind: str, options: tuple[str, ...], message: str
) -> None:
    assert message in refused(kind, *options)


def test_a_policy_of_ones_own_runs_only_where_its_module_is() -> None:
    recipe = DeploymentRecipe(ServerConfig(model="llama-3.1-8b", policy="mine:Mine"))
    assert '{"turnstile": {"policy": "mine:Mine"}}' in recipe.command()
    for text in (recipe.compose, recipe.k8s):
        with pytest.raises(InvalidInput, match="containers do not have its module"):
            text()


@pytest.mark.usefixtures("run")
def test_the_winner_of_a_run_is_served_with_the_settings_of_the_run() -> None:
    answer, sweep = (json.loads(Path("run", name).read_bytes()) for name in FILES)
    Path("run/answer.json").write_text(json.dumps({**answer, "winners": ["continuum"]}))
    Path("run/sweep.json").write_text(
        json.dumps({**sweep, "limits": {**sweep["limits"], "step_tokens": 1024}})
    )
    words = shlex.split(printed("command", "--from", "run"))
    assert words[words.index("--max-num-batched-tokens") + 1] == "1024"
    assert '{"turnstile": {"policy": "continuum"}}' in words
    assert "the run of --from decides it" in refused("command", "--from", "run", "--gpus", "2")
    limits = {**sweep["limits"], "speculate": "eagle3:3,accept=0.8,0.64,0.512,draft=0.05"}
    Path("run/sweep.json").write_text(json.dumps({**sweep, "limits": limits}))
    code, out, err = in_process.bench("serve", "--print", "command", "--from", "run")
    assert (code, "speculative" in out) == (0, False)
    assert '--speculative-config \'{"method":"eagle3","num_speculative_tokens":3}\'' in err
    Path("run/answer.json").unlink()
    assert "write it with: bench report run" in refused("command", "--from", "run")


def wins(router: str, split: dict[str, Any] | None = None) -> None:
    """Let continuum win the run behind a router, with two replicas."""
    answer, sweep = (json.loads(Path("run", name).read_bytes()) for name in FILES)
    name = f"continuum@{router}" + (f"@{split['name']}" if split else "")
    (variant,) = (v for v in sweep["variants"] if v["name"] == "continuum")
    variant |= {"name": name, "router": {"name": router}}
    if split is not None:
        variant["disaggregate"] = split
    sweep |= {"variants": [variant], "replicas": 2, "gpus": 4}
    Path("run/sweep.json").write_text(json.dumps(sweep))
    Path("run/answer.json").write_text(json.dumps({**answer, "winners": [name]}))


@pytest.mark.usefixtures("run")
def test_a_winner_behind_a_router_is_served_behind_it() -> None:
    wins("thunderagent(order=arrival)")
    services = yaml.safe_load(printed("compose", "--from", "run"))["services"]
    assert list(services) == ["vllm-0", "vllm-1", "router"]
    assert "--router 'thunderagent(order=arrival)'" in services["router"]["command"][-1]
    engine = services["vllm-1"]["command"]
    assert engine[engine.index("--tensor-parallel-size") + 1] == "2"
    assert '{"turnstile": {"policy": "continuum"}}' in engine


@pytest.mark.usefixtures("run")
def test_a_winner_with_separate_engines_for_prompts_is_refused() -> None:
    wins("sticky", {"name": "1P1D", "prefill": 1, "decode": 1})
    assert "separate engines for prompts and answers (1P1D)" in refused("k8s", "--from", "run")


@pytest.mark.usefixtures("run")
def test_a_scheduler_of_sglang_is_refused_with_the_flags_that_start_it() -> None:
    answer, sweep = (json.loads(Path("run", name).read_bytes()) for name in FILES)
    scheduler = {"name": "lpm(eviction=slru)", "policy_source": SglangScheduler.source}
    behind = {**scheduler, "name": "lpm(eviction=slru)@sticky", "router": {"name": "sticky"}}
    for variant in (scheduler, behind):
        Path("run/sweep.json").write_text(json.dumps({**sweep, "variants": [variant]}))
        Path("run/answer.json").write_text(json.dumps({**answer, "winners": [variant["name"]]}))
        code, out, err = in_process.bench("serve", "--from", "run")
        assert (code, out) == (2, "")
        assert "--schedule-policy lpm --radix-eviction-policy slru, " in err
