"""The soak: trials of each kind pass, and a failure is counted, shown and repeated."""

import pytest

ENTRIES = ["transforms", "attentions", "wrong arguments", "precision"]


@pytest.mark.filterwarnings("ignore")
def test_public_entries_answer_or_refuse(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "SHARES", dict.fromkeys(ENTRIES, 50))
    assert script.main(["--minutes", "0", "--checks", *ENTRIES]) == 0
    text = capsys.readouterr().out
    assert "1 round(s), 200 trials" in text
    assert text.count("answered") == 4
    assert text.count("refused") == 4


def test_each_check_has_its_minutes_and_a_line_of_counts(script, monkeypatch, capsys):
    outcomes = {"transforms": lambda draw: "answered", "kills": lambda draw: "same numbers"}
    monkeypatch.setattr(script, "CHECKS", outcomes)
    monkeypatch.setattr(script, "SHARES", {"transforms": 1000})
    assert script.main(["--minutes", "0", "--each", "--checks", *outcomes]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1 round(s), 1,000 trials", "1 round(s), 1 trials"]  # one after the other
    assert lines[-2:] == ["| transforms | 1,000 | 1,000 answered |", "| kills | 1 | 1 same numbers |"]


def test_the_same_numbers_after_kills_races_and_too_little_space(script, monkeypatch):
    """The commands are not started: each trial compares what a run has written with the undisturbed run."""
    started = []
    monkeypatch.setattr(script, "start", lambda folder, out, most_bytes=None: started.append(most_bytes) or FakeRun())
    monkeypatch.setattr(script.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(script, "undisturbed", lambda: {"accuracy": 1})
    monkeypatch.setattr(script, "metrics", lambda folder, out: {"accuracy": 1})
    assert [script.trial(check, 0) for check in ("kills", "races", "lack of space")] == ["same numbers"] * 3
    assert any(started)  # one run may not write large files
    monkeypatch.setattr(script, "metrics", lambda folder, out: {"accuracy": 0})
    assert "instead of" in script.trial("kills", 0)
    monkeypatch.setattr(FakeRun, "text", "Traceback (most recent call last)")
    assert script.trial("lack of space", 0).startswith("failed: exit status 0: Traceback")


def test_new_folders_have_the_compiled_libraries_or_an_empty_cache(script, monkeypatch, tmp_path):
    library = tmp_path / "cache" / "native-0" / "pairs.so"
    library.parent.mkdir(parents=True)
    library.write_text("code")
    monkeypatch.setattr(script, "finished", lambda: tmp_path)
    with script.new_folder(compiled=True) as folder:
        assert [path.name for path in (folder / "cache").rglob("*.so")] == ["pairs.so"]
    with script.new_folder(compiled=False) as folder:
        assert list(folder.iterdir()) == []


class FakeRun:
    text, returncode = "done", 0

    def communicate(self):
        return self.text, None

    def send_signal(self, signal):
        pass


def test_a_failure_is_shown_and_can_be_replayed(script, monkeypatch, capsys):
    def broken(draw):
        if draw.random() < 0.5:
            raise KeyError("walk_index")
        return "answered"

    monkeypatch.setattr(script, "CHECKS", {"transforms": broken})
    monkeypatch.setattr(script, "SHARES", {"transforms": 10})
    assert script.main(["--minutes", "0", "--checks", "transforms"]) == 1
    text = capsys.readouterr().out
    number = int(text.split("transforms:")[1].split(" ")[0])
    assert f"transforms:{number} failed: KeyError: 'walk_index' (test_soak.py, line" in text
    with pytest.raises(KeyError):
        script.main(["--replay", f"transforms:{number}"])
