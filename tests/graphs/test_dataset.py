"""The families of models and the shipped benchmark set: complete, unchanged, and what the code captures."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from graphs import dataset
from graphs.dataset import (
    FOLDER,
    FORMAT,
    DatasetError,
    content_hash,
    kept_bytes,
    load_family,
    load_graphs,
    main,
    read_manifest,
)
from graphs.families import (
    DRAWERS,
    FAMILIES,
    FamilyError,
    draw,
    family,
    gnn,
    large,
    layers,
    randwire,
    ssm,
    text,
)
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph, build_graph
from tests.envs.runtime.small_models import make

LOSSES = {"cifar10": 2.026395917, "ptb": 2.399596113, "nmt": 2.523853769, "resnet": 0.07900209214}
LOSSES |= {"inception": 2.216170414, "gpt": 2.447638362, "bert": 3.324470924, "vit": 1.940996361}
LOSSES |= {"moe": 2.398628969, "randwire": 1.86136387, "llama": 3.372420919, "ssm": 4.543367085}
LOSSES |= {"gnn": 4.74855378, "t5": 2.576641979, "switch": 2.771401794}
"""Losses of small models as of commit e4863f7, whose tests have the building blocks worked out by hand."""


def shapes(name: str, seed: int) -> list[tuple[str, tuple[int, ...]]]:
    module, inputs = draw(name, seed)
    drawn = [("input", tuple(tensor.shape)) for tensor in inputs]
    return drawn + [(key, tuple(parameter.shape)) for key, parameter in module.named_parameters()]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [0, 5, 9])
def test_a_draw_is_one_training_step_of_its_whole_model(name: str, seed: int) -> None:
    module, inputs = draw(name, seed)
    assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers(), *inputs))
    loss = module(*inputs)
    assert loss.shape == ()
    loss.backward()
    assert [key for key, parameter in module.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_always_draws_the_same_model_and_seeds_differ(name: str) -> None:
    assert shapes(name, 1) == shapes(name, 1)
    assert len({str(shapes(name, seed)) for seed in range(6)}) == 6


@pytest.mark.parametrize("name", LOSSES)
def test_a_small_model_of_a_family_has_the_loss_of_before(name: str) -> None:
    module, inputs = make(name)
    assert module(*inputs).item() == pytest.approx(LOSSES[name], rel=1e-8)


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FamilyError, match=r"^unknown family 'lstm'; use one of cifar10, ptb, nmt, .*switch$"):
        draw("lstm", 0)
    with pytest.raises(FamilyError, match="seed -1 is negative"):
        draw("ptb", -1)


def test_every_family_has_a_drawer_and_a_name_is_refused_twice() -> None:
    assert set(DRAWERS) == set(FAMILIES)
    with pytest.raises(FamilyError, match="family 'gpt' is registered twice"):
        family("gpt")(text.draw_gpt)
    with pytest.raises(
        FamilyError, match="family 'mlp': its number of graphs is not known; add it to FAMILIES"
    ):
        family("mlp")


def test_randwire_draws_every_kind_of_network_and_wirings_of_several_sources() -> None:
    modules = [draw("randwire", seed)[0] for seed in range(FAMILIES["randwire"])]
    kinds = [randwire.WordNetwork, randwire.RecurrentNetwork]
    counts = [sum(isinstance(module, kind) for module in modules) for kind in kinds]
    assert min(*counts, len(modules) - sum(counts)) >= 8
    stages = [part for module in modules for part in module.modules() if isinstance(part, randwire.Stage)]
    assert sum(any(len(sources) > 2 for sources in stage.wiring) for stage in stages) >= 10


def test_ssm_draws_have_attention_between_in_some_and_one_chunk_in_others() -> None:
    modules = [draw("ssm", seed)[0] for seed in range(FAMILIES["ssm"])]
    attends = [any(isinstance(part, layers.Attention) for part in module.modules()) for module in modules]
    assert 1 <= sum(attends) < len(modules)
    scans = [part for module in modules for part in module.modules() if isinstance(part, ssm.SelectiveScan)]
    assert {scan.chunks for scan in scans} == {1, 2, 4, 8}


def test_gnn_draws_every_kind_of_layer_and_several_relations() -> None:
    modules = [draw("gnn", seed)[0] for seed in range(FAMILIES["gnn"])]
    layers = [part for module in modules for part in module.modules() if isinstance(part, gnn.Layer)]
    assert {type(layer.relations[0]) for layer in layers} == set(gnn.KINDS.values())
    assert {len(layer.relations) for layer in layers} == {1, 2, 3, 4}


@pytest.mark.parametrize(("model", "parameters"), [("gpt2_xl", 1_557_611_200), ("llama_7b", 6_738_415_616)])
def test_a_published_model_has_its_published_number_of_parameters(model: str, parameters: int) -> None:
    module, inputs = getattr(large, model)()
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert all(tensor.is_meta for tensor in (*module.parameters(), *inputs))


def test_the_sequence_model_has_eight_layers_each_way() -> None:
    module, (source, *_) = large.seq2seq()
    assert (len(module.encoder.cells), len(module.decoder.cells), len(source)) == (8, 8, 78)


def tiny(name: str, seed: int) -> OpGraph:
    ops = [{"name": f"{name}.{op}", "flops": 10 * seed} for op in range(seed + 2)]
    return build_graph(f"{name}-{seed:02d}", name, ops, [(0, 8, [1])])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of tiny graphs: 2 of each of two families."""
    monkeypatch.setattr(dataset, "capture_draw", tiny)
    for name in ("vit", "ptb"):
        for _ in dataset.build_family(name, tmp_path, draws=2):
            pass
    return tmp_path


def test_the_shipped_set_has_every_draw_of_every_family() -> None:
    manifest = read_manifest()
    assert list(manifest) == list(FAMILIES)
    for name, entry in manifest.items():
        assert [graph["seed"] for graph in entry["graphs"]] == list(range(FAMILIES[name]))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8e6


@pytest.mark.parametrize("name", FAMILIES)
def test_the_shipped_graphs_are_whole_training_steps_of_usable_size(name: str) -> None:
    entries = read_manifest()[name]["graphs"]
    graphs = load_family(name)
    assert [graph.name for graph in graphs] == [entry["name"] for entry in entries]
    assert [graph.n_ops for graph in graphs] == [entry["ops"] for entry in entries]
    assert [graph.n_tensors for graph in graphs] == [entry["tensors"] for entry in entries]
    for graph in graphs:
        assert graph.family == name
        assert 70 <= graph.n_ops <= 4500
        assert set(graph.phases) == {"forward", "backward", "optimizer"}
        assert graph.flops.sum() > 1e9
    assert len({entry["sha256"] for entry in entries}) == len(entries)


@pytest.mark.parametrize("name", FAMILIES)
def test_capturing_a_draw_again_gives_the_shipped_graph(name: str) -> None:
    entry = read_manifest()[name]
    if metadata.version("torch").split("+")[0] != entry["versions"]["torch"]:
        pytest.skip(f"the set was captured with torch {entry['versions']['torch']}")
    smallest = min(entry["graphs"], key=lambda graph: graph["ops"])
    assert content_hash(dataset.capture_draw(name, smallest["seed"])) == smallest["sha256"]


def test_what_is_built_is_what_is_loaded(folder: Path) -> None:
    assert list(read_manifest(folder)) == ["ptb", "vit"]
    graphs = load_graphs(["vit", "ptb"], folder)
    assert [graph.name for graph in graphs] == ["vit-00", "vit-01", "ptb-00", "ptb-01"]
    listed = read_manifest(folder)["vit"]["graphs"][1]["sha256"]
    assert content_hash(graphs[1]) == content_hash(tiny("vit", 1)) == listed


def test_building_again_gives_the_same_bytes(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in dataset.build_family("ptb", folder, draws=2):
        pass
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert set(before) == {"manifest.json", "ptb.jsonl.gz", "vit.jsonl.gz"}


def test_a_content_hash_counts_the_arithmetic_where_it_is_said() -> None:
    hashes = {
        content_hash(build_graph("g", "", [{"name": "a", **said}], []))
        for said in (
            *({}, {"dtype": ""}, {"gemm": [0] * 4}, {"image": [0, 0]}),
            *({"dtype": "fp32"}, {"gemm": [1, 2, 3, 4]}, {"gemm": [1, 2, 3, 4], "image": [1, 2]}),
        )
    }
    assert len(hashes) == 4


def test_a_changed_file_is_refused(folder: Path) -> None:
    write_graphs(folder / "vit.jsonl.gz", [tiny("vit", 3)])
    with pytest.raises(DatasetError, match=r"vit\.jsonl\.gz: is not the file that the manifest"):
        load_family("vit", folder)
    assert len(load_family("ptb", folder)) == 2


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, r"manifest.*; rebuild it with"),
        ("[]", r"manifest.*; rebuild it with"),
        ('{"format": "other/1", "families": {}}', r"manifest.*; rebuild it with"),
        (f'{{"format": "{FORMAT}", "families": 3}}', r"manifest.*; rebuild it with"),
        (f'{{"format": "{FORMAT}", "families": {{"ptb": {{"graphs": []}}}}}}', "ptb: key.* missing"),
    ],
)
def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, manifest: str | None, message: str) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match=message):
        load_family("ptb", tmp_path)


def test_families_of_absent_plug_ins_are_left_out(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["families"]["of-a-plug-in"] = manifest["families"]["vit"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert list(read_manifest(folder)) == ["ptb", "vit"]


def test_the_command_line_builds_and_sums_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--build", "--families", "vit", "--draws", "3", "--out", str(folder)]) == 0
    assert len(load_family("vit", folder)) == 3
    row = next(line for line in capsys.readouterr().out.splitlines() if "vit" in line and "│" in line)
    assert [cell.strip() for cell in row.split("│")][1:6] == ["vit", "3", "2", "3", "4"]


def test_the_command_line_answers_bad_input_with_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--families", "alexnet"]) == 2
    assert main(["--families", "gpt", "--out", str(folder)]) == 2
    assert main(["--build", "--families", "gpt", "--draws", "0", "--out", str(folder / "new")]) == 2
    assert main(["--build", "--families", "gpt", "--draws", "1", "--out", str(folder / "manifest.json")]) == 2
    assert not (folder / "new").exists()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("python -m graphs.dataset: unknown family 'alexnet'")
    assert "has no graphs of family 'gpt'; rebuild" in lines[1]


def test_kept_bytes_are_the_forward_results_read_backwards() -> None:
    ops = [
        {"name": "weight", "type": "parameter"},
        {"name": "a"},
        {"name": "b"},
        {"name": "grad", "phase": "backward"},
    ]
    graph = build_graph("g", "", ops, [(0, 1000, [1, 3]), (1, 100, [2, 3]), (2, 10, [3]), (1, 1, [2])])
    assert kept_bytes(graph) == 110
