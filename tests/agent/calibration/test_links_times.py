"""Reading measured transfers between GPUs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from agent.calibration.links_times import GIGA, MIB, read_link_times
from agent.calibration.op_tables import MeasuredOpsError

VIDUR = "rank,time_stats.send_recv.median,size,devices_per_node"


def vidur(folder: Path, *rows: str, head: str = VIDUR, name: str = "a100_x.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def sailor(folder: Path, *lines: str, gpu: str = "V100-16", within: str = "intra") -> Path:
    path = folder / gpu / "fp16" / f"p2p_{within}_node.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return path


def test_kernels_within_a_node_are_read_in_milliseconds(tmp_path: Path) -> None:
    path = vidur(tmp_path, "0,0.5,4096,2", "0,0.01,2048,2", "0,7,2048,1")
    (table,) = read_link_times([path])
    assert table.name == "a100-nvlink"
    np.testing.assert_allclose(table.n_bytes, [2048, 4096])
    np.testing.assert_allclose(table.seconds, [1e-5, 5e-4])


@pytest.mark.parametrize(
    ("gpu", "within", "name", "unit"),
    [
        ("V100-16", "intra", "v100-nvlink", 2.0**30),
        ("Titan-RTX", "intra", "pcie3", 2.0**30),
        ("A100-40", "inter", "a100-nodes", GIGA),
    ],
)
def test_bandwidths_are_binary_within_a_node_and_decimal_across(
    tmp_path: Path, gpu: str, within: str, name: str, unit: float
) -> None:
    (table,) = read_link_times([sailor(tmp_path, "1,4", "2,8", gpu=gpu, within=within)])
    assert table.name == name
    np.testing.assert_allclose(table.n_bytes, [MIB, 4 * MIB])
    np.testing.assert_allclose(table.seconds, [MIB / (2 * unit), 4 * MIB / (8 * unit)])


def test_files_of_one_link_are_joined_and_compressed_ones_are_read(tmp_path: Path) -> None:
    first = sailor(tmp_path, "1,2,4", "1,1,1", gpu="RTX-2080")
    second = sailor(tmp_path, "1,2,4", "2,2,2", gpu="Titan-RTX")
    packed = second.with_suffix(".csv.gz")
    packed.write_bytes(gzip.compress(second.read_bytes()))
    (table,) = read_link_times([first, packed])
    assert table.name == "pcie3"
    assert len(table.seconds) == 6


def test_every_second_size_is_held_out_with_all_its_rows(tmp_path: Path) -> None:
    path = vidur(tmp_path, *(f"0,{time},{size},2" for size in (1, 2, 2, 3, 4) for time in (1, 2)))
    (table,) = read_link_times([path])
    assert table.n_bytes[table.held_out].tolist() == [2, 2, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        ("a,b", "1,2", "a100_x.csv: holds no measured transfers; expected a column 'time_stats.send_recv"),
        ("time_stats.send_recv.median,size", "1,2", "a100_x.csv: column 'devices_per_node' is missing"),
        (VIDUR, "0,0.1,4096", "a100_x.csv: line 2: has 3 values; expected 4"),
        (VIDUR, "0,fast,4096,2", "line 2: holds 'fast'; expected a number, more than 0"),
        (VIDUR, "0,0.1,-1,2", "line 2: holds '-1'; expected a number, more than 0"),
        (VIDUR, "0,nan,4096,2", "line 2: holds 'nan'; expected a number, more than 0"),
        (VIDUR, "0,0.1,1e30,2", r"line 2: 1e\+30 bytes take 0.0001 s; expected 1 to 1e\+15 bytes"),
        (VIDUR, "0,1e-9,4096,2", "line 2: 4096 bytes take 1e-12 s; expected .* and 1e-09 to 1e"),
    ],
)
def test_bad_tables_are_one_line(tmp_path: Path, head: str, row: str, message: str) -> None:
    with pytest.raises(MeasuredOpsError, match=message) as caught:
        read_link_times([vidur(tmp_path, row, head=head)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["h100_x.csv", "b200_x.csv"])
def test_links_that_nobody_measured_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MeasuredOpsError, match="names no node that was measured; names begin with a100_ or"):
        read_link_times([vidur(tmp_path, "0,1,1,2", name=name)])
    with pytest.raises(MeasuredOpsError, match="below 'V100-16', no GPU that was measured; use A100-40, GH"):
        read_link_times([sailor(tmp_path, "1", "1", within="inter")])


@pytest.mark.parametrize("lines", [[], ["1,2"], ["1,2", "1"], ["1", "1", "1"]])
def test_bandwidths_that_do_not_match_sizes_are_one_line(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(MeasuredOpsError, match="expected a line of sizes in MiB and a line of as many"):
        read_link_times([sailor(tmp_path, *lines)])


@pytest.mark.parametrize("content", [None, b"\x1f\x8bnot gzip", b"\xff\xfe"])
def test_unreadable_files_are_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / ("a100_x.csv" if content == b"\xff\xfe" else "a100_x.csv.gz")
    if content:
        path.write_bytes(content)
    with pytest.raises(MeasuredOpsError, match=r"a100_x.* cannot be read"):
        read_link_times([path])
