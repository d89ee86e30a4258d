"""Run the notebooks of `examples/` and store what they print and draw in them.

    python scripts/notebooks.py         # all; or the paths of some

No kernel is needed: the cells are plain Python, but for lines that begin with %. They run one after the other in a
temporary folder.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run all code cells, with their output stored in the notebook; return the names that they have defined."""
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            source = "".join(line for line in cell["source"] if not line.startswith("%"))  # such as %pip install
            exec(compile(source, f"cell {number}", "exec"), names)
        cell["execution_count"], cell["outputs"] = number, []
        if text := printed.getvalue():
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
        cell["outputs"] += [_picture(plt.figure(i)) for i in plt.get_fignums()]
        plt.close("all")
    return names


def _picture(figure: Any) -> dict[str, Any]:
    """An open figure as the output of a cell."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    encoded = base64.b64encode(file.getvalue()).decode("ascii")
    return {"data": {"image/png": encoded}, "metadata": {}, "output_type": "display_data"}


def main() -> None:
    """Run the notebooks that the command line gives, or all."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("notebooks", nargs="*", type=Path, default=sorted(NOTEBOOKS.glob("*.ipynb")))
    matplotlib.use("Agg")
    for path in [path.resolve() for path in made.parse_args().notebooks]:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            run(notebook)
            os.chdir(ROOT)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
