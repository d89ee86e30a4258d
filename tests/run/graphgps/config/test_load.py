"""Reading files and overrides: what a value means as YAML, and the place that a message names."""

import copy

import pytest

from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.config.load import load

DATA = "dataset: {format: PyG-MotifDataset, name: circle}\n"
TEXT = "out_dir: results\n" + DATA + "optim:\n  weight_decay: 1e-5\n  base_lr: 2E-3\n"


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "some.yaml"
        path.write_text(text)
        return path

    return write


def test_numbers_are_read(file, tiny):
    loaded = load(file(TEXT))
    assert (loaded.config.optim.weight_decay, loaded.config.optim.base_lr, loaded.name) == (1e-5, 2e-3, "some")
    config = load(tiny, ["seed=0", "gt.layers=0x1F", "optim.base_lr=0.10", "gt.dropout=0", "optim.min_lr=1e-07"]).config
    assert (config.seed, config.gt.layers, config.optim.base_lr, config.optim.min_lr) == (0, 31, 0.1, 1e-7)


@pytest.mark.parametrize("value", ["1:30", "190:20:30.15", "010", "-0777"])
def test_numbers_that_yaml_1_1_reads_in_another_base_are_refused(file, tiny, value):
    reason = "must not start with 0, which YAML 1.1 reads as octal" if ":" not in value else "input"
    with pytest.raises(ConfigError, match=rf"some\.yaml, line 3: train\.batch_size: {reason}.*\(got '{value}'\)"):
        load(file(f"{DATA}train:\n  batch_size: {value}\n"))
    assert load(tiny, [f"wandb.name={value}"]).config.wandb.name == value
    with pytest.raises(ConfigError, match=r"optim\.steps: "):
        load(tiny, [f"optim.steps=[{value}]"])


@pytest.mark.parametrize("tag", ["3", "007", "1e5", "2024-01-02"])
def test_names_may_look_like_numbers(file, tiny, tag):
    parsed = load(tiny, [f"name_tag={tag}", f"out_dir={tag}", f"wandb.project={tag}"])
    assert (parsed.name, parsed.config.out_dir, parsed.config.wandb.project) == (f"config-{tag}", tag, tag)
    assert load(file(TEXT + "name_tag: 3\n")).name == "some-3"
    assert load(tiny, ["name_tag="]).name == "config"
    assert load(tiny, ["metric_agg=null"]).config.metric_agg is None


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("gt.layrs", "gt.layers"),
        ("optim.dropout", "gt.dropout"),
        ("optm.base_lr", "optim"),
        ("gt.sprase.k", "gt.sparse.k"),
        ("gt.kq_dim", "gt.sparse.kq_dim"),
        ("optim.lr", "optim.base_lr"),
        ("train.epochs", "optim.max_epoch"),
        ("num_heads", "gt.n_heads"),
    ],
)
def test_suggestions(tiny, key, suggestion):
    with pytest.raises(ConfigError, match=f"command line: {key.split('.')[0]}.*Did you mean '{suggestion}'"):
        load(tiny, [f"{key}=1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "  wieght_decay: 1\n", r"line 6: optim\.wieght_decay: .* Did you mean 'optim\.weight_decay'"),
        (TEXT + "  2: {a: 3}\n1: 2\n", r"line 6: optim\.2: a key must be a name\n.*line 7: 1: a key must be a name"),
        ("dataset: [1, 2\nname: x\n", r"some\.yaml, line 2, column 5: unreadable YAML"),
        (TEXT + "  base_lr: 1\n", r"line 6: optim\.base_lr is given a second time \(first in line 5\)"),
        (TEXT + "optim.max_epoch: 1\n", r"line 6: optim\.max_epoch: unknown key"),
        ("- 1\n", r"some\.yaml, line 1: a config is a mapping of sections \(got list\)"),
        ("# dummy file\n", r"some\.yaml, line 1: a config is a mapping of sections, and this file contains none"),
        (TEXT.replace("2E-3", "fast"), r"line 5: optim\.base_lr: input should be a valid number.*\(got 'fast'\)"),
        (TEXT.replace("2E-3", ".inf"), r"line 5: optim\.base_lr: .*finite"),
        (TEXT + "gt:\n  sparse:\n    k: 0\n", r"line 8: gt\.sparse\.k: input should be greater .*\(got 0\)"),
        ("optim: {base_lr: 1}\n", r"dataset: this key is required"),
        ("seed: !!python/object/apply:os.system [exit]", "could not determine a constructor"),
        (DATA + "compile: true\n", "compile: moved to train.compile"),
        (f"{DATA}x: &x {{y: *x}}", "line 2: x: unknown key"),
        (f"{DATA}topomask: {{lengths: [.5, x]}}", r"line 2: topomask\.lengths: .*\(got 'x'\)"),
        (DATA.replace("}", f", split_mode: cv-kfold-{'9' * 5000}}}"), r"dataset\.split_mode: .* pattern"),
        (DATA + "".join(f"x{i}: 1\n" for i in range(50)), r"line 21: x19: unknown key\.\n.* has 30 more problems$"),
        # Each line expands to twice as many entries as the line before, a billion in all.
        (DATA + "seed: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(30)), "unknown key"),
    ],
)
def test_wrong_files(file, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(file(text))
    assert max(map(len, str(caught.value).splitlines())) < 600


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    messages = {"none": "cannot be read: No such file", "bytes": "cannot be read: 'utf-8' codec can't decode"}
    for name, message in messages.items():
        with pytest.raises(ConfigError, match=message):
            load(str(tmp_path / f"{name}.yaml"))


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


def test_an_override_changes_its_section_and_not_an_alias_of_it(file):
    kernel = "posenc_RWSE: {kernel: &steps {times: [1, 2]}}\nposenc_HKdiagSE: {kernel: *steps}\n"
    config = load(file(DATA + kernel), ["posenc_RWSE.kernel.times=[3]"]).config
    assert (config.posenc_RWSE.kernel.numbers, config.posenc_HKdiagSE.kernel.numbers) == ([3], [1, 2])


def test_an_empty_section_is_at_its_defaults(file):
    path = file(f"{DATA}topomask:\ngt:\n  sparse:\n")
    assert load(path).config.topomask.num_walks == 16
    assert load(path, ["gt.sparse.kq_dim=5"]).config.gt.sparse.kq_dim == 5


@pytest.mark.parametrize(
    ("overrides", "message"), [(["optim.base_lr"], "no value given"), (["seed.x=1"], "'seed' is not a section")]
)
def test_wrong_overrides(tiny, overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(tiny | {"seed": 1}, overrides)
    assert len(str(caught.value)) < 500
