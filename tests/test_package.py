"""The package as a whole: what is public, and what importing it costs."""

import re
import subprocess
import sys
from pathlib import Path

import trl_pods

ROOT = Path(__file__).parents[1]


def test_exactly_the_interface_is_public():
    assert sorted(trl_pods.__all__) == [
        "PODSGRPOConfig",
        "PODSGRPOTrainer",
        "get_strategy",
        "list_strategies",
        "register_strategy",
    ]
    for name in trl_pods.__all__:
        assert getattr(trl_pods, name).__name__ == name
        assert name in dir(trl_pods)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, trl_pods; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_newest_version_in_the_changelog_is_the_package_s():
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == trl_pods.__version__
