"""Moved to `trl_pods.cli.train`; kept for this release."""

import sys

from ..cli.train import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    main(sys.argv[1:], prog="trl-pods grpo")
