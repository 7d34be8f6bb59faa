import csv
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.system.tiny import FIXTURES, cpu_plan, step
from trivet.base.errors import ResourceError, TrivetError
from trivet.cli.bench import bench
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.filesystem import read_filesystem
from trivet.framework.graph.cost import flops, node_bytes, streamed_bytes
from trivet.framework.graph.plan import Limits
from trivet.serve.bench.decode import measure_decode
from trivet.serve.bench.figure import Measurement, judge, speeds_of_limits
from trivet.serve.bench.kernels import measure_kernels
from trivet.serve.bench.load import cached_share, drop_from_page_cache, first_token_s
from trivet.serve.bench.prefill import measure_prefill
from trivet.serve.bench.rows import COLUMNS, append_csv, to_row
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import Stamp, commit_of
from trivet.serve.bench.steps import decode_steps, own_slots, prefill_steps, refusal
from trivet.serve.bench.table import table

STAMP = Stamp(
    model="tiny", dtype="bfloat16", cpu="a processor", num_threads=2, target="scalar", kernel="6.1", governor=None,
    huge_pages="madvise", trivet="0.1.0", commit="0123456789abcdef", is_dirty=True, date="2026-01-02T03:04:05+00:00",
)  # fmt: skip
SPEEDS = {"memory": 1000.0, "multiply-add": 4000.0, "storage": 100.0}


def matrices(plan):
    """(bytes, elements) of every matrix that a step multiplies with."""
    names = [node.inputs[1] for node in plan.graph.nodes if node.operator == "linear"]
    specs = [plan.graph.values[name] for name in names]
    return sum(spec.bytes({}) for spec in specs), sum(int(np.prod(spec.axes)) for spec in specs)


def small_weights(plan):
    """Bytes of the weights that are vectors: norms, biases, and the frequencies of rope."""
    names = {name for node in plan.graph.nodes for name in node.names if name in plan.graph.weights}
    uses = [name for node in plan.graph.nodes for name in node.names if name in names]
    return sum(plan.graph.values[name].bytes({}) for name in uses if len(plan.graph.values[name].axes) == 1)


def token_bytes(plan):
    return sum(2 * 2 * stream.num_heads * stream.head_dim for stream in plan.graph.streams)


def kept(measurements):
    return [(each.name, each.unit, len(each.samples), dict(each.settings)) for each in measurements]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_decode_step_streams_its_weights_once_and_every_context(family):
    plan = cpu_plan(family, "bfloat16")
    weights = matrices(plan)[0] + small_weights(plan)

    assert weights + 10 * token_bytes(plan) == streamed_bytes(plan.graph, step([[5]], [9]))
    assert weights + (10 + 31 + 1) * token_bytes(plan) == streamed_bytes(plan.graph, step([[5]] * 3, [9, 30, 0]))


def test_a_prefill_streams_its_own_keys_once_however_many_tokens_look_at_them():
    plan = cpu_plan("llama", "bfloat16")

    assert streamed_bytes(plan.graph, step([[5]], [29])) == streamed_bytes(plan.graph, step([[5] * 20], [10]))


def test_the_flops_of_attention_count_every_token_with_each_position_it_sees():
    graph = cpu_plan("llama", "bfloat16").graph
    nodes = tuple(node for node in graph.nodes if node.operator == "attention")
    width = sum(graph.values[node.outputs[0]].axes[1] for node in nodes)

    assert 4 * width * (5 + 6 + 7 + 1) == flops(replace(graph, nodes=nodes), step([[5] * 3, [5]], [4, 0]))


def test_a_prompt_has_the_same_flops_however_it_is_cut():
    graph = cpu_plan("llama", "bfloat16").graph
    parts = [step([[5] * 7], [0]), step([[5] * 12], [7]), step([[5]], [19])]

    assert flops(graph, step([[5] * 20], [0])) == sum(flops(graph, part) for part in parts)


def test_the_flops_of_a_step_are_mostly_two_for_each_weight_of_a_matrix():
    plan = cpu_plan("llama", "bfloat16")
    two_each = 2 * 30 * matrices(plan)[1]
    counted = flops(plan.graph, step([[5] * 30], [0]))

    assert two_each < counted < 1.5 * two_each


def test_a_node_moves_its_rows_too():
    plan = cpu_plan("llama", "bfloat16")
    node = next(node for node in plan.graph.nodes if node.operator == "silu_mul")
    width = plan.graph.values[node.outputs[0]].axes[1]

    assert 3 * 4 * width * 5 == node_bytes(plan.graph, node, step([[1] * 5], [0]))


def test_the_limit_that_is_met_first_is_the_one_that_counts():
    by_memory = judge(
        Measurement("decode", "a", "tokens/s", (4.0, 8.0, 5.0), {"memory": 100, "multiply-add": 40}), SPEEDS
    )
    by_flops = judge(Measurement("decode", "a", "tokens/s", (5.0,), {"memory": 100, "multiply-add": 800}), SPEEDS)

    assert ("memory", 10.0, 0.5) == (by_memory.limit, by_memory.best, by_memory.share_of_limit)
    assert (5.0, 4.0, 8.0, 3) == (by_memory.value, by_memory.low, by_memory.high, by_memory.repeats)
    assert ("multiply-add", 5.0, 1.0) == (by_flops.limit, by_flops.best, by_flops.share_of_limit)


def test_seconds_are_held_against_the_least_there_could_be():
    figure = judge(Measurement("load", "a", "s", (3.0, 4.0, 9.0), {"storage": 200, "memory": 200}), SPEEDS)

    assert ("storage", 2.0, 0.5) == (figure.limit, figure.best, figure.share_of_limit)


def test_a_limit_has_no_limit():
    figure = judge(Measurement("limits", "memory", "bytes/s", (7.0,)), SPEEDS)

    assert (7.0, None, None, None) == (figure.value, figure.limit, figure.best, figure.share_of_limit)


def test_a_limit_measured_twice_is_the_better_median():
    first = Measurement("limits", "memory", "bytes/s", (1.0, 5.0, 900.0))
    last = Measurement("limits", "memory", "bytes/s", (6.0, 7.0, 8.0))
    other = Measurement("decode", "memory", "tokens/s", (99.0,))

    assert {"memory": 7.0} == speeds_of_limits([last, first, other])


def test_prefill_steps_are_one_sequence_cut_at_the_step():
    plan = cpu_plan("llama", "bfloat16")
    steps = prefill_steps(plan, 100, 48, own_slots(plan, 1, 100))

    assert list(range(100)) == np.concatenate([each.positions for each in steps]).tolist()
    assert [48, 48, 4] == [len(each.tokens) for each in steps]
    assert [[], [], [3]] == [each.rows.tolist() for each in steps]
    assert all([0, 1, 2, 3, 4, 5, 6] == each.slots[0].tolist() for each in steps)


def test_decode_steps_go_on_from_where_each_sequence_is():
    plan = cpu_plan("llama", "bfloat16")
    steps = decode_steps(plan, [20, 3], 3, own_slots(plan, 2, 23))

    assert [[20, 3], [21, 4], [22, 5]] == [each.positions.tolist() for each in steps]
    assert [0, 1, 2] == steps[0].starts.tolist()
    assert [[0, 1], [2, 3]] == steps[0].slots.tolist()


def test_what_a_plan_cannot_hold_is_refused_with_the_reason():
    plan = cpu_plan("llama", "bfloat16")

    assert refusal(plan, 5, 128) is None
    assert "129 positions, the model has 128" == refusal(plan, 1, 129)
    assert "9 sequences, the plan was bound for 8" == refusal(plan, 9, 16)
    assert "48 slots of KV cache, there is memory for 40" == refusal(plan, 6, 128)


def test_prefill_measures_what_fits_and_says_what_does_not():
    plan, told = cpu_plan("llama", "bfloat16"), []
    found = list(measure_prefill(plan, prompts=(100, 512), step_tokens=64, repeats=5, tell=told.append))

    assert [("prefill, 100 tokens", "tokens/s", 5, {"prompt_tokens": 100, "step_tokens": 64})] == kept(found)
    assert ["prefill, 100 tokens",
            "prefill, 512 tokens: left out, it takes 512 positions, the model has 128"] == told  # fmt: skip
    two_steps = [step([[5] * 64], [0]), step([[5] * 36], [64])]
    assert sum(streamed_bytes(plan.graph, each) for each in two_steps) / 100 == found[0].needs["memory"]


def test_decode_measures_each_batch_and_the_largest_through_the_engine_too():
    plan, told = cpu_plan("qwen3", "bfloat16", limits=Limits(16, 8, 8, 128)), []
    found = list(measure_decode(plan, batches=(1, 4), prompt_tokens=20, new_tokens=6, step_tokens=16, repeats=5,
                                tell=told.append))  # fmt: skip
    settings = {"prompt_tokens": 20, "new_tokens": 6}

    assert [
        ("decode, batch 1", "tokens/s", 5, {"batch": 1, **settings, "through": "plan"}),
        ("decode, batch 4", "tokens/s", 5, {"batch": 4, **settings, "through": "plan"}),
        ("decode, batch 4, engine", "tokens/s", 5, {"batch": 4, **settings, "through": "engine"}),
    ] == kept(found)
    assert [each.name for each in found] == told
    alone = [streamed_bytes(plan.graph, step([[5]], [at])) for at in range(20, 26)]
    assert sum(alone) / 6 == found[0].needs["memory"]
    plan_bytes, engine_bytes = found[1].needs["memory"], found[2].needs["memory"]
    # In the engine the first sequences are some tokens further, by as many steps as the other prompts take.
    assert plan_bytes < engine_bytes <= plan_bytes + 6 * token_bytes(plan)


def test_a_sequence_alone_takes_the_same_steps_through_the_engine():
    plan = cpu_plan("llama", "bfloat16")
    bare, engine = measure_decode(plan, batches=(1,), prompt_tokens=20, new_tokens=6, step_tokens=16, repeats=5,
                                  tell=lambda line: None)  # fmt: skip

    assert bare.needs == engine.needs


def figures():
    yield judge(Measurement("limits", "memory", "bytes/s", (2e10, 1e10), settings={"when": "first"}), {})
    yield judge(Measurement("decode", "decode, batch 8", "tokens/s", (300.0, 200.0, 400.0), {"memory": 4e7},
                            {"batch": 8, "through": "plan", "odd": None}), {"memory": 2e10})  # fmt: skip
    yield judge(Measurement("load", "first token, cold", "s", (0.5,), {"storage": 2e8}), {"storage": 1e9})


def test_a_row_is_flat_and_has_every_column():
    rows = [to_row(figure, STAMP) for figure in figures()]

    assert [COLUMNS] * 3 == [tuple(row) for row in rows]
    assert ("decode", 300.0, 0.6, "a processor", True) == tuple(
        rows[1][column] for column in ("question", "value", "share_of_limit", "cpu", "is_dirty")
    )


def test_rows_appended_to_a_csv_file_come_back(tmp_path):
    file, rows = tmp_path / "rows.csv", [to_row(figure, STAMP) for figure in figures()]
    append_csv(file, rows[:2])
    append_csv(file, rows[2:])
    with file.open(newline="") as opened:
        found = list(csv.DictReader(opened))

    assert ["when=first", "batch=8 through=plan", ""] == [row["settings"] for row in found]
    for row, read in zip(rows, found, strict=True):
        assert {key: "" if value is None else str(value) for key, value in row.items() if key != "settings"} == {
            key: value for key, value in read.items() if key != "settings"
        }


def test_a_csv_file_of_something_else_is_not_touched(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(TrivetError, match="its columns are not those"):
        append_csv(file, [to_row(next(figures()), STAMP)])
    with pytest.raises(TrivetError, match="cannot be written to"):
        append_csv(tmp_path / "absent" / "rows.csv", [to_row(next(figures()), STAMP)])

    assert "a,b\n1,2\n" == file.read_text()


def test_the_table_has_a_bar_for_the_share_of_the_limit():
    text = table([to_row(figure, STAMP) for figure in figures()])

    assert (
        """\
tiny in bfloat16, 2 threads of a processor, scalar, trivet 0.1.0 at 0123456789, changed since, 2 repeats

                           median               spread  share of the limit
memory, first           15.0 GB/s          10.0 … 20.0
decode, batch 8    300.0 tokens/s        200.0 … 400.0  ████████████········  60% of memory
first token, cold        500.0 ms  500.0 ms … 500.0 ms  ████████············  40% of storage"""
        == text
    )


def test_a_faster_figure_than_the_limit_keeps_its_bar_in_its_place():
    figure = judge(Measurement("load", "a", "s", (1.0,), {"storage": 300}), SPEEDS)

    assert table([to_row(figure, STAMP)]).endswith("████████████████████ 300% of storage")


def test_files_just_written_are_cached_and_the_drop_is_seen(tmp_path):
    if read_filesystem(Path("/"), str(tmp_path), Captured()).type in ("tmpfs", "ramfs"):
        pytest.skip("needs a filesystem on storage: the files of one in memory cannot be dropped")
    file, empty = tmp_path / "weights", tmp_path / "empty"
    file.write_bytes(bytes(1 << 20))
    empty.touch()
    before = cached_share([file, empty])
    drop_from_page_cache([file, empty])

    assert 1.0 == before
    assert before > cached_share([file, empty])
    assert 0.0 == cached_share([empty])


def test_the_first_token_of_a_process_that_fails_is_an_error_with_its_words(tmp_path):
    with pytest.raises(ResourceError, match=r"trivet generate failed in a process of its own: trivet: .*absent"):
        first_token_s(tmp_path / "absent", 1)


def test_without_the_demos_weights_the_error_says_how_to_get_them(tmp_path):
    with pytest.raises(ResourceError, match="MODEL: none was named") as error:
        default_model(tmp_path)

    assert "fetch them with `trivet demo`, or name a model: trivet bench MODEL" == error.value.hint


def test_a_commit_is_that_of_the_checkout_that_has_the_package(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        )

    assert commit_of(tmp_path) is None
    git("init")
    git("commit", "--allow-empty", "-m", "something else")
    assert commit_of(tmp_path) is None
    (tmp_path / "trivet").mkdir()
    (tmp_path / "trivet" / "__init__.py").touch()
    git("add", "trivet/__init__.py")
    assert git("rev-parse", "HEAD").stdout.strip() == commit_of(tmp_path)


def test_bench_prints_the_rows_of_a_model_and_appends_them(tmp_path):
    file = tmp_path / "rows.csv"
    arguments = ["load", "decode", str(FIXTURES / "llama"), "--json", "--csv", str(file)]
    result = CliRunner().invoke(bench, arguments, env={"TRIVET_CACHE": str(tmp_path)})
    rows = json.loads(result.stdout)

    assert 0 == result.exit_code, result.output
    assert [
        "memory", "multiply-add", "bfloat16 multiply-add", "storage", "first token, cold", "first token, warm",
        "decode, batch 1", "decode, batch 8", "decode, batch 32", "decode, batch 32, engine",
        "memory", "multiply-add", "bfloat16 multiply-add",
    ] == [row["name"] for row in rows]  # fmt: skip
    assert ["limits"] * 7 == [row["question"] for row in rows if row["share_of_limit"] is None]
    assert {("llama", "bfloat16", 5)} == {(row["model"], row["dtype"], row["repeats"]) for row in rows}
    assert "first token, start 5 of 5" in result.stderr.splitlines()
    assert 1 + len(rows) == len(file.read_text().splitlines())


def test_the_limits_need_no_model(tmp_path):
    result = CliRunner().invoke(bench, ["limits"], env={"TRIVET_CACHE": str(tmp_path)})

    assert 0 == result.exit_code, result.output
    assert 2 == result.stdout.count("GB/s")
    assert 4 == result.stdout.count("GFLOP/s")


def test_a_model_comes_once_and_last() -> None:
    result = CliRunner().invoke(bench, ["decode", "model", "limits"])

    assert 2 == result.exit_code
    assert "one MODEL at most, after the questions: 'model limits' is 2 words" in result.output


def test_every_kernel_of_a_step_is_held_against_what_its_contract_asks_for():
    plan = cpu_plan("llama", "bfloat16", num_slots=8, limits=Limits(64, 1, 1, 65))
    told = []
    made = list(measure_kernels(plan, prompt_tokens=64, repeats=2, tell=told.append))
    decode = {each.name: each for each in made if each.settings["step"] == "decode"}

    assert ["kernels, prefill", "kernels, decode"] == told
    assert len(plan.nodes) == sum(each.settings["nodes"] for each in decode.values())
    head = next(node for node in reversed(plan.nodes) if node.operator == "linear")
    vocab, hidden = plan.graph.values[head.inputs[1]].axes
    measured = decode[f"decode, linear bfloat16[{vocab}, {hidden}] panels"]
    operations = {"multiply-add": 0, "bfloat16 multiply-add": 2 * vocab * hidden}
    assert {"memory": 2 * vocab * hidden + 4 * (vocab + hidden), **operations} == measured.needs


def test_every_question_has_a_benchmark_that_asks_it():
    folder = Path(__file__).parents[2] / "benchmarks"

    for question in ("decode", "kernels", "limits", "load", "prefill"):
        assert f'"bench", "{question}"' in (folder / f"{question}.py").read_text()
