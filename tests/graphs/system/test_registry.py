"""The registry that every kind of named thing is kept in."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphs.system.registry import Registry


class ColourError(ValueError):
    """An error of this test's own."""


def test_entries_are_found_in_the_order_of_their_registration_and_no_others() -> None:
    colours = Registry[int]("colour", ColourError)
    assert colours.register("red", 1) == 1
    colours.register("blue", 2)
    assert list(colours.items()) == [("red", 1), ("blue", 2)]
    assert len(colours) == 2
    assert "green" not in colours
    with pytest.raises(ColourError, match=r"^unknown colour 'green'; use one of red, blue$"):
        colours["green"]
    with pytest.raises(ColourError, match="unknown colour 'green'"):
        colours.check("green")
    assert colours.check("red") == "red"


def test_entries_can_be_known_from_the_start() -> None:
    colours = Registry[int]("colour", ColourError, entries={"red": 1})
    colours.register("blue", 2)
    assert dict(colours) == {"red": 1, "blue": 2}
    with pytest.raises(ColourError, match=r"^colour 'red' is registered twice; choose another name$"):
        colours.register("red", 3)
    assert colours["red"] == 1


def test_modules_are_imported_at_the_first_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "colours_of_a_test.py").write_text(
        f"import sys\nsys.modules[{__name__!r}].LAZY.register('red', 1)\n"
    )
    assert "colours_of_a_test" not in sys.modules
    assert LAZY["red"] == 1
    assert list(LAZY) == ["red"]


def test_threads_wait_until_all_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("slow_red", "slow_blue"):
        (tmp_path / f"{name}.py").write_text(
            f"import sys, time\ntime.sleep(0.05)\nsys.modules[{__name__!r}].SLOW.register('{name}', 1)\n"
        )
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: "slow_blue" in SLOW, range(4))) == [True] * 4


LAZY = Registry[int]("colour", ColourError, ["colours_of_a_test"])
SLOW = Registry[int]("colour", ColourError, ["slow_red", "slow_blue"])


def test_entries_stand_in_the_order_of_the_modules_whichever_is_imported_first() -> None:
    colours = Registry[int]("colour", ColourError, ["json", "math"])
    colours.register("blue", 2, "math")
    colours.register("red", 1, "json")
    colours.register("green", 3)
    assert list(colours) == ["red", "blue", "green"]
