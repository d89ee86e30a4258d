import copy

import pytest
from pydantic import BaseModel

from pyg_topomask.run.config.load import load
from pyg_topomask.run.config.schema import Config, all_keys
from pyg_topomask.run.errors import ConfigError

TEXT = """\
out_dir: results
dataset:
  format: PyG-MotifDataset
  name: circle
optim:
  weight_decay: 1e-5
  base_lr: 2E-3
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "some.yaml"
        path.write_text(text)
        return path

    return write


def test_scientific_notation_is_a_number(file):
    loaded = load(file(TEXT))
    assert (loaded.config.optim.weight_decay, loaded.config.optim.base_lr) == (1e-5, 2e-3)
    assert loaded.name == "some"


def test_unknown_key_names_file_line_and_nearest(file):
    path = file(TEXT + "  wieght_decay: 1\n")
    with pytest.raises(
        ConfigError, match=r"some\.yaml, line 8: optim\.wieght_decay: unknown key\. Did you mean 'optim\.w"
    ):
        load(path)


def test_keys_that_are_no_names(file):
    text = TEXT + "  2: {a: 3}\n1: 2\n"
    with pytest.raises(ConfigError) as caught:
        load(file(text))
    nested, top = str(caught.value).splitlines()
    assert nested.endswith("some.yaml, line 8: optim.2: a key must be a name (got 2: {'a': 3})")
    assert top.endswith("some.yaml, line 9: 1: a key must be a name (got 1: 2)")
    with pytest.raises(ConfigError, match=r"^gt\.True: a key must be a name \(got True: 1\)$"):
        load({"dataset": {"format": "PyG-MotifDataset", "name": "circle"}, "gt": {True: 1}})


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("gt.layrs", "gt.layers"),
        ("optim.dropout", "gt.dropout"),
        ("layers", "gt.layers"),
        ("optm.base_lr", "optim"),
        ("gt.sparse.kqdim", "gt.sparse.kq_dim"),
        ("gt.sprase.k", "gt.sparse.k"),
        ("gt.kq_dim", "gt.sparse.kq_dim"),
    ],
)
def test_suggestions(tiny, key, suggestion):
    with pytest.raises(ConfigError, match=f"command line: {key.split('.')[0]}.*Did you mean '{suggestion}'"):
        load(tiny, [f"{key}=1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset: [1, 2\nname: x\n", r"some\.yaml, line 2, column 5: unreadable YAML"),
        ("a: 1\n\tb: 2\n", r"line 2, column 1: unreadable YAML"),
        (TEXT + "  base_lr: 1\n", r"line 8: optim\.base_lr is given a second time \(first in line 7\)"),
        (TEXT + "optim.max_epoch: 1\n", r"line 8: write optim\.max_epoch in a file as the key max_epoch below optim"),
        ("- 1\n", r"some\.yaml, line 1: a config is a mapping of sections \(got list\)"),
        ("", r"some\.yaml, line 1: a config is a mapping of sections, and this file contains none"),
        ("# dummy file\n", r"and this file contains none"),
        ("a: \x00\n", "unreadable YAML"),
        (TEXT.replace("2E-3", "fast"), r"line 7: optim\.base_lr: input should be a valid number.*\(got 'fast'\)"),
        (TEXT.replace("2E-3", ".inf"), r"line 7: optim\.base_lr: .*finite"),
        (TEXT.replace("circle", "[1]"), r"line 4: dataset\.name: input should be a valid string"),
        ("optim: {base_lr: 1}\n", r"dataset: this key is required"),
        ("dataset: 3\n", r"line 1: dataset: input should be a valid"),
    ],
)
def test_wrong_files(file, text, message):
    with pytest.raises(ConfigError, match=message):
        load(file(text))


def test_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        load(tmp_path / "bytes.yaml")


def test_overrides_in_both_spellings(tiny):
    tiny["gt"]["sparse"] = {"k": 3}
    before = copy.deepcopy(tiny)
    config = load(tiny, ["optim.base_lr", "3e-4", "gt.layers=5", "seed", "7", "gt.sparse.k=4"]).config
    assert (config.optim.base_lr, config.gt.layers, config.seed, config.gt.sparse.k) == (3e-4, 5, 7, 4)
    assert tiny == before


def test_an_override_of_a_section_keeps_its_other_keys(tiny):
    parsed = load(tiny, ["gt={layers: 3, sparse: {k: 4}}"])
    gt = parsed.config.gt
    assert (gt.layers, gt.sparse.k, gt.n_heads, gt.dim_hidden) == (3, 4, 2, 8)
    assert parsed.overridden == {"gt.layers", "gt.sparse.k"}
    with pytest.raises(ConfigError, match=r"gt\.layers: input should be a valid integer"):
        load(tiny, ["gt=&a {layers: *a}"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optim.base_lr"], "no value given"),
        (["gt.layers=[1"], "is not a YAML value"),
        (["seed.x=1"], r"unknown key|not a section"),
        (["gt.layers=2", "gt.layers.x=1"], "'layers' is not a section"),
    ],
)
def test_wrong_overrides(tiny, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(tiny | {"seed": 1}, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("gnn.dim_inner=16", r"must equal gt\.dim_hidden \(got 16 and 8\)"),
        ("gt.n_heads=3", r"must divide gt\.dim_hidden \(got 3 and 8\)"),
        ("gt.layer_norm=true", "both true"),
        ("gt.layer_type=GCN", r"joined by '\+'"),
        ("gt.layer_type=None+None topomask.feed_forward=false", "nothing to train"),
        ("gt.layer_type=None model.type=SingleModel", "nothing to train"),
        ("gnn.head=node", "does not fit"),
        ("dataset.task=node", "is for task 'graph'"),
        ("dataset.split_mode=cv-kfold-2", "at least 3 folds"),
        ("dataset.split_mode=cv-stratifiedkfold-5 dataset.split_index=5", r"below the number of folds \(got 5\)"),
        ("dataset.split_index=1", "only folds and published splits have an index"),
        ("dataset.split=[0.9,0.1,0.1]", "add up to at most 1"),
        ("metric_agg=argmin", "would choose the worst epoch"),
        ("train.eval_period=5", "no evaluation"),
    ],
)
def test_contradictions(tiny, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(tiny, overrides.split())


def test_every_key_has_a_sentence():
    assert len(all_keys()) > 150

    def fields(model):
        for name, info in model.model_fields.items():
            yield name, info
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                yield from fields(info.annotation)

    assert [name for name, info in fields(Config) if not info.description] == []


def test_an_empty_section_is_at_its_defaults(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("dataset: {format: PyG-MotifDataset, name: circle}\ntopomask:\ngt:\n  sparse:\n")
    assert load(path).config.topomask.num_walks == 16
    assert load(path, ["gt.sparse.kq_dim=5"]).config.gt.sparse.kq_dim == 5


def test_a_nested_key_is_described_by_its_own_line(file):
    path = file(TEXT + "gt:\n  layers: 2\n  sparse:\n    k: 0\n")
    with pytest.raises(ConfigError, match=r"some\.yaml, line 11: gt\.sparse\.k: input should be greater .*\(got 0\)"):
        load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: &x {y: *x}", "line 2: x: unknown key"),
        ("gt: &x {sparse: *x}", r"gt\.sparse\.sparse: unknown key"),
        ("metric_best: &x [*x]", r"metric_best: must be one of .*\(got \["),
        # Each line expands to twice as many entries as the line before, a billion in all.
        (
            "a0: &a0 {x: y}\n" + "".join(f"a{i + 1}: &a{i + 1} {{p: *a{i}, q: *a{i}}}\n" for i in range(30)),
            "unknown key",
        ),
        ("seed: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(30)), "unknown key"),
    ],
)
def test_aliases_that_stand_for_very_much_are_refused(file, text, message):
    with pytest.raises(ConfigError, match=message):
        load(file(f"dataset: {{format: PyG-MotifDataset, name: circle}}\n{text}\n"))


def test_a_value_of_very_much_is_shown_in_short(tiny):
    value = [1]
    for _ in range(30):
        value = [value, value]
    for key in ("metric_best", "seed", "out_dir", "run_multiple_splits"):
        with pytest.raises(ConfigError) as caught:
            load(tiny | {key: value})
        assert len(str(caught.value)) < 3000, key


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a: {DEEP}", "nested too deeply"),
        ("\n".join(f"{' ' * depth}a:" for depth in range(3000)), "nested too deeply"),
        ("seed: 2024-13-45", "month must be in"),
        ("seed: !!timestamp x", "unreadable YAML"),
        ("seed: !!int x", "unreadable YAML"),
        ("seed: !!bool x", "unreadable YAML"),
        (f"seed: {'9' * 5000}", "unreadable YAML"),
        ("seed: !!python/object/apply:os.system [exit]", "could not determine a constructor"),
    ],
)
def test_odd_values_are_named_in_a_line(file, tiny, text, message):
    path = file(text)
    with pytest.raises(ConfigError, match=rf"some\.yaml.*{message}") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    key, _, value = text.partition(": ")
    if key == "seed":
        with pytest.raises(ConfigError, match=r"command line: seed: .* is not a YAML value") as caught:
            load(tiny, [f"seed={value}"])
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [DEEP, "9" * 4000, "0x" + "f" * 5000, "-1e400"])
def test_overrides_of_any_length(tiny, value):
    for key in ("gt.layers", "metric_best", "dataset.split", "a.b"):
        with pytest.raises(ConfigError) as caught:
            load(tiny, [f"{key}={value}"])
        assert len(str(caught.value)) < 3000
    with pytest.raises(ConfigError):
        load(tiny, [f"gt{'.x' * 5000}=1"])


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("gt.dim_hidden", 10**9, "65,536"),
        ("gt.layers", 10**8, "1,000"),
        ("gnn.layers_pre_mp", 10**8, "1,000"),
        ("gnn.layers_post_mp", 10**8, "1,000"),
        ("topomask.num_walks", 10**9, "1,000,000"),
        ("topomask.max_length", 10**6, "32,767"),
        ("topomask.num_features", 10**9, "65,536"),
        ("num_workers", 10**5, "1,024"),
        ("dataset.num_graphs", 10**23, "10,000,000"),
        ("dataset.num_nodes", 10**9, "1,000,000"),
    ],
)
def test_absurd_sizes_are_refused(tiny, key, value, limit):
    with pytest.raises(ConfigError, match=rf"{key}: must be at most {limit} \(got 1"):
        load(tiny, [f"{key}={value}"])


@pytest.mark.parametrize("value", ["1:30", "-010", "0777", "190:20:30.15"])
def test_numbers_of_yaml_1_1_alone_are_refused(file, tiny, value):
    message = rf"{value} is 60-based or octal in YAML 1\.1; write a plain number"
    with pytest.raises(ConfigError, match=rf"some\.yaml, line 3, column 10: .*{message}"):
        load(file(f"dataset: {{format: PyG-MotifDataset, name: circle}}\noptim:\n  steps: {value}\n"))
    with pytest.raises(ConfigError, match=rf"command line: train\.batch_size: .* is not a YAML value .*{message}"):
        load(tiny, [f"train.batch_size={value}"])


def test_plain_numbers_are_read(tiny):
    config = load(tiny, ["seed=0", "gt.layers=0x1F", "optim.base_lr=0.10", "gt.dropout=0", "optim.min_lr=1e-07"]).config
    assert (config.seed, config.gt.layers, config.optim.base_lr, config.optim.min_lr) == (0, 31, 0.1, 1e-7)


@pytest.mark.parametrize("tag", ["3", "007", "1e5", "2024-01-02"])
def test_names_may_look_like_numbers(tiny, tag):
    parsed = load(tiny, [f"name_tag={tag}", f"out_dir={tag}", f"wandb.project={tag}"])
    assert (parsed.name, parsed.config.out_dir, parsed.config.wandb.project) == (f"config-{tag}", tag, tag)
    assert load(tiny, ["name_tag="]).name == "config"
    assert load(tiny, ["metric_agg=null"]).config.metric_agg is None


@pytest.mark.parametrize("key", ["out_dir", "dataset.dir", "pretrained.dir", "dataset.split_dir", "name_tag"])
def test_a_null_byte_in_a_path_is_refused(tiny, key):
    with pytest.raises(ConfigError, match=rf"{key}: .*(null byte|match pattern)"):
        load(tiny, [f'{key}="a\\0b"'])


@pytest.mark.parametrize(("name", "message"), [("", "is empty"), ("a\0b.yaml", "null"), ("a" * 5000, "too long")])
def test_names_that_no_file_has(name, message):
    with pytest.raises(ConfigError, match=message):
        load(name)
