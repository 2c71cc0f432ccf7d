"""Commands of the benchmarks refuse arguments that do not fit, before they measure anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.__main__ import main


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("gpu --select [", "'[' is no regular expression: unterminated"),
        ("accuracy --select (", "'(' is no regular expression: missing )"),
        ("gpu --dtypes foo,float16", "'foo'; accepted: float16, bfloat16, float32, float64"),
        ("gpu --dtypes=", "''; accepted: float16"),
        ("cpu --dtypes int8", "'int8'; accepted: float32"),
        ("families --dtype foo", "invalid choice: 'foo'"),
        ("cpu --order 100", "'100'; accepted: a multiple of 1024"),
        ("memory --order -1024", "'-1024'; accepted: an integer of at least 1"),
        ("cpu --rounds 0", "'0'; accepted: an integer of at least 1"),
        ("host --calls x", "'x'; accepted: an integer of at least 1"),
        ("gpu --sustained nan,nan", "'nan,nan'; accepted: two numbers of seconds"),
        ("attention --sustained 1", "'1'; accepted: two numbers of seconds"),
        ("attention --sustained .1,inf", "'.1,inf'; accepted: two numbers of seconds"),
        ("sampled --peers nobody", "'nobody'; accepted: none, "),
        ("sampled --families tall", "'tall'; accepted: auto, sampled"),
        ("attention --backends tall", "'tall'; accepted: auto, hopper"),
        (f"cpu --out {__file__}/folder", "folder'; accepted: a folder that can be written to"),
    ],
)
def test_what_is_refused(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^2$"):
        main(command.split())
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["gpu", "cpu", "softmax", "host --device cpu", "training"])
def test_no_case(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--select", "no such case"]) == 2
    assert "no case is selected; accepted: --select" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["gpu", "cpu", "softmax", "host --device cpu"])
def test_some_cases_do_not_replace_the_results_of_all(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{command.split()[0]}.json"
    path.write_text("of all cases")
    arguments = [*command.split(), "--select", "64x64|32x8", "--out", str(tmp_path)]
    assert main(arguments) == 2
    assert f"{path} exists, --select is '64x64|32x8'" in capsys.readouterr().err
    assert path.read_text() == "of all cases"


def test_memory_of_what_has_no_eighth_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--order", "256", "--block", "64"]) == 2
    assert "--order is 256; accepted: a multiple of 512" in capsys.readouterr().err


def test_what_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--dtypes", "float64", "--peers", "none", "--families", "portable", "--dry-run"]
    assert main(["gpu", *chosen, "--sustained", ".3,.3", "--select", "^blocks/"]) == 0
    assert "blocks/float64" in capsys.readouterr().out
