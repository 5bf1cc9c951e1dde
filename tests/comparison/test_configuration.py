from __future__ import annotations

from pathlib import Path

import pytest

from ckplan.comparison import Limits, find_configuration, read_configuration
from ckplan.comparison.settings import KEYS
from ckplan.errors import ModelError, UsageError

ROOT = Path(__file__).resolve().parents[2]


def write(folder: Path, text: str, name: str = "ckplan.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_models_with_their_settings_and_limits(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        baseline = "memory.json"
        max-regression = "3%"
        dims = { batch = 8 }
        [models.one]
        path = "models/one.onnx"
        strategy = ["none", "memory:min_bytes=1KiB"]
        budget = "1.5MiB"
        warn-budget = "40%"
        loss = "cross-entropy"
        no-grad = ["embedding*"]
        time-checkpoints = "sqrt"
        [models.two]
        path = "two.onnx"
        inference = true
        dims = { batch = 1 }
        shapes = { x = [1, 3, 8, 8] }
        max-regression = "0%"
        warn-regression = "0%"
        """,
    )
    found = read_configuration(path)
    assert found.baseline == tmp_path / "memory.json"
    assert [target.name for target in found.targets] == ["one, none", "one, memory:min_bytes=1KiB", "two"]
    assert [target.path for target in found.targets] == [tmp_path / "models/one.onnx"] * 2 + [tmp_path / "two.onnx"]
    one, two = found.targets[1], found.targets[2]
    assert one.options == {
        "dims": {"batch": 8},
        "strategy": "memory:min_bytes=1KiB",
        "loss": ("cross-entropy",),
        "no_grad": ("embedding*",),
        "time_checkpoints": "sqrt",
    }
    assert one.limits == Limits(max_regression=0.03, budget=3 * 2**19, warn_budget=0.4)
    assert two.options == {"dims": {"batch": 1}, "shapes": {"x": (1, 3, 8, 8)}, "inference": True}
    assert two.limits == Limits(max_regression=0.0, warn_regression=0.0)


def test_a_list_of_parameters_lies_beside_the_configuration(tmp_path: Path) -> None:
    """As models and the baseline do, wherever the command runs."""
    (tmp_path / "names.txt").write_text("fc0.weight\n")
    found = read_configuration(write(tmp_path, '[models.m]\npath = "m.onnx"\nparams = "names.txt"\n'))
    assert found.targets[0].options["params"] == str(tmp_path / "names.txt")
    elsewhere = read_configuration(write(tmp_path, f'[models.m]\npath = "m.onnx"\nparams = "{tmp_path}/n.txt"\n'))
    assert elsewhere.targets[0].options["params"] == f"{tmp_path}/n.txt"


def test_every_key_stands_in_the_documentation() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    table = page.split("| key | value |")[1].split("A key that is not known")[0]
    assert [key for key in KEYS if f"`{key}`" not in table] == []


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "ckplan.toml"
    path.write_text('[models.one]\r\npath = "one.onnx"\r\n', encoding="utf-8-sig", newline="")
    assert [target.name for target in read_configuration(path).targets] == ["one"]


def test_a_section_of_pyproject(tmp_path: Path) -> None:
    assert find_configuration(tmp_path) is None
    write(tmp_path, "[tool.other]\nx = 1\n", "pyproject.toml")
    assert find_configuration(tmp_path) is None
    path = write(tmp_path, "[tool.ckplan.models.one]\npath = 'one.onnx'\n", "pyproject.toml")
    assert find_configuration(tmp_path) == path
    assert [target.name for target in read_configuration(path).targets] == ["one"]
    own = write(tmp_path, "[models.two]\npath = 'two.onnx'\n")
    assert find_configuration(tmp_path) == own


def test_this_repository_has_one() -> None:
    found = read_configuration(ROOT / "ckplan.toml")
    assert found.baseline is not None
    assert found.baseline.exists()
    assert all(target.path.exists() for target in found.targets)


MODEL = "[models.one]\npath = 'one.onnx'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no models; add a section such as [models.mine] with a path"),
        ("models = 3", "names no models"),
        (
            '[models]\nmine = "mine.onnx"',
            "model 'mine' is 'mine.onnx', not a section; write [models.mine], and path = ... below it",
        ),
        ('[models]\n"a.b" = 3', "model 'a.b' is 3, not a section; write [models.\"a.b\"], and path = ... below it"),
        ("baselin = 'x'\n" + MODEL, "has no key `baselin`; did you mean `baseline`?"),
        (MODEL + "stratgy = 'none'", "model 'one' has no key `stratgy`; did you mean `strategy`?"),
        (MODEL + "max_regression = '3%'", "has no key `max_regression`; did you mean `max-regression`?"),
        (MODEL + "zzzz = 1", "has no key `zzzz`; choose one of path, "),
        ("[models.one]\nstrategy = 'none'", "model 'one': there is no `path`; name the model's file"),
        ("[models.one]\npath = ''", "model 'one': there is no `path`; name the model's file"),
        ("[models.'']\npath = 'a.onnx'", "has a model without a name; write [models.NAME]"),
        ("baseline = ''\n[models.one]\npath = 'a.onnx'", "`baseline` must be a string, the name of a file"),
        (MODEL + "budget = 3", "`budget`: `3` is not a string; write it like 512MiB"),
        (MODEL + "budget = 'lots'", "`budget`: `lots` is not a size"),
        (MODEL + "max-regression = '3'", "`max-regression`: `3` is not a percentage"),
        (MODEL + "dims = 3", "`dims` must be a table of sizes by name of the dimension"),
        (MODEL + "dims = { batch = -1 }", "zero or more, and `batch` is -1"),
        (MODEL + 'dims = { batch = "8" }', "`dims` must be a table of whole numbers, zero or more, and `batch` is '8'"),
        (MODEL + 'shapes = { x = ["N"] }', "zero or more, and a size of `x` is 'N'"),
        (MODEL + "shapes = { x = 3 }", "`shapes` must be a table of lists of sizes"),
        (MODEL + "strategy = ['none', 'none']", "checks 'one, none' twice"),
        (MODEL + "strategy = []", "`strategy` is empty"),
        (MODEL + "strategy = [3]", "`strategy` must be a string"),
        (MODEL + "training = 1", "`training` must be true or false"),
        (MODEL + "clip-norm = 'x'", "`clip-norm` must be a number"),
        (MODEL + "loss = [3]", "`loss` must be a string or a list of strings"),
        (MODEL + "unused = 'no'", "`unused` must be 'absent' or 'zero'"),
        (MODEL + "inference = true\nstrategy = 'memory'", "does not go with `strategy`"),
        (MODEL + "inference = true\nloss = 'mse'", "does not go with `--loss`"),
        ('baseline = "a\\u0000"\n' + MODEL, "holds a null character"),
        (MODEL + 'loss = ["\\u0000"]', "holds a null character"),
        ("budget = 3\n" + MODEL, "ckplan.toml': `budget`: `3` is not a string"),
        ("training = 1\n" + MODEL, "ckplan.toml': `training` must be true or false"),
        ("strategy = []\n" + MODEL, "ckplan.toml': `strategy` is empty"),
        ("strategy = ['none', 3]\n" + MODEL, "ckplan.toml': `strategy` must be a string"),
        ("baseline = 3\n" + MODEL, "`baseline` must be a string, the name of a file"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read_configuration(write(tmp_path, text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        read_configuration(tmp_path / "missing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="is not TOML"):
        read_configuration(tmp_path / "bytes.toml")
    with pytest.raises(UsageError, match=r"has no section \[tool.ckplan\]"):
        read_configuration(write(tmp_path, "[tool.other]\n", "pyproject.toml"))
