"""A small Hydra program without a project."""

from pathlib import Path

APP = """
import hydra

@hydra.main(version_base="1.3", config_path="../configs", config_name="train")
def main(cfg):
    return cfg.lr

if __name__ == "__main__":
    main()
"""


def write_app(folder: Path) -> Path:
    """Write a program in the layout of another template, whose configs/train.yaml is not that of a project; return `folder`."""
    for name, text in (("src/__init__.py", ""), ("src/app.py", APP)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "configs").mkdir()
    (folder / "configs" / "train.yaml").write_text("defaults: [_self_]\nlr: 0.1\ntext: none\n")
    return folder
