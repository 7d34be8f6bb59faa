"""vLLM with our loader has the same parameters, bit for bit, and gives the same answers as with its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.unit.small_model import llama_tensors, write_folder
from trivet.framework.model.convert import convert
from trivet.framework.model.steps import Wanted

HERE = Path(__file__).parent

# As small as vLLM's attention on the CPU takes a model.
CONFIG = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """One of each family; the Llama's head is tied to its embedding, and Qwen2 has biases."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for family, name in CLASSES.items():
        config = {**CONFIG, "architectures": [name], "model_type": family, "tie_word_embeddings": family == "llama"}
        write_folder(folder / family, llama_tensors(config), config)
    return folder


def answers(*cases):
    """What vLLM has loaded in each case, one after the other, and its greedy tokens."""
    command = [sys.executable, HERE / "answer.py", json.dumps(cases, default=str)]
    environment = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    said = [
        json.loads(line.removeprefix("@answer ")) for line in done.stdout.splitlines() if line.startswith("@answer")
    ]
    assert len(cases) == len(said), (done.stdout + done.stderr)[-3000:]
    assert len([1 for _, how, _ in cases if how == "trivet"]) == (done.stdout + done.stderr).count("event=load model=")
    return said


@pytest.mark.parametrize("family", CLASSES)
def test_every_parameter_and_every_token_is_the_same(family, checkpoints, tmp_path):
    packed, flat = tmp_path / "packed", tmp_path / "flat"
    convert(checkpoints / family, packed)
    convert(checkpoints / family, flat, Wanted(target="torch", shard_bytes=200_000))
    wanted, *found = answers(
        (checkpoints / family, "auto", {}),
        (checkpoints / family, "trivet", {}),
        (packed, "trivet", {}),
        (flat, "trivet", {"verify": False, "engine": "buffered", "threads": 1}),
    )

    assert 16 == len(wanted["tokens"])
    for each in found:
        assert wanted == each


def serve(model, options, port):
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "trivet"]
    command += ["--model-loader-extra-config", json.dumps(options), "--enforce-eager", "--max-model-len", "128"]
    return subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def test_a_package_is_served(checkpoints, tmp_path):
    convert(checkpoints / "qwen3", tmp_path / "package")
    port = free_port()
    body = {"model": str(tmp_path / "package"), "prompt": [3, 4, 5], "max_tokens": 4, "ignore_eos": True}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    server = serve(tmp_path / "package", {"verify": True}, port=port)
    try:
        while server.poll() is None:
            try:
                with urllib.request.urlopen(asked) as response:
                    answered = json.load(response)
                break
            except OSError:  # not there yet
                time.sleep(0.5)
    finally:
        os.killpg(server.pid, signal.SIGINT)
        said = server.communicate(timeout=60)[0]

    assert server.returncode is not None, said
    assert 4 == answered["usage"]["completion_tokens"]
    assert "event=load model=package" in said


def test_an_unknown_option_is_said_and_ends_the_start(checkpoints):
    server = serve(checkpoints / "llama", {"verfy": False}, port=free_port())
    said = server.communicate()[0]

    assert 0 != server.returncode
    assert "verfy is not known to --load-format trivet" in said
